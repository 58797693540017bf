"""The cases of digests.py: small runs, and what is read of each.

Only the command line, the public names and the files of run folders are
used, so a case outlives a change of the package's modules.
"""
import collections
import importlib
import io
import json
import os
import random
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

import numpy as onp

HERE = Path(__file__).resolve().parent
THREADS = '2'
OBJECTIVES = 'mlm+nsp', 'mlm+sop', 'mlm', 'span', 'denoise', 'clm'
MAYBE = {'clm'}     # objectives that a version may lack
KERNELS = {'kernels': 'require', 'no kernels': 'off'}
DEVICES = {'one device': 'cpu', 'two devices': 'cpu:2'}

TINY = ['--corpus', 'sample', '--batch-size', '32', '--max-len', '32',
        '--num-hiddens', '16', '--ffn-num-hiddens', '32', '--num-layers', '2',
        '--num-steps', '20', '--seed', '3']
PIECES = ['--tokenizer', 'wordpiece', '--vocab-size', '400',
          '--architecture', 'published', '--max-len', '64',
          '--eval-every', '10']
#: Other settings of `pretrain`, a run each. '{NAME}' is the folder of the
#: run NAME.
SETTINGS = {
    'bf16': ['--precision', 'bf16'],
    'pieces': PIECES,
    'learn': ['--recipe', 'learn', '--num-heads', '2', '--batch-size', '32'],
    'albert': ['--objective', 'mlm+sop', '--embedding-size', '8',
               '--share-layers', '--architecture', 'published'],
    'distilbert': ['--objective', 'mlm', '--architecture', 'distilbert',
                   '--whole-word-masking', *PIECES[:4]],
    'pre-norm': ['--pre-norm', '--tie-embeddings', '--fill-sequences',
                 '--dynamic'],
    'updates': ['--accumulate', '2', '--grow-batch', '0.5', '--average',
                '0.9', '--warmup', '0.2', '--decay', 'cosine', '--clip', '1',
                '--weight-decay', '0.1', '--nsp-weight', '0.5'],
    'mimetic': ['--initializer', 'mimetic', '--mask-share', '0.2'],
    'deletion': ['--objective', 'denoise', '--noise', 'deletion'],
    'denoised pieces': ['--objective', 'denoise', *PIECES],
    'teacher': ['--teacher', '{pretrain pieces, kernels}', '--num-layers',
                '1', '--objective', 'mlm'],
}
#: Tasks of `finetune`: settings, and two texts to predict.
TASKS = {
    'classify': (['--columns', 'text=1,label=0'], ['a glad bird', None]),
    'regress': (['--columns', 'text=0,pair=1,label=2'],
                ['a glad bird', 'the bird']),
    'tag': ([], ['mei saw Oslo', None]),
    'span': ([], ['where is mei ?', 'mei is in Oslo today .']),
}
LEARNT = ['--num-epochs', '2', '--batch-size', '8', '--lr', '1e-2',
          '--max-len', '48', '--stride', '8', '--seed', '1', '--save-every',
          '3', '--keep', '0', '--model', '{pretrain pieces, kernels}']


class CaseError(Exception):
    """Why a case has no digest, in one sentence."""


class Case(NamedTuple):
    """A name, and a function of a `Lab` that returns named entries."""

    name: str
    entries: Any


