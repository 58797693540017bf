"""Programs for digests.py, which use the public names of d2lbert alone.

    python digests_programs.py serve

Each line of standard input is a JSON list: a path, then `d2lbert` and the
arguments of a command, or a program, its arguments and a file for named
arrays, as `numpy.savez` writes it. Each runs in a fork of its own, because
importing takes longer than a case. Its output goes to PATH.out and PATH.err,
and its status to standard output.
"""
import json
import os
import random
import runpy
import sys
import traceback
from pathlib import Path

import numpy as onp

import d2lbert as d2l

# isort: split
# MXNet may not be importable before d2lbert is
import matplotlib.pyplot  # noqa: F401
from mxnet import autograd, gluon, init, np, npx
from mxnet import random as mx_random

npx.set_np()
SAMPLE = (Path(__file__).resolve().parents[2] / 'data' / 'sample'
          / 'wiki.train.tokens')
SIZES = dict(num_hiddens=16, ffn_num_hiddens=32, num_heads=2, num_layers=2)
TEXTS = ['a crane is flying', 'the driver of the crane left', 'the bank',
         'he sat on the bank of the river and looked at the water for a '
         'long time , and the river was high that year', 'UNSEEN words']
PAIRS = [('a crane is flying', 'it is a bird'), ('the bank', 'the river')]
POOLINGS = ('own', 'cls', 'mean', 'max', 'mean_sqrt_len_tokens',
            'weightedmean', 'lasttoken')


class OwnModel(d2l.BERTModel):
    """A model with a forward of its own, so each row keeps its padding."""

    def forward(self, *args):
        """Return the outputs of BERTModel."""
        return super().forward(*args)


def seed_all(seed=3):
    """Seed the three generators of random numbers."""
    random.seed(seed)
    onp.random.seed(seed)
    mx_random.seed(seed)


def on_host(X):
    """The NumPy array of an array of MXNet or NumPy, or of a list."""
    return X.asnumpy() if hasattr(X, 'asnumpy') else onp.array(
        [on_host(x) for x in X] if isinstance(X, list) else X)


def parameters(net):
    """{name: array} of a net, as on its first device."""
    return {name: param.data(param.list_ctx()[0]).asnumpy()
            for name, param in net._collect_params_with_prefix().items()}


def page(edition, num_devices):
    """Train a net with `train_bert` as a page of the book does."""
    seed_all()
    devices = [npx.cpu(i) for i in range(int(num_devices))]
    train_iter, vocab = d2l.load_data(SAMPLE, 32, 32)
    cls = OwnModel if edition == 'own' else d2l.BERTModel
    net = cls(len(vocab), **SIZES, dropout=0.2)
    net.initialize(init.Xavier(), ctx=devices)
    order = (devices, 1, 20) if edition == 'first' else (devices, 20)
    d2l.train_bert(train_iter, net, gluon.loss.SoftmaxCELoss(), len(vocab),
                   *order)
    found = parameters(net)
    for i, (a, b) in enumerate([('a crane is flying', None), *PAIRS]):
        found[f'encoding {i}'] = d2l.get_bert_encoding(
            net, a.split(), b and b.split()).asnumpy()
    return found


def vectors(run):
    """Encode the texts with each pooling and several blocks."""
    net, tokenizer = d2l.load_model(run, trainable=False)
    found = {}
    for pooling in POOLINGS:
        found[pooling] = d2l.encode(net, tokenizer, TEXTS, pooling)
        found[f'{pooling}, pairs'] = d2l.encode(net, tokenizer, PAIRS,
                                                pooling, normalize=True)
    for layer in 0, 1:
        found[f'layer {layer}'] = d2l.encode(net, tokenizer, TEXTS,
                                             layer=layer, batch_size=2)
    found['cut'] = d2l.encode(net, tokenizer, TEXTS, max_len=8)
    found['windows'] = d2l.encode(net, tokenizer, TEXTS, max_len=8,
                                  overlap=2)
    for i, X in enumerate(d2l.encode(net, tokenizer, TEXTS, None)):
        found[f'tokens {i}'] = X
    return found


def classifier(run, num_devices):
    """Train the book's classifier of sentence pairs for two epochs."""
    seed_all()
    devices = [npx.cpu(i) for i in range(int(num_devices))]
    bert, vocab = d2l.load_run(run, ctx=devices)
    data = d2l.SNLIBERTDataset(
        ([TEXTS[i % 4] for i in range(24)],
         [TEXTS[i * 3 % 4] for i in range(24)],
         [i % 3 for i in range(24)]), 24, vocab)
    net = d2l.BERTClassifier(bert)
    net.output.initialize(ctx=devices)
    batches = gluon.data.DataLoader(data, 8)
    trainer = gluon.Trainer(net.collect_params(), 'adam',
                            {'learning_rate': 1e-3})
    d2l.train_ch13(net, batches, batches, gluon.loss.SoftmaxCELoss(),
                   trainer, 2, devices, d2l.split_batch_multi_inputs)
    return parameters(net)


