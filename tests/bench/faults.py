"""Faults in figures: runs that are killed, and inputs that are damaged.

    python tests/bench/faults.py [--kills 50] [--inputs 200] [--seed 0]

Kills `d2lbert pretrain` at random moments, resumes it until it is done and
compares what it leaves with a run that nobody disturbed. Then gives the
command damaged checkpoints, parameters, vocabularies, configurations,
corpora, archives and arguments, and counts what it makes of them. Prints a
table; the exit status is 0 only if nothing went wrong. Each command runs in
a process of its own, forked from one that has imported d2lbert.
"""
import argparse
import collections
import gzip
import hashlib
import http.server
import io
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tarfile
import tempfile
import threading
import time
import traceback
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as onp

from d2lbert import hub
from d2lbert.__main__ import main
from d2lbert.launch import guard
from d2lbert.machine import cache as kept
from d2lbert.training import checkpoints
from d2lbert.training.settings import SETTINGS

TINY = ['--corpus', 'sample', '--batch-size', '100', '--max-len', '32',
        '--num-hiddens', '8', '--ffn-num-hiddens', '8', '--num-layers', '1',
        '--devices', 'cpu', '--seed', '1']
#: A run with everything that a checkpoint has to remember.
KILLED = ['pretrain', *TINY, '--num-steps', '25', '--save-every', '1',
          '--eval-every', '5', '--accumulate', '2', '--dynamic', '--fill',
          '--out', 'run']
TRAINED = ['pretrain', *TINY, '--num-steps', '4', '--save-every', '1',
           '--eval-every', '2', '--out', 'run']
RESUME = ['pretrain', '--resume', 'run', '--num-steps', '6', '--devices',
          'cpu']
#: Where a damaged archive would like to write.
SLIPPED = Path(tempfile.gettempdir(), f'slipped-{os.getpid()}.txt')
SECONDS = 120           # no command of these takes as long
MEMORY = 8 << 30        # so that a damaged size cannot take the machine


class End(NamedTuple):
    """How a command ended."""

    status: int         # minus the signal's number if one ended it
    out: str
    err: str


class Case(NamedTuple):
    """A command that is given something damaged."""

    what: str
    argv: list
    names: tuple        # one of them has to be in the message
    prepare: Any = None     # called in the command's process
    same: bool = False      # whether success must mean the usual result


# Commands in processes of their own

def fork(folder, argv, prepare=None):
    """Start a command in `folder`; returns (process id, its output)."""
    outputs = [tempfile.TemporaryFile() for _ in range(2)]
    # It dies with this process, and Ctrl-C, though ignored here, reaches it
    become = guard.die_with(os.getpid())
    pid = os.fork()
    if pid:
        return pid, outputs
    status = 70
    try:
        become()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(folder)
        for number, file in enumerate(outputs, 1):
            os.dup2(file.fileno(), number)
        sys.stdin = open(os.devnull)
        sys.stdout, sys.stderr = (
            open(number, 'w', encoding='utf-8', closefd=False)
            for number in (1, 2))
        if prepare is not None:
            prepare()
        status = main(argv)
    except SystemExit as exit:
        status = exit.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def wait(pid, outputs, seconds=SECONDS):
    """The `End` of a command; it is killed after so many seconds."""
    deadline = time.monotonic() + seconds
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            status = os.waitpid(pid, 0)[1]
            break
        time.sleep(0.002)
    texts = []
    for file in outputs:
        file.seek(0)
        texts.append(file.read().decode('utf-8', 'replace'))
        file.close()
    return End(-os.WTERMSIG(status) if os.WIFSIGNALED(status)
               else os.WEXITSTATUS(status), *texts)


def listing(folder):
    """Every path below `folder` with the checksum of what it holds."""
    return {path.relative_to(folder).as_posix():
            hashlib.sha1(path.read_bytes()).hexdigest()
            if path.is_file() else 'folder'
            for path in folder.rglob('*')}


def result(folder):
    return {name: (folder / 'run' / name).read_bytes()
            for name in ('losses.csv', 'model.params')}


# Killed runs

def kill_runs(num_kills, rng, base):
    """Kill and resume until num_kills are done; returns counts."""
    folder = base / 'undisturbed'
    folder.mkdir()
    begun = time.monotonic()
    end = wait(*fork(folder, KILLED))
    duration = time.monotonic() - begun
    assert end.status == 0, end.err
    expected = result(folder)
    counts = collections.Counter()
    while counts['kills'] < num_kills:
        folder = base / f'killed-{counts["runs"]}'
        folder.mkdir()
        kill_and_resume(folder, num_kills, rng, duration, counts)
        counts['runs'] += 1
        counts['equal' if result(folder) == expected else 'different'] += 1
        counts['left behind'] += sum('.part' in name
                                     for name in listing(folder / 'run'))
        shutil.rmtree(folder)
    return counts


