"""Checkpoints: whole, kept three at a time, and refused by name if not."""
import contextlib
import errno
import gc
import json
import math
import os
import re
import resource
import shutil
import signal
import weakref
import zipfile

import numpy as onp
import pytest

import d2lbert as d2l
from d2lbert.training import (
    checkpoints,
    loop,
    pretraining,
    saved_runs,
    updater,
)
from d2lbert.training.checkpoints import CheckpointError

TINY = dict(corpus='sample', batch_size=100, max_len=32, num_hiddens=8,
            ffn_num_hiddens=8, num_layers=1, seed=1, devices='cpu')


@pytest.fixture(scope='module')
def run(tmp_path_factory):
    """A run with the checkpoints of its steps 2, 3 and 4."""
    return d2l.pretrain(**TINY, num_steps=4, save_every=1,
                        out=tmp_path_factory.mktemp('runs') / 'run')


@pytest.fixture
def copy(run, tmp_path):
    """A copy of the run folder that a test may damage."""
    return shutil.copytree(run, tmp_path / 'copy')


def names(folder):
    return sorted(path.relative_to(folder).as_posix()
                  for path in folder.rglob('*'))


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob('*') if path.is_file()}


def lasting(folder):
    """The contents, but for the files that grow while a run goes on."""
    return {name: data for name, data in contents(folder).items()
            if name not in ('log.txt', 'losses.csv')}


def steps(run):
    return [int(re.findall(r'\d+', path.name)[0])
            for path in checkpoints.all_of(run)]


def rewritten(path, **changes):
    """Write a checkpoint again with another state; None removes a key."""
    with onp.load(path) as file:
        arrays = dict(file)
    state = json.loads(arrays['state'].tobytes().decode())
    state.update(changes)
    state = {key: value for key, value in state.items() if value is not None}
    arrays['state'] = onp.frombuffer(json.dumps(state).encode(), 'uint8')
    onp.savez(path, **arrays)


# What is written

def test_the_last_three_are_kept(run):
    assert steps(run) == [2, 3, 4]
    assert names(run / 'checkpoints') == [
        'step-00000002.npz', 'step-00000003.npz', 'step-00000004.npz']


def test_as_many_are_kept_as_was_said(tmp_path):
    for keep, kept in (0, [1, 2, 3, 4, 5]), (2, [4, 5]):
        out = d2l.pretrain(**TINY, num_steps=5, save_every=1, keep=keep,
                           out=tmp_path / f'{keep}')
        assert steps(out) == kept
    # And what a resumed run is told anew holds from there on
    d2l.pretrain(resume=out, num_steps=7, keep=0, devices='cpu')
    assert steps(out) == [4, 5, 6, 7]


def test_the_last_step_is_saved_whenever_it_comes(tmp_path):
    run = d2l.pretrain(**TINY, num_steps=3, save_every=2,
                       out=tmp_path / 'run')
    assert steps(run) == [2, 3]


def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(copy,
                                                            monkeypatch):
    fsync, replace, written, named = os.fsync, os.replace, [], []

    def note_fsync(number):
        found = os.fstat(number)
        written.append((found.st_ino, found.st_size))
        fsync(number)

    def note_replace(part, path):
        if str(path).endswith('.npz'):
            found = os.stat(part)
            named.append((found.st_ino, found.st_size))
            assert named[-1] in written
        replace(part, path)
    monkeypatch.setattr(os, 'fsync', note_fsync)
    monkeypatch.setattr(os, 'replace', note_replace)
    d2l.pretrain(resume=copy, num_steps=5, devices='cpu')
    assert len(named) == 1


def test_a_checkpoint_holds_parameters_and_both_moments_of_each(run):
    net, _ = d2l.load_run(run)
    expected = {name: param.shape for name, param
                in net._collect_params_with_prefix().items()}
    with onp.load(checkpoints.all_of(run)[-1]) as file:
        for kind in ('param', 'moment0', 'moment1'):
            assert {name.partition('/')[2]: file[name].shape
                    for name in file.files if name.startswith(kind)
                    } == expected
        for name, param in net._collect_params_with_prefix().items():
            onp.testing.assert_array_equal(file[f'param/{name}'],
                                           param.data().asnumpy())
        assert all((file[name] >= 0).all() for name in file.files
                   if name.startswith('moment1'))


