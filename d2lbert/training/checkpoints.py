"""Write and read checkpoints, from which a stopped run is resumed.

An argument `run` is the path of a run folder; `path`, of a checkpoint.
"""
import contextlib
import errno
import json
import os
import re
import struct
import zipfile
import zlib
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

import numpy as onp

from d2lbert.machine import array_files
from d2lbert.machine.array_files import count_not_finite, warn_not_finite
from d2lbert.machine.backend import np
from d2lbert.machine.files import parse_json, replacing
from d2lbert.pretrained.tensor_files import check_against_tensors
from d2lbert.pretrained.tokenizers.tokenizer import WordPiece
from d2lbert.pretrained.tokenizers.vocabulary import PieceVocab
from d2lbert.text import RESERVED, Vocab

FORMAT = 'd2lbert checkpoint 1'

#: The type of each required entry in the state, the JSON of a checkpoint.
STATE_TYPES = dict(
    format=str, step=int, updates=int, settings=dict, history=dict,
    epoch=int, position=list, fingerprint=str, num_devices=int,
    num_workers=int)

#: Exceptions that reading a damaged archive may raise.
READ_ERRORS = (ValueError, KeyError, TypeError, AttributeError, OSError,
               EOFError, MemoryError, OverflowError, RuntimeError,
               struct.error, zipfile.BadZipFile, zlib.error)


class CheckpointError(ValueError):
    """A checkpoint cannot be written or read; the message is one sentence."""


class Checkpoint(NamedTuple):
    """The contents of a checkpoint file."""

    path: Path
    state: Any      # a dictionary, from JSON
    arrays: Any     # {name: NumPy array}

    @classmethod
    def read(cls, path):
        """Read a file; raises `CheckpointError`, see `load`."""
        return cls(Path(path), *load(path))

    def weights(self, prefix='param/'):
        """{name without `prefix`: array} for names that begin with it."""
        return _without_prefix(self.arrays, prefix)


def folder_of(run):
    return Path(run, 'checkpoints')


def all_of(run):
    """The checkpoint files of a run, in the order of their steps."""
    found = {}
    for path in folder_of(run).glob('step-*.npz'):
        match = re.fullmatch(r'step-(\d+)\.npz', path.name)
        if match:
            found[int(match.group(1))] = path
    return [found[step] for step in sorted(found)]


def path_of(run, step):
    return folder_of(run) / f'step-{step:08d}.npz'


def _run_of(path):
    return path.parent.parent


def is_in_run(path):
    """True if the text of the path is RUN/checkpoints/FILE."""
    return path.parent == folder_of(_run_of(path))


def earlier_than(path):
    """The checkpoints of the run before `path`, in order of their steps."""
    # Names have eight digits, or more from step 10 ** 8 on
    return [other for other in all_of(_run_of(path))
            if (len(other.name), other.name) < (len(path.name), path.name)]


def save(run, step, state, arrays, num_kept=3):
    """Write a checkpoint, return its path, and remove old checkpoints.

    state: a dictionary that JSON can hold. arrays: {name: NumPy array}.
    num_kept: the number of checkpoints to keep, including the new one; 0: all.
    Checkpoints of later steps are always removed: they were saved before the
    run was resumed at an earlier step. If writing fails, raises
    `CheckpointError` and removes none.
    """
    path = path_of(run, step)
    state = dict(state, format=FORMAT, step=step)
    arrays = dict(arrays, state=onp.frombuffer(
        json.dumps(state).encode(), dtype='uint8'))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial_path:
            with open(partial_path, 'wb') as file:
                _write_archive(file, arrays)
                file.flush()
                os.fsync(file.fileno())
    except OSError as error:
        earlier = earlier_than(path)
        advice = (f'resume; the checkpoint before it, {earlier[-1]}, is whole'
                  if earlier else 'start again; there is no checkpoint yet')
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        raise CheckpointError(
            f'the checkpoint {path} cannot be written ({error.strerror}): '
            f'{"make room" if is_full else "remove the cause"} and {advice}'
            ) from None
    # With num_kept=0, [-0:] keeps the whole list
    kept_paths = [*earlier_than(path), path][-num_kept:]
    for old in set(all_of(run)) - set(kept_paths):
        with contextlib.suppress(OSError):
            old.unlink()
    return path


def _write_archive(file, arrays):
    """Write an archive in the format of NumPy's `savez`.

    `savez` itself is not used: on a full disk, it leaves an object that
    raises again when it is deleted.
    """
    with zipfile.ZipFile(file, 'w') as archive:
        for name, array in arrays.items():
            with archive.open(f'{name}.npy', 'w', force_zip64=True) as member:
                onp.lib.format.write_array(member, array, allow_pickle=False)


def remove_temporary_files(run):
    """Remove temporary files of a killed process from a run folder."""
    for folder in (Path(run), folder_of(run)):
        for path in folder.glob('.*.part'):
            with contextlib.suppress(OSError):
                path.unlink()


