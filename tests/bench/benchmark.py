"""What the benchmarks have in common: texts, peers, turns, tables.

Every peer is a process (`benchmark_worker`), kept through the whole run; they
take turns on the same batches, so that a machine which is slower for a while
is so for all of them.
"""
import argparse
import contextlib
import io
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

import numpy as onp

HERE = Path(__file__).resolve().parent
RESULTS = HERE / 'results'
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT)]

# num_hiddens, ffn_num_hiddens, num_heads, num_layers, dropout
CHAPTER = (128, 256, 2, 2, 0.2)

# What holds the libraries of all peers to the instructions of an older
# processor: our operators; oneDNN under its two names, in MXNet and in
# PyTorch; PyTorch's own loops; MKL; OpenBLAS
HELD = {isa: dict(D2LBERT_ISA=isa, DNNL_MAX_CPU_ISA=onednn,
                  ONEDNN_MAX_CPU_ISA=onednn, ATEN_CPU_CAPABILITY=aten,
                  MKL_ENABLE_INSTRUCTIONS=mkl, OPENBLAS_CORETYPE=blas)
        for isa, onednn, aten, mkl, blas in (
            ('avx512', 'AVX512_CORE', 'avx512', 'AVX512', 'SkylakeX'),
            ('avx2', 'AVX2', 'avx2', 'AVX2', 'Haswell'),
            ('sse', 'SSE41', 'default', 'SSE4_2', 'Nehalem'))}

# A process that has just computed keeps its threads spinning for a moment
PAUSE = 0.3


def parser(description):
    """The arguments that every benchmark takes."""
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--rounds', type=count, default=7, metavar='N',
                        help='turns of each peer (7)')
    parser.add_argument('--steps', type=count, default=3, metavar='N',
                        help='batches, hence steps, in a turn (3)')
    parser.add_argument('--data', metavar='FOLDER',
                        help='the folder that holds wiki.train.tokens '
                             '($D2LBERT_DATA, else the bundled sample)')
    parser.add_argument('--book-python', metavar='PATH',
                        help='an interpreter with d2l 0.17.6 and MXNet (this '
                             'one, if it has them)')
    parser.add_argument('--torch-python', metavar='PATH',
                        help='an interpreter with d2l 1.0.3 and PyTorch')
    parser.add_argument('--json', metavar='FILE',
                        help='write the numbers of every turn there')
    parser.add_argument('--isa', choices=HELD,
                        help='hold ours and all peers to the instructions '
                             'of an older processor')
    return parser


def parse(parser):
    """The arguments of a benchmark; --keep, which each has, among them."""
    parser.add_argument('--keep', action='store_true',
                        help='keep what is printed in tests/bench/results, '
                             'in the file of this processor, in place of '
                             'what this command left there')
    args = parser.parse_args()
    if getattr(args, 'isa', None):
        os.environ.update(HELD[args.isa])
    if isinstance(sys.stdout, Copy):
        sys.stdout.keep = args.keep
    return args


class Copy(io.StringIO):
    """Standard output that remembers what was written to it."""

    def __init__(self, out):
        super().__init__()
        self.out, self.keep = out, False

    def write(self, text):
        super().write(text)
        return self.out.write(text)

    def flush(self):
        self.out.flush()


def run(main):
    """Call a benchmark's `main`; what it printed is kept if --keep is given.

    Returns what `main` returns. One that ends in an error, or by
    `sys.exit`, keeps nothing.
    """
    with contextlib.redirect_stdout(Copy(sys.stdout)) as copy:
        status = main()
    if copy.keep:
        print(f'kept in {keep(copy.getvalue(), sys.argv)}')
    return status


