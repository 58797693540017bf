"""Outputs of BERT's relatives in transformers, in a separate environment.

relatives.py make DIR SEED makes folders with random weights for SHAPES. For
each shape DIR/FAMILY-I predicts words and DIR/FAMILY-I-classify scores texts.
ENCODERS lists further folders. Each folder has a tokenizer, and peers.npz
with the outputs for random texts. relatives.py small DIR SEED makes small
folders, which are in fixtures/. relatives.py score FOLDER... writes outputs
and messages while loading into other folders. This file is run as a program,
and imported for its constants.
"""
import json
import sys
from pathlib import Path

import peers

SIZES = dict(vocab_size=90, hidden_size=24, num_hidden_layers=2,
             num_attention_heads=3, intermediate_size=40,
             max_position_embeddings=40)
SHORT = dict(vocab_size=90, dim=24, n_layers=2, n_heads=3, hidden_dim=40,
             max_position_embeddings=40)
XLM = dict(vocab_size=90, emb_dim=24, n_layers=2, n_heads=3,
           max_position_embeddings=40)
#: Configurations of each family, each with a special feature.
SHAPES = {
    'roberta': [
        dict(SIZES, type_vocab_size=1, layer_norm_eps=1e-5),
        dict(SIZES, pad_token_id=3, hidden_act='gelu_new',
             tie_word_embeddings=False),
        dict(SIZES, hidden_size=14, num_attention_heads=7, vocab_size=131,
             num_hidden_layers=3, max_position_embeddings=43)],
    'camembert': [
        dict(SIZES, type_vocab_size=1, layer_norm_eps=1e-5),
        dict(SIZES, intermediate_size=18, hidden_act='relu')],
    'distilbert': [
        dict(SHORT), dict(SHORT, sinusoidal_pos_embds=True, n_layers=3),
        dict(SHORT, dim=14, n_heads=7, activation='relu',
             tie_word_embeddings=False)],
    'albert': [
        dict(SIZES, embedding_size=8),
        dict(SIZES, embedding_size=24, num_hidden_layers=12,
             hidden_act='gelu'),
        dict(SIZES, embedding_size=30, num_hidden_layers=4,
             num_hidden_groups=2, inner_group_num=2, type_vocab_size=3)],
    'flaubert': [
        dict(XLM), dict(XLM, pre_norm=True, n_layers=3),
        dict(XLM, pre_norm=True, gelu_activation=False, pad_token_id=0,
             layer_norm_eps=1e-3, emb_dim=14, n_heads=7)]}
#: Names of all configurations.
ALL = [f'{family}-{i}' for family, shapes in SHAPES.items()
       for i in range(len(shapes))]
#: Further folders, with a pooler and without the head for words.
ENCODERS = ['roberta-0-encoder', 'camembert-1-encoder']
#: {size: its replacement in small models}.
SMALLER = {24: 12, 40: 14}
#: Lengths of the input texts, divided by 4 for small models, and labels.
LENS, LABELS = [33, 1, 12, 30], [2, 0, 1, 2]
#: Learning rate.
RATE = 0.01

#: Text to train a tokenizer on.
TEXT = ['The crane is flying, unaffably!', 'It was late. He just left?',
        'cranes fly and fly; the crane left late', 'aaa bb c, it is the .'] * 9


def tokenizer_of(pad_id):
    """A small byte-level BPE whose padding token has this id."""
    import tokenizers as t
    special = ['<s>', '</s>', '<unk>', '<mask>']
    special.insert(pad_id, '<pad>')
    found = t.Tokenizer(t.models.BPE(unk_token='<unk>'))
    found.pre_tokenizer = t.pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = t.decoders.ByteLevel()
    found.train_from_iterator(TEXT, t.trainers.BpeTrainer(
        vocab_size=90, show_progress=False, special_tokens=special))
    ids = {token: found.token_to_id(token) for token in special}
    found.post_processor = t.processors.RobertaProcessing(
        ('</s>', ids['</s>']), ('<s>', ids['<s>']))
    return found


def write_tokenizer(folder, pad_id):
    """Write it as a folder has it."""
    tokenizer_of(pad_id).save(str(folder / 'tokenizer.json'))
    (folder / 'tokenizer_config.json').write_text(json.dumps(dict(
        tokenizer_class='PreTrainedTokenizerFast', pad_token='<pad>',
        unk_token='<unk>', cls_token='<s>', sep_token='</s>',
        mask_token='<mask>')))


