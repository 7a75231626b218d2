"""Masks: apply them to a model, count and compare them. True = the synapse exists."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakTensorKeyDictionary

from spikewire.errors import SpikewireError, check
from spikewire.nn.names import named_parameters
from spikewire.pruning.closures import Arguments, run_closure
from spikewire.pruning.layers import managed
from spikewire.pruning.skipped import Skipped
from spikewire.pruning.warn import warn_caller
from spikewire.text import percent, table

Masks = Mapping[str, Tensor]


def fraction(present: int, total: int) -> float:
    """Return ``present / total``, 0 where there is nothing."""
    return present / total if total else 0.0


def connectivity(masks: Masks) -> float:
    """Return the fraction of weights that exist, over all masks together."""
    total = sum(mask.numel() for mask in masks.values())
    return fraction(sum(int(mask.count_nonzero()) for mask in masks.values()), total)


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
        rows.append({**row, "connectivity": fraction(present, total)})
    return rows


class Summary(list[dict[str, Any]]):
    """The rows of `layer_rows`; printed, they are a table.

    Args:
        rows: one row per pruned layer.
        skipped: the weights left dense.
    """

    def __init__(self, rows: Iterable[dict[str, Any]], skipped: Sequence[Skipped] = ()) -> None:
        super().__init__(rows)
        self.skipped = tuple(skipped)

    def __str__(self) -> str:
        lines = [(x["name"], _shape(x["shape"]), *_counts(x["present"], x["total"])) for x in self]
        present, total = (sum(row[key] for row in self) for key in ("present", "total"))
        layers = f"all {len(self)} pruned layers" if len(self) > 1 else "the only pruned layer"
        text = table(
            ("layer", "shape", "present", "of", "connectivity"),
            [*lines, (layers, "", *_counts(present, total))],
        )
        dense = f"\nleft dense: {sum(x.weights for x in self.skipped):,} weights in"
        names = ", ".join(f"{x.name} ({x.reason})" for x in self.skipped)
        return f"{text}{dense} {names}" if self.skipped else text


def _shape(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))


def _counts(present: int, total: int) -> tuple[str, str, str]:
    return f"{present:,}", f"{total:,}", percent(fraction(present, total))


def change_row(total: int, before: int, present: int, kept: int) -> dict[str, Any]:
    """Return what became of one layer's synapses.

    ``turnover = (pruned + regrown) / (present before + present now)``.

    Args:
        total: number of weights.
        before: synapses at the last count.
        present: synapses now.
        kept: synapses present both times.
    """
    pruned, regrown = before - kept, present - kept
    return {
        "present": present,
        "total": total,
        "pruned": pruned,
        "regrown": regrown,
        "turnover": fraction(pruned + regrown, before + present),
    }


def totals(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return connectivity, pruned and regrown over all layers, from the rows of `changes`."""
    present, total, pruned, regrown = (
        sum(row[key] for row in rows.values()) for key in ("present", "total", "pruned", "regrown")
    )
    return {
        "connectivity": fraction(present, total),
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
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._mask_weights),
        ]

    def _before(self, optimizer: Optimizer, args: tuple, kwargs: dict) -> Arguments | None:
        changed = run_closure(optimizer, args, kwargs)
        with torch.no_grad():
            for weight, absent in self.absent.items():
                if weight.grad is not None:
                    weight.grad.masked_fill_(absent, 0.0)
        return changed

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


class RefillWarning:
    """Warns once when a step of any optimizer after `Pruner.finish` fills zeros again.

    The first step that moves one of the weights ends it. It is silent where another pruner or
    `apply_masks` has the weights by then. One hook on all optimizers serves all finished pruners,
    which it does not keep alive: torch does not let a hook remove itself.

    Args:
        masks: parameter -> bool mask.
        kept: whether the attached optimizers keep the zeros, so that only another one fills them.
    """

    finished = WeakTensorKeyDictionary()  # weight -> its RefillWarning
    hook: RemovableHandle | None = None

    def __init__(self, masks: Mapping[nn.Parameter, Tensor], kept: bool) -> None:
        self.masks, self.kept = WeakTensorKeyDictionary(masks), kept
        for weight in masks:
            self.finished[weight] = self
        if RefillWarning.hook is None:
            check: Any = torch.compiler.disable(self._after)
            RefillWarning.hook = register_optimizer_step_post_hook(check)

    @classmethod
    @torch.no_grad()
    def _after(cls, optimizer: Optimizer, *_: object) -> None:
        if not len(cls.finished):
            return
        moved = [w for x in optimizer.param_groups for w in x["params"] if w.grad is not None]
        for warning in dict.fromkeys(cls.finished[w] for w in moved if w in cls.finished):
            warning._check()

    def _check(self) -> None:
        masks = dict(self.masks.items())
        self.remove()
        own = [
            (weight, mask) for weight, mask in masks.items() if self.kept or weight not in managed
        ]
        if any(weight[~mask].any() for weight, mask in own):
            warn_caller(
                "optimizer.step() after pruner.finish() fills the pruned weights again; "
                "call finish(keep_masks=True) to train on with the same optimizer under the masks, "
                "or spikewire.apply_masks(model, pruner.masks(), optimizer) now"
            )

    def remove(self) -> None:
        """Release the weights."""
        for weight in list(self.masks.keys()):
            self.finished.pop(weight, None)
        self.masks.clear()


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
        SpikewireError: if a mask has no parameter, another shape, or is not bool.

    Example:
        >>> masks = pruner.finish()
        >>> spikewire.apply_masks(another_copy, masks, optimizer)
    """
    parameters = named_parameters(model, remove_duplicate=False)
    for name, mask in masks.items():
        if name not in parameters:
            raise SpikewireError(f"{name}: a mask for a parameter this model does not have")
        if parameters[name].shape != mask.shape:
            shapes = f"{tuple(mask.shape)}, the parameter {tuple(parameters[name].shape)}"
            raise SpikewireError(f"{name}: the mask has shape {shapes}")
        check(mask.dtype == torch.bool, f"{name}: mask", mask.dtype, "torch.bool")
    placed = {parameters[name]: mask.to(parameters[name].device) for name, mask in masks.items()}
    for weight, mask in placed.items():
        weight.masked_fill_(~mask, 0.0)
    return [MaskHook(optimizer, placed) for optimizer in optimizers]
