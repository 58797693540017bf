"""Runs by steps and by a clock: their rates, their end, how they resume."""
import csv
import itertools
import json
import random
import shutil

import loops
import numpy as onp
import pytest
from loops import result, step

import d2lbert as d2l
from d2lbert.nn import steps
from d2lbert.training import checkpoints, history, pretraining, updater
from d2lbert.training.checkpoints import CheckpointError
from d2lbert.training.schedule import rate_factor
from d2lbert.training.settings import complete

TINY = dict(corpus='sample', batch_size=100, max_len=32, num_hiddens=8,
            ffn_num_hiddens=8, num_layers=1, seed=1)
#: Nine steps or so of a tenth of a second.
TIMED = dict(TINY, minutes=0.015, warmup=0.2, decay='linear', dropout=0.5)


# The schedule

@pytest.mark.parametrize('num_steps', [1, 7, 100])
@pytest.mark.parametrize('warmup', [0.0, 0.1, 0.5, 0.99])
@pytest.mark.parametrize('decay, end', [('none', 1.0), ('linear', 0.0)])
def test_the_schedule_is_made_of_two_straight_lines(num_steps, warmup, decay,
                                                    end):
    steps = onp.arange(1, num_steps + 1)
    turn = warmup * num_steps
    expected = onp.interp(steps, [0] * (turn > 0) + [turn, num_steps + 1],
                          [0] * (turn > 0) + [1, end])
    onp.testing.assert_allclose(
        [rate_factor(k, num_steps, num_steps + 1, warmup, decay)
         for k in steps], expected)


@pytest.mark.parametrize('warmup', [0.0, 0.25])
def test_a_cosine_falls_slowly_fast_and_slowly_again(warmup):
    places = onp.linspace(0, 60, 241)
    found = onp.array([rate_factor(place, 60, 60, warmup, 'cosine')
                       for place in places])
    turn = 60 * warmup
    falling = places >= turn
    # Loshchilov and Hutter 2017, equation 5, from 1 to 0
    onp.testing.assert_allclose(
        found[falling],
        0.5 * (1 + onp.cos(onp.pi * (places[falling] - turn) / (60 - turn))),
        atol=1e-12)
    onp.testing.assert_allclose(found[~falling],
                                places[~falling] / (turn or 1))


def test_the_schedule_is_what_the_optimizer_is_told():
    run = loops.prepared(pretraining._make_objective, complete(dict(
        TINY, lr=0.01, warmup=0.5, decay='linear', num_steps=6)))
    rates = []
    for _ in range(6):
        step(run)
        rates.append(run.updater.trainer.learning_rate)
    onp.testing.assert_allclose(
        rates, 0.01 * onp.interp(range(1, 7), [0, 3, 7], [0, 1, 0]))


# By a clock

@pytest.fixture
def clock(monkeypatch):
    """A function that sets the seconds of each further step."""
    def set_to(seconds):
        seconds = iter(seconds)
        monkeypatch.setattr(
            steps, 'Timer', lambda: type('Clock', (), dict(
                start=lambda self: None, stop=lambda self: next(seconds)))())
    return set_to


def durations(seed, mean=0.1):
    """The seconds of each step, without end."""
    rng = random.Random(seed)
    return (rng.uniform(0.5, 1.5) * mean for _ in itertools.count())


def beginnings(seconds, budget):
    """The seconds at which steps begin, until the budget is used up."""
    found = [0.0]
    while found[-1] < budget:
        found.append(found[-1] + next(seconds))
    return found[:-1]


def rates_of(monkeypatch):
    """The learning rates that all steps from now on are told, a list."""
    rates, update = [], updater.Updater.update

    def note(self, step):
        update(self, step)
        rates.append(self.trainer.learning_rate)
    monkeypatch.setattr(updater.Updater, 'update', note)
    return rates


@pytest.fixture
def timed(clock, tmp_path):
    """A finished run by the clock, with all its checkpoints."""
    clock(durations(1))
    return d2l.pretrain(**TIMED, devices='cpu', save_every=1, keep=0,
                        out=tmp_path / 'run')


def killed(run, step, folder):
    """A copy of `run` as after a kill right after the checkpoint of `step`.
    """
    shutil.copytree(run, folder)
    for path in checkpoints.all_of(folder)[step:]:
        path.unlink()
    (folder / 'model.params').unlink()
    return folder


def rewrite(path, change):
    """Write a checkpoint again after `change(state)`."""
    with onp.load(path) as file:
        arrays = dict(file)
    state = json.loads(arrays['state'].tobytes().decode())
    change(state)
    arrays['state'] = onp.frombuffer(json.dumps(state).encode(), 'uint8')
    onp.savez(path, **arrays)


@pytest.mark.parametrize('log_interval', [1, 100])
def test_a_loss_read_late_is_reported_with_the_rate_of_its_step(
        log_interval, clock, monkeypatch, tmp_path):
    rates, gradients = rates_of(monkeypatch), updater.Updater.gradients

    def broken(self, batch):
        losses = gradients(self, batch)
        if len(rates) == 2:     # in step 3, which spoils step 4
            self.net.hidden.weight.grad(self.devices[0])[:] = float('inf')
        return losses
    monkeypatch.setattr(updater.Updater, 'gradients', broken)
    clock(durations(1))
    with pytest.raises(history.Diverged, match='loss is nan in step 4') as (
            error):
        d2l.pretrain(**TIMED, log_interval=log_interval, devices='cpu',
                     out=tmp_path / 'run')
    assert f', at a learning rate of {rates[3]:g}: ' in str(error.value)


