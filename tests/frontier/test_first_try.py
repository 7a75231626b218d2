"""What a newcomer tries first works: no method collapses in a short run on the digits."""

import pytest
import torch

from spikewire import METHODS
from spikewire.config import resolve
from spikewire.fields import defaults
from spikewire.train.loop import fit

torch.set_num_threads(1)
TARGETED = [name for name, method in METHODS.items() if "connectivity" in defaults(method)]


def accuracy(method: str, seed: int) -> float:
    """Train as ``frontier --epochs 10 --connectivity 0.1``; test on held-out training images."""
    flags = {"method": method, "epochs": "10", "seed": str(seed), "hold_out": "300"}
    flags |= {"connectivity": "0.1", "test_every": "10"}
    return fit(resolve(flags=flags)).accuracy


def test_budget_does_not_collapse_at_the_rate_of_the_preset():
    assert accuracy("budget", seed=0) > 0.88  # at the preset's own rate: 0.49 +- 0.32


@pytest.mark.slow
@pytest.mark.parametrize("method", TARGETED)
def test_no_method_of_a_frontier_collapses(method):
    found = [accuracy(method, seed) for seed in range(3)]
    assert min(found) > 0.85, found  # the lowest is lottery, 0.87; aptn without its setting: 0.82
