"""How long a model takes to load, and a command to answer.

    python tests/bench/bench_start.py [--model FOLDER] [--rounds N]

FOLDER is a checkpoint folder in fp32 ($D2LBERT_WEIGHTS/minilm); the same at
eight bits is made from it, in a temporary folder. All files are in the disk's
cache. In each round every row has one turn:

load     load_pretrained of an int8 folder, of the fp32 folder, and of the
         fp32 folder with precision='int8', in a process that has loaded
         before
command  `d2lbert encode FOLDER TEXT` in a new process, of both folders; and
         what it cannot do without: a Python that ends at once, and one that
         imports NumPy, the libraries of the folder, or MXNet

Nothing here passes or fails: it prints figures of this machine.
"""
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import benchmark

TEXT = 'a crane is flying over the old harbour at ten'

PROGRAMS = {'python': 'pass', 'numpy': 'import numpy',
            'libraries': 'import numpy, safetensors.numpy, tokenizers',
            'mxnet': 'import mxnet'}


def timed(run):
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def loads(folders):
    """{row: a function that loads}."""
    from d2lbert import load_pretrained

    def load(folder, **keywords):
        return lambda: load_pretrained(folder, heads=(), trainable=False,
                                       **keywords)
    return {'load int8 folder': load(folders['int8']),
            'load fp32 folder': load(folders['fp32']),
            'load fp32 folder as int8': load(folders['fp32'],
                                             precision='int8')}


def commands(folders):
    """{row: a function that runs a new process to its end}."""
    def process(*arguments):
        return lambda: subprocess.run(
            [sys.executable, *arguments], check=True, cwd=benchmark.ROOT,
            stdout=subprocess.DEVNULL)
    return {**{f'd2lbert encode, {name} folder': process(
        '-m', 'd2lbert', 'encode', folder, TEXT)
        for name, folder in folders.items()},
        **{f'python, {name}': process('-c', program)
           for name, program in PROGRAMS.items()}}


def main():
    parser = benchmark.parser(__doc__)
    parser.add_argument('--model', metavar='FOLDER', default=str(Path(
        os.environ.get('D2LBERT_WEIGHTS', ''), 'minilm')))
    args = benchmark.parse(parser)
    from d2lbert.training.load import export_run
    with tempfile.TemporaryDirectory() as scratch:
        folders = {'int8': str(Path(scratch, 'int8')), 'fp32': args.model}
        export_run(args.model, folders['int8'], 'int8')
        rows = {**loads(folders), **commands(folders)}
        seconds = {name: [] for name in rows}
        for _ in range(args.rounds + 1):
            for name, run in rows.items():
                seconds[name].append(timed(run))
    # The first round fills caches
    seconds = {name: found[1:] for name, found in seconds.items()}
    print(f'machine  {benchmark.machine()}')
    benchmark.table('From the disk\'s cache, in seconds', (
        '', 'median', 'min to max'), [
            [name, f'{statistics.median(found):.3f}',
             f'{min(found):.3f} to {max(found):.3f}']
            for name, found in seconds.items()])
    benchmark.write_json(args.json, seconds)


if __name__ == '__main__':
    benchmark.run(main)
