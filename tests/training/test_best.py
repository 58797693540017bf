"""Which step of a run is its best."""
import math
import types

import pytest

from d2lbert.training.state import best_step


@pytest.mark.parametrize('scores, best', [
    ({}, None), ({5: 0.1}, 5), ({5: 0.1, 10: 0.3, 15: 0.2}, 10),
    ({5: 0.3, 10: 0.3}, 5), ({5: math.nan, 10: -1.0}, 10),
    ({5: 0.2, 10: math.nan}, 5), ({5: math.nan, 10: math.nan}, 5),
    ({5: -math.inf, 10: math.nan}, 5)])
def test_the_first_of_the_highest_is_the_best(scores, best):
    history = types.SimpleNamespace(held_out=scores)
    assert best_step(history, lambda figures: figures) == best
