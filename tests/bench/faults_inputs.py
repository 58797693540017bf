"""Damaged checkpoints, parameters, vocabularies, ..., for faults.py."""
import json
import re
import shutil

import numpy as onp
from faults_processes import (
    SECONDS,
    TINY,
    TRAINED,
    Case,
    cut,
    flipped,
    fork,
    is_clear,
    listing,
    noise,
    result,
)
from faults_texts import (
    SLIPPED,
    damaged_archive,
    damaged_command,
    damaged_corpus,
)

from d2lbert.training import checkpoints

RESUME = ['pretrain', '--resume', 'run', '--num-steps', '6', '--devices',
          'cpu']
#: Numbers that a description has of a net.
SIZES = ['num_layers', 'num_hiddens', 'ffn_num_hiddens', 'num_heads',
         'max_len']
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
                       'JSON', 'JSON', 'setting', 'compressed', 'header',
                       'vocabulary', 'size', 'nested'])
    if kind in ('cut', 'flipped'):
        damage = cut if kind == 'cut' else flipped
        path.write_bytes(damage(rng, path.read_bytes()))
    elif kind in ('empty', 'noise'):
        path.write_bytes(b'' if kind == 'empty' else noise(rng))
    elif kind == 'header':
        data = path.read_bytes()
        header = b'{' + b"'descr': '<f4', 'fortran_order'"
        places = [found.start() for found in re.finditer(header, data)]
        place = rng.choice(places) + rng.randrange(60)
        path.write_bytes(data[:place] + noise(rng, 9) + data[place + 9:])
    elif kind == 'foreign':
        onp.savez(path, **{f'w{k}': onp.arange(k + 1) for k in range(4)})
    else:
        with onp.load(path) as file:
            arrays = dict(file)
        if kind == 'compressed':    # into little more than nothing
            arrays['more'] = onp.zeros(1 << 28, 'uint8')
        if kind == 'vocabulary':
            arrays['vocab'] = onp.frombuffer(noise(rng, 99), 'uint8')
        if kind == 'arrays':
            name = rng.choice([n for n in arrays if n.startswith('param/')])
            if rng.random() < 0.5:
                arrays[name] = arrays[name][:-1]
            else:
                del arrays[name]
        text = arrays['state'].tobytes()
        if kind == 'text':
            text = rng.choice([cut(rng, text), b'', b'[]', b'\xff{}', b'1'])
        elif kind == 'nested':
            text = b'[' * 10 ** 6
        elif kind == 'size':
            state = json.loads(text.decode())
            name = rng.choice(SIZES)
            state['settings'][name] = 10 ** rng.randrange(7, 19)
            kind = f'size {name}'
            text = json.dumps(state).encode()
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
        (onp.savez_compressed if kind == 'compressed' else onp.savez)(
            path, **arrays)
    return Case(f'checkpoint: {kind}', argv, (path.name,), same=True)


def large(rng, data, place):
    """Bytes with a large number of 8 bytes at a place."""
    number = rng.randrange(10 ** 7, 1 << rng.choice([30, 40, 64]))
    return data[:place] + number.to_bytes(8, 'little') + data[place + 8:]


def damaged_parameters(rng, folder):
    path = folder / 'run' / 'model.params'
    kind = rng.choice(['cut', 'cut', 'empty', 'noise', 'head', 'folder',
                       'count', 'shape', 'name'])
    data = path.read_bytes()
    if kind == 'folder':
        path.unlink()
        path.mkdir()
    else:
        path.write_bytes({
            'cut': lambda: cut(rng, data), 'empty': bytes,
            'noise': lambda: noise(rng),
            # The count of arrays, a length of an axis, that of the last name
            'count': lambda: large(rng, data, 16),
            'shape': lambda: large(rng, data, 36),
            'name': lambda: large(rng, data, data.rindex(b'\0\0\0') - 5),
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
                       'missing', 'nested', 'size', 'size'])
    if kind == 'cut':
        path.write_bytes(cut(rng, path.read_bytes().rstrip()))
    elif kind == 'noise':
        path.write_bytes(noise(rng))
    elif kind == 'nested':
        path.write_text('{"model":' * 10 ** 6)
    elif kind == 'size':
        name = rng.choice(SIZES)
        config['model'][name] = 10 ** rng.randrange(7, 19)
        kind = f'size {name}'
        path.write_text(json.dumps(config), 'utf-8')
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

def damage_inputs(number, place, tallies):
    """Give the command damaged inputs, noted in the `Tally` of each kind."""
    undamaged = place.done(TRAINED)[0]
    expected = result(place.done(TRAINED, RESUME)[0] / 'run')
    schedule = [kind for kind, (_, share) in DAMAGES.items()
                for _ in range(share)]
    for k in range(number):
        kind = schedule[k % len(schedule)]
        folder = shutil.copytree(undamaged, place.folder() / 'there')
        case = DAMAGES[kind][0](place.rng, folder)
        before = listing(folder)
        end = fork(folder, case.argv, case.prepare).wait()
        verdicts = judge(case, end, before, folder, expected)
        tallies[kind].note(case.what, verdicts, end)
        shutil.rmtree(folder.parent)


def judge(case, end, before, folder, expected):
    """What became of a damaged input, as a list of verdicts."""
    after = listing(folder)
    verdicts = []
    if end.status == 0 and 'Traceback' not in end.err:
        verdicts.append('harmless')
        if case.same and result(folder / 'run') != expected:
            verdicts.append('wrong result')
        # A resumed run puts newer files in the place of older ones
        lost = [] if 'pretrain' in case.argv else [
            name for name in before if after.get(name) != before[name]]
    else:
        if end.status not in (1, 2) or 'Traceback' in end.err:
            verdicts.append('traceback' if end.seconds < SECONDS else 'hung')
        elif is_clear(end.err, case.names):
            verdicts.append('clear error')
        else:
            verdicts.append('unclear')
        lost = [name for name in before if after.get(name) != before[name]]
    if lost:
        verdicts.append('lost')
    # What was fetched whole, or is made again when it is damaged, may stay
    new = [name for name in set(after) - set(before)
           if end.status != 0 and not name.startswith('cache/')
           or re.search(r'\.part$|/\.(unpack|fetch)-|/\.new\.', name)]
    if new or SLIPPED.exists():
        verdicts.append('half-written')
    return verdicts
