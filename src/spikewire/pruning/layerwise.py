"""Masks layer by layer: every layer keeps its part of what the target pays for.

A method that replaces synapses within a layer keeps their number; in another unit it keeps their
cost, and how many there are follows. What a layer cannot spend goes to the next, from the most
expensive weights to the cheapest, so that the total is met to one weight of the cheapest layer.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from spikewire.errors import SpikewireError
from spikewire.pruning.allocation import divide
from spikewire.pruning.costs.meter import Meter
from spikewire.pruning.first import first_masks
from spikewire.pruning.layers import Layer
from spikewire.pruning.pruner import Pruner
from spikewire.pruning.selection import target_count, top_k_mask
from spikewire.pruning.spending import cost_of, dense_cost, masks_within
from spikewire.pruning.units import Counted


def begin_layers_(method: Counted, pruner: Pruner, allocation: str, initial: str) -> None:
    """Write the first masks into ``layer.state["mask"]``, for `Method.init`.

    Where the unit is not weights, ``layer.state["part"]`` is the fraction of the layer's cost.

    Args:
        method: the method; its meter, if its unit needs one, is started.
        pruner: the pruner being attached.
        allocation: part of each layer: ``"uniform"``, ``"erk"`` or ``"global"``.
        initial: ``"largest"``: the largest weights; ``"random"``: as much per layer, at random.

    Raises:
        SpikewireError: if what weights cost is not known before the first forward pass.
    """
    layers = pruner.layers
    if method.unit == "connectivity":
        target = pruner.shared_target or method.connectivity
        assert target is not None
        masks = first_masks(pruner, target, allocation, initial)
    else:
        masks = _first_within(method, pruner, allocation, initial)
    for layer, mask in zip(layers, masks, strict=True):
        layer.state["mask"] = mask
        if method.unit != "connectivity":
            layer.state["part"] = _density(layer, mask)


def _first_within(
    method: Counted, pruner: Pruner, allocation: str, initial: str
) -> Sequence[Tensor]:
    """Return the first masks in a unit other than weights."""
    if not getattr(pruner.uses, "known", True):
        raise SpikewireError(
            f"{method.name}: the {method.unit} of a weight are not known before the first forward "
            "pass; give the model an attribute input_shape, or use connectivity=..."
        )
    layers = pruner.layers
    scores = [layer.weight.detach().abs() for layer in layers]
    if allocation == "global":
        masks = method.select(pruner, layers, scores)
        if initial == "largest":
            return masks
        densities = [float(_density(x, mask)) for x, mask in zip(layers, masks, strict=True)]
    else:
        shapes = [layer.weight.shape for layer in layers]
        densities = [sum(s) / s.numel() if allocation == "erk" else 1.0 for s in shapes]
    if initial == "random":
        scores = [_noise(pruner, score) for score in scores]
    for layer, score in zip(layers, scores, strict=True):  # of those with a connectivity of
        own = target_count(layer.connectivity or 0.0, score.numel())  # their own it is final
        layer.state["mask"] = top_k_mask(score, own)
    return _fill(method, pruner, layers, scores, densities)


def refill_layers(
    method: Counted,
    pruner: Pruner,
    layers: Sequence[Layer],
    scores: Sequence[Tensor],
    kept: Sequence[Tensor],
) -> list[Tensor]:
    """Return masks of kept synapses and of the highest scores; layers keep their parts.

    Args:
        method: the method.
        pruner: the pruner.
        layers: the layers whose ``state["mask"]`` is replaced; the others stay as they are.
        scores: one tensor per layer, not negative, by which the others are chosen.
        kept: one mask per layer of synapses that stay; in a unit other than weights the smallest
            of them go where the cost of now leaves no room.

    Returns:
        One bool mask per layer: with as many synapses as before, or in another unit of the
        same cost.
    """
    if method.unit == "connectivity":
        counts = [int(layer.state["mask"].sum()) for layer in layers]
        first = [torch.where(k, torch.inf, x) for k, x in zip(kept, scores, strict=True)]
        return [top_k_mask(score, n) for score, n in zip(first, counts, strict=True)]
    # -1 / score has the order of the scores, below the sizes of those that stay; finite for all
    ranks = [
        torch.where(k, x.weight.abs(), (-1 / score).clamp(min=torch.finfo(score.dtype).min))
        for k, x, score in zip(kept, layers, scores, strict=True)
    ]
    densities = [float(layer.state["part"]) for layer in layers]
    return _fill(method, pruner, layers, ranks, densities)


def _fill(
    method: Counted,
    pruner: Pruner,
    layers: Sequence[Layer],
    scores: Sequence[Tensor],
    densities: Sequence[float],
) -> list[Tensor]:
    """Return masks whose costs are in proportion to ``density * dense cost`` of their layers."""
    meter = pruner.uses
    assert meter is not None
    target = getattr(method, method.unit)
    found = {x.name: x.state["mask"] for x in pruner.layers}
    pairs = list(zip(layers, scores, strict=True))
    for layer, score in pairs:
        if layer.connectivity is not None:  # a number of its own
            found[layer.name] = top_k_mask(score, int(layer.state["mask"].sum()))
    free = [(x, score) for x, score in pairs if x.connectivity is None]
    parts = [d for d, x in zip(densities, layers, strict=True) if x.connectivity is None]
    names = {layer.name for layer, _ in free}
    for _ in range(meter.rounds if free else 0):
        dense = {x.name: dense_cost(x.weight, x.state["cost"]) for x in pruner.layers}
        total = torch.stack([*dense.values()]).sum().double()
        budget = float(meter.fraction(target, total) * total)
        others = [x for x in pruner.layers if x.name not in names]
        budget -= sum(float(cost_of(found[x.name], x.state["cost"])) for x in others)
        budgets = divide([int(dense[x.name]) for x, _ in free], parts, round(budget))
        found |= _spend(free, budgets, meter)
        meter.take_masks(pruner.layers, [found[x.name] for x in pruner.layers])
    return [found[layer.name] for layer in layers]


def _spend(
    scores: Sequence[tuple[Layer, Tensor]], budgets: Sequence[int], meter: Meter
) -> dict[str, Tensor]:
    """Return the masks that the budgets pay for by their layers' names, the cheapest layer last."""
    masks: dict[str, Tensor] = {}
    left = 0.0
    pairs = zip(scores, budgets, strict=True)
    for (layer, score), budget in sorted(pairs, key=lambda pair: -_mean_cost(pair[0][0])):
        cost = layer.state["cost"]
        room = torch.tensor(budget + left, dtype=torch.float64, device=score.device).to(cost.dtype)
        (mask,) = masks_within([score], [cost], room, [1], meter.groups([layer]))
        left += budget - float(cost_of(mask, cost))
        masks[layer.name] = mask
    return masks


def _mean_cost(layer: Layer) -> float:
    return float(layer.state["cost"].double().mean())


def _density(layer: Layer, mask: Tensor) -> Tensor:
    """Return a mask's fraction of the cost of its layer; above 0."""
    cost = layer.state["cost"].double()
    return cost_of(mask, cost).clamp(min=1.0) / dense_cost(mask, cost).clamp(min=1.0)


def _noise(pruner: Pruner, like: Tensor) -> Tensor:
    return torch.rand(
        like.shape, generator=pruner.device_generator(like.device), device=like.device
    )
