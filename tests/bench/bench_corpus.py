"""What a large text costs: open_corpus on some GB, and batches from it.

    python tests/bench/bench_corpus.py --text FILE [--gb G] [--batches N]
        [--folder TEMP] [--valid-share S] [--plain] [--fill] [--sorted]
        [--pieces N] [--beside CHECKOUT] [--rounds R]

FILE (wiki.train.tokens, say) is repeated with changes up to G * 10^9 bytes:
every copy has its own digits, and a quarter of its paragraphs have letters
exchanged, so that the vocabulary grows, too. --sorted: its paragraphs in the
order of the alphabet, blank lines between them. --pieces N: cut into N word
pieces, which are learnt from FILE beforehand.

Each reading runs in a process of its own, with as many threads as there are
cores, with one, and by the d2lbert in the folder CHECKOUT; in turn, R times,
of which the fastest counts. TEMP needs room for about three times the text,
and is emptied.
"""
import argparse
import contextlib
import json
import os
import platform
import random
import shutil
import string
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import benchmark

BATCH_SIZE, MAX_LEN = 512, 64


def write_large(source, target, size):
    """Repeat `source` with changes until `target` has `size` bytes."""
    rng = random.Random(0)
    paragraphs = Path(source).read_bytes().splitlines(True)
    written = 0
    with open(target, 'wb') as f:
        while written < size:
            digits = exchange(rng, string.digits)
            letters = exchange(rng, string.ascii_lowercase)
            for paragraph in paragraphs:
                # Headings stay, so that articles do
                if not paragraph.startswith(b' = '):
                    paragraph = paragraph.translate(digits)
                    if rng.random() < 0.25:
                        paragraph = paragraph.translate(letters)
                written += f.write(paragraph)
                if written >= size:
                    break


def write_sorted(path):
    """Let a text's paragraphs come in the order of the alphabet."""
    paragraphs = sorted(path.read_bytes().splitlines())
    with open(path, 'wb') as f:
        f.writelines(paragraph.strip() + b'\n\n' for paragraph in paragraphs
                     if paragraph.strip())


def exchange(rng, letters):
    return bytes.maketrans(letters.encode(), ''.join(
        rng.sample(letters, len(letters))).encode())


def memory(field):
    """MiB from /proc/self/status: VmRSS now, VmHWM at the most."""
    for line in Path('/proc/self/status').read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024


#: What a phase of the first opening is called, and who does it: later ones
#: may be part of earlier ones.
PHASES = (('hashing', 'opening', '_digests'), ('cutting', 'store', 'CutText'),
          ('vocabulary', 'store', 'build_vocab'),
          ('writing', 'store', 'write_numbers'))


@contextlib.contextmanager
def timed_phases():
    """{phase: seconds} of what is opened in the block."""
    from d2lbert.corpus import corpus, text_store
    modules, found, before = dict(opening=corpus, store=text_store), {}, []

    def timed(name, function):
        def call(*args, **keywords):
            began = time.perf_counter()
            try:
                return function(*args, **keywords)
            finally:
                found[name] = (found.get(name, 0) + time.perf_counter()
                               - began)
        return call
    for name, module, attribute in PHASES:
        function = getattr(modules[module], attribute)
        before.append((modules[module], attribute, function))
        setattr(modules[module], attribute, timed(name, function))
    try:
        yield found
    finally:
        for module, attribute, function in before:
            setattr(module, attribute, function)


