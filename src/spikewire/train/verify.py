"""Saved states are untrusted: before anything is loaded, all of it is compared with a fresh run.

torch's fused optimizers read and write as many values as the weight has, whatever the size of the
moments loaded from a file. So each tensor must have the name, shape, dtype, layout and strides of
its counterpart in the state of the same run at step 0, and each number its type and range.
"""

import struct
from collections.abc import Mapping
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn

from spikewire.errors import SpikewireError
from spikewire.plasticity import Plastic
from spikewire.train.build import build_optimizer
from spikewire.train.step import Training

MERSENNE_NUMBERS = 624  # in the state of torch's CPU generator
SHOWN = 60  # characters of a foreign name or value in a message


def verified_state(training: Training, saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return a saved state that `training` can load, after comparing all of it.

    Args:
        training: The same run at step 0.
        saved: What `Training.state_dict` returned, or something else that a file holds.

    Returns:
        The state, with the optimizer's hyper-parameters of `training` except the learning rate.

    Raises:
        SpikewireError: For the first difference, by name.
    """
    fresh = training.state_dict()
    saved = {"other_rngs": [], **saved}
    _require_keys(saved, fresh, "")
    steps = _verify_position(training, saved["position"])
    for key in ("model", "average"):
        _compare(saved[key], fresh[key], key)
    _verify_pruner(saved["pruner"], fresh, steps)
    _require(isinstance(saved["other_rngs"], list), "other_rngs", saved["other_rngs"], "a list")
    for rng in (saved["rng"], *saved["other_rngs"]):
        _verify_rng(rng, fresh["rng"])
    return {**saved, "optimizer": _verified_optimizer(training, saved["optimizer"], steps)}


# ---------------------------------------------------------------------- the parts of a state


def _verify_position(training: Training, position: Any) -> int:
    """Check where the run was; return its optimizer steps."""
    config, batches = training.config, len(training.train)
    _require_keys(position, {"epoch": 0, "batch": 0, "loss_sum": 0.0, "seconds": 0.0}, "position")
    _require_int(position["epoch"], "position.epoch", config.epochs - 1)
    _require_int(position["batch"], "position.batch", batches)
    for key in ("loss_sum", "seconds"):
        _require_float(position[key], f"position.{key}")
    _require(position["seconds"] >= 0, "position.seconds", position["seconds"], "at least 0")
    return position["epoch"] * batches + position["batch"]


def _verify_pruner(saved: Any, fresh: Mapping[str, Any], steps: int) -> None:
    expected = fresh["pruner"]
    _require_keys(saved, expected, "pruner")
    for key in ("method", "total_steps", "generator", "seen", "stepped", "layers"):
        _compare(saved[key], expected[key], f"pruner.{key}")
    for key in ("options", "targets"):  # a checkpoint may be older than an option
        given = _require_dict(saved[key], f"pruner.{key}")
        known = {name: expected[key][name] for name in given.keys() & expected[key].keys()}
        _compare(given, known, f"pruner.{key}")
    _require_int(saved["step"], "pruner.step", steps)
    _require(saved["step"] == steps, "pruner.step", saved["step"], f"{steps}, as in position")
    _verify_generator(saved["generator"], "pruner.generator")
    memory = _require_dict(saved["memory"], "pruner.memory")
    if memory or expected["memory"]:  # a copy of the network at an earlier step
        model = {key: value for key, value in fresh["model"].items() if isinstance(value, Tensor)}
        _compare(memory, expected["memory"] or model, "pruner.memory")


def _verified_optimizer(training: Training, saved: Any, steps: int) -> dict[str, Any]:
    """Return the moments, with the hyper-parameters of the fresh run."""
    fresh = training.optimizer.state_dict()
    weights = [x for group in training.optimizer.param_groups for x in group["params"]]
    _require_keys(saved, fresh, "optimizer")
    groups, own = saved["param_groups"], fresh["param_groups"]
    _require(isinstance(groups, list) and len(groups) == len(own), "param_groups", groups, "as now")
    own = [_verified_group(group, mine) for group, mine in zip(groups, own, strict=True)]
    expected = _moments(training)
    for index, state in _require_dict(saved["state"], "optimizer.state").items():
        _require_int(index, "optimizer.state", len(weights) - 1)
        name = f"optimizer.state.{index}"
        like = {k: _like(value, weights[index]) for k, value in expected.items()}
        _compare(state, like, name)
        if "step" in state:
            taken = float(state["step"])
            _require(0 <= taken <= steps and taken % 1 == 0, f"{name}.step", taken, f"0 to {steps}")
    return {"state": saved["state"], "param_groups": own}


def _verified_group(saved: Any, fresh: dict[str, Any]) -> dict[str, Any]:
    """Return the hyper-parameters of the fresh run with the saved learning rate."""
    where = "optimizer.param_groups"
    given = _require_dict(saved, where)
    _compare(given.get("params"), fresh["params"], f"{where}.params")
    for key in given.keys() & fresh.keys() - {"params", "lr"}:
        _compare(given[key], fresh[key], f"{where}.{key}")
    _require_float(given.get("lr"), f"{where}.lr")
    return {**fresh, "lr": given["lr"]}


def _moments(training: Training) -> dict[str, Any]:
    """Return what the optimizer keeps per weight: the state of a probe of [3, 2] after one step."""
    probe = nn.ParameterList([nn.Parameter(torch.zeros(3, 2))])
    optimizer: Any = training.optimizer
    if isinstance(training.model, Plastic):  # it has an optimizer of its own, not the config's
        options = {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}
        optimizer = type(optimizer)(probe, **options)
    else:
        optimizer = build_optimizer(training.config, probe)
    probe[0].grad = torch.zeros(3, 2)
    optimizer.step()
    return dict(optimizer.state[probe[0]])


def _like(value: Any, weight: Tensor) -> Any:
    """Return what stands for a probe's moment in the state of `weight`."""
    per_weight = isinstance(value, Tensor) and value.shape == (3, 2)
    return weight.detach() if per_weight else value


def _verify_rng(saved: Any, fresh: Mapping[str, Any]) -> None:
    _require_keys(saved, fresh, "rng")
    _compare(saved["cpu"], fresh["cpu"], "rng.cpu")
    _verify_generator(saved["cpu"], "rng.cpu")
    if saved["cuda"] is not None and fresh["cuda"] is not None:
        _compare(saved["cuda"], fresh["cuda"], "rng.cuda")


def _verify_generator(state: Tensor, where: str) -> None:
    """Check the position in the generator's numbers; torch would read beyond them."""
    left, _, following = struct.unpack("<iiQ", state.numpy().tobytes()[8:24])
    inside = 1 <= left <= MERSENNE_NUMBERS and following + left <= MERSENNE_NUMBERS + 1
    _require(inside, where, (left, following), "a position inside the generator's numbers")


# ---------------------------------------------------------------------- comparison


def _compare(saved: Any, fresh: Any, where: str) -> None:
    """Raise unless both have the same structure, with equal plain values and like tensors."""
    if isinstance(fresh, Tensor):
        _compare_tensors(saved, fresh, where)
    elif isinstance(fresh, Mapping):
        _require_keys(saved, fresh, where)
        for key, value in fresh.items():
            _compare(saved[key], value, f"{where}.{key}")
    elif isinstance(fresh, list | tuple):
        alike = type(saved) is type(fresh) and len(saved) == len(fresh)
        _require(alike, where, saved, f"{len(fresh)} values")
        for number, (one, other) in enumerate(zip(saved, fresh, strict=True)):
            _compare(one, other, f"{where}.{number}")
    else:
        _require(type(saved) is type(fresh) and saved == fresh, where, saved, repr(fresh))


def _compare_tensors(saved: Any, fresh: Tensor, where: str) -> None:
    plain = type(saved) in (Tensor, nn.Parameter) and saved.device.type == "cpu"
    _require(plain, where, type(saved).__name__, "a tensor")
    kinds = [(x.layout, x.dtype, tuple(x.shape)) for x in (saved, fresh)]
    _require(kinds[0] == kinds[1], where, _describe(saved), _describe(fresh))
    views = saved.is_conj() or saved.is_neg() or saved.requires_grad
    _require(not views and _strides(saved) == _strides(fresh), where, saved.stride(), "like ours")
    finite = not saved.is_floating_point() or bool(saved.isfinite().all())
    _require(finite, where, "NaN or infinity", "finite")


def _describe(x: Tensor) -> str:
    kind = "" if x.layout == torch.strided else f"{x.layout} "
    return f"{kind}{x.dtype} of shape {tuple(x.shape)}"


def _strides(x: Tensor) -> list[int]:
    """Return the strides of the dimensions that have more than one value."""
    return [step for step, size in zip(x.stride(), x.shape, strict=True) if size > 1]


def _require_keys(saved: Any, fresh: Mapping[Any, Any], where: str) -> None:
    found = _require_dict(saved, where or "state")
    for key in found.keys() ^ fresh.keys():
        name = f"{where}.{key}" if where else str(key)
        problem = "is missing" if key in fresh else "is not part of this run"
        raise SpikewireError(f"{_short(name)} {problem}")


def _require_dict(saved: Any, where: str) -> dict[Any, Any]:
    _require(isinstance(saved, dict), where, saved, "a dict")
    return saved


def _require_int(value: Any, where: str, last: int) -> None:
    _require(
        type(value) is int and 0 <= value <= last, where, value, f"a whole number, 0 to {last}"
    )


def _require_float(value: Any, where: str) -> None:
    _require(type(value) is float and isfinite(value), where, value, "a finite number")


def _require(holds: bool, where: str, value: object, expected: str) -> None:
    if not holds:
        raise SpikewireError(f"{_short(where)} is {_short(value)}; it must be {expected}")


def _short(value: object) -> str:
    """Return a foreign name or value as part of one line."""
    value = _describe(value) if isinstance(value, Tensor) else value
    text = value if isinstance(value, str) else repr(value)
    return "".join(c if c.isprintable() else "?" for c in " ".join(text[:200].split()))[:SHOWN]