def blocks():
    """Run each block of the pages forwards and backwards."""
    seed_all()
    X = np.random.normal(size=(2, 5, 16))
    lens = np.array([3, 5])
    tokens = np.random.randint(0, 50, (2, 5)).astype('int32')
    segments = np.array([[0, 0, 1, 1, 1]] * 2, dtype='int32')
    places = np.array([[1, 2], [3, 4]], dtype='int32')
    bert = dict(vocab_size=50, **SIZES, dropout=0.1)
    cases = {
        'MultiHeadAttention': (d2l.MultiHeadAttention(16, 2, 0.1),
                               (X, X, X, lens)),
        'DotProductAttention': (d2l.DotProductAttention(0.1),
                                (X, X, X, lens)),
        'AddNorm': (d2l.AddNorm(0.1), (X, X)),
        'PositionWiseFFN': (d2l.PositionWiseFFN(32, 16), (X,)),
        'PositionalEncoding': (d2l.PositionalEncoding(16, 0.1), (X,)),
        'EncoderBlock': (d2l.EncoderBlock(16, 32, 2, 0.1, True), (X, lens)),
        'TransformerEncoderBlock': (
            d2l.TransformerEncoderBlock(16, 32, 2, 0.1), (X, lens)),
        'BERTEncoder': (d2l.BERTEncoder(**bert), (tokens, segments, lens)),
        'MaskLM': (d2l.MaskLM(50, 16), (X, places)),
        'NextSentencePred': (d2l.NextSentencePred(), (X[:, 0],)),
        'BERTModel': (d2l.BERTModel(**bert), (tokens, segments, lens,
                                              places))}
    found = {'masked_softmax': d2l.masked_softmax(X, lens).asnumpy()}
    X.attach_grad()
    for name, (net, inputs) in cases.items():
        net.initialize(init.Xavier())
        for training in False, True:
            with autograd.record(train_mode=training):
                outs = net(*inputs)
                outs = outs if isinstance(outs, tuple) else (outs,)
                total = sum((out ** 2).sum() for out in outs)
            total.backward()
            for i, out in enumerate(outs):
                found[f'{name}, {training}, {i}'] = out.asnumpy()
            found[f'{name}, {training}, gradient'] = X.grad.asnumpy()
        for key, param in net._collect_params_with_prefix().items():
            if param.grad_req != 'null':
                found[f'{name}, {key}'] = param.grad().asnumpy()
    return found


def data():
    """Draw the examples of the page, by columns and one by one."""
    seed_all()
    batches, vocab = d2l.load_data(SAMPLE, 64, 32)
    found = {'vocab': onp.array(vocab.idx_to_token)}
    for i, batch in zip(range(4), batches):
        for j, field in enumerate(batch):
            found[f'batch {i}, field {j}'] = on_host(field)
    paragraphs = [[sentence.split() for sentence in TEXTS[:4]]]
    pairs = d2l._get_nsp_data_from_paragraph(paragraphs[0], paragraphs,
                                             vocab, 32)
    examples = [(d2l._get_mlm_data_from_tokens(tokens, vocab)
                 + (segments, is_next))
                for tokens, segments, is_next in pairs]
    for i, column in enumerate(d2l._pad_bert_inputs(examples, 32, vocab)):
        found[f'column {i}'] = on_host(column)
    return found


PROGRAMS = {program.__name__: program for program in (
    page, vectors, classifier, blocks, data)}

def run(path, name, *arguments):
    """Run a command or a program in this process, which ends with it."""
    status = 1
    try:
        for number, ending in (1, '.out'), (2, '.err'):
            os.dup2(os.open(path + ending, os.O_WRONLY | os.O_CREAT, 0o600),
                    number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.mkdir(path)      # where folders of runs come that nothing names
        os.chdir(path)
        if name == 'd2lbert':       # as `python -m d2lbert` runs it
            sys.argv[1:] = arguments
            runpy.run_module('d2lbert', run_name='__main__', alter_sys=True)
        else:
            *arguments, out = arguments
            onp.savez(out, **PROGRAMS[name](*arguments))
        status = 0
    except SystemExit as end:
        status = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def serve():
    """Run each line of standard input; write its status."""
    for line in sys.stdin:
        child = os.fork()
        if not child:
            run(*json.loads(line))
        code = os.waitpid(child, 0)[1]
        print(-os.WTERMSIG(code) if os.WIFSIGNALED(code)
              else os.WEXITSTATUS(code), flush=True)


if __name__ == '__main__':
    serve()
