"""How fast a training step is, beside the book's packages.

    python tests/bench/bench_train.py [--data FOLDER] [--torch-python PATH]
                                [--rows chapter,bf16,long,scale] [...]

A step is the user's own loop as the page "Pretraining BERT" writes it:
record, _get_batch_loss_bert, backward, Trainer.step, reading the losses.

chapter  the page's model: batch 512, length 64, 2 layers of 128, 2 heads;
         also the peak memory, and the share of the machine's rate of
         multiplying matrices that the necessary operations amount to
bf16     the same in bfloat16
long     batch 64, length 256, 4 layers of 256, 4 heads, on pairs as they are
         and on rows filled up to their length
small    batches of 64 and 128 beside 512: what a pair costs, with the page's
         'adam' and with the optimizer of runs; ours alone
scale    batches of 64 to 1024, lengths of 32 to 256; ours alone unless
         --scale-peers says otherwise

`--isa avx2` holds ours, MXNet and PyTorch to the instructions of processors
without AVX-512, in the same run.

Nothing here passes or fails: it prints figures of this machine; `--keep` puts
them into the file of its processor in tests/bench/results.
"""
import statistics
import tempfile
from pathlib import Path

import benchmark
from benchmark import CHAPTER

LONG = (256, 512, 4, 4, 0.2)
ROWS = ('chapter', 'bf16', 'long', 'small', 'scale')
BATCH_SIZE, LENGTH = 512, 64
LONG_BATCH_SIZE, LONG_LENGTH = 64, 256
BATCH_SIZES = (64, 128, 256, 512, 1024)
LENGTHS = (32, 64, 128, 256)
SMALL = (64, 128, 512)
OPTIMIZERS = ('adam', 'adamw')
SCALE_BATCH_SIZE = 128


def necessary_flops(counts, sizes, vocab_size):
    """Floating point operations that training on these sequences asks for.

    counts: as `Texts.counts` gives them: R real tokens, S real predictions,
    B sequences, Q the sum of squared real lengths; sizes: H hiddens, F
    hiddens of the FFN, heads, L layers, dropout; V the vocabulary. Products
    of matrices alone, two operations a multiplication:

        layer    `benchmark.layer_products`
        MLM      S H H + S H V
        NSP      B H H + 2 B H
        forward  2 (L layer + MLM + NSP)

    and twice as many backward, for the gradients of both factors.
    """
    H, F, _, L, _ = sizes
    R, S = counts['real_tokens'], counts['real_predictions']
    B, Q = counts['sequences'], counts['squares']
    layer = benchmark.layer_products(R, Q, H, F)
    heads = S * H * H + S * H * vocab_size + B * H * H + 2 * B * H
    return 3 * 2 * (L * layer + heads)


