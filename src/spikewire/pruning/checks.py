"""Checks of a pruner: a saved state belongs to it; the run met its target and is alive."""

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer

from spikewire import fields
from spikewire.errors import SpikewireError, TrainingFailed
from spikewire.pruning.closures import refuse_lbfgs
from spikewire.pruning.layers import Layer
from spikewire.pruning.warn import warn_caller

if TYPE_CHECKING:
    from spikewire.pruning.method import Method
    from spikewire.pruning.pruner import Pruner


def unwrap_optimizer(optimizer: Any) -> Any:
    """Return the ``torch.optim`` optimizer inside Accelerate's, Fabric's or Lightning's wrapper."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    return optimizer


def require_attachable(method: "Method", model: Any, optimizers: Sequence[Any]) -> None:
    """Check the kinds and the order of the arguments of `attach`.

    Raises:
        SpikewireError: for the first that is not what it should be.
    """
    if isinstance(method, nn.Module):  # SET.attach(model, ...)
        raise SpikewireError(
            "attach: called on a class; create the method first, as in "
            "spikewire.Budget(connectivity=0.05).attach(model, optimizer, total_steps=...)"
        )
    name = method.name
    if isinstance(model, Optimizer):
        raise SpikewireError(f"{name}: attach(model, optimizer, ...): the model comes first")
    if not isinstance(model, nn.Module):
        raise SpikewireError(f"{name}: attach(model, ...): {_kind(model)} is not an nn.Module")
    if not optimizers:
        raise SpikewireError(
            f"{name}: attach(model, optimizer, ...) needs the optimizer that moves the weights"
        )
    for optimizer in optimizers:
        if not isinstance(optimizer, Optimizer):
            raise SpikewireError(
                f"{name}: attach(model, optimizer, ...): {_kind(optimizer)} is not a torch.optim "
                "optimizer; several go one by one, other arguments by keyword"
            )
        refuse_lbfgs(name, optimizer)


def _kind(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def require_same_run(pruner: "Pruner", state: Mapping[str, Any]) -> None:
    """Check that a saved state belongs to this pruner's method, options, length and layers.

    Raises:
        SpikewireError: for the first difference.
    """
    method, defaults = pruner.method, fields.defaults(type(pruner.method))
    if not isinstance(state, Mapping) or "method" not in state:
        raise SpikewireError(
            f"state: {_kind(state)} is not what a pruner's state_dict() returned; it has no method"
        )
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
    own = state.get("targets", {}).get(layer.name, layer.connectivity)
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


def warn_if_missed(pruner: "Pruner") -> None:
    """Warn when the target is not met: the run was cut short, or no masks can meet it.

    A run of more than twice its steps warns too: schedules ended long before it did.
    """
    method, step, total = pruner.method, pruner.step, pruner.total_steps
    if step > 2 * total:
        warn_caller(
            f"{method.name}: finished at step {step}, but schedules ended at total_steps = {total};"
            " it counts the optimizer steps of the whole run, not epochs"
        )
    rounding = 0.0
    if method.unit in ("", "connectivity"):
        target = pruner.target
        actual = None if target is None else pruner.connectivity()
        sizes = [layer.weight.numel() for layer in pruner.layers]
        rounding = len(sizes) / sum(sizes)  # of one synapse per layer
    else:
        free = any(layer.connectivity is None for layer in pruner.layers)
        target = getattr(method, method.unit)
        actual = pruner.uses.actual(pruner.masks()) if free and pruner.uses else None
        if free and pruner.uses and actual is None:
            warn_caller(
                f"{method.name}: finished at step {step} of {total} without a forward pass in "
                f"training mode that was counted; the target of {_number(target)} {method.unit} "
                "is not met"
            )
    if target is None or actual is None:
        return
    if actual > 1.02 * target + rounding:
        warn_caller(
            f"{method.name}: finished at step {step} of {total}, with {method.unit} "
            f"{_number(actual)}; the target was {_number(target)}"
        )
    elif actual < 0.98 * target:
        _warn_of_less(pruner, target, actual)


def warn_of_silence(step: int, layers: Sequence[Layer]) -> None:
    """Log a warning of layers whose gradient is 0: no spike reached them in this batch."""
    silent = [x.name for x in layers if x.weight.grad is not None and not x.weight.grad.any()]
    if silent:
        logging.getLogger("spikewire").warning(
            "%s: the gradient is 0 at step %d: no spike reaches it, or the loss does not depend on "
            "it; larger first weights make neurons fire (spikewire.scale_to_fire_ sets them in "
            "networks of spikewire)",
            ", ".join(silent),
            step,
        )


def _warn_of_less(pruner: "Pruner", target: float, actual: float) -> None:
    """Warn when less than the target was met, where the cause is known."""
    name, unit, present = pruner.method.name, pruner.method.unit, pruner.connectivity()
    if pruner.uses and (cause := pruner.uses.why_missed()):
        warn_caller(
            f"{name}: {cause}, so the target of {_number(target)} {unit} is not met; "
            f"connectivity is {_number(present)}"
        )
    elif present == 1:
        warn_caller(
            f"{name}: nothing is pruned, since the target of {_number(target)} "
            f"{unit} is above the {_number(actual)} of the dense network"
        )
    elif half := {x.weight.dtype for x in pruner.layers if x.weight.element_size() < 4}:
        warn_caller(
            f"{name}: {unit} is {_number(actual)}, not {_number(target)}: weights of {half.pop()} "
            "have few values, and all that are equal at the threshold are pruned; train weights of "
            "float32, with torch.autocast"
        )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def require_alive(pruner: "Pruner", masks: Mapping[str, Tensor]) -> None:
    """Check that training has left a network: finite weights, and some synapses.

    A method with a target keeps synapses, so that none at all means NaN scores. A layer that ends
    empty is named in a warning.

    Raises:
        TrainingFailed: if weights are not finite, or a method with a target leaves no synapse.
    """
    name = pruner.method.name
    for layer in pruner.layers:
        if not bool(layer.weight.isfinite().all()):
            raise TrainingFailed(f"{layer.name}: weights are not finite any more; try a lower lr")
    empty = [key for key, mask in masks.items() if not bool(mask.any())]
    if pruner.method.unit and len(empty) == len(masks):
        raise TrainingFailed(f"{name}: no synapse is left; weights were NaN; try a lower lr")
    if empty:
        warn_caller(f"{name}: no synapse is left in {', '.join(empty)}")
