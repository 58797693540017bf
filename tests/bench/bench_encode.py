"""How fast a forward pass is in inference mode, beside the book's packages.

    python tests/bench/bench_encode.py [--data FOLDER] [--torch-python PATH]

The model is the chapter's, the batch 512 sequences of length 64, the call
outside autograd.record the page's own:

encode       net(tokens_X, segments_X, valid_lens_x): encoded_X, no MLM
             scores, NSP scores
predictions  the same with pred_positions_X, so with MLM scores of the whole
             vocabulary for each of 10 positions, padding included

Nothing here passes or fails: it prints figures of this machine.
"""
import tempfile
from pathlib import Path

import benchmark
from benchmark import CHAPTER

BATCH_SIZE, LENGTH = 512, 64
TITLES = {'encode': 'without pred_positions: encoded_X and NSP scores',
          'predictions': 'with pred_positions: MLM scores, too'}


def measure(texts, peers, args, row):
    batches = texts.batches(f'{LENGTH}', BATCH_SIZE, args.steps)

    def prepare(peer):
        peer.ask('build', vocab_size=texts.vocab_size, sizes=CHAPTER,
                 precision='fp32')

    def turn(peer):
        return peer.ask('forward', batches=batches,
                        predictions=row == 'predictions')
    results = benchmark.take_turns(
        peers, ('ours', 'book', 'book*', 'torch'), args.rounds, turn, prepare,
        args.steps)
    benchmark.compare(f'Forward only, {BATCH_SIZE} sequences of length '
                      f'{LENGTH}, {TITLES[row]}', results, BATCH_SIZE)
    return benchmark.as_json(results)


def main():
    args = benchmark.parse(benchmark.parser(__doc__))
    texts = benchmark.Texts(args.data)
    texts.draw(LENGTH, BATCH_SIZE * args.steps)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, 'columns.npz'))
        texts.save(path)
        with benchmark.Peers(args, path) as peers:
            numbers = benchmark.introduce(peers, texts, args)
            for row in TITLES:
                numbers[row] = measure(texts, peers, args, row)
                benchmark.write_json(args.json, numbers)


if __name__ == '__main__':
    benchmark.run(main)
