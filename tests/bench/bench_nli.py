"""How fast a step of fine-tuning is, beside the book's package.

    python tests/bench/bench_nli.py [--data FOLDER] [--rows own,typed,full]

The page "Natural Language Inference: Fine-Tuning BERT": its bert.small (2
blocks of 256, 4 heads, dropout 0.1, here with random weights), batch 512
unless --batch-size says otherwise, length 128, and train_batch_ch13 with
split_batch_multi_inputs and Adam.

own    the package's own BERTClassifier, on pairs as long as those of SNLI
typed  the class that the page has its readers type, on the same pairs
full   the package's own on rows without padding

SNLI's premises have 14.1 words in the mean and its hypotheses 8.3 (Bowman et
al. 2015, table 1); words and their order are another text's, since time
depends on lengths alone. The book's package has the typed class in each row.
Nothing here passes or fails: it prints figures of this machine.
"""
import argparse
import tempfile
from pathlib import Path

import benchmark

SMALL = (256, 512, 4, 2, 0.1)
LENGTH, MAX_LEN = 128, 512
# Words of the first and of the second sentence
MEANS, DEVIATIONS = (14.1, 8.3), (6.0, 3.2)
ROWS = {'own': 'its own BERTClassifier, pairs as short as those of SNLI',
        'typed': "the page's BERTClassifier, pairs as short as those of SNLI",
        'full': 'its own BERTClassifier, no padding'}


def rows(text):
    chosen = text.split(',')
    unknown = [row for row in chosen if row not in ROWS]
    if unknown:
        raise argparse.ArgumentTypeError(
            f'{unknown[0]!r} is no row; there are {", ".join(ROWS)}')
    return chosen


def measure(texts, peers, args, row):
    text = f'{LENGTH} filled' if row == 'full' else f'{LENGTH} short'
    batches = texts.batches(text, args.batch_size, args.steps)

    def prepare(peer):
        peer.ask('build_classifier', vocab_size=texts.vocab_size,
                 sizes=SMALL, max_len=MAX_LEN, typed=row == 'typed')

    def turn(peer):
        return peer.ask('train', batches=batches, step='fine_tune')
    results = benchmark.take_turns(peers, ('ours', 'book', 'book*'),
                                   args.rounds, turn, prepare, args.steps)
    counts = texts.counts(text, args.batch_size, args.steps)
    benchmark.compare(
        f'A step of fine-tuning, {ROWS[row]}: batch {args.batch_size}, '
        f'length {LENGTH} '
        f'({counts["real_tokens"] / counts["sequences"]:.1f} real)',
        results, args.batch_size)
    return benchmark.as_json(results)


def main():
    parser = benchmark.parser(__doc__)
    parser.add_argument('--rows', type=rows, default=list(ROWS),
                        metavar='ROW,...', help=', '.join(ROWS))
    parser.add_argument('--batch-size', type=benchmark.count, default=512,
                        metavar='N', help='pairs in a step (512)')
    args = benchmark.parse(parser)
    texts = benchmark.Texts(args.data)
    texts.draw(LENGTH, args.batch_size * args.steps)
    texts.shorten(LENGTH, MEANS, DEVIATIONS, classes=3)
    texts.fill(LENGTH)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, 'columns.npz'))
        texts.save(path)
        with benchmark.Peers(args, path) as peers:
            numbers = benchmark.introduce(peers, texts, args)
            for row in args.rows:
                numbers[row] = measure(texts, peers, args, row)
                benchmark.write_json(args.json, numbers)


if __name__ == '__main__':
    benchmark.run(main)