def test_rates_follow_the_clock_and_it_ends_when_time_is_over(
        clock, monkeypatch, tmp_path):
    rates = rates_of(monkeypatch)
    clock(durations(1))
    run = d2l.pretrain(**TIMED, eval_every=2, devices='cpu',
                       out=tmp_path / 'run')
    began = beginnings(durations(1), 0.9)
    assert len(rates) == len(began) > 5
    onp.testing.assert_allclose(rates, 0.01 * onp.interp(
        began, [0, 0.18, 0.9], [0, 1, 0]))
    with open(run / 'losses.csv', newline='') as file:
        rows = list(csv.DictReader(file))
    # The last step is scored, too, whichever it is
    assert [bool(row['held_out_mlm_loss']) for row in rows] == [
        k % 2 == 0 or k == len(began) for k in range(1, len(began) + 1)]
    training = json.loads((run / 'config.json').read_text('utf-8'))['training']
    assert training['minutes'] == 0.015 and training['num_steps'] is None


@pytest.mark.parametrize('step', [1, 4, 7])
def test_a_resumed_run_goes_on_at_the_time_of_its_checkpoint(
        timed, clock, tmp_path, step):
    again = killed(timed, step, tmp_path / 'again')
    clock(itertools.islice(durations(1), step, None))
    d2l.pretrain(resume=again, devices='cpu')
    assert result(again) == result(timed)
    with onp.load(checkpoints.all_of(timed)[-1]) as a, onp.load(
            checkpoints.all_of(again)[-1]) as b:
        assert a.files == b.files
        for name in a.files:
            onp.testing.assert_array_equal(a[name], b[name])


def test_a_run_that_was_killed_has_what_was_left_of_its_time(
        timed, clock, tmp_path, monkeypatch):
    before = beginnings(durations(1), 0.9)
    rates = rates_of(monkeypatch)
    again = killed(timed, 2, tmp_path / 'again')
    clock(durations(3, 0.03))
    d2l.pretrain(resume=again, devices='cpu')
    began = [before[2] + seconds for seconds
             in beginnings(durations(3, 0.03), 0.9 - before[2])]
    assert len(began) > len(before)
    onp.testing.assert_allclose(rates, 0.01 * onp.interp(
        began, [0, 0.18, 0.9], [0, 1, 0]), rtol=1e-9)


def test_more_minutes_go_on_and_fewer_than_were_used_are_refused(
        timed, clock, tmp_path, monkeypatch):
    again = shutil.copytree(timed, tmp_path / 'again')
    with pytest.raises(ValueError, match=r'minutes=0.01 is less than the '
                                         r'0.0\d minutes that were used'):
        d2l.pretrain(resume=again, minutes=0.01)
    with pytest.raises(ValueError, match='the setting that the run began'):
        d2l.pretrain(resume=again, num_steps=100)
    rates = rates_of(monkeypatch)
    clock(itertools.repeat(0.1))
    d2l.pretrain(resume=again, minutes=0.03, devices='cpu')
    used = sum(itertools.islice(durations(1), len(checkpoints.all_of(timed))))
    began = [used + 0.1 * k for k in range(20) if used + 0.1 * k < 1.8]
    onp.testing.assert_allclose(rates, 0.01 * onp.interp(
        began, [0, 0.36, 1.8], [0, 1, 0]))


def test_a_checkpoint_of_an_earlier_version_has_its_clock(timed, tmp_path,
                                                          clock, monkeypatch):
    again = killed(timed, 3, tmp_path / 'again')
    # A step that was taken twice had its first reading there, not the second
    rewrite(checkpoints.all_of(again)[-1], lambda state: state.update(
        clock=[0.0, 0.1, 0.2, 0.45]))
    rates = rates_of(monkeypatch)
    clock(itertools.repeat(0.3))
    d2l.pretrain(resume=again, devices='cpu')
    onp.testing.assert_allclose(rates, 0.01 * onp.interp(
        [0.45, 0.75], [0, 0.18, 0.9], [0, 1, 0]))


@pytest.mark.parametrize('change', [
    lambda state: state['history'].update(seconds='x'),
    lambda state: state['history'].pop('seconds'),
    lambda state: state.update(clock=[])])
def test_a_checkpoint_without_its_clock_is_damaged(timed, tmp_path, change):
    again = killed(timed, 3, tmp_path / 'again')
    path = checkpoints.all_of(again)[-1]
    rewrite(path, change)
    with pytest.raises(CheckpointError, match=(
            r'is damaged: it does not describe the progress of its run '
            r'\(.*\): resume from the checkpoint before it with --resume ')):
        d2l.pretrain(resume=path, devices='cpu')


@pytest.mark.parametrize('given, message', [
    (dict(minutes=0), 'minutes must be above 0, not 0.0'),
    (dict(minutes=-1), 'minutes must be finite and not negative'),
    (dict(minutes=1, num_steps=5), r'num_steps \(--num-steps\) and minutes '
                                   r'\(--minutes\) both set the length')])
def test_a_time_that_cannot_be_is_named(given, message):
    with pytest.raises(ValueError, match=message):
        complete(given)


def test_the_steps_of_a_recipe_make_way_for_minutes():
    settings = complete(dict(recipe='learn', minutes=10))
    assert settings['minutes'] == 10.0 and settings['num_steps'] is None
    assert complete(settings) == settings


def test_several_workers_have_no_clock_in_common(monkeypatch):
    monkeypatch.setenv('D2LBERT_NUM_WORKERS', '2')
    with pytest.raises(ValueError, match='minutes=1 is for one worker, since '
                                         'the clocks of 2 workers differ'):
        loops.prepared(pretraining._make_objective,
                       complete(dict(TINY, minutes=1)))
