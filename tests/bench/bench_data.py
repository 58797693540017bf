"""How long load_data_wiki takes from text to first batch, beside the book's.

    python tests/bench/bench_data.py --data FOLDER [--runs N] [--plain]

FOLDER holds wiki.train.tokens. Every run is a process of its own, ours and
the book's in turn; imports are not counted, compiling neither.
"""
import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import benchmark

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

BATCH_SIZE, MAX_LEN = 512, 64


def run_ours(folder):
    from d2lbert import bert_dataset
    from d2lbert.kernels import draw
    draw.library()  # compiles draw.cc if needed
    return _timed(lambda: bert_dataset.load_data_wiki(
        BATCH_SIZE, MAX_LEN, data_dir=folder))


def run_book(folder):
    from conftest import import_book
    book = import_book()
    if book is None:
        sys.exit("the book's package is not here: "
                 'pip install --no-deps d2l==0.17.6')
    book.download_extract = lambda *_: folder
    return _timed(lambda: book.load_data_wiki(BATCH_SIZE, MAX_LEN))


def _timed(load):
    import numpy as onp
    random.seed(0)
    onp.random.seed(0)
    began = time.perf_counter()
    batches, vocab = load()
    for field in next(iter(batches)):
        field.wait_to_read()
    return {'seconds': time.perf_counter() - began, 'vocab': len(vocab)}


BOOK = "the book's"
KINDS = {BOOK: run_book, 'ours': run_ours}


def in_own_process(kind, folder, plain):
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, [
        str(Path(__file__).resolve().parents[2]),
        os.environ.get('PYTHONPATH')])))
    if plain:
        env['D2LBERT_KERNELS'] = 'off'
    if kind == BOOK:
        env['D2LBERT_MALLOC'] = 'default'   # as its readers have it
    with tempfile.TemporaryFile('w+') as out:
        subprocess.run([sys.executable, __file__, '--data', folder,
                        '--kind', kind], env=env, stdout=out, check=True)
        out.seek(0)
        return json.loads(out.read().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--data', metavar='FOLDER', help='the folder that '
                        'holds wiki.train.tokens or wikitext-2/ (default: '
                        'where load_data_wiki finds it)')
    parser.add_argument('--runs', type=int, default=3)
    parser.add_argument('--plain', action='store_true',
                        help='ours without compiled code')
    parser.add_argument('--kind', choices=list(KINDS),
                        help=argparse.SUPPRESS)
    args = benchmark.parse(parser)
    if args.kind:
        print(json.dumps(KINDS[args.kind](args.data)))
        return
    from d2lbert import hub
    folder = str(hub.wikitext2_dir(args.data))
    runs = {kind: [] for kind in KINDS}
    for _ in range(args.runs):
        for kind in KINDS:
            runs[kind].append(in_own_process(kind, folder, args.plain))
    print(f'load_data_wiki({BATCH_SIZE}, {MAX_LEN}) to first batch, '
          f'{os.cpu_count()} cores, CPython {platform.python_version()}, '
          f'median of {args.runs}'
          f'{", without compiled code" if args.plain else ""}')
    medians = {kind: statistics.median(run['seconds'] for run in results)
               for kind, results in runs.items()}
    for kind, results in runs.items():
        seconds = [run['seconds'] for run in results]
        print(f'{kind:16}{medians[kind]:8.2f} s  '
              f'({min(seconds):.2f} to {max(seconds):.2f})  '
              f'{medians[BOOK] / medians[kind]:6.1f}x'
              f'  vocabulary {results[0]["vocab"]:,}')


if __name__ == '__main__':
    benchmark.run(main)
