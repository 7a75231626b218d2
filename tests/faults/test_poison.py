"""NaN and infinity in data, loss or gradient: one line, and the checkpoint kept is finite."""

from dataclasses import replace

import pytest
import torch
from refusal import refused
from torch import Tensor
from trainer import STEPS, config

from spikewire import data as datasets
from spikewire.config import method_fields
from spikewire.errors import TrainingFailed
from spikewire.methods import METHODS
from spikewire.nn.losses import LOSSES
from spikewire.runs.rundir import RunDir
from spikewire.train.loop import fit

NAN, INF = float("nan"), float("inf")


def finite(state) -> bool:
    """Return whether every tensor in a nested state is finite."""
    if isinstance(state, Tensor):
        return bool(state.isfinite().all())
    parts = state.values() if isinstance(state, dict) else state if isinstance(state, list) else ()
    return all(map(finite, parts))


def diverges(faults, fault, run, settings, data=None) -> dict:
    """Train until it fails in one line; return the state in the checkpoint."""
    with pytest.raises(TrainingFailed, match=r"^\S+ (is|are) not finite .*lower lr"):
        fit(settings, run, data=data)
    state = RunDir(run).load_checkpoint(settings)
    assert finite(state)
    faults(fault, 1, 1)
    return state


def poisoned(value: float, gradient: float, at: int):
    """Return the loss; from call `at` on, `value` is added to it and `gradient` to its gradient."""
    calls = iter(range(1, 10_000))

    class Poison(torch.autograd.Function):
        @staticmethod
        def forward(ctx, loss):
            return loss + value

        @staticmethod
        def backward(ctx, given):
            return given + gradient

    def loss(output, labels, *more):
        clean = ce(output, labels, *more)
        return Poison.apply(clean) if output.requires_grad and next(calls) >= at else clean

    ce = LOSSES["ce-rate"]
    return loss


@pytest.mark.parametrize("pixel", [NAN, INF, -INF])
def test_a_pixel_of_the_training_images(tmp_path, faults, pixel):
    digits = datasets.load("digits")
    images = digits.train_images.float()
    images[700, 0, 3, 3] = pixel
    data = replace(digits, train_images=images)
    settings = config(init="default")
    state = diverges(faults, "NaN or infinity in data", tmp_path / "run", settings, data)
    assert state["place"]["epoch"] == 0


@pytest.mark.parametrize("mean", [NAN, INF])
def test_the_mean_that_normalises_the_images(tmp_path, faults, mean):
    data = replace(datasets.load("digits"), mean=(mean,))
    refused(lambda: fit(config(), tmp_path / "run", data=data), "mean", mean, "finite")
    assert not (tmp_path / "run").exists()
    faults("NaN or infinity in data", 1, 1)


@pytest.mark.parametrize("value", [NAN, INF])
def test_the_loss(tmp_path, faults, monkeypatch, value):
    monkeypatch.setitem(LOSSES, "ce-rate", poisoned(value, 0.0, at=2 * STEPS + 2))
    state = diverges(faults, "NaN or infinity in the loss", tmp_path / "run", config())
    assert state["place"]["epoch"] == 2


@pytest.mark.parametrize("gradient", [NAN, INF])
@pytest.mark.parametrize("method", METHODS)
def test_the_gradient(tmp_path, faults, monkeypatch, method, gradient):
    monkeypatch.setitem(LOSSES, "ce-rate", poisoned(0.0, gradient, at=2 * STEPS + 2))
    options = {"connectivity": 0.2} if "connectivity" in method_fields(method) else {}
    settings = config(method=method, options=options)
    state = diverges(faults, "NaN or infinity in the gradient", tmp_path / "run", settings)
    assert state["place"]["epoch"] == 2