class Bench:
    """The rows, each a method that measures, prints and gives numbers."""

    def __init__(self, args, texts, peers):
        self.args, self.texts, self.peers = args, texts, peers

    def train(self, names, text, batch_size, sizes, precision='fp32',
              after=None):
        """Results of training on a text; after(peer) follows every turn."""
        batches = self.texts.batches(text, batch_size, self.args.steps)

        def prepare(peer):
            peer.ask('build', vocab_size=self.texts.vocab_size, sizes=sizes,
                     precision=precision)

        def turn(peer):
            answer = peer.ask('train', batches=batches)
            if after is not None:
                after(peer)
            return answer
        return benchmark.take_turns(self.peers, names, self.args.rounds, turn,
                                    prepare, self.args.steps)

    def flops(self, text, batch_size, sizes):
        """Necessary operations of a step, the mean over its batches."""
        counts = self.texts.counts(text, batch_size, self.args.steps)
        return necessary_flops(counts, sizes,
                               self.texts.vocab_size) / self.args.steps

    def describe(self, text, batch_size, length):
        counts = self.texts.counts(text, batch_size, self.args.steps)
        return (f'batch {batch_size}, length {length} '
                f'({counts["real_tokens"] / counts["sequences"]:.1f} real), '
                f'{counts["real_predictions"] / self.args.steps:.0f} of '
                f'{counts["predictions"] // self.args.steps} predictions '
                'real')

    def chapter(self):
        text = f'{LENGTH}'
        with benchmark.Multiplier(self.peers) as multiplier:
            results = self.train(('ours', 'book', 'book*', 'torch'), text,
                                 BATCH_SIZE, CHAPTER, after=multiplier.measure)
        benchmark.compare(
            'Training step, the chapter\'s model, fp32: '
            + self.describe(text, BATCH_SIZE, LENGTH), results, BATCH_SIZE)
        memory = {peer.name: peer.ask('memory')['peak'] for peer in self.peers
                  if not isinstance(results[peer.name], str)}
        self._print_memory(memory)
        numbers = {'steps': benchmark.as_json(results), 'peak': memory}
        if not isinstance(results['ours'], str):
            flops = self.flops(text, BATCH_SIZE, CHAPTER)
            multiplier.compare(flops, {'ours': results['ours']})
            numbers.update(flops=flops, rates=multiplier.rates)
        return numbers

    def _print_memory(self, memory):
        rows = []
        for name, peak in memory.items():
            start = self.peers[name].memory_at_start
            if peak is None or start is None:
                rows.append((name, 'not measured: no /proc/self/status'))
                continue
            row = [name, f'{peak / 2 ** 20:.0f}', f'{start / 2 ** 20:.0f}']
            if name != 'ours' and memory.get('ours'):
                row.append(f'{memory["ours"] / peak:.2f}')
            rows.append(row)
        benchmark.table('Peak memory of these processes, MiB',
                        ('', 'peak', 'after import', 'ours to it'), rows)

    def bf16(self):
        text = f'{LENGTH}'
        results = self.train(('ours', 'torch'), text, BATCH_SIZE, CHAPTER,
                             'bf16')
        benchmark.compare(
            'Training step, the chapter\'s model, bf16 (torch: autocast): '
            + self.describe(text, BATCH_SIZE, LENGTH), results, BATCH_SIZE)
        return benchmark.as_json(results)

    def long(self):
        numbers = {}
        for text in (f'{LONG_LENGTH}', f'{LONG_LENGTH} filled'):
            results = self.train(('ours', 'book', 'book*', 'torch'), text,
                                 LONG_BATCH_SIZE, LONG)
            benchmark.compare(
                'Training step, 4 layers of 256, 4 heads, fp32: '
                + self.describe(text, LONG_BATCH_SIZE, LONG_LENGTH), results,
                LONG_BATCH_SIZE)
            numbers[text] = benchmark.as_json(results)
        return numbers

    def small(self):
        """Steps over as many pairs of each size of batch, in turn."""
        ours, pairs = self.peers['ours'], max(SMALL) * self.args.steps
        costs = {}
        for optimizer in OPTIMIZERS:
            try:
                ours.ask('build', vocab_size=self.texts.vocab_size,
                         sizes=CHAPTER, precision='fp32',
                         optimizer=optimizer)
                for _ in range(1 + self.args.rounds):
                    for size in SMALL:
                        answer = ours.ask('train', batches=self.texts.batches(
                            f'{LENGTH}', size, pairs // size))
                        costs.setdefault(f'{size} {optimizer}', []).append(
                            1e6 * answer['seconds'] / pairs)
            except benchmark.PeerError as error:
                print(f'\nSmall batches: not measured: {error}')
                return {'not measured': str(error)}
        rows = []
        for optimizer in OPTIMIZERS:
            # The first of each is what warms up
            of = {size: costs[f'{size} {optimizer}'][1:] for size in SMALL}
            for size in SMALL:
                ratios = [cost / most for cost, most
                          in zip(of[size], of[max(SMALL)])]
                rows.append((
                    f'{size} {optimizer}',
                    f'{statistics.median(of[size]):.0f}',
                    f'{min(of[size]):.0f} to {max(of[size]):.0f}',
                    f'{statistics.median(ratios) - 1:+.0%}',
                    f'{min(ratios) - 1:+.0%} to {max(ratios) - 1:+.0%}'))
        benchmark.table(
            f'Small batches, the chapter\'s model, fp32: microseconds a '
            f'pair, against batches of {max(SMALL)}',
            ('batch, optimizer', 'us/pair', 'min to max', 'cost',
             'min to max'), rows)
        return costs

    def scale(self):
        names = (('ours', 'book', 'torch') if self.args.scale_peers
                 else ('ours',))
        over_batch = {size: self.train(names, f'{LENGTH}', size, CHAPTER)
                      for size in BATCH_SIZES}
        self._print_scale(
            f'Over the size of the batch, length {LENGTH}', 'batch',
            {size: (f'{LENGTH}', size) for size in BATCH_SIZES}, over_batch,
            BATCH_SIZE)
        numbers = {'batch': over_batch}
        for kind in ('', ' filled'):
            texts = {length: (f'{length}{kind}', SCALE_BATCH_SIZE)
                     for length in LENGTHS}
            results = {length: self.train(names, *texts[length], CHAPTER)
                       for length in LENGTHS}
            self._print_scale(
                f'Over length, batch {SCALE_BATCH_SIZE}, rows '
                + ('filled up to it' if kind else 'as the text has them'),
                'length', texts, results, LENGTH)
            numbers[f'length{kind}'] = results
        if self.args.plot:
            draw(numbers, self.args.plot)
        return {over: {value: benchmark.as_json(results)
                       for value, results in rows.items()}
                for over, rows in numbers.items()}

    def _print_scale(self, title, over, texts, results, reference):
        """A line for each value of `over` and each peer.

        The last column is how far the cost of a necessary operation is from
        that at `reference`: 0 % where cost is proportional to work.
        """
        cost, rows = {}, []
        for value, (text, size) in texts.items():
            flops = self.flops(text, size, CHAPTER)
            for name, result in results[value].items():
                if not isinstance(result, str):
                    cost[value, name] = result.median / flops
        for value, (text, size) in texts.items():
            counts = self.texts.counts(text, size, self.args.steps)
            for name, result in results[value].items():
                if isinstance(result, str):
                    rows.append((f'{value} {name}',
                                 f'not measured: {result}'))
                    continue
                row = [f'{value} {name}', f'{result.median:.4f}',
                       f'{min(result.seconds):.4f} to '
                       f'{max(result.seconds):.4f}',
                       f'{size / result.median:.1f}',
                       f'{counts["real_tokens"] / counts["sequences"]:.1f}']
                if (reference, name) in cost:
                    change = cost[value, name] / cost[reference, name] - 1
                    row.append(f'{change:+.0%}')
                rows.append(row)
        benchmark.table(
            f'{title}: cost of a necessary operation against {over} '
            f'{reference}',
            (over, 's/step', 'min to max', 'pairs/s', 'real tokens', 'cost'),
            rows)


def draw(numbers, path):
    """Pairs a second over batch and over length, two panels, as PNG."""
    import matplotlib
    matplotlib.use('Agg')
    from matplotlib import pyplot as plt
    colours = {'ours': 'C3', 'book': 'C0', 'torch': 'C7'}
    labels = {'ours': 'd2lbert', 'book': 'd2l 0.17.6 (MXNet)',
              'torch': 'd2l 1.0.3 (PyTorch)'}
    styles = {'batch': '-', 'length': '-', 'length filled': '--'}
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6))
    for over, rows in numbers.items():
        axes = left if over == 'batch' else right
        for name in next(iter(rows.values())):
            points = [(value, (value if over == 'batch' else SCALE_BATCH_SIZE)
                       / results[name].median)
                      for value, results in rows.items()
                      if not isinstance(results[name], str)]
            if not points:
                continue
            axes.plot(*zip(*points), styles[over], color=colours[name],
                      marker='o', markersize=4, label=labels[name])
    left.set(xlabel=f'batch size (length {LENGTH})', xticks=BATCH_SIZES,
             ylabel='sentence pairs a second')
    right.set(xlabel=f'length (batch {SCALE_BATCH_SIZE})', xticks=LENGTHS)
    for axes, values in ((left, BATCH_SIZES), (right, LENGTHS)):
        axes.set_xscale('log', base=2)
        axes.set_xticks(values)
        axes.set_xticklabels(values)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    left.legend()
    right.legend([plt.Line2D([], [], color='black', linestyle=style)
                  for style in ('-', '--')],
                 ['pairs as the text has them', 'rows filled up'])
    benchmark.save_figure(figure, path)