def keep(text, argv):
    """Put a benchmark's output into the file of this processor.

    It has a section for each command line, headed by that line and the date;
    the section of the same command is replaced. Returns the file's path.
    """
    from d2lbert.machine.files import write_text
    from d2lbert.machine.processor import find_processor
    path = RESULTS / f'{find_processor().slug}.txt'
    words = ['PATH' if os.sep in word else word for word in argv[1:]
             if word != '--keep']
    title = ' '.join(['##', Path(argv[0]).name, *words])
    sections = {}
    if path.exists():
        for part in path.read_text('utf-8').split(SECTION)[1:]:
            head, _, rest = part.partition('\n')
            sections[f'## {head}'] = rest
    lines = [time.strftime('%Y-%m-%d'), machine(), '', text.strip()]
    sections[title] = '\n'.join(lines) + '\n'
    RESULTS.mkdir(parents=True, exist_ok=True)
    write_text(path, f'{find_processor()}\n' + ''.join(
        f'\n{head}\n{sections[head]}' for head in sorted(sections)))
    return path


SECTION = '\n## '    # no table has a line that begins so


def count(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f'{text} is less than 1')
    return value


def rows_of(names):
    """What reads some of the rows of a benchmark from 'A,B', a list."""
    def read(text):
        rows = text.split(',')
        for row in rows:
            if row not in names:
                raise argparse.ArgumentTypeError(
                    f'{row!r} is none of the rows {",".join(names)}')
        return rows
    return read


# Texts

