"""What tests of runs have in common: a run before its first step, one step.

And what two runs that are the same have in common.
"""
import numpy as onp

import d2lbert as d2l
from d2lbert.launch import launcher
from d2lbert.training.loop import Run


def result(out):
    """What has to be the same to the last bit."""
    return {name: (out / name).read_bytes()
            for name in ('losses.csv', 'model.params')}


def prepared(make_objective, settings, devices='cpu'):
    """A `Run` that has read its data and made its net."""
    run = Run(make_objective, settings, devices)
    run.prepare()
    return run


def step(run):
    """Take one step of a prepared run; returns its losses."""
    read, _ = next(run.steps())
    run.history.add(read, 1)
    return read()


def by_one_and_two(settings, folder):
    """What losses.csv holds of runs by one worker and by two, as arrays.

    The runs are folder / 'one' and folder / 'two'.
    """
    flags = [text for name, value in settings.items() for text in (
        '--' + name.replace('_', '-'), str(value))]
    launcher.launch(['-c', f"""
import sys
sys.argv[0] = 'd2lbert'
from d2lbert.command.worker import worker
sys.argv[1:] = ['pretrain', '--out', {str(folder / 'two')!r}, *{flags!r}]
worker()
"""], workers=2)
    d2l.pretrain(**settings, devices='cpu', out=folder / 'one')
    return [onp.loadtxt(folder / name / 'losses.csv', delimiter=',',
                        skiprows=1) for name in ('one', 'two')]