def kill_and_resume(folder, num_kills, rng, duration, counts):
    """One run to its end, killed on the way again and again."""
    newest = 0
    while True:
        step = check_checkpoints(folder, newest, counts)
        newest = max(newest, step)
        if step:
            argv = ['pretrain', '--resume', 'run', '--devices', 'cpu']
        else:
            argv = [*KILLED, '--force']
        pid, outputs = fork(folder, argv)
        if counts['kills'] < num_kills:
            try:
                time.sleep(rng.uniform(0, duration))
                os.kill(pid, signal.SIGKILL)
            finally:
                end = wait(pid, outputs)
            if end.status == -signal.SIGKILL:
                counts['kills'] += 1
                counts['while training'] += bool(
                    check_checkpoints(folder, 0, counts))
                continue
        else:
            end = wait(pid, outputs)
        if end.status != 0:
            sys.exit(f'{argv} failed: {end.err}')
        return


def check_checkpoints(folder, newest, counts):
    """The last step saved; counts checkpoints that are gone or damaged."""
    found = checkpoints.all_of(folder / 'run')
    for path in found:
        try:
            checkpoints.load(path)
        except checkpoints.CheckpointError as error:
            print(error)
            counts['checkpoints lost'] += 1
    step = int(found[-1].stem[5:]) if found else 0
    counts['checkpoints lost'] += step < newest
    return step


# Damaged inputs

def cut(rng, data):
    return data[:rng.randrange(len(data))]


def flipped(rng, data):
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 8, 100])):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def noise(rng, num_bytes=2000):
    return bytes(rng.randrange(256) for _ in range(num_bytes))


#: Values that have no place where they are put.
JUNK = [None, 'x', -1, 2.5, True, [], {}, [[]], {'a': 1}, float('nan'),
        10 ** 30, 'é' * 30]


def damaged_checkpoint(rng, folder):
    path = rng.choice(checkpoints.all_of(folder / 'run'))
    argv = list(RESUME)
    if rng.random() < 0.5:
        argv[2] = path.relative_to(folder).as_posix()
    else:
        path = checkpoints.all_of(folder / 'run')[-1]
    kind = rng.choice(['cut', 'cut', 'flipped', 'flipped', 'flipped',
                       'empty', 'noise', 'foreign', 'arrays', 'text',
                       'JSON', 'JSON', 'setting'])
    if kind in ('cut', 'flipped'):
        path.write_bytes(globals()[kind](rng, path.read_bytes()))
    elif kind in ('empty', 'noise'):
        path.write_bytes(b'' if kind == 'empty' else noise(rng))
    elif kind == 'foreign':
        onp.savez(path, **{f'w{k}': onp.arange(k + 1) for k in range(4)})
    else:
        with onp.load(path) as file:
            arrays = dict(file)
        if kind == 'arrays':
            name = rng.choice([n for n in arrays if n.startswith('param/')])
            if rng.random() < 0.5:
                arrays[name] = arrays[name][:-1]
            else:
                del arrays[name]
        text = arrays['state'].tobytes()
        if kind == 'text':
            text = rng.choice([cut(rng, text), b'', b'[]', b'\xff{}', b'1'])
        elif kind in ('JSON', 'setting'):
            state = json.loads(text.decode())
            if kind == 'setting':
                name = rng.choice(sorted(state['settings']))
                state['settings'][name] = {'unknown': 'thing'}
            else:
                name = rng.choice(sorted(state))
                state[name] = {'unknown': 'thing'} if isinstance(
                    state[name], (int, str, list)) else rng.choice(JUNK)
                if rng.random() < 0.5:
                    del state[name]
            kind = f'{kind} {name}'
            text = json.dumps(state).encode()
        arrays['state'] = onp.frombuffer(text, 'uint8')
        onp.savez(path, **arrays)
    return Case(f'checkpoint: {kind}', argv, (path.name,), same=True)


