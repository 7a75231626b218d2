"""Masks: apply them to a model, count and compare them. True = the synapse exists."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from spikewire.errors import SpikewireError
from spikewire.pruning.layers import managed

Masks = Mapping[str, Tensor]


def connectivity(masks: Masks) -> float:
    """Return the fraction of weights that exist, over all masks together."""
    return sum(int(mask.sum()) for mask in masks.values()) / sum(
        mask.numel() for mask in masks.values()
    )


def layer_rows(masks: Masks, weights: Mapping[str, Tensor] | None = None) -> list[dict[str, Any]]:
    """Return one row per layer: name, shape, present, total, connectivity.

    Args:
        masks: name -> bool tensor.
        weights: if given, each row also counts the weights that are not zero, as ``nonzero``.
    """
    rows = []
    for name, mask in masks.items():
        present, total = int(mask.sum()), mask.numel()
        row = {"name": name, "shape": tuple(mask.shape), "present": present, "total": total}
        if weights is not None:
            row["nonzero"] = int(weights[name].count_nonzero())
        rows.append({**row, "connectivity": present / total})
    return rows


def changes(before: Masks, after: Masks) -> dict[str, dict[str, Any]]:
    """Return for each layer how many synapses exist, were pruned and were regrown in between.

    ``turnover = (pruned + regrown) / (present before + present after)``.
    """
    rows = {}
    for name, mask in after.items():
        pruned = int((before[name] & ~mask).sum())
        regrown = int((~before[name] & mask).sum())
        present = int(mask.sum())
        both = int(before[name].sum()) + present
        rows[name] = {
            "present": present,
            "total": mask.numel(),
            "pruned": pruned,
            "regrown": regrown,
            "turnover": (pruned + regrown) / both if both else 0.0,
        }
    return rows


def totals(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return connectivity, pruned and regrown over all layers, from the rows of `changes`."""
    present, total, pruned, regrown = (
        sum(row[key] for row in rows.values()) for key in ("present", "total", "pruned", "regrown")
    )
    return {
        "connectivity": present / total,
        "pruned": float(pruned),
        "regrown": float(regrown),
    }


class MaskHook:
    """Optimizer hooks that keep absent synapses absent: gradients before a step, weights after."""

    def __init__(self, optimizer: Optimizer, masks: Mapping[nn.Parameter, Tensor]) -> None:
        self.absent = {weight: ~mask for weight, mask in masks.items()}
        for weight in masks:
            managed[weight] = True
        self.hooks = [
            optimizer.register_step_pre_hook(self._mask_gradients),
            optimizer.register_step_post_hook(self._mask_weights),
        ]

    @torch.no_grad()
    def _mask_gradients(self, *_: object) -> None:
        for weight, absent in self.absent.items():
            if weight.grad is not None:
                weight.grad.masked_fill_(absent, 0.0)

    @torch.no_grad()
    def _mask_weights(self, *_: object) -> None:
        for weight, absent in self.absent.items():
            weight.masked_fill_(absent, 0.0)

    def remove(self) -> None:
        """Remove the hooks: from now on training may fill the zeros."""
        for hook in self.hooks:
            hook.remove()
        for weight in self.absent:
            managed.pop(weight, None)


@torch.no_grad()
def apply_masks(model: nn.Module, masks: Masks, *optimizers: Optimizer) -> list[MaskHook]:
    """Set absent synapses of `model` to exactly 0; with `optimizers`, keep them at 0.

    Args:
        model: the model; the masks' names are names of its parameters.
        masks: name -> bool tensor, True = the synapse exists.
        optimizers: optimizers that continue training; each gets hooks that keep the zeros.

    Returns:
        One handle per optimizer; ``handle.remove()`` ends it.

    Raises:
        SpikewireError: if a mask has no parameter, or another shape.

    Example:
        >>> masks = pruner.finish()
        >>> spikewire.apply_masks(another_copy, masks, optimizer)
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, mask in masks.items():
        if name not in parameters:
            raise SpikewireError(f"{name}: a mask for a parameter this model does not have")
        if parameters[name].shape != mask.shape:
            shapes = f"{tuple(mask.shape)}, the parameter {tuple(parameters[name].shape)}"
            raise SpikewireError(f"{name}: the mask has shape {shapes}")
    placed = {parameters[name]: mask.to(parameters[name].device) for name, mask in masks.items()}
    for weight, mask in placed.items():
        weight.masked_fill_(~mask, 0.0)
    return [MaskHook(optimizer, placed) for optimizer in optimizers]
