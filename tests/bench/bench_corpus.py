"""What a large text costs: open_corpus on some GB, and batches from it.

    python tests/bench/bench_corpus.py --text FILE [--gb G] [--batches N]
        [--folder TEMP] [--valid-share S] [--plain] [--fill]

FILE (wiki.train.tokens, say) is repeated with changes up to G * 10^9 bytes:
every copy has its own digits, and a quarter of its paragraphs have letters
exchanged, so that the vocabulary grows, too. Reading runs in a process of
its own; TEMP needs room for about three times the text, and is emptied.
"""
import argparse
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


def exchange(rng, letters):
    return bytes.maketrans(letters.encode(), ''.join(
        rng.sample(letters, len(letters))).encode())


def memory(field):
    """MiB from /proc/self/status: VmRSS now, VmHWM at the most."""
    for line in Path('/proc/self/status').read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024


def measure(text, num_batches, valid_share, fill):
    from d2lbert.corpus.opening import open_corpus
    from d2lbert.kernels import draw
    draw.library()  # compiles draw.cc where that is yet to be done
    found = {'imported': memory('VmHWM')}
    for name in 'open', 'again':
        began, worked = time.perf_counter(), time.process_time()
        opened = open_corpus(text, valid_share=valid_share)
        found[name] = time.perf_counter() - began
        found[f'{name} work'] = time.process_time() - worked
        found[f'{name} peak'] = memory('VmHWM')
    part = opened.train
    found.update(words=part.num_words, paragraphs=part.num_paragraphs,
                 articles=part.num_articles, chunks=part.num_chunks(MAX_LEN),
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
    parser.add_argument('--measure', action='store_true',
                        help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.text, args.batches, args.valid_share,
                                 args.fill)))
        return
    folder = tempfile.mkdtemp(prefix='bench-corpus-', dir=args.folder)
    try:
        large = Path(folder, 'large.txt')
        write_large(args.text, large, int(args.gb * 1e9))
        env = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, [
            str(Path(__file__).resolve().parents[2]),
            os.environ.get('PYTHONPATH')])),
            D2LBERT_CACHE=str(Path(folder, 'cache')))
        if args.plain:
            env['D2LBERT_KERNELS'] = 'off'
        command = [sys.executable, __file__, *sys.argv[1:], '--measure',
                   '--text', str(large)]
        found = json.loads(subprocess.run(
            command, env=env, stdout=subprocess.PIPE,
            check=True).stdout.splitlines()[-1])
        stored = sum(path.stat().st_size
                     for path in Path(folder, 'cache').rglob('*')
                     if path.is_file())
    finally:
        shutil.rmtree(folder)
    size = args.gb * 1000
    print(f'{size:,.0f} MB, {found["words"]:,} words, '
          f'{found["paragraphs"]:,} paragraphs, {found["articles"]:,} '
          f'articles, vocabulary {found["vocab"]:,}; {os.cpu_count()} cores, '
          f'CPython {platform.python_version()}'
          f'{", without compiled code" if args.plain else ""}')
    print(f'open_corpus  {found["open"]:8.1f} s  '
          f'{size / found["open"]:6.1f} MB/s ({found["open work"]:.1f} s of '
          f'processor time); again {found["again"]:.1f} s')
    print(f'stored       {stored / 1e6:8.0f} MB')
    print(f'first batch  {found["first batch"]:8.2f} s, then '
          f'{found["batches a second"]:.0f} batches of {BATCH_SIZE} a '
          f'second ({found["batches"]} of {found["chunks"]} chunks)')
    print(f'peak memory  {found["open peak"]:8.0f} MiB when opened, '
          f'{found["again peak"]:.0f} again, {found["batches peak"]:.0f} '
          f'after the batches; {found["imported"]:.0f} after the imports')


if __name__ == '__main__':
    main()
