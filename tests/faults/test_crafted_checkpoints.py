"""Crafted checkpoints: every field x wild values is refused before anything is loaded."""

import random
import shutil
from copy import deepcopy
from math import inf, nan

import pytest
import torch
from refusal import refused
from test_damage import RESUME, run_command
from torch import Tensor
from trainer import config

from spikewire.config import method_fields
from spikewire.distributed import ALONE
from spikewire.errors import SpikewireError
from spikewire.methods import METHODS
from spikewire.runs.rundir import RunDir
from spikewire.train.loop import Step, fit
from spikewire.train.step import prepare
from spikewire.train.verify import verified_state

STOP = 12  # step at which the runs were stopped
KINDS = (
    {"method": "gradr", "average": 0.9},
    {"method": "lottery", "optimizer": "sgd", "options": {"connectivity": 0.2}},
    {"method": "deepr", "optimizer": "rmsprop", "options": {"connectivity": 0.2}},
    {"method": "upr", "optimizer": "adamw"},
    {"method": "budget", "optimizer": "sgd", "momentum": 0.0, "options": {"connectivity": 0.2}},
)
REMOVED = object()


def stopped(folder, settings):
    """Leave a run that was stopped; return its checkpoint."""

    def stop(event):
        return isinstance(event, Step) and event.step == STOP

    with pytest.raises(KeyboardInterrupt):
        fit(settings, folder, progress=stop)
    return torch.load(folder / "checkpoint.pt", weights_only=True)


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    """Stopped runs: settings, folder, checkpoint."""
    found = []
    for number, kind in enumerate(KINDS):
        folder, settings = tmp_path_factory.mktemp("intact") / str(number), config(**kind)
        found.append((settings, folder, stopped(folder, settings)))
    return found


def wild_tensors(x: Tensor) -> list[object]:
    """Return values that must not be loaded in place of a tensor."""
    like = torch.zeros_like(x)
    bigger = torch.zeros([2 * size for size in x.shape], dtype=x.dtype)
    kinds = [torch.float64, torch.float16, torch.int64, torch.complex64, torch.uint8]
    values: list[object] = [like.to(kind) for kind in kinds if kind != x.dtype]
    values += [like[..., None], like.to("meta"), None, 5, nan, "x", [], {}, [x], b"\xff"]
    if x.numel() > 1:
        values += [
            bigger,
            like.flatten()[:1],
            like.flatten()[:0],
            like.flatten()[:1].expand(x.shape),
        ]
        values += [like[:-1], like.flatten()[0]]
    if x.dim() > 1 and min(x.shape) > 1:
        values += [like.transpose(0, 1), like.transpose(0, 1).contiguous().transpose(0, 1)]
        values += [like.to_sparse()]
    if x.is_floating_point():
        values += [torch.full_like(x, bad) for bad in (nan, inf, -inf)]
        values += [torch.zeros_like(x, requires_grad=True)]
    return values


def odd_tensors(x: Tensor) -> list[object]:
    """Return tensors that fit and may give another network."""
    if x.dtype == torch.bool:
        return [torch.zeros_like(x), torch.ones_like(x)]
    if x.dtype == torch.uint8:  # the state of a generator
        return [torch.zeros_like(x), torch.full_like(x, 255)]
    return [
        torch.full_like(x, value) for value in (0, -1, 1e30 if x.is_floating_point() else 2**62)
    ]


NUMBERS = (-1, 10**9, 2**63, -(2**70), 1.5, nan, inf, True, None, "x", [], {}, torch.ones(3))
WORDS = ("", "x", "gradr\n\x1b[31m", None, 5, b"x", [], "x" * 10_000)
PLACES = (None, 5, "x", [], {}, [{}], torch.zeros(2))


def mutations(state, path=()):
    """Yield (path, value, whether it must be refused) for every field of a nested state."""
    if isinstance(state, Tensor):
        yield from ((path, value, True) for value in wild_tensors(state))
        yield from ((path, value, False) for value in odd_tensors(state))
        return
    if isinstance(state, dict | list | tuple):
        yield from ((path, value, False) for value in PLACES)
        items = state.items() if isinstance(state, dict) else enumerate(state)
        for key, value in items:
            yield from mutations(value, (*path, key))
        if isinstance(state, dict):
            yield from (((*path, key), REMOVED, False) for key in state)
            yield from (((*path, key), torch.zeros(1), False) for key in ("new\n", 10**6, -1))
        return
    number = isinstance(state, int | float) and not isinstance(state, bool)
    yield from ((path, value, False) for value in (NUMBERS if number else WORDS))