def damaged_parameters(rng, folder):
    path = folder / 'run' / 'model.params'
    kind = rng.choice(['cut', 'cut', 'empty', 'noise', 'head', 'folder'])
    data = path.read_bytes()
    if kind == 'folder':
        path.unlink()
        path.mkdir()
    else:
        path.write_bytes({
            'cut': lambda: cut(rng, data), 'empty': bytes,
            'noise': lambda: noise(rng),
            'head': lambda: noise(rng, 40) + data[40:]}[kind]())
    argv = rng.choice([['encode', 'run', 'a bird'],
                       ['evaluate', 'run', '--devices', 'cpu']])
    return Case(f'parameters: {kind}', argv, ('model.params', 'folder run',
                                              'run in run'))


def damaged_vocabulary(rng, folder):
    path = folder / 'run' / 'vocab.txt'
    lines = path.read_bytes().splitlines()
    kind = rng.choice(['no reserved', 'order', 'twice', 'bytes', 'empty',
                       'gap', 'noise', 'longer', 'UTF-16', 'missing',
                       'folder'])
    place = rng.randrange(5, len(lines))
    if kind == 'no reserved':
        del lines[rng.randrange(5)]
    elif kind == 'order':
        lines[1:5] = rng.sample(lines[1:5], 4)
        lines[0], lines[1] = lines[1], lines[0]
    elif kind == 'twice':
        lines.insert(place, lines[rng.randrange(len(lines))])
    elif kind == 'bytes':
        lines[place] = b'caf\xe9'
    elif kind == 'gap':
        lines.insert(place, b'')
    elif kind == 'longer':
        lines.append(b'no-word-of-this-text')
    data = b'\n'.join(lines) + b'\n'
    data = {'empty': b'', 'noise': noise(rng),
            'UTF-16': data.decode('utf-8', 'replace').encode('utf-16')
            }.get(kind, data)
    given = folder / 'words.txt'
    for target in (path, given):
        target.write_bytes(data)
    if kind in ('missing', 'folder'):
        for target in (path, given):
            target.unlink()
            if kind == 'folder':
                target.mkdir()
    argv = rng.choice([
        ['encode', 'run', 'a bird'],
        ['pretrain', *TINY, '--num-steps', '1', '--vocab', 'words.txt',
         '--out', 'new']])
    if kind == 'longer':        # that is damage only to a run
        argv = ['encode', 'run', 'a bird']
    return Case(f'vocabulary: {kind}', argv, ('vocab.txt', 'words.txt'))


def damaged_config(rng, folder):
    path = folder / 'run' / 'config.json'
    config = json.loads(path.read_text('utf-8'))
    kind = rng.choice(['cut', 'noise', 'other', 'key', 'key', 'missing',
                       'missing'])
    if kind == 'cut':
        path.write_bytes(cut(rng, path.read_bytes().rstrip()))
    elif kind == 'noise':
        path.write_bytes(noise(rng))
    elif kind == 'other':
        path.write_text(rng.choice(['[]', '{}', '1', '"x"', 'null',
                                    '{"model": 1}', '{"model": {}}']))
    else:
        part = rng.choice(['model', 'model', 'training'])
        name = rng.choice([name for name in sorted(config[part])
                           if name not in ('devices', 'vocab', 'data_dir',
                                           'valid')])
        if kind == 'key':
            config[part][name] = {'unknown': 'thing'}
        else:
            del config[part][name]
        kind = f'{kind} {part}.{name}'
        path.write_text(json.dumps(config), 'utf-8')
    argv = rng.choice([['encode', 'run', 'a bird'],
                       ['evaluate', 'run', '--devices', 'cpu']])
    return Case(f'configuration: {kind}', argv,
                ('config.json', 'vocab.txt', 'model.params'))


def plain_text(rng):
    words = [f'word{k}' for k in range(30)]
    return '\n\n'.join(
        ' . '.join(' '.join(rng.choices(words, k=5)) for _ in range(4)) + ' .'
        for _ in range(60)).encode()


