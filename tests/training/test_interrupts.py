"""Ctrl-C, SIGTERM, SIGHUP: a run is saved, or leaves nothing in the way."""
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest

import d2lbert as d2l
from d2lbert.training import checkpoints, hooks, interrupts, loop, run_folder
from d2lbert.training.interrupts import Interrupted, Stopped, StopRequest

TINY = dict(corpus='sample', batch_size=100, max_len=32, num_hiddens=8,
            ffn_num_hiddens=8, num_layers=1, num_steps=6, seed=1,
            devices='cpu', out='run')
SIGNALS = pytest.mark.parametrize('number', [
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP])


@pytest.fixture(autouse=True)
def defaults():
    """Signals as in a shell's foreground, however the tests were started."""
    before = {number: signal.signal(number, handler) for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGTERM, signal.SIG_DFL), (signal.SIGHUP, signal.SIG_DFL))}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def behind(monkeypatch):
    """Have a function called behind a step, before what is due there."""
    after = loop.Run._after

    def at(wanted, function):
        def then(self, step):
            if step == wanted:
                function()
            after(self, step)
        monkeypatch.setattr(loop.Run, '_after', then)
    return at


def steps():
    return [int(path.stem[5:]) for path in checkpoints.all_of('run')]


# The request

@SIGNALS
def test_the_first_signal_is_noted_and_the_second_one_raises(number):
    before = signal.getsignal(number)
    with pytest.raises(Interrupted, match='^so long$') as caught, \
            StopRequest() as stop:
        stop.stores_first, stop.last_words = True, 'so long'
        signal.raise_signal(number)
        assert stop.signal == number
        signal.raise_signal(number)
    assert caught.value.signal == number
    assert signal.getsignal(number) is before


@SIGNALS
def test_before_it_is_patient_the_first_one_raises(number):
    with pytest.raises(Interrupted, match='nothing was written'), \
            StopRequest():
        signal.raise_signal(number)


@SIGNALS
def test_a_signal_that_is_ignored_stays_so(number):
    signal.signal(number, signal.SIG_IGN)
    with StopRequest() as stop:
        signal.raise_signal(number)
        assert stop.signal is None
    assert signal.getsignal(number) is signal.SIG_IGN


def test_while_it_is_deaf_nothing_happens():
    with StopRequest() as stop:
        stop.ignores_all = True
        signal.raise_signal(signal.SIGINT)
        assert stop.signal is None


def test_what_one_signal_ends_no_other_breaks_into(monkeypatch):
    cleaned = []
    with pytest.raises(Interrupted) as caught, StopRequest():
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGINT)
            cleaned.append('up')
            monkeypatch.setattr(interrupts, 'CLEANUP_SECONDS', 0)
            signal.raise_signal(signal.SIGHUP)      # somebody insists
            cleaned.append('more')
    assert cleaned == ['up'] and caught.value.signal == signal.SIGHUP


@SIGNALS
def test_a_signal_that_meets_a_destructor_comes_again(number, capfd):
    class Interrupting:
        def __del__(self):
            signal.raise_signal(number)
            ended.append(self)
    ended = []
    with pytest.raises(Interrupted) as caught, StopRequest():
        Interrupting()
        assert ended
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            time.sleep(0.001)
    assert caught.value.signal == number
    assert capfd.readouterr().err == ''


@SIGNALS
def test_a_signal_waits_where_it_is_held(number):
    seen = []
    with pytest.raises(Interrupted) as caught, StopRequest() as stop:
        with stop.delayed():
            signal.raise_signal(number)
            seen.append('the end')
        seen.append('more')
    assert seen == ['the end'] and caught.value.signal == number


def test_a_signal_before_an_error_is_dropped_with_what_failed():
    with StopRequest() as stop:
        with pytest.raises(OSError, match='full'), stop.delayed():
            signal.raise_signal(signal.SIGINT)
            raise OSError('full')
        with stop.delayed():    # it does not come out here
            pass


def test_another_thread_leaves_signals_alone():
    before, seen = signal.getsignal(signal.SIGINT), []

    def listen():
        with StopRequest():
            seen.append(signal.getsignal(signal.SIGINT))
    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert seen == [before]


# A run

@SIGNALS
def test_a_run_is_saved_behind_its_step_and_says_how_to_go_on(number,
                                                              behind):
    behind(2, lambda: signal.raise_signal(number))
    with pytest.raises(Stopped) as caught:
        d2l.pretrain(**TINY)
    assert str(caught.value) == ('stopped at step 2; go on with: '
                                 'd2lbert pretrain --resume run')
    assert caught.value.signal == number and steps() == [2]


