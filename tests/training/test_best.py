"""Which step of a run is its best."""
import math
import types

import pytest

from d2lbert.training.checkpoints import Checkpoint, CheckpointError
from d2lbert.training.state import BestWeights, best_step


@pytest.mark.parametrize('scores, best', [
    ({}, None), ({5: 0.1}, 5), ({5: 0.1, 10: 0.3, 15: 0.2}, 10),
    ({5: 0.3, 10: 0.3}, 5), ({5: math.nan, 10: -1.0}, 10),
    ({5: 0.2, 10: math.nan}, 5), ({5: math.nan, 10: math.nan}, 5),
    ({5: -math.inf, 10: math.nan}, 5)])
def test_the_first_of_the_highest_is_the_best(scores, best):
    history = types.SimpleNamespace(held_out=scores)
    assert best_step(history, lambda figures: figures) == best


def test_a_checkpoint_without_the_best_weights_names_the_one_before(tmp_path):
    (tmp_path / 'checkpoints').mkdir()
    before, path = (tmp_path / 'checkpoints' / f'step-0000000{step}.npz'
                    for step in (1, 2))
    before.touch()
    best = BestWeights(
        types.SimpleNamespace(score=lambda figures: figures, eval_every=1),
        types.SimpleNamespace(held_out={1: 0.5, 2: 0.1}, num_steps=2),
        None, tmp_path)
    with pytest.raises(CheckpointError, match=(
            'is damaged: it lacks the best weights, of step 1: resume from '
            f'the checkpoint before it with --resume {before}')):
        best.restore(Checkpoint(path, {}, {}))
