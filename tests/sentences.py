"""A small sentence encoder of the tests' own, and texts for it."""
import json

import numpy as onp

import d2lbert as d2l
from d2lbert.machine.backend import np
from d2lbert.pretrained.tokenizers.tokenizer import WholeWords, WordPiece

WORDS = ['a', 'bird', 'crane', 'flies', 'grey', 'is', 'it', 'of', 'old',
         'over', 'river', 'sleeps', 'the', 'tree', 'under', 'wing']

#: As sentence-transformers 2 and 6 write them.
OLD = {'modules.json': [
           {'idx': 0, 'name': '0', 'path': '',
            'type': 'sentence_transformers.models.Transformer'},
           {'idx': 1, 'name': '1', 'path': '1_Pooling',
            'type': 'sentence_transformers.models.Pooling'},
           {'idx': 2, 'name': '2', 'path': '2_Normalize',
            'type': 'sentence_transformers.models.Normalize'}],
       'sentence_bert_config.json': {'max_seq_length': 12,
                                     'do_lower_case': False},
       '1_Pooling/config.json': {
           'word_embedding_dimension': 20, 'pooling_mode_cls_token': False,
           'pooling_mode_mean_tokens': True, 'pooling_mode_max_tokens': False,
           'pooling_mode_mean_sqrt_len_tokens': False}}
NEW = {'modules.json': [
           {'idx': 0, 'name': '0', 'path': '', 'type':
            'sentence_transformers.base.modules.transformer.Transformer'},
           {'idx': 1, 'name': '1', 'path': '1_Pooling', 'type':
            'sentence_transformers.sentence_transformer.modules.pooling.'
            'Pooling'}],
       'sentence_bert_config.json': {'transformer_task':
                                     'feature-extraction'},
       '1_Pooling/config.json': {'embedding_dimension': 20,
                                 'pooling_mode': 'cls',
                                 'include_prompt': True}}


def build_net(vocab_size, max_len=30, **keywords):
    """A net of random weights, whose sizes fill no vector of a machine."""
    net = d2l.BERTModel(**{**dict(
        vocab_size=vocab_size, num_hiddens=20, ffn_num_hiddens=36,
        num_heads=2, num_layers=2, dropout=0.3, max_len=max_len,
        activation='gelu', embedding_norm=True, layer_norm_eps=1e-12,
        tie_embeddings=True), **keywords})
    net.initialize()
    rng = onp.random.RandomState(0)
    for _, param in sorted(net._collect_params_with_prefix().items()):
        param.set_data(np.array(rng.normal(0, 0.3, param.shape),
                                dtype=param.dtype))
    return net


def whole_words():
    return WholeWords(d2l.Vocab([WORDS], reserved_tokens=[
        '<pad>', '<mask>', '<cls>', '<sep>']))


def word_pieces():
    return WordPiece.of_counts(dict.fromkeys(WORDS, 9), 90)


def texts(count, longest=24, seed=0):
    """So many texts of 1 to `longest` words, no two the same."""
    rng = onp.random.RandomState(seed)
    found = {}
    while len(found) < count:
        found[' '.join(rng.choice(WORDS, rng.randint(1, longest + 1)))] = 0
    return list(found)


def write_files(folder, files):
    """Write {name: object} as JSON below a folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content), encoding='utf-8')


def write_folder(folder, files=OLD):
    """Write the encoder as a folder of sentence-transformers."""
    tokenizer = word_pieces()
    d2l.save_pretrained(build_net(len(tokenizer), max_len=40), tokenizer,
                        folder)
    write_files(folder, files)
    return folder
