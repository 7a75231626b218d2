"""NaN and infinity in data, loss or gradient: one line, and the checkpoint kept is finite."""

import warnings
from contextlib import suppress
from dataclasses import replace
from math import isfinite

import pytest
import torch
from refusal import refused
from torch import Tensor
from trainer import STEPS, config

from spikewire import data as datasets
from spikewire.config import method_fields
from spikewire.errors import SpikewireError, TrainingFailed
from spikewire.methods import METHODS
from spikewire.nn.losses import LOSSES
from spikewire.runs.rundir import RunDir
from spikewire.train.loop import fit

NAN, INF = float("nan"), float("inf")


def finite(state) -> bool:
    """Return whether every tensor in a nested state is finite."""
    if isinstance(state, Tensor):
        return bool(state.isfinite().all())
    if isinstance(state, float):
        return isfinite(state)
    parts = state.values() if isinstance(state, dict) else state if isinstance(state, list) else ()
    return all(map(finite, parts))


def diverges(faults, fault, run, settings, data=None) -> dict:
    """Train until it fails in one line; return the state in the checkpoint."""
    with pytest.raises(TrainingFailed, match=r"^\S+( \(\w+\))? (is|are) not finite .*lower lr"):
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
    assert state["position"]["epoch"] == 0


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
    assert state["position"]["epoch"] == 2


@pytest.mark.parametrize("gradient", [NAN, INF])
@pytest.mark.parametrize("method", METHODS)
def test_the_gradient(tmp_path, faults, monkeypatch, method, gradient):
    monkeypatch.setitem(LOSSES, "ce-rate", poisoned(0.0, gradient, at=2 * STEPS + 2))
    options = {"connectivity": 0.2} if "connectivity" in method_fields(method) else {}
    settings = config(method=method, options=options)
    state = diverges(faults, "NaN or infinity in the gradient", tmp_path / "run", settings)
    assert state["position"]["epoch"] == 2


@pytest.mark.parametrize(
    "settings",
    [
        {"neuron": "if", "threshold": 1e30},
        {"threshold": 1e300},
        {"rate_scale": 1e25},
        {"weight_decay": 1e30},
        {"rate_scale": 1e25, "optimizer": "sgd"},
        {"rate_scale": 1e25, "optimizer": "rmsprop"},
        {"weight_decay": 1e30, "optimizer": "adamw"},
        {"lr": 1e30, "optimizer": "sgd"},
        {"rate_scale": 1e25, "average": 0.9},
    ],
)
@pytest.mark.parametrize(
    "method",
    ["gradr", *(pytest.param(m, marks=pytest.mark.slow) for m in METHODS if m != "gradr")],
)
def test_extreme_settings_keep_no_infinity(tmp_path, faults, method, settings):
    options = {"connectivity": 0.2} if "connectivity" in method_fields(method) else {}
    given = config(method=method, options=options, **settings)
    with suppress(TrainingFailed, SpikewireError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit(given, tmp_path / "run")
    run = RunDir(tmp_path / "run")
    if run.started:
        assert finite(run.load_checkpoint(given))
    if run.finished:
        assert all(map(finite, run.load_model()))
    faults("extreme settings", 1, 1)


@pytest.mark.parametrize("value", [1e25, 1e38])
@pytest.mark.parametrize("method", ["gradr", "budget", "admm"])
def test_one_huge_gradient_keeps_no_infinite_moment(tmp_path, faults, monkeypatch, method, value):
    monkeypatch.setitem(LOSSES, "ce-rate", poisoned(0.0, value, at=2 * STEPS + 2))
    options = {"connectivity": 0.2} if "connectivity" in method_fields(method) else {}
    settings = config(method=method, options=options)
    diverges(faults, "NaN or infinity in the gradient", tmp_path / "run", settings)


def test_weights_to_start_from_that_are_not_finite(tmp_path, faults):
    fit(config(epochs=1), tmp_path / "first")
    weights, masks = RunDir(tmp_path / "first").load_model()
    weights["fc1.weight"][3, 3] = NAN
    RunDir(tmp_path / "first").save_model(weights, masks)
    settings = config(start=str(tmp_path / "first"))
    with pytest.raises(TrainingFailed, match=r"^fc1.weight.* is not finite before the first step"):
        fit(settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    faults("NaN or infinity in data", 1, 1)
