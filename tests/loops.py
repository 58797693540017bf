"""What tests of runs have in common: a run before its first step, one step.

And what two runs that are the same have in common.
"""
from d2lbert.training.run import Run


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
