"""Checks of a pruner: does a saved state belong to it, has the run met its target."""

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from spikewire import fields
from spikewire.errors import SpikewireError
from spikewire.pruning.layers import Layer

if TYPE_CHECKING:
    from spikewire.pruning.pruner import Pruner


def require_same_run(pruner: "Pruner", state: Mapping[str, Any]) -> None:
    """Check that a saved state belongs to this pruner's method, options, length and layers.

    Raises:
        SpikewireError: for the first difference.
    """
    method, defaults = pruner.method, fields.defaults(type(pruner.method))
    if state.get("method") != method.name:
        raise SpikewireError(
            f"method: the state is of {state.get('method')!r}, not {method.name!r}"
        )
    for key, value in fields.values(method).items():
        saved = state["options"].get(key, defaults[key])  # saved before the option existed
        if saved != value:
            raise SpikewireError(f"{key}: the state was saved with {saved!r}, not {value!r}")
    if (steps := state["total_steps"]) != pruner.total_steps:
        raise SpikewireError(
            f"total_steps: the state was saved with {steps}, not {pruner.total_steps}"
        )
    for layer in pruner.layers:
        _require_same_layer(layer, state)
    if extra := set(state["layers"]) - {layer.name for layer in pruner.layers}:
        raise SpikewireError(f"{sorted(extra)[0]}: in the saved state but not a target here")


def _require_same_layer(layer: Layer, state: Mapping[str, Any]) -> None:
    saved = state["layers"].get(layer.name)
    if saved is None or set(saved) != set(layer.state):
        raise SpikewireError(f"{layer.name}: not in the saved state; the targets must be the same")
    own = state.get("shares", {}).get(layer.name, layer.connectivity)
    if own != layer.connectivity:
        raise SpikewireError(
            f"targets: the state was saved with {own} for {layer.name}, not {layer.connectivity}"
        )
    for key, value in saved.items():
        if value.shape != layer.state[key].shape:
            raise SpikewireError(
                f"{layer.name}: saved {key} has shape {tuple(value.shape)}, "
                f"not {tuple(layer.state[key].shape)}"
            )


def warn_if_short(pruner: "Pruner") -> None:
    """Warn when a run ends before its method has met the target."""
    target = pruner.method.target
    if target is None or pruner.step >= pruner.total_steps:
        return
    even = all(layer.connectivity is None for layer in pruner.layers)
    if even and (actual := pruner.connectivity()) > 1.02 * target:
        warnings.warn(
            f"{pruner.method.name}: finished at step {pruner.step} of {pruner.total_steps}, with "
            f"connectivity {actual:.4g}; the target was {target:.4g}",
            stacklevel=4,
        )


def skipped_by_scaler(optimizer: Optimizer) -> bool:
    """Return whether a GradScaler makes a fused optimizer skip; its step() is called anyway."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and bool(found)
