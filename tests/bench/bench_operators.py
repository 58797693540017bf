"""How fast each operator in C++ is, beside its definition and its parts.

    python tests/bench/bench_operators.py [--rounds 30] [--sequences 128]

Each operator computes its output and gradients at the size of the chapter's
model (sequences of 46 tokens, 128 hiddens, 2 heads, 256 in the feed-forward
network), first in C++ and then by its definition, MXNet's own operators.
Adam updates the weights of a model of this size. The halves of an encoder
block are compared with the operators for their parts, in training and in
inference. Both sides take turns. A ratio is the median over the rounds of the
second time over the first: other programs on the machine change both.

Nothing here passes or fails: it prints figures of this machine.
"""
import argparse
import statistics
import time

import benchmark
import numpy as onp

LENGTH, HIDDENS, FFN, HEADS, WORDS = 46, 128, 256, 2, 20256
WARM_UP = 3     # rounds that do not count


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.partition('\n')[0],
        epilog='The docstring of the file has the details.')
    parser.add_argument('--rounds', type=int, default=30)
    parser.add_argument('--sequences', type=int, default=128)
    args = benchmark.parse(parser)
    from d2lbert import kernels
    from d2lbert.machine.backend import npx
    npx.set_np()
    if not kernels.load():
        raise SystemExit(f'no operators in C++: {kernels.state().reason}')
    print(f'{kernels.products.cpu()}: {kernels.compiled_for()[0]}; '
          f'{args.rounds} rounds, {args.sequences * LENGTH} rows')
    bench = Bench(args.sequences, args.rounds)
    benchmark.table('Operators, milliseconds',
                    ('', 'C++', 'definition', 'ratio'), [*bench.operators()])
    benchmark.table('Halves of a block, milliseconds',
                    ('', 'half', 'parts', 'ratio'), [*bench.halves()])


class Bench:
    """The operators, and arrays for them."""

    def __init__(self, sequences, rounds):
        from d2lbert import kernels
        from d2lbert.kernels import fused, ops
        from d2lbert.machine.backend import autograd, mx, np
        self.kernels, self.fused, self.ops = kernels, fused, ops
        self.autograd, self.mx, self.np = autograd, mx, np
        self.rounds, self.rng = rounds, onp.random.RandomState(0)
        self.rows = sequences * LENGTH
        self.offsets = self.ints(onp.arange(sequences + 1) * LENGTH)
        self.lens = self.ints([LENGTH] * sequences)

    def ints(self, values):
        return self.np.array(onp.asarray(values, 'int32'), dtype='int32')

    def array(self, *shape):
        X = self.np.array(self.rng.normal(0, 0.1, shape).astype('float32'))
        X.attach_grad()
        return X

    def seconds(self, function, train=True):
        """Seconds of an output, and of its gradients if train."""
        begin = time.perf_counter()
        if train:
            with self.autograd.record():
                Y = function()
            if Y is not None:
                Y.backward()
        else:
            function()
        self.mx.nd.waitall()
        return time.perf_counter() - begin

    def row(self, label, first, second, train=True):
        """Medians of two functions that take turns, as a row of a table."""
        times = [(self.seconds(first, train), self.seconds(second, train))
                 for _ in range(WARM_UP + self.rounds)][WARM_UP:]
        medians = [1e3 * statistics.median(column) for column in zip(*times)]
        ratio = statistics.median(other / one for one, other in times)
        return [label, *(f'{median:.2f}' for median in medians),
                f'{ratio:.2f}']

    def without(self, name, function):
        """The function while `name`, of kernels or fused, returns False."""
        owner = self.kernels if name == 'enabled' else self.fused

        def run():
            before = getattr(owner, name)
            setattr(owner, name, lambda *arguments: False)
            try:
                return function()
            finally:
                setattr(owner, name, before)
        return run

    def operators(self):
        ops, R, H, F = self.ops, self.rows, HIDDENS, FFN
        X, Y, QKV = self.array(R, H), self.array(R, H), self.array(R, 3 * H)
        W, b = self.array(F, H), self.array(F)
        gamma, beta = self.array(H), self.array(H)
        tables = self.array(WORDS, H), self.array(2, H), self.array(LENGTH, H)
        tokens = self.ints(self.rng.randint(0, WORDS, R))
        places = self.ints(onp.arange(R) % LENGTH)
        M = R // 13     # predictions
        labels, weights = self.ints(self.rng.randint(0, WORDS, M)), (
            self.np.ones((M,)))
        hidden, bias = self.array(M, H), self.array(WORDS)
        pairs = self.array(R // LENGTH, 2)
        kept = self.ints(self.rng.randint(0, R, M))
        for label, function in {
                'dense': lambda: ops.dense(X, W, b, act='gelu',
                                           grad_req='write'),
                'layer_norm': lambda: ops.layer_norm(X, gamma, beta),
                'add_norm, dropout': lambda: ops.add_norm(X, Y, gamma, beta,
                                                          0.1),
                'attention_qkv, dropout': lambda: ops.attention_qkv(
                    QKV, self.offsets, self.lens, HEADS, 0.1,
                    common_length=LENGTH),
                'embed': lambda: ops.embed(tokens, places * 0, places, *tables,
                                           grad_req='write'),
                'take_rows': lambda: ops.take_rows(X, kept)[0],
                'vocab_ce': lambda: ops.vocab_ce(
                    hidden, tables[0], bias, labels, weights,
                    grad_req='write'),
                'softmax_ce': lambda: ops.softmax_ce(
                    pairs, labels[:len(pairs)] % 2, weights[:len(pairs)]),
                'divergence': lambda: ops.divergence(X, Y.detach(), 2.0),
                'adam': self.adam()}.items():
            yield self.row(label, function, self.without('enabled', function))

    def adam(self):
        shapes = [(WORDS, HIDDENS), (HIDDENS, HIDDENS), (FFN, HIDDENS),
                  (HIDDENS, FFN), (HIDDENS,)]
        lists = [[self.mx.nd.ones(shape) for shape in shapes]
                 for _ in range(4)]

        def step():
            self.ops.adam(*lists, [1e-3] * len(shapes), [0.0] * len(shapes),
                          0.9, 0.999, 1e-8, clip=1.0)
        return step

    def halves(self):
        ops, H, F = self.ops, HIDDENS, FFN
        X = self.array(self.rows, H)
        norm = ops.Norm(self.array(H), self.array(H), 0.1)
        weights = [self.array(H, H) for _ in range(4)]
        biases = [self.array(H) for _ in range(4)]
        W, b = [self.array(F, H), self.array(H, F)], [self.array(F),
                                                      self.array(H)]
        for train, mode in ((True, 'training'), (False, 'inference')):
            for label, function in {
                    'self_attention': lambda: ops.self_attention(
                        X, weights, biases, norm,
                        ops.Rows(self.offsets, self.lens), HEADS, 0.1,
                        grad_req=('write',) * 10),
                    'feed_forward': lambda: ops.feed_forward(
                        X, W, b, norm, 'relu',
                        grad_req=('write',) * 6)}.items():
                yield self.row(f'{label}, {mode}', function,
                               self.without('_is_faster_as_one', function),
                               train)


if __name__ == '__main__':
    benchmark.run(main)
