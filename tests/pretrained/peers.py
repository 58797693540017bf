"""Outputs of BERT in transformers, in a separate environment (D2LBERT_PEERS).

peers.py make DIR makes a folder with random weights for each of SHAPES.
peers.py score FOLDER... loads folders. It writes the outputs for some texts
into peers.npz of each, and messages while loading into peers.json. This file
is run as a program, and imported for its constants.
"""
import contextlib
import json
import logging
import sys
import warnings
from pathlib import Path

#: Ten configurations, each with a special feature.
SHAPES = [
    dict(), dict(hidden_act='gelu_new', layer_norm_eps=1e-5),
    dict(hidden_act='relu', vocab_size=131),
    dict(hidden_size=48, num_attention_heads=12, intermediate_size=20),
    dict(num_hidden_layers=5), dict(type_vocab_size=1),
    dict(type_vocab_size=5, max_position_embeddings=70),
    dict(tie_word_embeddings=False), dict(layer_norm_eps=0.01, dtype='half'),
    dict(num_attention_heads=1, hidden_size=7, intermediate_size=64,
         hidden_act='gelu_pytorch_tanh', dtype='bfloat16')]
SIZES = dict(vocab_size=100, hidden_size=24, num_hidden_layers=2,
             num_attention_heads=3, intermediate_size=40,
             max_position_embeddings=40)
#: Lengths of the input texts.
LENS = [37, 1, 12, 30]


def make(folder):
    """Save a random model for each shape, the first one in shards."""
    import torch
    from transformers import BertConfig, BertForPreTraining
    torch.manual_seed(1)
    for i, shape in enumerate(SHAPES):
        shape = {**SIZES, **shape}
        kind = shape.pop('dtype', 'float')
        net = BertForPreTraining(BertConfig(**shape))
        with torch.no_grad():
            for name, param in net.named_parameters():
                # Biases too, which are zero at first
                param.normal_(float('Norm.weight' in name), 0.3)
        path = Path(folder, str(i))
        net.to(getattr(torch, kind)).save_pretrained(
            path, max_shard_size='20KB' if not i else '5GB')
        (path / 'vocab.txt').write_text('\n'.join(
            ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'a', '##a']))


@contextlib.contextmanager
def listening():
    """Collect messages and warnings of transformers in a list."""
    said = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())
    logger = logging.getLogger('transformers')
    logger.addHandler(handler)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        yield said
    logger.removeHandler(handler)
    said += [str(warning.message) for warning in caught]


def read(folder, kind, said):
    """Load a folder by its class; mismatches are added to `said`."""
    import torch
    net, info = kind.from_pretrained(folder, output_loading_info=True,
                                     dtype=torch.float32)
    said += [f'{kind}: {sorted(keys)}' for kind, keys in info.items() if keys]
    return net.eval()


def score(folder):
    """Write the outputs of the model in `folder` for random texts."""
    import numpy as np
    import torch
    from transformers import AutoTokenizer, BertForPreTraining
    with listening() as said:
        net = read(folder, BertForPreTraining, said)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        texts = ['The crane is FLYING, unaffably!', '[MASK] caf\u00e9 \u4e2d']
        tokens = [tokenizer(text, 'a ab').input_ids for text in texts]
    rng = np.random.RandomState(0)
    shape, config = (len(LENS), max(LENS)), net.config
    ids = rng.randint(0, config.vocab_size, shape)
    segments = rng.randint(0, config.type_vocab_size, shape)
    mask = (np.arange(shape[1]) < np.array(LENS)[:, None]).astype('int64')
    with torch.no_grad():
        body = net.bert(
            torch.tensor(ids), torch.tensor(mask), torch.tensor(segments))
        mlm, nsp = net.cls(body.last_hidden_state, body.pooler_output)
    np.savez(Path(folder, 'peers.npz'), ids=ids, segments=segments,
             hidden=body.last_hidden_state, pooled=body.pooler_output,
             mlm=mlm, nsp=nsp)
    Path(folder, 'peers.json').write_text(json.dumps(
        dict(said=said, texts=texts, tokens=tokens)))


if __name__ == '__main__':
    for folder in sys.argv[2:]:
        dict(make=make, score=score)[sys.argv[1]](folder)
