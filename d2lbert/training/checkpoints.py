"""Checkpoints: all that a run needs to go on as if it had never stopped."""
import contextlib
import json
import os
import re
import struct
import zipfile
import zlib
from pathlib import Path
from shlex import quote

import numpy as onp

from d2lbert.machine import npz
from d2lbert.machine.backend import np
from d2lbert.machine.files import parse_json, replacing
from d2lbert.machine.nonfinite import count_not_finite, warn_not_finite
from d2lbert.pretrained.size_checks import check_sizes
from d2lbert.pretrained.tokenizers.tokenizer import WordPiece
from d2lbert.pretrained.tokenizers.vocabulary import PieceVocab
from d2lbert.text import RESERVED, Vocab

FORMAT = 'd2lbert checkpoint 1'

#: What a checkpoint says besides its arrays.
STATE = dict(format=str, step=int, updates=int, settings=dict, history=dict,
             epoch=int, position=list, fingerprint=str, num_devices=int,
             num_workers=int)

#: What reading an archive of any content can raise.
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, OSError,
              EOFError, MemoryError, OverflowError, RuntimeError,
              struct.error, zipfile.BadZipFile, zlib.error)


class CheckpointError(ValueError):
    """Why a checkpoint cannot be written or read, in one sentence."""


def folder_of(run):
    """Where the checkpoints of the run folder `run` lie."""
    return Path(run, 'checkpoints')


def all_of(run):
    """The checkpoint files of a run folder, oldest first."""
    found = {}
    for path in folder_of(run).glob('step-*.npz'):
        match = re.fullmatch(r'step-(\d+)\.npz', path.name)
        if match:
            found[int(match.group(1))] = path
    return [found[step] for step in sorted(found)]


def save(run, step, state, net, trainer, kept=3, also=None):
    """Write the checkpoint of `step`, then drop all but the last `kept`.

    kept: 0 for all of them; state: what JSON can hold; also: more arrays,
    by name. Whatever goes wrong, the ones before stay.
    """
    folder = folder_of(run)
    path = folder / f'step-{step:08d}.npz'
    arrays = {f'param/{name}': param.data(param.list_ctx()[0]).asnumpy()
              for name, param in _params(net)}
    for name, moments in _moments(net, trainer):
        for i, moment in enumerate(moments):
            arrays[f'moment{i}/{name}'] = moment.asnumpy()
    if net.vocab is not None:
        arrays['vocab'] = onp.frombuffer(
            '\n'.join(net.vocab.idx_to_token).encode(), dtype='uint8')
    if isinstance(net.vocab, PieceVocab):
        arrays['tokenizer'] = onp.frombuffer(
            net.vocab.tokenizer.to_json().encode(), dtype='uint8')
    arrays.update(also or {})
    state = dict(state, format=FORMAT, step=step,
                 updates=trainer.optimizer.num_update)
    arrays['state'] = onp.frombuffer(
        json.dumps(state).encode(), dtype='uint8')
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part:
            with open(part, 'wb') as file:
                _write_archive(file, arrays)
                file.flush()
                os.fsync(file.fileno())
    except OSError as error:
        before = all_of(run)
        rest = (f'resume; the one before it, {before[-1]}, is whole'
                if before else 'begin again; there is none before it')
        raise CheckpointError(
            f'the checkpoint {path} cannot be written ({error.strerror}): '
            f'make room and {rest}') from None
    # Those of later steps belong to a run that was given up for this one
    stay = [old for old in all_of(run) if old.name <= path.name][-kept:]
    for old in set(all_of(run)) - set(stay):
        with contextlib.suppress(OSError):
            old.unlink()
    return path


def _write_archive(file, arrays):
    """Write what NumPy's `savez` does, which trips over a full disk.

    It leaves an archive behind that complains once more when it is gone.
    """
    with zipfile.ZipFile(file, 'w') as archive:
        for name, array in arrays.items():
            with archive.open(f'{name}.npy', 'w', force_zip64=True) as member:
                onp.lib.format.write_array(member, array, allow_pickle=False)


def sweep(run):
    """Remove from a run folder what a killed process left half-written."""
    for folder in (Path(run), folder_of(run)):
        for part in folder.glob('.*.part'):
            with contextlib.suppress(OSError):
                part.unlink()


def load(path):
    """Read a checkpoint; returns (state, arrays), both checked to be whole.

    Raises `CheckpointError` with the file's name, and with that of the one
    before it where there is one.
    """
    path = Path(path)
    try:
        arrays = npz.read(path)
        if 'state' not in arrays:
            raise ValueError('it has no state')
        state = dict(parse_json(arrays.pop('state').tobytes().decode()))
        if state.get('format') != FORMAT:
            raise ValueError(f'its format is {state.get("format")!r}, '
                             f'not {FORMAT!r}')
        for name, kind in STATE.items():
            if not isinstance(state.get(name), kind):
                raise ValueError(f'its {name} is {state.get(name)!r}')
    except FileNotFoundError:
        raise CheckpointError(f'there is no checkpoint {path}') from None
    except UNREADABLE as error:
        raise CheckpointError(
            f'{path} is damaged or no checkpoint of d2lbert ({error})'
            + _offer_before(path)) from None
    return state, arrays