def profile(texts, peers):
    """Print the operators of one step of ours, those that last longest
    first."""
    peer = peers['ours']
    try:
        peer.ask('build', vocab_size=texts.vocab_size, sizes=CHAPTER,
                 precision='fp32')
        answer = peer.ask('profile', batch=(f'{LENGTH}', 0, BATCH_SIZE))
    except benchmark.PeerError as error:
        print(f'\nOperators of one step: not measured: {error}')
        return {'not measured': str(error)}
    total = sum(milliseconds for _, _, milliseconds in answer['operators'])
    rows = [[name, f'{calls}', f'{milliseconds:.1f}',
             f'{milliseconds / total:.1%}']
            for name, calls, milliseconds in answer['operators']]
    rows.append(['all operators', '', f'{total:.1f}', ''])
    rows.append(['the step, with the profiler', '',
                 f'{answer["seconds"] * 1e3:.1f}', ''])
    benchmark.table('Operators of one step of ours, the chapter\'s model, '
                    'fp32', ('', 'calls', 'ms', 'share'), rows)
    return answer


def main():
    parser = benchmark.parser(__doc__)
    parser.add_argument('--rows', type=_rows, default=ROWS, metavar='A,B',
                        help='the rows to measure, of ' + ','.join(ROWS)
                             + " (all), or 'none'")
    parser.add_argument('--scale-peers', action='store_true',
                        help='measure the peers in the row scale, too')
    parser.add_argument('--profile', action='store_true',
                        help='print the time of one step by operator')
    parser.add_argument('--plot', metavar='FILE.png',
                        help='draw pairs/s over batch and length (the row '
                             'scale)')
    args = benchmark.parse(parser)
    if args.plot and 'scale' not in args.rows:
        parser.error('--plot draws the row scale, which --rows leaves out')
    texts = benchmark.Texts(args.data)
    prepare_texts(texts, args)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, 'columns.npz'))
        texts.save(path)
        with benchmark.Peers(args, path) as peers:
            numbers = benchmark.introduce(peers, texts, args)
            bench = Bench(args, texts, peers)
            for row in args.rows:
                numbers[row] = getattr(bench, row)()
                benchmark.write_json(args.json, numbers)
            if args.profile:
                numbers['profile'] = profile(texts, peers)
                benchmark.write_json(args.json, numbers)


def _rows(text):
    rows = [] if text == 'none' else benchmark.rows_of(ROWS)(text)
    # Memory is a peak, so the chapter's comes before anything larger
    return sorted(rows, key=ROWS.index)


def prepare_texts(texts, args):
    """Draw what the rows ask for, with enough examples for every batch."""
    needs = {LENGTH: BATCH_SIZE * args.steps}
    if 'long' in args.rows:
        needs[LONG_LENGTH] = LONG_BATCH_SIZE * args.steps
    if 'scale' in args.rows:
        for length in LENGTHS:
            needs[length] = max(needs.get(length, 0),
                                SCALE_BATCH_SIZE * args.steps)
        needs[LENGTH] = max(BATCH_SIZES) * args.steps
    for length, num_rows in needs.items():
        texts.draw(length, num_rows)
        texts.fill(length)


if __name__ == '__main__':
    benchmark.run(main)