def changed(state, path, value):
    """Return a copy of a nested state in which the value at `path` is another one."""
    if not path:
        return value
    key, *rest = path
    if isinstance(state, tuple):
        return tuple(changed(list(state), path, value))
    copy = state.copy()
    if rest:
        copy[key] = changed(state[key], rest, value)
    elif value is REMOVED:
        del copy[key]
    else:
        copy[key] = value
    return copy


def refusal(training, state) -> str:
    """Return why a state is refused, or nothing."""
    try:
        verified_state(training, state)
    except SpikewireError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kinds", [1, pytest.param(len(KINDS), marks=pytest.mark.slow)])
def test_every_field_of_a_state_is_compared_before_it_is_loaded(intact, faults, kinds):
    tried = 0
    for settings, _, saved in intact[:kinds]:
        training = prepare(settings, fresh=False, ranks=ALONE)
        before = deepcopy(training.model.state_dict())
        for path, value, wild in mutations(saved["state"]):
            if not path:
                continue
            message = refusal(training, changed(saved["state"], path, value))
            assert message or not wild, (path, value)
            assert "\n" not in message
            tried += 1
        after = training.model.state_dict()
        assert all(value.equal(before[name]) for name, value in after.items())
        training.load_state_dict(verified_state(training, saved["state"]))
    faults("crafted checkpoint: comparison", tried, tried)


@pytest.mark.filterwarnings("default:.* no synapse is left")  # where all latents became -1
@pytest.mark.parametrize("count", [12, pytest.param(1200, marks=pytest.mark.slow)])
def test_a_crafted_checkpoint_ends_in_one_line(
    intact, tmp_path, monkeypatch, capsys, faults, count
):
    monkeypatch.chdir(tmp_path)
    cases = [
        (kind, *mutation)
        for kind, (_, _, saved) in enumerate(intact)
        for mutation in mutations(saved)
        if mutation[0]
    ]
    for case in random.Random(count).sample(cases, count):
        kind, path, value, wild = case
        shutil.copytree(intact[kind][1], "run")
        torch.save(changed(intact[kind][2], path, value), "run/checkpoint.pt")
        code = run_command(RESUME, capsys, case)
        assert code == 2 or not wild, case
        shutil.rmtree("run")
    faults("crafted checkpoint", count, count)


def test_a_moment_of_one_value_is_refused(intact, tmp_path, faults):
    settings, folder, saved = intact[0]
    shutil.copytree(folder, tmp_path / "run")
    path = ("state", "optimizer", "state", 0, "exp_avg")
    torch.save(changed(saved, path, torch.zeros(1)), tmp_path / "run/checkpoint.pt")
    refused(
        lambda: fit(settings, tmp_path / "run", resume=True),
        "optimizer.state.0.exp_avg is torch.float32 of shape (1,); it must be torch.float32",
    )
    faults("crafted checkpoint", 1, 1)


@pytest.mark.parametrize("epoch", [1.5, True, -1, 4, "1"])
def test_an_epoch_that_is_no_epoch_of_the_run_is_refused(intact, tmp_path, faults, epoch):
    settings, folder, saved = intact[0]
    shutil.copytree(folder, tmp_path / "run")
    torch.save(
        changed(saved, ("state", "position", "epoch"), epoch), tmp_path / "run/checkpoint.pt"
    )
    refused(
        lambda: fit(settings, tmp_path / "run", resume=True),
        "position.epoch is",
        "it must be a whole number, 0 to 3",
    )
    faults("crafted checkpoint", 1, 1)


@pytest.mark.parametrize("method", METHODS)
def test_the_state_of_each_method_is_accepted(tmp_path, method):
    options = {"connectivity": 0.2} if "connectivity" in method_fields(method) else {}
    settings = config(method=method, options=options)
    saved = stopped(tmp_path / "run", settings)
    assert RunDir(tmp_path / "run").load_checkpoint(settings)
    training = prepare(settings, fresh=False)
    training.load_state_dict(verified_state(training, saved["state"]))
    assert training.steps == STOP
