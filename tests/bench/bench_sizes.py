"""How fast BERT base and MiniLM are, beside transformers on PyTorch.

    python tests/bench/bench_sizes.py --torch-python PATH [--rows base,minilm]

base    12 layers of 768, 12 heads, 16 sequences
minilm  6 layers of 384, 12 heads, 64 sequences

The sequences have up to 128 tokens and lengths as pairs of sentences have
them: about half of the places are real. `forward` gives the hidden states of
the last layer and the pooled output in inference mode, `step` is one of
training a classifier with all parameters (record, backward, Adam, dropout
0.1). PATH is an interpreter with PyTorch and transformers. Each size is
measured in processes of its own, whose peak memory is printed behind the
forward passes and behind the training.

Nothing here passes or fails: it prints figures of this machine.
"""
import sys
import tempfile
from pathlib import Path

import benchmark
import numpy as onp

VOCABULARY, LENGTH = 30522, 128
#: The sizes as `BERTModel` takes them, and the number of sequences.
SIZES = {'base': ((768, 3072, 12, 12, 0.1), 16),
         'minilm': ((384, 1536, 12, 6, 0.1), 64)}


class Peers(benchmark.Peers):
    """Ours and transformers."""

    def __init__(self, args, path):
        self._path, self._all, self.missing = path, {}, {}
        self._start('ours', 'published', sys.executable)
        if args.torch_python:
            self._start('torch', 'transformers', args.torch_python)
        else:
            self.missing['torch'] = 'give --torch-python'


class Lines(benchmark.Texts):
    """Random tokens of mixed lengths, the same for all."""

    def __init__(self):
        self.columns, self.vocab_size = {}, VOCABULARY
        self.name = 'random tokens'

    def draw(self, num_rows):
        from benchmark_published import mixed_lengths
        lens, columns = mixed_lengths(onp.random.RandomState(0), num_rows,
                                      LENGTH, VOCABULARY)
        self.real = lens.sum() / (num_rows * LENGTH)
        return self._add('mixed', columns)


def measure(size, lines, peers, args):
    """Forward passes, then steps, of one size; returns their numbers."""
    sizes, batch_size = SIZES[size]
    batches = lines.batches('mixed', batch_size, args.steps)
    numbers = {}

    def prepare(peer):
        peer.ask('build', vocab_size=VOCABULARY, sizes=sizes,
                 precision=args.precision)

    def turns(title, turn, **keywords):
        results = benchmark.take_turns(peers, ('ours', 'torch'), args.rounds,
                                       turn, steps=args.steps, **keywords)
        benchmark.compare(
            f'{size}, {title}, {args.precision}: batch {batch_size}, '
            f'length {LENGTH}, {lines.real:.0%} of the places real',
            results, batch_size)
        memory = {peer.name: peer.ask('memory')['peak'] / 2 ** 20
                  for peer in peers if peer.name in results
                  and not isinstance(results[peer.name], str)}
        print('  peak memory, MiB: ' + ', '.join(
            f'{name} {peak:.0f}' for name, peak in memory.items()))
        numbers[title] = dict(turns=benchmark.as_json(results), peak=memory)
    turns('forward', lambda peer: peer.ask('forward', batches=batches,
                                           predictions=False),
          prepare=prepare)
    turns('training step', lambda peer: peer.ask('train', batches=batches))
    return numbers


def main():
    parser = benchmark.parser(__doc__)
    parser.add_argument('--rows', type=benchmark.rows_of(SIZES),
                        default=list(SIZES),
                        metavar='A,B', help='of base,minilm (both)')
    parser.add_argument('--precision', choices=('fp32', 'bf16'),
                        default='fp32', help='bf16: PyTorch by autocast')
    args = benchmark.parse(parser)
    lines = Lines()
    lines.draw(max(batch for _, batch in SIZES.values()) * args.steps)
    numbers = {}
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, 'columns.npz'))
        lines.save(path)
        for size in args.rows:
            with Peers(args, path) as peers:
                if not numbers:
                    numbers = benchmark.introduce(peers, lines, args)
                numbers[size] = measure(size, lines, peers, args)
                benchmark.write_json(args.json, numbers)


if __name__ == '__main__':
    benchmark.run(main)