def measure(text, num_batches, valid_share, fill, threads, pieces):
    from d2lbert.corpus.corpus import open_corpus
    from d2lbert.kernels import draw
    from d2lbert.machine import hardware
    draw.library()  # compiles draw.cc where that is yet to be done
    if threads:
        hardware.physical_cores = lambda: threads
    vocab = None
    if pieces:
        from d2lbert.pretrained.tokenizers.tokenizer import WordPiece
        vocab = WordPiece.load(pieces)
    found = {'imported': memory('VmHWM')}
    for name in 'open', 'again':
        began, worked = time.perf_counter(), time.process_time()
        with timed_phases() as phases:
            opened = open_corpus(text, valid_share=valid_share, vocab=vocab,
                                 progress=False)
        found[name] = time.perf_counter() - began
        found[f'{name} work'] = time.process_time() - worked
        found[f'{name} peak'] = memory('VmHWM')
        found.setdefault('phases', phases)
    found['phases']['in all'] = found['open']
    part = opened.train
    found.update(words=part.num_words, paragraphs=part.num_paragraphs,
                 articles=len(part.articles), chunks=part.num_chunks(MAX_LEN),
                 vocab=len(opened.vocab))
    began = time.perf_counter()
    batches = part.batches(BATCH_SIZE, MAX_LEN, seed=0, fill=fill)
    examples = len(next(batches)[1].nsp_y)
    found['first batch'] = time.perf_counter() - began
    began, count = time.perf_counter(), 0
    for _, batch in batches:
        count += 1
        examples += len(batch.nsp_y)
        if count >= num_batches:
            break
    found['batches a second'] = count / (time.perf_counter() - began)
    found['batches'] = count
    found['batches peak'] = memory('VmHWM')
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--text', required=True, metavar='FILE')
    parser.add_argument('--gb', type=float, default=1.0)
    parser.add_argument('--batches', type=int, default=2000)
    parser.add_argument('--folder', default=tempfile.gettempdir())
    parser.add_argument('--valid-share', type=float, default=0.0)
    parser.add_argument('--plain', action='store_true',
                        help='without compiled code')
    parser.add_argument('--fill', action='store_true')
    parser.add_argument('--sorted', action='store_true')
    parser.add_argument('--pieces', metavar='N')
    parser.add_argument('--beside', metavar='CHECKOUT')
    parser.add_argument('--rounds', type=int, default=1)
    parser.add_argument('--measure', metavar='CHECKOUT',
                        help=argparse.SUPPRESS)
    parser.add_argument('--threads', type=int, default=0,
                        help=argparse.SUPPRESS)
    args = benchmark.parse(parser)
    if args.measure:
        # Before the one beside this file, which `benchmark` has put first
        sys.path[:0] = [args.measure]
        print(json.dumps(measure(args.text, args.batches, args.valid_share,
                                 args.fill, args.threads, args.pieces)))
        return
    if not Path(args.text).is_file():
        parser.error(f'--text {args.text} is no file: name a text')
    if args.beside and not Path(args.beside, 'd2lbert').is_dir():
        parser.error(f'--beside {args.beside} has no d2lbert in it: name a '
                     'checkout')
    ways = {'threads': (benchmark.ROOT, 0), 'one thread': (benchmark.ROOT, 1)}
    if args.beside:
        ways['beside'] = Path(args.beside).resolve(), 0
    folder = tempfile.mkdtemp(prefix='bench-corpus-', dir=args.folder)
    try:
        large, pieces = Path(folder, 'large.txt'), []
        write_large(args.text, large, int(args.gb * 1e9))
        if args.sorted:
            write_sorted(large)
        if args.pieces:
            pieces = ['--pieces', folder]
            subprocess.run(
                [sys.executable, '-c', 'import sys; from '
                 'd2lbert.pretrained.tokenizers.tokenizer import WordPiece; '
                 'WordPiece.train(sys.argv[1], int(sys.argv[2])).save('
                 'sys.argv[3])', args.text, args.pieces, folder],
                env=surroundings(folder, args.plain), check=True)
        size, found = large.stat().st_size / 1e6, {}
        for _ in range(args.rounds):
            for name, (checkout, threads) in ways.items():
                command = [
                    sys.executable, __file__, *(
                        word for word in sys.argv[1:] if word != '--keep'),
                    '--measure', str(checkout), '--text', str(large),
                    '--threads', str(threads), *pieces]
                came = json.loads(subprocess.run(
                    command, env=surroundings(folder, args.plain),
                    stdout=subprocess.PIPE,
                    check=True).stdout.splitlines()[-1])
                corpora = Path(folder, 'cache', 'corpora')
                came['stored'] = sum(path.stat().st_size for path
                                     in corpora.rglob('*') if path.is_file())
                for kept in corpora, corpora.with_name('tokens'):
                    shutil.rmtree(kept)
                if name not in found or came['open'] < found[name]['open']:
                    found[name] = came
    finally:
        shutil.rmtree(folder)
    report(args, size, found)


def surroundings(folder, plain):
    """The environment of a process that keeps its corpora in a folder."""
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, [
        str(benchmark.ROOT), os.environ.get('PYTHONPATH')])),
        D2LBERT_CACHE=str(Path(folder, 'cache')))
    if plain:
        env['D2LBERT_KERNELS'] = 'off'
    return env


def report(args, size, ways):
    """Print what came of each way to open `size` * 10^6 bytes."""
    found = ways['threads']
    print(f'{size:,.0f} MB{", sorted" if args.sorted else ""}'
          f'{", in word pieces" if args.pieces else ""}, '
          f'{found["words"]:,} words, '
          f'{found["paragraphs"]:,} paragraphs, {found["articles"]:,} '
          f'articles, vocabulary {found["vocab"]:,}; {os.cpu_count()} cores, '
          f'CPython {platform.python_version()}'
          f'{", without compiled code" if args.plain else ""}')
    print(f'{"MB/s":13}' + ''.join(f'{name:>12}' for name in ways))
    for phase in [name for name, _, _ in PHASES] + ['in all']:
        if phase in found['phases']:
            print(f'  {phase:11}' + ''.join(
                f'{size / came["phases"][phase]:12.1f}'
                for came in ways.values()))
    for name, came in ways.items():
        print(f'{name:13}{came["open"]:6.1f} s ({came["open work"]:.1f} s of '
              f'processor time), again {came["again"]:.1f} s; peak memory '
              f'{came["open peak"]:.0f} MiB when opened, '
              f'{came["again peak"]:.0f} again, {came["batches peak"]:.0f} '
              f'after the batches; {came["imported"]:.0f} after the imports')
    print(f'stored       {found["stored"] / 1e6:6.0f} MB')
    print(f'first batch  {found["first batch"]:6.2f} s, then '
          f'{found["batches a second"]:.0f} batches of {BATCH_SIZE} a '
          f'second ({found["batches"]} of {found["chunks"]} chunks)')


if __name__ == '__main__':
    benchmark.run(main)