class Lab:
    """A folder with runs, each made once, by the first case that needs it."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self._locks = collections.defaultdict(threading.Lock)
        self._lock = threading.Lock()
        self._done = {}
        self._idle = collections.defaultdict(list)
        self._calls = 0

    def close(self):
        """End the processes that run the commands."""
        for servers in self._idle.values():
            for server in servers:
                server.communicate()

    def call(self, argv, kernels='kernels'):
        """Run commands or programs; return their standard output."""
        with self._lock:
            self._calls += 1
            path = self.folder / f'call-{self._calls}'
            idle = self._idle[kernels]
            server = idle.pop() if idle else None
        if server is None:
            server = subprocess.Popen(
                [sys.executable, str(HERE / 'digests_programs.py'), 'serve'],
                cwd=self.folder, env=surroundings(KERNELS[kernels]),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                encoding='utf-8')
        server.stdin.write(json.dumps([str(path), *map(str, argv)]) + '\n')
        server.stdin.flush()
        status = server.stdout.readline().strip()
        if not status:
            raise CaseError(f'the process of {argv[0]} ended')
        with self._lock:
            idle.append(server)
        out, err = (path.with_suffix(ending).read_bytes().decode()
                    for ending in ('.out', '.err'))
        if status != '0':
            lines = err.splitlines() or ['no message']
            raise CaseError(f'status {status}: {lines[-1]}')
        return out

    def command(self, argv, kernels='kernels'):
        """Run a command of d2lbert; return its standard output."""
        argv = [str(arg) for arg in argv]
        return self.call(['d2lbert', argv[0], '-q', *(
            self._named(arg[1:-1]) if arg[:1] + arg[-1:] == '{}' else arg
            for arg in argv[1:])], kernels)

    def _named(self, name):
        kind, _, task = name.partition(' ')
        return self.data(task) if kind == 'data' else self.once(name)

    def program(self, name, *arguments, kernels='kernels'):
        """Run a program of digests_programs.py; return its arrays."""
        with self._lock:
            self._calls += 1
            out = self.folder / f'arrays-{self._calls}.npz'
        self.call([name, *arguments, out], kernels)
        with onp.load(out) as arrays:
            return dict(arrays)

    def once(self, name):
        """The run folder of a name in `RUNS`, made if it is not there."""
        with self._lock:
            lock = self._locks[name]
        with lock:
            if name not in self._done:
                argv, kernels = RUNS[name]
                out = self.folder / name.replace(' ', '-')
                try:
                    self.command([*argv, '--out', out], kernels)
                    self._done[name] = out
                except CaseError as error:
                    self._done[name] = error
        if isinstance(self._done[name], CaseError):
            raise self._done[name]
        return str(self._done[name])

    def data(self, task):
        """The folder with the files of a task."""
        with self._lock:
            folder = self.folder / f'data-{task}'
            if not folder.is_dir():
                folder.mkdir()
                for part, num in ('train', 32), ('dev', 12):
                    name, text = _written(task, random.Random(part), num)
                    (folder / f'{part}.{name}').write_text(text, 'utf-8')
        return folder


def surroundings(kernels):
    """The environment of a child: this checkout, and a fixed machine."""
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith('D2LBERT_')
            or name in ('D2LBERT_CACHE', 'D2LBERT_ISA')}
    # Tiles are taken where a measurement says so, which is no fixed answer
    return dict(kept, D2LBERT_KERNELS=kernels, OMP_NUM_THREADS=THREADS,
                OPENBLAS_NUM_THREADS=THREADS, MPLBACKEND='agg',
                D2LBERT_AMX=os.environ.get('D2LBERT_AMX', 'off'),
                PYTHONPATH=str(HERE.parents[1]))


def _written(task, rng, num):
    """The ending and the text of a file with examples of a task."""
    words = ['bird', 'boat', 'clock', 'river', 'song', 'bank']
    rows = []
    for i in range(num):
        mood, name, town = (rng.choice(some) for some in (
            ['glad', 'grim'], ['mei', 'ada', 'tom'], ['Oslo', 'Lima']))
        a, b = rng.choice(words), rng.choice(words)
        rows.append(dict(
            classify=f'{mood}\tthe {mood} {a} and the {b}\n',
            regress=f'the {a} is here\tthe {b} was there\t'
                    f'{5. if a == b else len(a) / 4}\n',
            tag=f'{name} B-PER\nsaw O\nthe O\n{a} O\nin O\n{town} B-LOC\n\n',
            span=dict(context=f'{name} has a {a} and is in {town} today .',
                      qas=[dict(id=str(i), question=f'where is {name} ?',
                                answers=[dict(text=town, answer_start=len(
                                    f'{name} has a {a} and is in '))])]))
            [task])
    if task == 'span':
        return 'json', json.dumps(
            dict(version='1.1', data=[dict(title='t', paragraphs=rows)]))
    return 'conll' if task == 'tag' else 'tsv', ''.join(rows)


# Reading folders

_READING = threading.Lock()


def mxnet():
    """MXNet, which may not be importable before this checkout's package."""
    if str(HERE.parents[1]) not in sys.path:
        sys.path.insert(0, str(HERE.parents[1]))
    importlib.import_module('d2lbert')
    return importlib.import_module('mxnet')


def params(path):
    """{name: array} of a .params file."""
    with _READING:
        return {name: array.asnumpy()
                for name, array in mxnet().nd.load(str(path)).items()}


