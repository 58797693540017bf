"""Let each allocation of compiled code fail, one at a time.

    LD_PRELOAD=SCARCE.so python scarce.py SCARCE.so

Prints a line for each case: its precision, its name, and as JSON the number
of errors by message. An exception that leaves a parallel region would end the
process.
"""
import collections
import ctypes
import json
import random
import sys
import threading
from types import SimpleNamespace

import numpy as onp
import operators

from d2lbert import kernels
from d2lbert.corpus.masking import SPANBERT, mask_spans
from d2lbert.kernels import cut, draw, ops
from d2lbert.machine.backend import autograd, last_line, mx, np, npx
from d2lbert.text import RESERVED, Vocab
from d2lbert.texts.examples import draw_examples
from d2lbert.texts.numbered_text import NumberedText

MOST = 50       # allocations in a case


def gradients(function, arrays):
    with autograd.record():
        Y = function(ops)(*arrays)
    Y.backward()
    return [Y.asnumpy(), *(X.grad.asnumpy() for X in arrays)]


def step(function, arrays):
    """One step of Adam on 100 arrays, clipped."""
    ops.adam(arrays, *([np.ones_like(X) for X in arrays] for _ in range(3)),
             [0.1] * len(arrays), [0.0] * len(arrays), 0.9, 0.99, 1e-8,
             clip=1.0)
    return [X.asnumpy() for X in arrays]


def texts(function, arrays):
    """Words of a text, numbered, cut into pieces and hidden."""
    words = [f'{chr(97 + k % 26) * 9}{k}' for k in range(3000)]
    *_, names, _ = cut.text((' '.join(words) + ' .  . ').encode(),
                            cut.PARAGRAPHS)
    cut.Names().add(names)
    cut.Pieces({word: k for k, word in enumerate(words)}, {}, 0, 100,
               True).cut(names)
    vocab = Vocab([['a', 'b']] * 5, min_freq=1, reserved_tokens=RESERVED)
    text = NumberedText(onp.arange(2000, dtype='int32') % 2,
                  onp.array(vocab[['a', 'b']], 'int32'),
                  onp.arange(0, 2001, 200), onp.array([0, 5, 10]), vocab)
    draw_examples(text, onp.arange(2, dtype='int32'), 600, random.Random(0))
    mask_spans(SimpleNamespace(
        types=text.types, numbers=text.numbers, vocab=vocab,
        gather=lambda parts: (text.types, parts)), onp.array([0, 1]),
        onp.array([[0, 900]]), SPANBERT, 1000, random.Random(0))
    return []


def attempt(run, function, arrays, fail_at, number):
    """Run it in a thread of its own, which no memory is reserved for yet.

    Returns what it raised, or None, and how many allocations were left.
    """
    found = []

    def work():
        fail_at(number)
        try:
            run(function, arrays)
        except (MemoryError, mx.base.MXNetError) as error:
            found.append(error)
        found.append(fail_at(0))
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return (found[0] if found[:-1] else None), found[-1]


def main(library):
    npx.set_np()
    assert kernels.load(), kernels.state().reason
    assert draw.library() is not None
    fail_at = ctypes.CDLL(library).fail_at
    for precision in ['fp32'] + ['bf16'] * kernels.bf16_supported():
        cases = {name: (gradients, *case) for name, case in
                 operators.cases(precision).items()}
        if precision == 'fp32':
            cases['adam'] = step, None, [onp.ones((3, 4), 'float32')] * 100
            cases['texts'] = texts, None, []
        for name, (run, function, values) in cases.items():
            arrays = [np.array(value) for value in values]
            for X in arrays:
                X.attach_grad()
            raised = collections.Counter()
            for number in range(1, MOST):
                error, left = attempt(run, function, arrays, fail_at,
                                      number)
                if error is None and left > 0:  # fewer are asked for
                    break
                raised['nothing' if error is None else last_line(error)] += 1
            print(precision, name, json.dumps(raised), sep='\t', flush=True)
            assert all(onp.isfinite(X).all() for X in run(function, arrays))


if __name__ == '__main__':
    main(*sys.argv[1:])
