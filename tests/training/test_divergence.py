"""A run whose loss grows says so, and what to do."""
import pytest

import d2lbert as d2l
from d2lbert.training.history import LossGrowth, RunHistory

TINY = dict(corpus='sample', batch_size=16, max_len=32, num_hiddens=8,
            ffn_num_hiddens=8, num_layers=1, num_steps=40, seed=1)


def grown(losses, step, weights=(1, 1)):
    """A `LossGrowth` of a history with losses (a, b) at each step."""
    history = RunHistory(['a', 'b'], None)
    for k, pair in enumerate(losses[:step], 1):
        history.add(lambda pair=pair: pair, 1)
        if k % 5 == 0:
            history.log(k)
    history.first_losses = list(losses[0])
    return LossGrowth(history, weights, 0.5)


def test_losses_are_compared_with_those_of_the_first_step():
    falling = [(7, 1)] + [(6, 2)] * 39
    growing = [(7, 1)] + [(20, 2)] * 39
    assert grown(falling, 10).warning_after(10) is None
    assert grown(falling, 40).final_warning() is None
    assert grown(growing, 5).warning_after(5) is None       # too early
    growth = grown(growing, 10)
    assert growth.warning_after(10) == (
        'training diverges: the loss was 8 in step 1 and is 22 at step 10, '
        'at a learning rate of at most 0.5: start again with a lower lr '
        '(--lr), or with clip (--clip)')
    assert growth.warning_after(10) is None                  # once
    assert 'at step 40' in grown(growing, 40).final_warning()


def test_a_loss_that_counts_little_and_one_that_began_low_are_no_divergence():
    losses = [(7, .1)] + [(6, 50)] * 39
    assert grown(losses, 40).final_warning() is not None
    assert grown(losses, 40, (1, 0.01)).final_warning() is None
    lucky = [(.1, 0)] + [(.9, 0)] * 39
    assert grown(lucky, 40).final_warning() is None


@pytest.mark.parametrize('lr, diverges', [(10.0, True), (0.01, False)])
def test_a_run_that_diverges_says_so(tmp_path, caplog, lr, diverges):
    out = d2l.pretrain(out=tmp_path / 'run', lr=lr, **TINY)
    said = [record.getMessage() for record in caplog.records
            if 'diverges' in record.getMessage()]
    assert bool(said) == diverges
    assert ('training diverges: the loss was' in (out / 'log.txt').read_text()
            ) == diverges