def test_a_run_goes_on_from_the_latest(copy, monkeypatch):
    update, taken = updater.Updater.update, []

    def note(updater, step):
        taken.append(step)
        update(updater, step)
    monkeypatch.setattr(updater.Updater, 'update', note)
    d2l.pretrain(resume=copy, num_steps=6, devices='cpu')
    assert taken == [5, 6]


def test_going_on_from_an_earlier_one_gives_up_the_later(copy):
    first = checkpoints.all_of(copy)[0]
    before = (copy / 'model.params').read_bytes()
    d2l.pretrain(resume=first, num_steps=3, devices='cpu')
    assert steps(copy) == [2, 3]
    assert (copy / 'model.params').read_bytes() != before
    config = json.loads((copy / 'config.json').read_text('utf-8'))
    assert config['training']['num_steps'] == 3


def test_what_a_killed_process_left_is_swept_away(copy):
    for part in (copy / '.model.params.99.part',
                 copy / 'checkpoints' / '.step-00000005.npz.99.part'):
        part.write_bytes(b'half')
    d2l.pretrain(resume=copy, devices='cpu')
    assert not [name for name in names(copy) if name.endswith('.part')]


# A full disk

@contextlib.contextmanager
def no_file_beyond(num_bytes):
    """The system refuses to let any file of this process grow further."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


@contextlib.contextmanager
def no_room(call):
    """The system finds no room left when `call` is made."""
    def refuse(*args, **kwargs):
        raise OSError(errno.ENOSPC, 'No space left on device')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(call, refuse)
        yield


@pytest.mark.filterwarnings(
    'error::pytest.PytestUnraisableExceptionWarning')
@pytest.mark.parametrize('full', [
    lambda: no_file_beyond(20_000), lambda: no_room('os.fsync'),
    lambda: no_room('os.replace')], ids=['size', 'fsync', 'replace'])
def test_a_full_disk_loses_no_checkpoint_and_leaves_no_half_one(copy, full):
    (copy / 'losses.png').unlink()      # written last, so not reached
    before = lasting(copy)
    with full(), pytest.raises(CheckpointError) as caught:
        d2l.pretrain(resume=copy, num_steps=6, devices='cpu')
    assert re.fullmatch(
        r'the checkpoint \S+step-00000005.npz cannot be written \(.*\): make '
        r'room and resume; the checkpoint before it, \S+step-00000004.npz, '
        r'is whole',
        str(caught.value))
    assert lasting(copy) == before
    # And with room again the run goes on
    d2l.pretrain(resume=copy, num_steps=6, devices='cpu')
    assert steps(copy) == [4, 5, 6]


def test_no_later_checkpoint_is_called_the_one_before(tmp_path):
    for step in 2, 4, 6:
        checkpoints.save(tmp_path, step, {}, {}, num_kept=0)
    for step, named in (3, '2'), (4, '2'), (5, '4'):
        with no_room('os.fsync'), pytest.raises(
                CheckpointError, match='the checkpoint before it, '
                                       rf'\S+step-0000000{named}.npz, is'):
            checkpoints.save(tmp_path, step, {}, {}, num_kept=0)
    path = checkpoints.path_of(tmp_path, 2)
    assert checkpoints.earlier_than(path) == []
    assert steps(tmp_path) == [2, 4, 6]


def test_the_checkpoint_before_one_of_nine_digits_has_eight(tmp_path):
    for step in 99_999_998, 99_999_999, 100_000_000:
        path = checkpoints.save(tmp_path, step, {}, {}, num_kept=2)
    assert steps(tmp_path) == [99_999_999, 100_000_000]
    assert checkpoints.earlier_than(path) == [checkpoints.path_of(
        tmp_path, 99_999_999)]


@pytest.mark.parametrize('code, advice', [
    (errno.EDQUOT, 'make room'), (errno.EROFS, 'remove the cause')])
def test_only_a_full_disk_needs_room(tmp_path, monkeypatch, code, advice):
    def refuse(_):
        raise OSError(code, os.strerror(code))
    monkeypatch.setattr(os, 'fsync', refuse)
    with pytest.raises(CheckpointError, match=(
            rf'written \({os.strerror(code)}\): {advice} and start again')):
        checkpoints.save(tmp_path, 1, {}, {})


def test_a_full_disk_before_the_first_checkpoint_is_told(tmp_path):
    with no_room('os.fsync'), pytest.raises(
            CheckpointError, match='make room and start again; there is '
                                   'no checkpoint yet'):
        d2l.pretrain(**TINY, num_steps=2, save_every=1, out=tmp_path / 'run')
    with pytest.raises(saved_runs.RunError, match='has no checkpoint'):
        d2l.pretrain(resume=tmp_path / 'run')


def test_parameters_that_lost_their_end_are_never_taken_for_whole(copy):
    size = (copy / 'model.params').stat().st_size
    before = contents(copy)
    # MXNet itself notices the first, but not the second
    for num_bytes in (size // 2, size - 1):
        with no_file_beyond(num_bytes), pytest.raises(
                OSError, match='model.params cannot be written whole'):
            saved_runs.save_parameters(d2l.load_run(copy)[0],
                                 copy / 'model.params')
        assert contents(copy) == before


# What goes on

def test_of_two_who_resume_a_run_the_second_is_told_of_the_first(
        copy, monkeypatch):
    run_steps, busy = loop.run_steps, f'process {os.getpid()} on '

    def meanwhile(*args):
        before = contents(copy)
        for path in (copy, checkpoints.all_of(copy)[0]):
            with pytest.raises(saved_runs.RunError, match=(
                    f'copy is being written by {busy}.*: wait until')):
                d2l.pretrain(resume=path)
        assert contents(copy) == before
        return run_steps(*args)
    monkeypatch.setattr(loop, 'run_steps', meanwhile)
    d2l.pretrain(resume=copy, num_steps=5, devices='cpu')
    assert 'unfinished' not in names(copy)


def test_who_died_holds_no_lock(copy):
    (copy / 'unfinished').write_text('process 1 on alpha')
    d2l.pretrain(resume=copy, num_steps=5, devices='cpu')
    assert 'unfinished' not in names(copy)


def test_a_finished_run_that_cannot_go_on_is_still_finished(copy):
    before = contents(copy)
    with pytest.raises(ValueError, match='would end at step 1'):
        d2l.pretrain(resume=copy, num_steps=1)
    assert contents(copy) == before


@pytest.mark.parametrize('lost', [
    ['config.json'], ['vocab.txt'], ['config.json', 'vocab.txt'],
    ['config.json', 'vocab.txt', 'model.params', 'losses.csv', 'log.txt']])
def test_what_was_lost_beside_the_checkpoints_is_made_again(copy, run, lost):
    for name in lost:
        (copy / name).unlink()
    d2l.pretrain(resume=copy, devices='cpu')
    for name in ('config.json', 'vocab.txt', 'model.params', 'losses.csv'):
        assert contents(copy)[name] == contents(run)[name]
    assert d2l.load_run(copy)


def test_a_vocabulary_whose_file_is_gone_comes_from_the_checkpoint(
        run, tmp_path):
    words = tmp_path / 'words.txt'
    shutil.copy(run / 'vocab.txt', words)
    out = d2l.pretrain(**TINY, vocab=words, num_steps=2, save_every=1,
                       out=tmp_path / 'run')
    words.unlink()
    (out / 'vocab.txt').unlink()
    d2l.pretrain(resume=out, num_steps=3, devices='cpu')
    assert (out / 'vocab.txt').read_bytes() == (
        run / 'vocab.txt').read_bytes()


def test_a_checkpoint_of_a_version_without_vocabulary_is_read(copy, run):
    last = checkpoints.all_of(copy)[-1]
    with onp.load(last) as file:
        arrays = {name: file[name] for name in file.files if name != 'vocab'}
    onp.savez(last, **arrays)
    d2l.pretrain(resume=copy, devices='cpu')
    assert contents(copy)['model.params'] == contents(run)['model.params']


def test_a_resumed_run_gives_the_memory_of_its_checkpoint_back(copy):
    resumed = pretraining.reopen_run(copy, dict(num_steps=5), 'cpu')
    arrays = weakref.ref(next(iter(resumed.checkpoint[2].values())))
    try:
        resumed.prepare()
        gc.collect()
        assert arrays() is None
    finally:
        resumed.close()


# What is refused

def damaged(path, kind):
    data = path.read_bytes()
    if kind == 'empty':
        path.write_bytes(b'')
    elif kind == 'half':
        path.write_bytes(data[:len(data) // 2])
    elif kind == 'last byte missing':
        path.write_bytes(data[:-1])
    elif kind == 'one bit':
        place = data.index(b'param/hidden.weight') + 400
        path.write_bytes(data[:place] + bytes([data[place] ^ 4])
                         + data[place + 1:])
    elif kind == 'other type':
        # NumPy would read half of the bytes, and not notice
        place = data.index(b"'<f4'", data.index(b'token_embedding.weight'))
        path.write_bytes(data[:place] + b"'<f2'" + data[place + 5:])
    elif kind == 'text':
        path.write_text('not a checkpoint')
    elif kind == 'other archive':
        with zipfile.ZipFile(path, 'w') as archive:
            archive.writestr('state', 'x')
    elif kind == 'other arrays':
        with open(path, 'wb') as file:
            onp.savez(file, weight=onp.zeros(3))
    elif kind == 'pickled':
        with open(path, 'wb') as file:
            onp.savez(file, state=onp.array([{}], dtype=object))
    elif kind == 'one array':
        with open(path, 'wb') as file:
            onp.save(file, onp.zeros(3))
    elif kind == 'no JSON':
        with open(path, 'wb') as file:
            onp.savez(file, state=onp.frombuffer(b'{"step": ', 'uint8'))
    elif kind == 'no state':
        with open(path, 'wb') as file:
            onp.savez(file, state=onp.frombuffer(b'[1]', 'uint8'))
    elif kind == 'later format':
        rewritten(path, format='d2lbert checkpoint 9')
    elif kind == 'without position':
        rewritten(path, position=None)


KINDS = ['empty', 'half', 'last byte missing', 'one bit', 'other type',
         'text', 'other archive', 'other arrays', 'pickled', 'one array',
         'no JSON', 'no state', 'later format', 'without position']


@pytest.mark.parametrize('kind', KINDS)
def test_a_damaged_one_is_named_and_the_one_before_it_offered(copy, kind):
    third, fourth = checkpoints.all_of(copy)[1:]
    damaged(fourth, kind)
    before = contents(copy)
    with pytest.raises(CheckpointError) as caught:
        d2l.pretrain(resume=copy)
    message = str(caught.value)
    assert message.startswith(f'{fourth} is damaged or no checkpoint')
    assert message.endswith(f'--resume {third}') and '\n' not in message
    assert contents(copy) == before


def test_the_one_that_was_offered_leads_to_the_same_end(copy, run):
    third, fourth = checkpoints.all_of(copy)[1:]
    damaged(fourth, 'half')
    d2l.pretrain(resume=third, devices='cpu')
    for name in ('losses.csv', 'model.params'):
        assert contents(copy)[name] == contents(run)[name]


def test_where_all_are_damaged_it_is_said(copy):
    for path in checkpoints.all_of(copy):
        damaged(path, 'half')
    with pytest.raises(CheckpointError, match='resume from the checkpoint '
                                              'before'):
        d2l.pretrain(resume=copy)
    with pytest.raises(CheckpointError, match='there is no earlier '
                                              'checkpoint'):
        d2l.pretrain(resume=checkpoints.all_of(copy)[0])


def test_one_of_another_model_is_refused(copy, tmp_path):
    other = d2l.pretrain(**dict(TINY, num_hiddens=4), num_steps=1,
                         save_every=1, out=tmp_path / 'other')
    foreign, = checkpoints.all_of(other)
    target = checkpoints.all_of(copy)[-1]
    with onp.load(foreign) as file, onp.load(target) as own:
        arrays = {**dict(file), 'state': own['state']}
    with open(target, 'wb') as file:
        onp.savez(file, **arrays)
    with pytest.raises(CheckpointError, match='belongs to another model: '
                                              r'encoder\S+ is \(.*\) there '
                                              r'and \(.*\) here'):
        d2l.pretrain(resume=copy)


@pytest.mark.parametrize('changes, message', [
    (dict(settings=3), 'settings'), (dict(settings={'lr': -1}), 'settings'),
    (dict(settings={'batch_size': 'x'}), 'settings'),
    (dict(settings={'colour': 1}), 'settings'),
    (dict(history={}), 'the progress of its run'),
    (dict(history=1), 'its history is 1'),
    (dict(position='ab'), "its position is 'ab'"),
    (dict(position=['a', 'b']), 'the progress of its run'),
    (dict(position=[math.inf, 0]), 'the progress of its run'),
    (dict(taken=math.inf), 'the progress of its run'),
    (dict(position=[7, 7]), 'belongs to another text'),
    (dict(fingerprint='f'), 'has changed since')])
def test_a_state_that_cannot_be_is_refused(copy, changes, message):
    rewritten(checkpoints.all_of(copy)[-1], **changes)
    with pytest.raises(ValueError, match=message) as caught:
        d2l.pretrain(resume=copy, num_steps=5)
    assert '\n' not in str(caught.value)
    if 'settings' in changes or 'its run' in message:
        assert '): resume from the checkpoint before' in str(caught.value)


@pytest.mark.parametrize('here, given', [
    ('copy/checkpoints', 'step-00000003.npz'),
    ('copy/checkpoints/sub', '../step-00000003.npz'),
    ('copy/checkpoints', 'sub/../step-00000003.npz'),
    ('.', 'linked-folder/step-00000003.npz'), ('.', 'linked-file')])
def test_one_is_found_by_any_path(copy, tmp_path, monkeypatch, here, given):
    (copy / 'checkpoints/sub').mkdir()
    (tmp_path / 'linked-folder').symlink_to(copy / 'checkpoints')
    (tmp_path / 'linked-file').symlink_to(
        copy / 'checkpoints/step-00000003.npz')
    monkeypatch.chdir(tmp_path / here)
    assert d2l.pretrain(resume=given, num_steps=4, devices='cpu') == copy


def test_one_that_lies_elsewhere_is_refused(copy, tmp_path):
    alone = tmp_path / 'alone' / 'deep'
    alone.mkdir(parents=True)
    path = shutil.copy(checkpoints.all_of(copy)[-1], alone)
    before = names(tmp_path)
    with pytest.raises(saved_runs.RunError,
                       match='is not in the folder'):
        d2l.pretrain(resume=path)
    assert names(tmp_path) == before


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(CheckpointError, match='there is no checkpoint .*non'):
        d2l.pretrain(resume=tmp_path / 'none')
    with pytest.raises(saved_runs.RunError,
                       match='has no checkpoint to resume from: name a run'):
        d2l.pretrain(resume=tmp_path)


def test_a_compressed_checkpoint_is_refused(copy):
    """It could unpack to any size."""
    path = checkpoints.all_of(copy)[-1]
    with onp.load(path) as file:
        onp.savez_compressed(path, **dict(file), more=onp.zeros(1 << 25))
    assert path.stat().st_size < 1 << 21
    with pytest.raises(CheckpointError, match='it is compressed'):
        checkpoints.load(path)


@pytest.mark.parametrize('settings, reason', [
    (dict(num_layers=10 ** 9), 'are too few for 1000000000 layers'),
    (dict(num_layers=10 ** 9, share_layers=True), 'may share'),
    (dict(num_hiddens=10 ** 9), 'num_hiddens is 1000000000'),
    (dict(max_len=10 ** 9), 'max_len is 1000000000')])
def test_settings_that_no_tensor_has_are_refused(copy, settings, reason):
    path = checkpoints.all_of(copy)[-1]
    state, _ = checkpoints.load(path)
    rewritten(path, settings=dict(state['settings'], **settings))
    with pytest.raises(CheckpointError, match=reason):
        d2l.pretrain(resume=copy, num_steps=6)


def without(path, **changes):
    """Write a checkpoint again with other arrays; None removes one."""
    with onp.load(path) as file:
        arrays = {**dict(file), **changes}
    onp.savez(path, **{name: array for name, array in arrays.items()
                       if array is not None})


@pytest.mark.parametrize('changes, reason', [
    ({'tokenizer': onp.frombuffer(b'[' * 10 ** 5, 'uint8')}, 'vocabulary'),
    ({'tokenizer': onp.frombuffer(b'{"tokenizer": "{"}', 'uint8')},
     'its vocabulary cannot be read'),
    ({'vocab': onp.frombuffer(b'\xff\xfe', 'uint8')}, 'its vocabulary'),
    ({'moment0/encoder.token_embedding.weight': None}, 'its moments of'),
    ({'moment1/encoder.token_embedding.weight': None}, 'its moments of'),
    ({'moment0/encoder.token_embedding.weight': onp.zeros(3)}, 'its moments'),
])
def test_damaged_arrays_are_named(copy, changes, reason):
    path = checkpoints.all_of(copy)[-1]
    without(path, **changes)
    with pytest.raises(CheckpointError, match=reason) as raised:
        d2l.pretrain(resume=copy, num_steps=6)
    assert str(path) in str(raised.value)


def test_damaged_averages_are_named(copy):
    path = checkpoints.all_of(copy)[-1]
    without(path, **{'average/encoder.token_embedding.weight': onp.zeros(3)})
    with pytest.raises(CheckpointError, match='encoder.token_embedding'):
        checkpoints.load_weights(path, d2l.load_run(copy)[0])