def load(path):
    """Read a checkpoint; returns (state, arrays).

    Raises `CheckpointError` if the file is missing, damaged or unreadable.
    """
    path = Path(path)
    try:
        arrays = array_files.read_npz(path)
        if 'state' not in arrays:
            raise ValueError('it has no state')
        state = dict(parse_json(arrays.pop('state').tobytes().decode()))
        if state.get('format') != FORMAT:
            raise ValueError(f'its format is {state.get("format")!r}, '
                             f'not {FORMAT!r}')
        for name, expected_type in STATE_TYPES.items():
            if not isinstance(state.get(name), expected_type):
                raise ValueError(f'its {name} is {state.get(name)!r}')
    except FileNotFoundError:
        raise CheckpointError(f'there is no checkpoint {path}') from None
    except READ_ERRORS as error:
        raise CheckpointError(
            f'{path} is damaged or no checkpoint of d2lbert ({error})'
            + remedy(path)) from None
    return state, arrays


def check_net_sizes(path, config, shapes):
    """Raise `CheckpointError` if a size is too large for the tensors.

    config: arguments of the net, or settings of the same names. shapes:
    {name: shape} of all arrays in the checkpoint.
    """
    try:
        check_against_tensors(
            config, _without_prefix(shapes, 'param/').values())
    except ValueError as error:
        raise CheckpointError(
            f'{path} or the config.json of its run is damaged: {error}'
            + remedy(path)) from None


def damaged(path, finding):
    """A `CheckpointError` for a damaged checkpoint; names the remedy."""
    return CheckpointError(f'{path} is damaged: {finding}{remedy(path)}')


def remedy(path):
    """The end of a message about a damaged checkpoint: how to resume."""
    earlier = earlier_than(path)
    if not is_in_run(path) or not earlier:      # the first, or a copy
        return ': there is no earlier checkpoint to resume from'
    return (': resume from the checkpoint before it with --resume '
            + quote(str(earlier[-1])))


def vocab_of(path, arrays):
    """The vocabulary in a checkpoint; raises `CheckpointError` if damaged.

    None for a checkpoint without a vocabulary, as early versions wrote.
    """
    if 'vocab' not in arrays:
        return None
    try:
        return _parse_vocab(arrays)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged(path, 'its vocabulary cannot be read '
                      f'({error})') from None


def vocab_arrays(vocab):
    """A vocabulary as uint8 arrays, {name: array}; {} for None."""
    if vocab is None:
        return {}
    texts = {'vocab': '\n'.join(vocab.idx_to_token)}
    if isinstance(vocab, PieceVocab):
        texts['tokenizer'] = vocab.tokenizer.to_json()
    return {name: onp.frombuffer(text.encode(), dtype='uint8')
            for name, text in texts.items()}


def _parse_vocab(arrays):
    """The vocabulary of arrays that `vocab_arrays` returned."""
    if 'tokenizer' in arrays:
        return PieceVocab(WordPiece.from_json(
            arrays['tokenizer'].tobytes().decode()))
    tokens = arrays['vocab'].tobytes().decode().split('\n')
    num_special = 1 + len(RESERVED)     # <unk> and the reserved tokens
    # Frequencies are not stored
    return Vocab.from_freqs([(token, 0) for token in tokens[num_special:]],
                            reserved_tokens=tokens[1:num_special])


def load_weights(path, net):
    """Load the weights of a checkpoint into a model; returns the step.

    If the run averages its weights, the averages are loaded. If its objective
    trains a larger net, only the weights of that net's attribute `bert` are
    loaded. A model that was quantized is in float32 afterwards.
    """
    state, arrays = load(path)
    params = named_parameters(net)
    stored_names = _without_prefix(arrays, 'param/').keys()
    is_of_larger_net = not params.keys() <= stored_names
    prefix = 'bert.' if is_of_larger_net else ''
    set_weights(path, params, _without_prefix(arrays, f'param/{prefix}'))
    # One by one, since `set_weights` raises an error for missing names: only
    # one of the names of a shared weight has an average
    for name, array in _without_prefix(arrays, f'average/{prefix}').items():
        if name in params:
            set_weights(path, {name: params[name]}, {name: array})
    net.encoder.quantized = None    # made from the replaced weights
    return state['step']


def _without_prefix(entries, prefix):
    """{name without `prefix`: value} for names that begin with it."""
    return {name[len(prefix):]: value for name, value in entries.items()
            if name.startswith(prefix)}


def set_weights(path, params, weights):
    """Set params, {name: parameter}, to weights, {name: NumPy array}.

    Raises `CheckpointError` unless names and shapes are equal.
    """
    expected = {name: param.shape for name, param in params.items()}
    found = {name: array.shape for name, array in weights.items()}
    if expected != found:
        # The first name whose shapes differ, or that one side lacks
        name, _ = min(set(expected.items()) ^ set(found.items()))
        raise CheckpointError(
            f'{path} belongs to another model: {name} is '
            f'{found.get(name, "missing")} there and '
            f'{expected.get(name, "missing")} here')
    warn_not_finite(path, {name: count_not_finite(array)
                           for name, array in weights.items()})
    for name, param in params.items():
        param.set_data(np.array(weights[name]))


def named_parameters(net):
    """The parameters of a net, {name: parameter}, sorted by name."""
    return dict(sorted(net._collect_params_with_prefix().items()))
