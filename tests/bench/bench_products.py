"""How fast the products of dense layers are, beside oneDNN and PyTorch.

    python tests/bench/bench_products.py --torch-python PATH [--rows base,...]

chapter  the book's model: 23,500 rows
minilm   6 layers of 384: 3,000 rows
base     BERT base: 1,024 rows

GFLOP/s of the forward pass and of the gradients by X, by W and b, and by all
three, in turn: each peer's best of --seconds in each of --rounds. `oneDNN` is
the operator that MXNet's wheel has, PyTorch chooses between oneDNN and MKL. A
ratio says how many times ours is as fast; the share is ours of the best rate
that any product of the run had.

Nothing here passes or fails: it prints figures of this machine.
"""
import sys

import benchmark

#: Rows, and the layers from K to N.
SHAPES = {
    'chapter': (23500, ((128, 384), (128, 128), (128, 256), (256, 128))),
    'minilm': (3000, ((384, 1152), (384, 384), (384, 1536), (1536, 384))),
    'base': (1024, ((768, 2304), (768, 768), (768, 3072), (3072, 768)))}
NAMES = 'ours', 'oneDNN', 'torch'


class Peers(benchmark.Peers):
    """Ours, MXNet's own operator, and PyTorch's."""

    def __init__(self, args):
        self._path, self._all, self.missing = '', {}, {}
        self._start('ours', 'products', sys.executable)
        self._start('oneDNN', 'onednn', sys.executable)
        if args.torch_python:
            self._start('torch', 'linear', args.torch_python,
                        self['ours'].threads)
        else:
            self.missing['torch'] = 'give --torch-python'


def measure(peers, R, K, N, args):
    """{what: {peer: best rate in GFLOP/s}} of one layer."""
    rates = {}
    for what, products in (('forward', 1), ('dX', 1), ('dW', 1), ('both', 2)):
        best = rates[what] = {}
        for _ in range(args.rounds):
            for peer in peers:
                seconds = peer.ask('dense', R=R, K=K, N=N, what=what,
                                   seconds=args.seconds)['seconds']
                best[peer.name] = max(best.get(peer.name, 0),
                                      2e-9 * products * R * K * N / seconds)
    return rates


def main():
    parser = benchmark.parser(__doc__)
    parser.add_argument('--rows', type=benchmark.rows_of(SHAPES),
                        default=list(SHAPES),
                        metavar='A,B', help='of chapter,minilm,base (all)')
    parser.add_argument('--seconds', type=float, default=0.3, metavar='S',
                        help='of calls in a turn (0.3)')
    args = benchmark.parse(parser)
    found = {}
    with Peers(args) as peers:
        print(f'machine  {benchmark.machine()}')
        for peer in peers:
            print(f'{peer.name:<7}  {peer.about}; {peer.threads} threads')
        for name, why in peers.missing.items():
            print(f'{name:<7}  not measured: {why}')
        for size in args.rows:
            R, layers = SHAPES[size]
            for K, N in layers:
                found[f'{size}: {R:,} rows, {K} to {N}'] = measure(
                    peers, R, K, N, args)
    best = max(rate for rates in found.values() for by in rates.values()
               for rate in by.values())
    print(f'best rate of the run  {best:.0f} GFLOP/s')
    for title, rates in found.items():
        rows = []
        for what, by in rates.items():
            mine = by['ours']
            rows.append([what, *(f'{by[n]:.0f}' if n in by else '-'
                                 for n in NAMES),
                         *(f'{mine / by[n]:.2f}' if n in by else '-'
                           for n in NAMES[1:]), f'{mine / best:.0%}'])
        benchmark.table(f'{title}, GFLOP/s', (
            '', *NAMES, *(f'to {n}' for n in NAMES[1:]), 'share'), rows)
    benchmark.write_json(args.json, {'machine': benchmark.machine(),
                                     'best': best, 'rates': found})


if __name__ == '__main__':
    benchmark.run(main)