def make(place, seed, small=False):
    """Save random models of each family and shape, or small ones."""
    import torch
    torch.manual_seed(int(seed))
    for kinds in ('', 'classify'), ('encoder',):
        for family, shapes in SHAPES.items():
            for i, shape in enumerate(shapes):
                if small:
                    shape = {name: SMALLER.get(value, value)
                             for name, value in shape.items()}
                for kind in kinds:
                    name = f'{family}-{i}' + (kind and f'-{kind}')
                    if kind != 'encoder' or name in ENCODERS:
                        save(Path(place, name), family, shape, kind)


def save(folder, family, shape, kind):
    """Save a random model of a kind, and what it says."""
    import torch
    import transformers
    config = transformers.AutoConfig.for_model(
        family, num_labels=3 if kind == 'classify' else 2, **shape)
    net = class_of(config, kind)(config)
    with torch.no_grad():
        for name, param in net.named_parameters():
            # Biases too, which begin as zeros
            is_norm = 'norm' in name.lower() and name.endswith('weight')
            param.normal_(float(is_norm), 0.2)
    net.save_pretrained(folder)
    write_tokenizer(folder, config.pad_token_id)
    score(folder)


def class_of(config, kind=''):
    """The class of a family that predicts words, or is of another kind."""
    import transformers as t
    if kind == 'encoder':
        return t.AutoModel._model_mapping[type(config)]
    if kind:
        return t.AutoModelForSequenceClassification._model_mapping[
            type(config)]
    return t.AutoModelForPreTraining._model_mapping[type(config)]


def loaded(folder):
    """The net of a folder, and messages while it was loaded."""
    import transformers
    with peers.listening() as said:
        config = transformers.AutoConfig.from_pretrained(folder)
        net = peers.read(folder, getattr(
            transformers, config.architectures[0]), said)
    return net, said


def score(folder):
    """Write the outputs of the model in `folder` for random texts."""
    import numpy as np
    import torch
    net, said = loaded(folder)
    rng = np.random.RandomState(0)
    config = net.config
    lens = np.array(LENS)
    if config.max_position_embeddings < max(LENS):
        lens = -(-lens // 4)
    shape = len(lens), max(lens)
    # In RoBERTa the padding token would shift the positions
    ids = rng.randint(0, config.vocab_size - 1, shape)
    ids += ids >= config.pad_token_id
    mask = np.arange(shape[1]) < lens[:, None]
    ids[~mask] = config.pad_token_id
    segments = rng.randint(0, getattr(config, 'type_vocab_size', 1), shape)
    inputs = dict(input_ids=torch.tensor(ids),
                  attention_mask=torch.tensor(mask.astype('int64')))
    if hasattr(config, 'type_vocab_size'):
        inputs['token_type_ids'] = torch.tensor(segments)
    if getattr(config, 'pre_norm', False):
        inputs['cache'] = NoCache()
    found = dict(ids=ids, segments=segments, lens=lens)
    if config.architectures[0].endswith('ForSequenceClassification'):
        found.update(learnt(net, inputs))
    else:
        found.update(heads(net, inputs))
    np.savez_compressed(Path(folder, 'peers.npz'), **found)
    Path(folder, 'peers.json').write_text(json.dumps(dict(said=said)))


class NoCache:
    """Replaces None, which version 5.23 rejects for pre-LN layers."""

    def __getitem__(self, layer):
        return None

    def get_seq_length(self):
        """The number of cached tokens."""
        return 0


def heads(net, inputs):
    """Last hidden states, pooled vectors and scores, if there are any."""
    import torch
    with torch.no_grad():
        body = net.base_model(**inputs)
        found = dict(hidden=body.last_hidden_state)
        if getattr(body, 'pooler_output', None) is not None:
            found['pooled'] = body.pooler_output
        if net is net.base_model:
            return found
        scores = net(**inputs)
        names = dict(prediction_logits='mlm', logits='mlm', sop_logits='nsp',
                     start_logits='first', end_logits='last')
        found.update((names[name], value) for name, value in scores.items()
                     if name in names)
    return found


def learnt(net, inputs):
    """Scores of texts, losses and gradient norms around one step."""
    import torch
    labels, found = torch.tensor(LABELS), {}
    for k in range(2):
        said = net(**inputs, labels=labels)
        net.zero_grad()
        said.loss.backward()
        params = [param for param in net.parameters()
                  if param.grad is not None]
        found[f'scores_{k}'] = said.logits.detach()
        found[f'loss_{k}'] = said.loss.detach()
        found[f'norm_{k}'] = sum(
            param.grad.double().pow(2).sum() for param in params).sqrt()
        with torch.no_grad():
            for param in params:
                param -= RATE * param.grad
    return found


if __name__ == '__main__':
    if sys.argv[1] in ('make', 'small'):
        make(*sys.argv[2:], sys.argv[1] == 'small')
    else:
        for folder in sys.argv[2:]:
            score(folder)