def run_files(run):
    """Parameters, losses and vocabulary of a run folder."""
    run = Path(run)
    entries = params(run / 'model.params')
    for name in 'losses.csv', 'vocab.txt', 'tokenizer.json':
        if (run / name).is_file():
            entries[name] = (run / name).read_bytes()
    return entries


def safetensors(path):
    """{name: (dtype, shape, bytes)} of a .safetensors file, and its notes."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], 'little')
    header = json.loads(data[8:8 + size].decode())
    entries = {'__metadata__': json.dumps(header.pop('__metadata__', None),
                                          sort_keys=True).encode()}
    for name, tensor in header.items():
        begin, end = tensor['data_offsets']
        entries[name] = (tensor['dtype'], tuple(tensor['shape']),
                         data[8 + size + begin:8 + size + end])
    return entries


# The cases

RUNS = {}       # {name: (arguments, kernels)}
CASES = []


def _case(name, function, *arguments, **keywords):
    CASES.append(Case(name, lambda lab: function(lab, *arguments,
                                                 **keywords)))


def _run(name, argv, kernels):
    RUNS[name] = argv, kernels
    _case(name, lambda lab: run_files(lab.once(name)))


def _resumed(lab, name, argv, step):
    """Resume a copy of a run from a checkpoint; both must be equal."""
    whole = lab.once(name)
    part = lab.folder / f'{Path(whole).name}-resumed'
    shutil.copytree(whole, part)
    (part / 'model.params').unlink()
    for path in (part / 'checkpoints').iterdir():
        if not path.stem.endswith(f'{step:08d}'):
            path.unlink()
    lab.command([argv[0], '--resume', part, '--devices', 'cpu'])
    return _equal(run_files(part), run_files(whole))


def _equal(entries, uninterrupted):
    """Return the entries of a resumed run, which must be as they are there.
    """
    changed = [key for key in sorted({*entries, *uninterrupted}) if as_bytes(
        entries.get(key)) != as_bytes(uninterrupted.get(key))]
    if changed:
        raise CaseError('it differs from the uninterrupted run in '
                        + ', '.join(changed))
    return entries


def _longer(lab, objective):
    """Resume a run of ten steps until twenty; it must equal one of twenty."""
    out = lab.folder / f'longer-{objective}'
    argv = ['pretrain', *TINY, '--objective', objective, '--devices', 'cpu',
            '--log-interval', '1']
    lab.command([*argv, '--num-steps', '10', '--save-every', '10', '--out',
                 out])
    lab.command(['pretrain', '--resume', out, '--num-steps', '20',
                 '--devices', 'cpu'])
    whole = lab.once(f'pretrain {objective}, kernels, one device')
    return _equal(*(params(Path(run, 'model.params'))
                    for run in (out, whole)))


def _exported(lab, run):
    """The files of an exported run, and its parameters when imported."""
    out = lab.folder / f'{run.replace(" ", "-")}-exported'
    lab.command(['export', f'{{{run}}}', out])
    entries = {}
    for path in sorted(out.rglob('*')):
        if path.suffix == '.safetensors':
            entries.update(safetensors(path))
        elif path.is_file():
            entries[str(path.relative_to(out))] = path.read_bytes()
    if run.startswith('pretrain'):
        back = out.with_name(f'{out.name}-imported')
        lab.command(['import', out, back])
        entries.update({f'imported {name}': array for name, array
                        in params(back / 'model.params').items()})
    return entries


def _printed(lab, commands, kernels='kernels'):
    """The standard output of commands."""
    return {f'{i} {argv[0]}': lab.command(argv, kernels).encode()
            for i, argv in enumerate(commands)}


def _written_vectors(lab, run):
    """The file of vectors that `encode` writes, and the nearest texts."""
    texts, out = lab.folder / 'texts.txt', lab.folder / 'vectors.npy'
    texts.write_text('a crane is flying\nthe bank\nthe river was high\n')
    lab.command(['encode', f'{{{run}}}', '--file', texts, '--out', out,
                 '--pool', 'mean'])
    similar = ['similar', f'{{{run}}}', 'the water', '--file', texts]
    return dict(_printed(lab, [similar]), vectors=onp.load(
        io.BytesIO(out.read_bytes())))


def _list_cases():
    for objective in OBJECTIVES:
        for kernels in KERNELS:
            for devices, name in DEVICES.items():
                _run(f'pretrain {objective}, {kernels}, {devices}',
                     ['pretrain', *TINY, '--objective', objective,
                      '--devices', name, '--log-interval', '1'], kernels)
    for setting, argv in SETTINGS.items():
        both = setting in ('pieces', 'teacher')
        for kernels in KERNELS if both else ['kernels']:
            _run(f'pretrain {setting}, {kernels}',
                 ['pretrain', *TINY, *argv, '--devices', 'cpu'], kernels)
    _run('pretrain checkpoints, kernels',
         ['pretrain', *TINY, '--decay', 'linear', '--save-every', '10',
          '--keep', '0', '--eval-every', '5', '--devices', 'cpu'], 'kernels')
    for kernels in KERNELS:
        for edition, count in (('later', '1'), ('later', '2'),
                               ('first', '1'), ('own', '1')):
            _case(f'train_bert {edition} edition, {kernels}, {count} devices',
                  Lab.program, 'page', edition, count, kernels=kernels)
        _case(f'blocks, {kernels}', Lab.program, 'blocks', kernels=kernels)
        for run in ('pretrain mlm+nsp, kernels, one device',
                    'pretrain pieces, kernels'):
            _case(f'vectors of {run} by {kernels}',
                  lambda lab, run=run, kernels=kernels: lab.program(
                      'vectors', lab.once(run), kernels=kernels))
        _case(f'classifier of the book, {kernels}, two devices',
              lambda lab, kernels=kernels: lab.program(
                  'classifier', lab.once('pretrain mlm+nsp, kernels, one '
                                         'device'), '2', kernels=kernels))
    _case('vectors of pretrain distilbert, kernels', lambda lab: lab.program(
        'vectors', lab.once('pretrain distilbert, kernels')))
    _case('data', Lab.program, 'data')
    _list_finetuned()
    _case('resumed pretrain', _resumed, 'pretrain checkpoints, kernels',
          ['pretrain'], 10)
    _case('resumed finetune', _resumed, 'finetune classify, kernels',
          ['finetune'], 3)
    for objective in 'mlm+nsp', 'denoise':
        _case(f'resumed and longer {objective}', _longer, objective)
    for run in ('pretrain pieces, kernels', 'pretrain albert, kernels',
                'pretrain distilbert, kernels',
                'pretrain denoised pieces, kernels',
                'finetune classify, kernels'):
        _case(f'exported {run}', _exported, run)
    run = '{pretrain pieces, kernels}'
    for kernels in KERNELS:
        _case(f'printed by evaluate, fill and encode, {kernels}', _printed, [
            ['evaluate', run], ['fill', run, 'the [MASK] is a [MASK] .'],
            ['encode', run, 'a crane']], kernels)
        _case(f'printed by generate, {kernels}', _printed, [
            ['generate', '{pretrain denoised pieces, kernels}',
             'a crane [MASK] flying', '--max-len', '12', '--num-beams', beams]
            for beams in '12'], kernels)
    _case('printed by senses', _printed, [['senses', run]])
    _case('vectors and nearest texts of commands', _written_vectors, run[1:-1])


def _list_finetuned():
    for task, (flags, (text, pair)) in TASKS.items():
        for kernels in KERNELS:
            name = f'finetune {task}, {kernels}'
            argv = ['finetune', '--task', task, *flags, *LEARNT,
                    '--devices', 'cpu:2' if task == 'tag' else 'cpu']
            RUNS[name] = [*argv, '--data', f'{{data {task}}}'], kernels
            predict = ['predict', f'{{{name}}}', text]
            _case(name, lambda lab, name=name, kernels=kernels,
                  predict=predict, pair=pair: dict(
                      run_files(lab.once(name)), **_printed(
                          lab, [predict + (['--pair', pair] if pair else []),
                                ['evaluate', predict[1]]], kernels)))


def as_bytes(entry):
    """The bytes of an entry that its digest covers, None for no entry."""
    if entry is None:
        return None
    if isinstance(entry, bytes):
        entry = 'bytes', (len(entry),), entry
    elif isinstance(entry, onp.ndarray):
        if entry.dtype == object:
            raise CaseError('an array of objects has no bytes to compare')
        entry = entry.dtype.str, entry.shape, entry.tobytes()
    dtype, shape, data = entry
    return f'{dtype} {tuple(shape)}\n'.encode() + data


_list_cases()
