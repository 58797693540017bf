"""How fast each way of multiplying is, on the machine at hand.

    python tests/bench/bench_amx.py [--rounds 7] [--data FOLDER] [--no-steps]

The vocabulary's cross-entropy with its gradients, dense layers and
attention, each forward and with its gradients, and the chapter's training
step (batch 512, length 64, 2 layers of 128), in fp32 by vectors and by three
parts in AMX tiles, in bf16 by AVX-512 pairs and by AMX tiles; those that the
machine has take turns. Conversions from and to fp32 are part of each. The
last column of a product is its error against float64, where 1e-7 is fp32's
usual one.

Nothing here passes or fails: it prints figures of this machine, the median
over the rounds, with the rate or the ratio to fp32 vectors.
"""
import argparse
import statistics
import time

import benchmark
import numpy as onp
from benchmark import CHAPTER

BATCH_SIZE, LENGTH, STEPS = 512, 64, 3
#: Rows, inputs and outputs: the chapter's queries, keys and values; BERT
#: base's feed-forward network
DENSE = (23500, 128, 384), (4096, 768, 3072)
#: Predictions, hiddens, words
VOCABULARY = 3529, 128, 20256
#: Sequences, their length, heads, the size of one
ATTENTION = (512, 46, 2, 64), (32, 128, 12, 64)


def ways(kernels):
    """{label: (precision, the `Choice`)} of what this machine has."""
    products = kernels.products
    has_tiles = kernels.OPERATORS.get().d2lbert_tiles() == 2
    names = [('fp32', 'plain')]
    names += [('fp32', 'split')] * has_tiles
    names += [('bf16', 'pairs')] * kernels.bf16_supported()
    names += [('bf16', 'tiles')] * has_tiles
    return {f'{precision}, {products.describe(name)}': (
        precision, products.chosen()._replace(**{precision: name}))
        for precision, name in names}


class Bench:
    """Rows that are measured, each way in turn."""

    def __init__(self, kernels, rounds):
        from d2lbert.machine.backend import autograd, np, npx
        self.kernels, self.rounds = kernels, rounds
        self.autograd, self.np, self.npx = autograd, np, npx
        self.ways = ways(kernels)
        self.rng = onp.random.RandomState(0)

    def array(self, *shape, scale=1):
        return self.np.array(
            (self.rng.normal(size=shape) * scale).astype('float32'))

    def ints(self, values):
        return self.np.array(onp.asarray(values, 'int32'), dtype='int32')

    def turns(self, title, run, flops=None, error=None, unit=1e3):
        """Measure run(precision) each way, and print a row for each."""
        times = {label: [] for label in self.ways}
        errors = {}
        for turn in range(self.rounds + 1):     # the first warms up
            for label, (precision, choice) in self.ways.items():
                self.kernels.products.use(choice)
                self.npx.waitall()
                began = time.perf_counter()
                result = run(precision)
                self.npx.waitall()
                if turn:
                    times[label].append(time.perf_counter() - began)
                elif error:
                    errors[label] = error(result)
        first = statistics.median(next(iter(times.values())))
        rows = []
        for label, found in times.items():
            seconds = statistics.median(found)
            rows.append([
                label, f'{unit * seconds:.2f}', f'{unit * min(found):.2f}',
                f'{first / seconds:.2f}',
                f'{flops / seconds / 1e9:.0f}' if flops else '',
                f'{errors[label]:.1e}' if error else ''])
        benchmark.table(title, ('', 'ms' if unit == 1e3 else 's', 'least',
                                'to the first', 'GFLOP/s', 'error'), rows)

    def dense(self, R, K, N):
        from d2lbert.kernels import ops
        X, W, b = self.array(R, K), self.array(N, K), self.array(N)
        few = slice(256)
        exact = (X[few].asnumpy().astype('float64')
                 @ W.asnumpy().T.astype('float64') + b.asnumpy())

        def error(Y):
            return abs(Y[few].asnumpy() - exact).max() / abs(exact).max()

        def forward(precision):
            return ops.dense(X, W, b, precision=precision)
        self.turns(f'Dense, {R} rows, {K} to {N}, forward', forward,
                   2 * R * K * N, error)
        for x in (X, W, b):
            x.attach_grad()
        up = self.array(R, N)

        def both(precision):
            with self.autograd.record():
                Y = ops.dense(X, W, b, precision=precision,
                                grad_req='write')
            Y.backward(up)
        self.turns(f'Dense, {R} rows, {K} to {N}, and its gradients', both,
                   6 * R * K * N)

    def vocabulary(self, M, H, V):
        from d2lbert.kernels import ops
        X, W = self.array(M, H), self.array(V, H, scale=0.02)
        b, labels = self.array(V), self.ints(self.rng.randint(0, V, M))
        weights = self.np.ones((M,))

        def both(precision):
            with self.autograd.record():
                return ops.vocab_ce(X, W, b, labels, weights, precision)
        self.turns(f'Cross-entropy of {M} rows of {H} over {V} words, and its '
                   'gradients', both, 6 * M * H * V)

    def attention(self, B, T, N, D):
        from d2lbert.kernels import ops
        QKV = self.array(B * T, 3 * N * D)
        offsets, lens = self.ints(onp.arange(B + 1) * T), self.ints([T] * B)
        QKV.attach_grad()
        up = self.array(B * T, N * D)

        def both(precision):
            with self.autograd.record():
                Y = ops.attention_qkv(QKV, offsets, lens, N,
                                        precision=precision)
            Y.backward(up)
        self.turns(f'Attention, {B} sequences of {T}, {N} heads of {D}, and '
                   'its gradients', both, 14 * B * N * T * T * D)

    def steps(self, data):
        """The chapter's step; a net for each precision."""
        from benchmark_worker import ours
        texts = benchmark.Texts(data)
        columns = texts.columns[texts.draw(LENGTH, BATCH_SIZE * STEPS)]
        nets = {}
        for precision in dict.fromkeys(p for p, _ in self.ways.values()):
            nets[precision] = ours()
            nets[precision].build(texts.vocab_size, CHAPTER, precision)
        batches = [next(iter(nets.values())).batch(
            [column[i:i + BATCH_SIZE] for column in columns])
            for i in range(0, len(columns[0]), BATCH_SIZE)]

        def run(precision):
            for batch in batches:
                nets[precision].step(batch)
        self.turns(f'{STEPS} training steps of the chapter\'s model, '
                   f'{texts.name}', run, unit=1)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--rounds', type=benchmark.count, default=7,
                        metavar='N', help='turns of each way (7)')
    parser.add_argument('--data', metavar='FOLDER',
                        help='the folder that holds wiki.train.tokens '
                             '($D2LBERT_DATA, else the bundled sample)')
    parser.add_argument('--no-steps', action='store_true',
                        help='leave the training steps out')
    args = benchmark.parse(parser)
    from d2lbert import kernels
    if not kernels.load():
        raise SystemExit(f'the operators are not there: '
                         f'{kernels.state().reason}')
    print(benchmark.machine())
    chosen = kernels.products.chosen()
    print(f'{kernels.products.cpu()}: {chosen.why}; chosen: fp32 by '
          f'{kernels.products.describe(chosen.fp32)}, bf16 by '
          f'{kernels.products.describe(chosen.bf16)}')
    bench = Bench(kernels, args.rounds)
    bench.vocabulary(*VOCABULARY)
    for sizes in DENSE:
        bench.dense(*sizes)
    for sizes in ATTENTION:
        bench.attention(*sizes)
    if not args.no_steps:
        bench.steps(args.data)


if __name__ == '__main__':
    benchmark.run(main)