def damaged_corpus(rng, folder):
    path, data = folder / 'text.txt', plain_text(rng)
    kind = rng.choice(['bytes', 'bytes', 'empty', 'long line', 'no pairs',
                       'too long', 'gz cut', 'gz flipped', 'gz noise',
                       'folder', 'missing', 'pipe', 'loop', 'UTF-16',
                       'blank', 'noise', 'below a file', 'twice'])
    names = ['text.txt']
    argv = ['pretrain', *TINY[2:], '--num-steps', '1', '--out', 'new',
            '--corpus', 'text.txt']
    if kind == 'bytes':
        place = rng.randrange(len(data))
        data = data[:place] + bytes([rng.randrange(0xf5, 256)]) + data[place:]
    elif kind == 'empty':
        data = b''
    elif kind == 'long line':
        data = b'word ' * 1_000_000 + b'. and . another . \n'
    elif kind == 'no pairs':
        data = b'one sentence and no other\n\n' * 50
    elif kind == 'too long':
        data = (b'word ' * 40 + b' . ' + b'word ' * 40 + b' .\n\n') * 5
    elif kind.startswith('gz'):
        data = gzip.compress(data * 20)
        data = {'gz cut': cut, 'gz flipped': flipped,
                'gz noise': lambda rng, data: data[:10] + noise(rng)
                }[kind](rng, data)
        # What a flipped bit changed may be text still
        names += ['UTF-8']
    elif kind == 'UTF-16':
        data = data.decode().encode('utf-16')
    elif kind == 'blank':
        data = b' \n\n\t\n' * 100
    elif kind == 'noise':
        data = noise(rng)
    if kind == 'folder':
        path.mkdir()
    elif kind == 'pipe':
        os.mkfifo(path)
    elif kind == 'loop':
        path.symlink_to('text.txt')
    elif kind == 'twice':
        path.write_bytes(data)
        argv += ['--valid', 'text.txt', '--eval-every', '1']
    elif kind == 'below a file':
        path.write_bytes(data)
        argv[-1] = 'text.txt/more.txt'
    elif kind != 'missing':
        path.write_bytes(data)
    return Case(f'corpus: {kind}', argv, tuple(names))