def check_described(path, config, shapes):
    """Refuse a description of a net that a checkpoint's tensors contradict.

    config: arguments of the net; shapes: {name: shape}, of the checkpoint's
    arrays. Raises `CheckpointError`.
    """
    try:
        check_sizes(config, _weights(shapes).values())
    except ValueError as error:
        raise CheckpointError(f'{path} is damaged, or its run is: {error}'
                              + _offer_before(path)) from None


def _offer_before(path):
    run = path.parent.parent
    before = [p for p in all_of(run) if p.name < path.name]
    if path.parent != folder_of(run) or not before:
        return ': there is none before it to resume from'
    return (': resume from the one before it with --resume '
            + quote(str(before[-1])))


def vocab_of(path, arrays):
    """The vocabulary of a loaded checkpoint; None in one of an old version.

    Raises `CheckpointError` where it is damaged.
    """
    if 'vocab' not in arrays:
        return None
    try:
        return _vocab_of(arrays)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f'{path} is damaged: its vocabulary cannot be read ({error})'
            + _offer_before(path)) from None


def _vocab_of(arrays):
    if 'tokenizer' in arrays:
        return PieceVocab(WordPiece.from_json(
            arrays['tokenizer'].tobytes().decode()))
    tokens = arrays['vocab'].tobytes().decode().split('\n')
    first = 1 + len(RESERVED)       # <unk> comes before the reserved ones
    return Vocab.from_freqs([(token, 0) for token in tokens[first:]],
                            reserved_tokens=tokens[1:first])


def restore(path, state, arrays, net, trainer):
    """Put a loaded checkpoint's numbers into net and trainer."""
    params = dict(_params(net))
    _set(path, params, _weights(arrays))
    optimizer = trainer.optimizer
    # Adam's bias correction counts updates from here on
    optimizer.begin_num_update = optimizer.num_update = state['updates']
    for place, updater in enumerate(trainer._updaters):
        for name, param in params.items():
            if f'moment0/{name}' in arrays:
                index = trainer._param2idx[param.name]
                moments = [arrays.get(f'moment{i}/{name}') for i in range(2)]
                if any(onp.shape(moment) != param.shape
                       for moment in moments):
                    raise CheckpointError(
                        f'{path} is damaged: its moments of {name} are not '
                        f'of the shape {param.shape}' + _offer_before(path))
                # The update is an operator of MXNet's older array type
                updater.states[index] = tuple(
                    np.array(moment, ctx=param.list_ctx()[place]
                             ).as_nd_ndarray() for moment in moments)
                updater.states_synced[index] = True


def load_weights(path, net):
    """Give a model the weights that a checkpoint of its run has of it.

    Their running averages where the run keeps these. Returns the step of the
    checkpoint. A net that an objective trained with more around the model
    has that as its `bert`.
    """
    state, arrays = load(path)
    params, inside = dict(_params(net)), ''
    if not params.keys() <= _weights(arrays).keys():
        inside = 'bert.'
    _set(path, params, _weights(arrays, f'param/{inside}'))
    # Last: a weight that two blocks share has one average and two names
    for name, array in _weights(arrays, f'average/{inside}').items():
        if name in params:
            _set(path, {name: params[name]}, {name: array})
    return state['step']


def _weights(arrays, prefix='param/'):
    """The weights among a checkpoint's arrays, by their names in the net."""
    return {name[len(prefix):]: array for name, array in arrays.items()
            if name.startswith(prefix)}


def _set(path, params, weights):
    """Put weights into params, both by name; they must fit wholly."""
    wanted = {name: param.shape for name, param in params.items()}
    found = {name: array.shape for name, array in weights.items()}
    if wanted != found:
        name = sorted(set(wanted.items()) ^ set(found.items()))[0][0]
        raise CheckpointError(
            f'{path} belongs to another model: {name} is '
            f'{found.get(name, "missing")} there and '
            f'{wanted.get(name, "missing")} here')
    warn_not_finite(path, {name: count_not_finite(array)
                           for name, array in weights.items()})
    for name, param in params.items():
        param.set_data(np.array(weights[name]))


def _params(net):
    return sorted(net._collect_params_with_prefix().items())


def _moments(net, trainer):
    """Adam's two running means of each parameter that has them."""
    states = trainer._updaters[0].states
    for name, param in _params(net):
        index = trainer._param2idx[param.name]
        if index in states:
            yield name, states[index]