def test_a_second_signal_while_it_saves_leaves_nothing_in_the_way(
        behind, monkeypatch, tmp_path):
    behind(2, lambda: signal.raise_signal(signal.SIGINT))
    with monkeypatch.context() as patch:
        patch.setattr(os, 'fsync', lambda *_: signal.raise_signal(
            signal.SIGINT))
        with pytest.raises(Interrupted, match='nothing was written'):
            d2l.pretrain(**TINY)
    assert not os.listdir(tmp_path)


@SIGNALS
@pytest.mark.parametrize('moment', ['mkdir', 'open', 'after'])
def test_a_signal_while_the_folder_is_taken_leaves_nothing(
        number, moment, monkeypatch, tmp_path):
    """And a second one, while it is removed, neither."""
    remove, lock = shutil.rmtree, run_folder._lock

    def taken(path):
        if moment == 'mkdir':
            signal.raise_signal(number)
        found = lock(path)
        if moment == 'open':
            signal.raise_signal(number)
        return found

    def removed(*args, **kwargs):
        signal.raise_signal(number)
        remove(*args, **kwargs)
    monkeypatch.setattr(run_folder, '_lock', taken)
    monkeypatch.setattr(shutil, 'rmtree', removed)
    if moment == 'after':
        monkeypatch.setattr(loop.Run, 'prepare',
                            lambda self: signal.raise_signal(number))
    with pytest.raises(Interrupted, match='nothing was written'):
        d2l.pretrain(**TINY)
    assert not os.listdir(tmp_path)


def test_a_second_signal_leaves_the_checkpoint_before(behind, monkeypatch):
    behind(3, lambda: [signal.raise_signal(signal.SIGINT),
                       patch.setattr(os, 'fsync', lambda *_: (
                           signal.raise_signal(signal.SIGTERM)))])
    with monkeypatch.context() as patch:
        with pytest.raises(Interrupted, match='last checkpoint is whole') as (
                caught):
            d2l.pretrain(**TINY, save_every=1)
    assert caught.value.signal == signal.SIGTERM and steps() == [1, 2]
    assert not list(checkpoints.folder_of('run').glob('.*'))


def test_a_signal_while_files_are_written_does_not_hold_that_up(monkeypatch):
    save = d2l.Animator.save

    def interrupted(self, path):
        for _ in range(3):
            signal.raise_signal(signal.SIGINT)
        save(self, path)
    monkeypatch.setattr(d2l.Animator, 'save', interrupted)
    assert d2l.load_run(d2l.pretrain(**TINY))


@SIGNALS
def test_the_command_ends_with_the_number_of_its_signal(number, tmp_path):
    folder = tmp_path / 'run'
    process = subprocess.Popen(
        [sys.executable, '-m', 'd2lbert', 'pretrain', '--save-every', '1',
         *(text for name, value in dict(TINY, num_steps=10 ** 6).items()
           for text in ('--' + name.replace('_', '-'), str(value)))],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        encoding='utf-8')
    try:
        deadline = time.monotonic() + 120
        while not checkpoints.all_of(folder):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 128 + number
    assert re.search(r'^stopped at step \d+; go on with: d2lbert pretrain '
                     r'--resume run$', err, re.M) and 'Trace' not in err


# Without being asked

def test_a_longer_run_keeps_its_last_checkpoint(monkeypatch):
    monkeypatch.setattr(hooks, 'SAVE_SECONDS', 0)
    seen, save = [], checkpoints.save

    def look(*args):
        save(*args)
        seen.append(steps())
    monkeypatch.setattr(checkpoints, 'save', look)
    d2l.pretrain(**TINY)
    assert seen == [[k] for k in range(1, 7)]


@pytest.mark.parametrize('settings, seconds', [
    (dict(save_every=0), 0), ({}, 1000)])
def test_a_short_run_or_one_told_not_to_keeps_none(settings, seconds,
                                                   monkeypatch):
    monkeypatch.setattr(hooks, 'SAVE_SECONDS', seconds)
    d2l.pretrain(**TINY, **settings)
    assert not steps()


def test_saving_on_the_way_changes_nothing(monkeypatch, tmp_path):
    def result(out):
        run = d2l.pretrain(**dict(TINY, out=out), log_interval=4)
        return [(run / name).read_bytes() for name in ('losses.csv',
                                                       'model.params')]
    plain = result('plain')
    monkeypatch.setattr(hooks, 'SAVE_SECONDS', 0)
    assert result('saved') == plain