def damaged_archive(rng, folder):
    kind = rng.choice(['above', 'absolute', 'backslash', 'link', 'device',
                       'cut', 'flipped', 'noise', 'checksum', 'page',
                       'broken off', 'not found', 'empty', 'encrypted',
                       'no text', 'hang up'])
    text = (hub.sample_dir() / hub.TRAIN_FILE).read_bytes()
    archive = io.BytesIO()
    ending = 'zip'
    if kind in ('link', 'device'):
        ending = 'tgz'
        with tarfile.open(fileobj=archive, mode='w:gz') as f:
            info = tarfile.TarInfo(f'wikitext-2/{hub.TRAIN_FILE}')
            info.type, info.linkname = (
                (tarfile.SYMTYPE, '/etc/hostname') if kind == 'link'
                else (tarfile.CHRTYPE, ''))
            f.addfile(info)
    else:
        name = {'above': '../slipped.txt', 'absolute': str(SLIPPED),
                'backslash': '..\\slipped.txt', 'no text': 'readme.txt'
                }.get(kind, f'wikitext-2/{hub.TRAIN_FILE}')
        with zipfile.ZipFile(archive, 'w', zipfile.ZIP_DEFLATED) as f:
            f.writestr('wikitext-2/other.txt', 'other')
            f.writestr(name, text)
    data = archive.getvalue()
    if kind in ('cut', 'flipped'):
        data = globals()[kind](rng, data)
    elif kind in ('noise', 'empty'):
        data = noise(rng) if kind == 'noise' else b''
    elif kind == 'encrypted':
        # The flag of the first member, in both of its headers
        data = bytearray(data)
        for place in (6, data.index(b'PK\1\2') + 8):
            data[place] |= 1
        data = bytes(data)
    sha1 = hashlib.sha1(b'x' if kind in ('checksum', 'page') else data
                        ).hexdigest()
    sent = b'<html>sorry</html>' if kind == 'page' else data

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            if kind == 'hang up':
                self.connection.close()
                return
            self.send_response(404 if kind == 'not found' else 200)
            self.send_header('Content-Length', str(
                len(sent) + 99 * (kind == 'broken off')))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, *args):
            pass

        def handle(self):
            try:
                super().handle()
            except (OSError, ValueError):
                pass        # the connection that was hung up

    def serve():
        server = http.server.HTTPServer(('127.0.0.1', 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f'http://127.0.0.1:{server.server_port}/text.{ending}'
        hub.DATA_HUB['wikitext-2'] = url, sha1
        hub.LOOSE_FILES.clear()
        hub._places = lambda: [folder / 'nothing']
        for name in list(os.environ):
            if name.lower().endswith('_proxy') or name == 'D2LBERT_DATA':
                del os.environ[name]
        os.environ['D2LBERT_CACHE'] = str(folder / 'cache')
    (folder / 'cache').mkdir()
    (folder / 'cache' / 'kernels').symlink_to(kept.folder('kernels'))
    argv = ['pretrain', *TINY[2:], '--corpus', 'wikitext-2', '--num-steps',
            '1', '--out', 'new']
    return Case(f'archive: {kind}', argv, (f'text.{ending}', hub.TRAIN_FILE),
                serve)


def damaged_command(rng, folder):
    (folder / 'notes').mkdir()
    (folder / 'notes' / 'thesis.txt').write_text('precious')
    base = ['pretrain', *TINY, '--num-steps', '1', '--out', 'new']
    kind = rng.choice(['number', 'number', 'number', 'name', 'flag', 'whole'])
    if kind == 'number':
        setting = rng.choice([setting for setting in SETTINGS.values()
                              if setting.kind in (int, float)])
        flag, of = '--' + setting.name.replace('_', '-'), setting.kind
        values = ['-1', '', 'x', '1,5', '0x10', '-inf', 'nan', '1e999']
        if of is int:
            values += ['1.5', '1e3']
        # What takes for ever, or all memory, is no mistake that can be told
        value = rng.choice(values)
        name = flag[2:]
        return Case(f'command: {flag} {value!r}', [*base, f'{flag}={value}'],
                    (name, name.replace('-', '_')))
    if kind == 'name':
        flag, value = rng.choice([
            ('--recipe', 'cake'), ('--decay', 'steep'), ('--split', 'words'),
            ('--initializer', 'zero'), ('--precision', 'fp8'),
            ('--devices', 'tpu'), ('--devices', 'cpu:0'),
            ('--devices', 'gpu:77'), ('--devices', ''),
            ('--data-dir', 'nowhere'), ('--vocab', 'nowhere'),
            ('--valid', 'nowhere'), ('--corpus', 'nowhere'),
            ('--out', 'notes'), ('--out', 'notes/thesis.txt/run'),
            ('--out', 'run'), ('--resume', 'nowhere'),
            ('--resume', 'notes'), ('--resume', 'notes/thesis.txt')])
        if flag == '--data-dir':
            base[base.index('sample')] = 'wikitext-2'
        elif flag == '--resume':
            base = ['pretrain']
        return Case(f'command: {flag} {value}', [*base, flag, value],
                    (value or 'devices', flag[2:]))
    if kind == 'flag':
        flag = rng.choice(['--colour', '--lrate', '-x', '--no-force'])
        return Case(f'command: {flag}', [*base, flag, '1'], (flag,))
    argv, *names = rng.choice([
        (['train'], 'train'), ([], 'COMMAND'),
        (['pretrain', '--lr'], '--lr'),
        (['pretrain', *TINY, '--out', 'notes', '--force'], 'notes'),
        (['pretrain', '--resume', 'run', '--out', 'new'], 'out'),
        (['pretrain', '--resume', 'run', '--lr', '1'], 'lr'),
        (['pretrain', '--resume', 'run', '--num-steps', '1'], 'num_steps'),
        (['encode'], 'RUN'), (['encode', 'run'], 'text'),
        (['encode', 'notes', 'a'], 'notes'),
        (['encode', 'nowhere', 'a'], 'nowhere'),
        (['encode', 'run', ''], 'text'),
        (['encode', 'run', 'a ' * 2000], 'tokens'),
        (['encode', 'run', 'a', '--pair', ''], '--pair'),
        (['encode', 'run', 'a', '--out', 'nowhere/x.npy'], 'nowhere'),
        (['encode', 'run', 'a', '--out', 'notes'], 'notes'),
        (['evaluate'], 'RUN'), (['evaluate', 'notes'], 'notes'),
        (['evaluate', 'run', '--corpus'], '--corpus'),
        (['evaluate', 'run', '--corpus', 'nowhere'], 'nowhere'),
        (['evaluate', 'run', '--corpus', 'notes'], 'notes'),
        (['evaluate', 'run', '--devices', 'x'], 'devices'),
        (['launch', '--workers', 'x'], '--workers'), (['launch'], 'pretrain'),
        (['doctor', '--lr'], '--lr')])
    return Case(f'command: {" ".join(argv)[:40]}', argv, tuple(names))


#: Kind of input: how one of it is damaged, its share of all inputs.
DAMAGES = {
    'checkpoints': (damaged_checkpoint, 5),
    'parameters': (damaged_parameters, 2),
    'vocabularies': (damaged_vocabulary, 2),
    'configurations': (damaged_config, 3),
    'corpora': (damaged_corpus, 3),
    'archives': (damaged_archive, 2),
    'command lines': (damaged_command, 4),
}
GOOD, BAD = ('clear error', 'harmless'), (
    'unclear', 'traceback', 'wrong result', 'files lost', 'half-written')


def damage_inputs(num_inputs, rng, base, verbose):
    """Give the command damaged inputs; returns counts for each kind."""
    template = base / 'template'
    template.mkdir()
    end = wait(*fork(template, TRAINED))
    assert end.status == 0, end.err
    undamaged = shutil.copytree(template, base / 'resumed')
    end = wait(*fork(undamaged, RESUME))
    assert end.status == 0, end.err
    expected = result(undamaged)
    schedule = [kind for kind, (_, share) in DAMAGES.items()
                for _ in range(share)]
    counts = {kind: collections.Counter() for kind in DAMAGES}
    for k in range(num_inputs):
        kind = schedule[k % len(schedule)]
        folder = shutil.copytree(template, base / f'input-{k}')
        case = DAMAGES[kind][0](rng, folder)
        before = listing(folder)
        end = wait(*fork(folder, case.argv, case.prepare))
        verdicts = judge(case, end, before, folder, expected)
        counts[kind].update(['inputs', *verdicts])
        if verbose or set(verdicts) & set(BAD):
            print(f'{k:4} {case.what}: {", ".join(verdicts)} (status '
                  f'{end.status})\n     {end.err.strip()[-1500:]}')
        shutil.rmtree(folder)
    return counts


def judge(case, end, before, folder, expected):
    """What became of a damaged input, as a list of verdicts."""
    after = listing(folder)
    verdicts = []
    if end.status == 0 and 'Traceback' not in end.err:
        verdicts.append('harmless')
        if case.same and result(folder) != expected:
            verdicts.append('wrong result')
        # A resumed run puts newer files in the place of older ones
        lost = [] if 'pretrain' in case.argv else [
            name for name in before if after.get(name) != before[name]]
    else:
        if end.status not in (1, 2) or 'Traceback' in end.err:
            verdicts.append('traceback')
        elif is_clear(end.err, case.names):
            verdicts.append('clear error')
        else:
            verdicts.append('unclear')
        lost = [name for name in before if after.get(name) != before[name]]
    if lost:
        verdicts.append('files lost')
    # What was fetched whole, or is made again when it is damaged, may stay
    new = [name for name in set(after) - set(before)
           if end.status != 0 and not name.startswith('cache/')
           or re.search(r'\.part$|/\.(unpack|fetch)-|/\.new\.', name)]
    if new or SLIPPED.exists():
        verdicts.append('half-written')
    return verdicts


def is_clear(text, names):
    """Whether an error is one line, of words, that names what it is about."""
    lines = text.strip().splitlines()
    return (len(lines) == 1 and len(lines[0].split()) > 3
            and any(name in lines[0] for name in names))


def show(rows):
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        print('  '.join([row[0].ljust(widths[0])] + [
            cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]))


def run():
    parser = argparse.ArgumentParser(
        description='Count what killed runs and damaged inputs do.')
    parser.add_argument('--kills', type=int, default=50)
    parser.add_argument('--inputs', type=int, default=200)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--verbose', action='store_true',
                        help='show what was said to each damaged input')
    args = parser.parse_args()
    begun = time.monotonic()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with tempfile.TemporaryDirectory(prefix='d2lbert-faults-') as base:
        base = Path(base)
        cache = base / 'cache'
        cache.mkdir()
        (cache / 'kernels').symlink_to(kept.folder('kernels'))
        os.environ['D2LBERT_CACHE'] = str(cache)
        rng = random.Random(args.seed)
        killed = kill_runs(args.kills, rng, base)
        counts = damage_inputs(args.inputs, rng, base, args.verbose)
    print(f'{killed["kills"]} kills of {killed["runs"]} runs, '
          f'{killed["while training"]} of them behind a checkpoint: '
          f'{killed["equal"]} ended equal, {killed["different"]} different; '
          f'{killed["checkpoints lost"]} checkpoints lost, '
          f'{killed["left behind"]} temporary files left in their folders')
    columns = ['inputs', *GOOD, *BAD]
    total = sum(counts.values(), collections.Counter())
    show([['damaged', *columns]] + [
        [kind, *(str(count[name]) for name in columns)]
        for kind, count in [*counts.items(), ('all', total)]])
    print(f'{time.monotonic() - begun:.0f} s, seed {args.seed}')
    return bool(killed['different'] or killed['checkpoints lost']
                or killed['left behind'] or any(total[name] for name in BAD))


if __name__ == '__main__':
    sys.exit(run())