class Texts:
    """Columns of examples, drawn by d2lbert for each length that is asked.

    They are saved as one file, from which the peers take their batches.
    """

    def __init__(self, data_dir):
        from d2lbert import hub
        if data_dir:
            folder = hub.wikitext2_dir(data_dir)
            self.name = f'{hub.TRAIN_FILE} in {data_dir}'
        else:
            folder, self.name = hub.find_wikitext2(), 'WikiText-2'
        if folder is None:
            folder, self.name = hub.sample_dir(), 'the bundled sample'
        self.path = Path(folder) / hub.TRAIN_FILE
        self.vocab_size, self.columns = None, {}

    def draw(self, length, num_rows):
        """Draw `num_rows` examples of at most `length` tokens.

        Returns the text's name. A corpus with fewer examples is gone through
        again.
        """
        from d2lbert import load_data
        batches, vocab = load_data(
            self.path, num_rows, length, rng=random.Random(0),
            shuffle_rng=onp.random.RandomState(0))
        parts = []
        while sum(len(part[0]) for part in parts) < num_rows:
            parts.append([field.asnumpy() for field in next(iter(batches))])
        self.vocab_size = len(vocab)
        return self._add(f'{length}', [onp.concatenate(column)[:num_rows]
                                       for column in zip(*parts)])

    def fill(self, length):
        """Rows of `length` without padding, made of the words of a text.

        Real pairs of sentences seldom come near 256 tokens; these show what
        length itself costs.
        """
        tokens, segments, lens, positions, _, _, nsp = (
            self.columns[f'{length}'])
        rng = onp.random.RandomState(0)
        B, T = tokens.shape
        real = tokens[onp.arange(T) < lens[:, None]]
        tokens = onp.resize(real, (B, T))
        segments = onp.tile((onp.arange(T) >= T // 2), (B, 1)).astype(
            segments.dtype)
        positions = onp.sort([
            rng.permutation(onp.arange(1, T))[:positions.shape[1]]
            for _ in range(B)]).astype(positions.dtype)
        labels = onp.take_along_axis(tokens, positions, 1)
        return self._add(f'{length} filled', [
            tokens, segments, onp.full_like(lens, T), positions,
            onp.ones(positions.shape, 'float32'), labels, nsp])

    def shorten(self, length, means, deviations, classes):
        """Rows of `length` that hold pairs as short as other texts have.

        means, deviations: those of the number of words of the first and of
        the second sentence, which are gamma distributed; their words are
        those of the rows of `length`. Labels are drawn from `classes`.
        """
        rng = onp.random.RandomState(0)
        columns = self.columns[f'{length}']
        tokens, _, lens, *others, _ = columns
        B, T = tokens.shape
        parts = [onp.maximum(1, rng.gamma(
            (mean / spread) ** 2, spread ** 2 / mean, B).round().astype(int))
            for mean, spread in zip(means, deviations)]
        first = onp.minimum(parts[0], T // 2)
        last = onp.minimum(first + parts[1] + 3, T)
        real = tokens[onp.arange(T) < lens[:, None]]
        place = onp.arange(T)
        segments = (place > first[:, None] + 1) & (place < last[:, None])
        return self._add(f'{length} short', [
            onp.where(place < last[:, None], onp.resize(real, (B, T)),
                      1).astype(tokens.dtype),
            segments.astype(tokens.dtype), last.astype(lens.dtype), *others,
            rng.randint(0, classes, B).astype('float32')])

    def _add(self, name, columns):
        self.columns[name] = columns
        return name

    def batches(self, text, batch_size, steps):
        """The names of the first `steps` batches, as workers take them."""
        return [(text, i * batch_size, (i + 1) * batch_size)
                for i in range(steps)]

    def counts(self, text, batch_size, steps):
        """What there is in the first `steps` batches: a dict of numbers.

        Sequences, tokens and predictions with their padding; real_tokens
        and real_predictions without; squares, the squared real lengths.
        """
        columns = [column[:batch_size * steps]
                   for column in self.columns[text]]
        tokens, lens, weights = columns[0], columns[2], columns[4]
        return {'sequences': len(tokens), 'tokens': tokens.size,
                'predictions': weights.size,
                'real_tokens': int(lens.sum()),
                'real_predictions': int((weights != 0).sum()),
                'squares': int((lens.astype('int64') ** 2).sum())}

    def save(self, path):
        from benchmark_worker import FIELDS
        onp.savez(path, **{f'{name}.{field}': column
                           for name, columns in self.columns.items()
                           for field, column in zip(FIELDS, columns)})


# Peers

class PeerError(Exception):
    """Why a peer could not do what it was asked for, in one sentence."""


class Peer:
    """A worker process; `ask` waits for its answer."""

    def __init__(self, name, kind, python, path, threads=None):
        from d2lbert.machine.processor import find_processor
        self.name = name
        environment = dict(os.environ, CPU_FEATURES=' '.join(
            find_processor().features))
        if kind in ('ours', 'published', 'vectors', 'vectors-int8',
                    'products', 'onednn'):
            environment['PYTHONPATH'] = os.pathsep.join(filter(None, [
                str(ROOT), os.environ.get('PYTHONPATH')]))
        if threads is not None:
            environment['OMP_NUM_THREADS'] = str(threads)
        self._noise = tempfile.TemporaryFile('w+', errors='replace')
        try:
            self._process = subprocess.Popen(
                [python, str(HERE / 'benchmark_worker.py'), kind, path],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=self._noise, env=environment, universal_newlines=True)
        except OSError as error:
            raise PeerError(f'{python} cannot be started: '
                            f'{error.strerror}') from None
        try:
            answer = self.ask('about')
        except PeerError:
            self.close()
            raise
        self.about, self.threads = answer['about'], answer['threads']
        self.memory_at_start = answer['memory']['peak']

    def ask(self, do, **request):
        line = ''
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({'do': do, **request})
                                      + '\n')
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        if not line:
            self._noise.seek(0)
            last = (self._noise.read().strip().splitlines() or [''])[-1]
            raise PeerError(f'its process ended with status '
                            f'{self._process.wait()} {last}'.strip())
        answer = json.loads(line)
        if 'error' in answer:
            raise PeerError(answer['error'])
        return answer

    def close(self):
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._noise.close()


class Peers:
    """Ours and those it is measured against, as far as they are here.

    `book` runs as a reader gets it, which is on half of the CPUs, `book*`
    with as many threads as ours.
    """

    def __init__(self, args, path):
        self._path, self._all, self.missing = path, {}, {}
        self._start('ours', 'ours', sys.executable)
        book = args.book_python or _has_book() and sys.executable
        if book:
            self._start('book', 'book', book)
            self._start('book*', 'book', book, self['ours'].threads)
        else:
            self.missing.update(dict.fromkeys(
                ('book', 'book*'), 'this interpreter has no d2l 0.17.6: give '
                                   '--book-python'))
        if args.torch_python:
            self._start('torch', 'torch', args.torch_python)
        else:
            self.missing['torch'] = 'give --torch-python'

    def _start(self, name, kind, python, threads=None):
        try:
            self._all[name] = Peer(name, kind, python, self._path, threads)
        except PeerError as error:
            if name == 'ours':
                sys.exit(f'd2lbert itself cannot be measured: {error}')
            self.missing[name] = str(error)

    def another(self):
        """A second process of ours, for what must not disturb the first."""
        return contextlib.closing(
            Peer('ours', 'ours', sys.executable, self._path))

    def __getitem__(self, name):
        return self._all[name]

    def __iter__(self):
        return iter(self._all.values())

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for peer in self:
            peer.close()


def layer_products(R, Q, H, F):
    """Multiplications of a layer: 4 R H H + 2 R H F + 2 Q H.

    Those of the projections, the FFN and attention, for R tokens and Q, the
    sum of squared lengths; H hiddens, F hiddens of the FFN.
    """
    return 4 * R * H * H + 2 * R * H * F + 2 * Q * H


class Multiplier:
    """How fast this machine multiplies matrices, while peers take turns."""

    SIZES = dict(M=4096, N=1024, K=1024)

    def __init__(self, peers):
        self._another, self.rates = peers.another(), []

    def __enter__(self):
        self._peer = self._another.__enter__()
        return self

    def __exit__(self, *exception):
        return self._another.__exit__(*exception)

    def measure(self, peer):
        """Beside each turn of ours: once a round."""
        if peer.name == 'ours':
            self.rates.append(self._peer.ask('gemm', times=5,
                                             **self.SIZES)['rate'])

    def compare(self, flops, results):
        """A line for each `Result` of steps that need so many operations."""
        rate = max(self.rates)
        table('Share of the rate of multiplying matrices (FullyConnected, '
              '{M} x {N} x {K}, the best of all rounds)'.format(**self.SIZES),
              ('', 'GFLOP', 's/step', 'GFLOP/s', 'at best', 'share'),
              [[name, f'{flops / 1e9:.1f}', f'{result.median:.4f}',
                f'{flops / result.median / 1e9:.0f}', f'{rate / 1e9:.0f}',
                f'{flops / result.median / rate:.0%}']
               for name, result in results.items()])


def _has_book():
    try:
        return metadata.version('d2l') == '0.17.6'
    except metadata.PackageNotFoundError:
        return False


# Turns

def take_turns(peers, names, rounds, turn, prepare=None, steps=1):
    """Let the named peers take `rounds` turns, one after the other.

    prepare(peer) and one turn that does not count come first; turn(peer)
    gives a dict with seconds and cpu of `steps` steps. Returns a dict:
    for each name a `Result`, or the reason why there is none.
    """
    results, able = {}, []
    for name in names:
        if name in peers.missing:
            results[name] = peers.missing[name]
            continue
        try:
            if prepare is not None:
                prepare(peers[name])
            turn(peers[name])
        except PeerError as error:
            results[name] = str(error)
            continue
        results[name] = Result(peers[name], steps)
        able.append(name)
    for _ in range(rounds):
        for name in list(able):
            time.sleep(PAUSE)
            try:
                results[name].add(turn(peers[name]))
            except PeerError as error:
                results[name] = str(error)
                able.remove(name)
    return results


class Result:
    """The turns of one peer: seconds and CPU seconds of a step in each.

    losses: those of the last step of each turn, where there were any.
    """

    def __init__(self, peer, steps):
        self.threads, self.steps = peer.threads, steps
        self.seconds, self.cpu, self.losses = [], [], []

    def add(self, answer):
        self.seconds.append(answer['seconds'] / self.steps)
        self.cpu.append(answer['cpu'] / self.steps)
        self.losses.append(answer.get('losses'))

    @property
    def median(self):
        return statistics.median(self.seconds)


def as_json(results):
    return {name: {'not measured': result} if isinstance(result, str) else
            {'threads': result.threads, 'seconds': result.seconds,
             'cpu_seconds': result.cpu, 'losses': result.losses}
            for name, result in results.items()}


# Output

def compare(title, results, num_pairs, unit='pairs'):
    """Print the table of one comparison.

    results: as from `take_turns`, ours among them; num_pairs: sequences in
    a step, which `unit` calls. A ratio says how many times ours is as fast.
    """
    reference = results['ours']
    rows = []
    for name, result in results.items():
        if isinstance(result, str):
            rows.append((name, f'not measured: {result}'))
            continue
        row = [name, f'{result.threads}',
               f'{sum(result.cpu) / sum(result.seconds):.1f}',
               f'{result.median:.4f}',
               f'{min(result.seconds):.4f} to {max(result.seconds):.4f}',
               f'{num_pairs / result.median:.1f}']
        if name != 'ours' and not isinstance(reference, str):
            ratios = [theirs / mine for theirs, mine in zip(
                result.seconds, reference.seconds)]
            row += [f'{result.median / reference.median:.2f}',
                    f'{min(ratios):.2f} to {max(ratios):.2f}']
        rows.append(row)
    table(title, ('', 'threads', 'busy', 's/step', 'min to max', f'{unit}/s',
                  'ratio', 'min to max'), rows)


def table(title, head, rows):
    """Print rows of texts under a head; the first column stands left.

    A row of two where the head has more is a name and a remark.
    """
    widths = [max([len(head[i])] + [len(row[i]) for row in rows
                                    if len(row) != 2 or len(head) == 2
                                    if i < len(row)])
              for i in range(len(head))]
    widths[0] = max([widths[0]] + [len(row[0]) for row in rows])
    print(f'\n{title}')
    for row in [head, *rows]:
        remark = len(row) == 2 < len(head)
        cells = [f'{cell:>{width}}' for cell, width in zip(row, widths)][1:]
        line = '  '.join([f'{row[0]:<{widths[0]}}',
                          *(row[1:] if remark else cells)])
        print(f'  {line.rstrip()}')
    sys.stdout.flush()


def introduce(peers, texts, args):
    """Print what ran where, and give it as a dict."""
    facts = {'machine': machine(),
             **({'all held to': args.isa} if args.isa else {}),
             'rounds': args.rounds,
             'steps in a turn': args.steps,
             'text': f'{texts.name}, vocabulary of {texts.vocab_size:,}',
             **{peer.name: f'{peer.about}; {peer.threads} threads'
                for peer in peers}}
    width = max(map(len, facts))
    for name, fact in facts.items():
        print(f'{name:<{width}}  {fact}')
    if 'book*' in [peer.name for peer in peers]:
        print("book is the book's package as a reader gets it, book* with "
              "as many threads as ours;")
    print('busy is CPU seconds a second, a ratio how many times ours is as '
          'fast; medians over the rounds')
    sys.stdout.flush()
    return facts


def machine():
    """This machine in a line: processor, cores, memory, load."""
    from d2lbert.machine import hardware
    from d2lbert.machine.processor import find_processor
    memory = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
    return (f'{find_processor()}, {hardware.physical_cores()} cores, '
            f'{memory / 2 ** 30:.0f} GiB, {platform.system()}, '
            f'load {os.getloadavg()[0]:.1f} at the start')


def write_json(path, numbers):
    if path:
        from d2lbert.machine.files import write_text
        write_text(path, json.dumps(numbers, indent=1))


def save_figure(figure, path):
    """Write a figure of matplotlib as PNG, whole."""
    from d2lbert.machine.files import replacing
    figure.tight_layout()
    with replacing(path) as part:
        figure.savefig(part, format='png', dpi=120)
