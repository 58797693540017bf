"""Small models of our own making to fine-tune, and examples for them."""
import collections

import numpy as onp
import prose

from d2lbert.bert import BERTModel
from d2lbert.finetuning.batches import Batch
from d2lbert.machine.backend import init, mx, npx
from d2lbert.pretrained.families.nets import PUBLISHED
from d2lbert.pretrained.folders import save_pretrained
from d2lbert.pretrained.heads import FineTuned
from d2lbert.pretrained.tokenizers.tokenizer import WordPiece

SIZES = dict(num_hiddens=12, ffn_num_hiddens=20, num_heads=2, num_layers=2,
             max_len=64)
LABELS = {'classify': 3, 'regress': 1, 'tag': 3, 'span': 2}


def bert(vocab_size=40, seed=1, **keywords):
    """A published net with weights large enough to tell from none."""
    mx.random.seed(seed)
    net = BERTModel(vocab_size, **{**PUBLISHED, **SIZES, **keywords})
    net.initialize(init.Normal(0.3))
    return net


def tuned(kind, dropout=0.0, seed=1, devices=None, **keywords):
    """A `FineTuned` net on small random weights."""
    net = FineTuned(bert(seed=seed, dropout=dropout, **keywords), kind,
                    LABELS[kind])
    net.begin(devices or [npx.cpu()])
    net.output.weight.set_data(mx.np.random.normal(
        0, 0.5, net.output.weight.shape))
    return net


def batch(kind, lens=(7, 2, 5, 9), vocab_size=40, seed=0):
    """A random `Batch` with labels for a kind."""
    rng, B, T = onp.random.RandomState(seed), len(lens), max(lens)
    lens = onp.array(lens, 'int32')
    real = onp.arange(T) < lens[:, None]
    labels = {
        'classify': rng.randint(0, 3, B), 'regress': rng.normal(2, 1, B),
        'tag': onp.where(real & (rng.rand(B, T) < .6),
                         rng.randint(0, 3, (B, T)), -1),
        'span': onp.stack([rng.randint(0, lens), lens - 1], axis=1)}[kind]
    return Batch(onp.where(real, rng.randint(0, vocab_size, (B, T)), 0)
                 .astype('int32'),
                 (real & (rng.rand(B, T) < .5)).astype('int32'), lens, labels)


def tokenizer():
    """Word pieces for the texts of `prose`."""
    counts = collections.Counter(
        word for seed in range(4) for text, _ in prose.moods(60, seed)
        for word in text.split())
    counts.update('Where is what one ? Who sings'.split())
    return WordPiece.of_counts(counts, 150)


def write_folder(path):
    """Write a checkpoint's folder of a small model; returns its path."""
    pieces = tokenizer()
    net = bert(len(pieces), dropout=0.1, attention_dropout=0.1,
               tie_embeddings=True)
    for name, param in net.collect_params().items():
        if 'norm' not in name and len(param.shape) > 1:
            param.set_data(mx.np.random.normal(0, 0.1, param.shape))
    save_pretrained(net, pieces, path)
    return path
