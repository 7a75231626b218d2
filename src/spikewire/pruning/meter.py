"""Meters of the units of a target: what every weight of a network costs now.

===========  ======================================================================  =============
unit         a weight costs                                                          target
===========  ======================================================================  =============
synapses     the positions at which it is applied                                    fraction
synops       the spikes per image that reach it, over all positions and time steps   per image
bytes        two bytes for its value, and what its position takes in a packed file   size of file
===========  ======================================================================  =============
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from spikewire.errors import SpikewireError, check
from spikewire.nn.synapses import NORMS
from spikewire.pruning.costs import Meter, run_empty_image, uses_per_weight
from spikewire.pruning.layers import Layer
from spikewire.pruning.selection import target_count
from spikewire.pruning.spending import dense_cost

if TYPE_CHECKING:
    from spikewire.pruning.pruner import Pruner

FRAMES = 256  # frames of a layer's input that are counted per step, evenly spaced
COUNTED = 256  # steps of a run in which spikes are counted, at least
SELDOM = 16  # steps between two of them, at most
MOST = 64  # spikes that shortcuts may add to one number
KEPT = 0.9  # weight of the past in the running mean, at every step that is counted
GAP = 255  # positions that one byte of a packed file can skip
HEADER = (460, 480, 60)  # bytes of a packed file's header: alone, per layer, per bias


class Synapses(Meter):
    """The synapses each weight stands for: 1 in a linear layer, its positions in a convolution.

    They follow from the sizes of the images alone. A model with an `input_shape` is run once on an
    empty image when the meter is made; of any other the first forward pass is watched.

    Args:
        pruner: the pruner; the cost of its weights is ``layer.state["cost"]``, int64.
    """

    def __init__(self, pruner: "Pruner") -> None:
        super().__init__(pruner)
        everywhere = torch.empty(0, dtype=torch.int64)
        self._groups = {layer.name: {1: everywhere} for layer in pruner.layers}
        self._costs: dict[str, dict[nn.Module, Tensor]] = {}
        for layer in pruner.layers:
            shape = (1, 1, *layer.weight.shape[2:])
            layer.state["cost"] = layer.weight.new_ones(shape, dtype=torch.int64)
        linear = all(layer.weight.dim() == 2 for layer in pruner.layers)
        if linear and len(self.owners) == len(pruner.layers):
            self.remove()
        elif shape := getattr(pruner.model, "input_shape", None):
            run_empty_image(pruner.model, shape, pruner.layers[0].weight)
            self.end_step()

    @property
    def known(self) -> bool:
        """Whether the costs are known: from the start, or from the first step on."""
        return not self.hooks.handles

    def see(self, layer: Layer, module: nn.Module, inputs: Tensor, output: Tensor) -> None:
        """Note the cost, at the first forward pass."""
        kernel, seen = layer.weight.dim() - 2, self._costs.setdefault(layer.name, {})
        if module not in seen:
            image = inputs.shape[-kernel:] if kernel > 0 else ()
            ones = torch.ones(1, *image, dtype=torch.int64)
            seen[module] = uses_per_weight(module, ones)

    def end_step(self) -> None:
        """Write the costs once a forward pass was seen; the hooks are then removed."""
        if self.known or not self._costs:
            return
        for layer in self.layers:
            if seen := self._costs.get(layer.name):
                cost = torch.stack([*seen.values()]).sum(0)
                layer.state["cost"].copy_(cost)
                if cost.numel() == 1:
                    self._groups[layer.name] = {int(cost): cost.new_empty(0)}
                    continue
                device, kernel = layer.weight.device, cost.flatten()
                self._groups[layer.name] = {
                    int(value): (kernel == value).nonzero().flatten().to(device)
                    for value in kernel.unique()
                }
        self.remove()
        self._require_room()

    def _require_room(self) -> None:
        """Raise if layers with a connectivity of their own cost more than the target."""
        target, layers = getattr(self.pruner.method, "synapses", None), self.layers
        free = [layer for layer in layers if layer.connectivity is None]
        if target is None or not free:
            return
        dense = {x.name: int(dense_cost(x.weight, x.state["cost"])) for x in layers}
        taken = 0
        for layer in (x for x in layers if x.connectivity is not None):
            size, cost = layer.weight.numel(), layer.state["cost"]
            count = target_count(layer.connectivity or 0.0, size)
            least = dense[layer.name] - (size - count) * int(cost.max())
            taken += max(count * int(cost.min()), least)
        total = sum(dense.values())
        least = sum(int(layer.state["cost"].min()) for layer in free)
        if taken and taken + least > target * total + 0.5:
            raise SpikewireError(
                f"targets: synapses {target:g} is {target * total:,.0f} of {total:,} synapses; the "
                f"layers named here keep {taken:,} or more; change synapses or targets"
            )

    def groups(self, layers: Sequence[Layer]) -> list[dict[int, Tensor]]:
        """Return for each layer the positions of its kernel by their costs."""
        return [self._groups[layer.name] for layer in layers]

    def fraction(self, target: float, dense: Tensor) -> Any:
        """Return the target as a fraction of the dense network's cost."""
        return target


class SynOps(Meter):
    """The synaptic operations of each weight per image: the spikes that reach it.

    Spikes are counted in the forward passes of training, in evenly spaced frames, at one of up to
    16 steps, and averaged over images: ``sums <- 0.9 sums + those of a step``. A spike that dropout
    has scaled counts as its value, so that the mean is that of the network without dropout, and a
    sum of n spikes, as shortcuts make it, counts as n. A layer with other inputs, such as an image
    or averages, makes no synaptic operations but multiply-accumulates: it costs nothing here. A
    network with an attribute `time_steps` that is trained with fewer of them than it was attached
    with is counted as if it had all.

    Args:
        pruner: the pruner; the sums are in its `memory`, costs in ``layer.state["cost"]``.

    Attributes:
        sum_over_ranks: replaces a tensor by its sum over all ranks and returns it; set by whoever
            trains with several.
    """

    capturable = True

    def __init__(self, pruner: "Pruner") -> None:
        super().__init__(pruner)
        model: Any = pruner.model
        self.sum_over_ranks: Callable[[Tensor], Tensor] = lambda tensor: tensor
        self.model, self.time_steps = model, getattr(model, "time_steps", None)
        for layer in pruner.layers:
            shape = _input_shape(layer.weight, self.modules[layer.name])
            layer.state["cost"] = layer.weight.new_zeros(shape, dtype=torch.float64)
        # per layer and module the uses of weights, and whether they are analogue; last the images
        self.sizes = [layer.state["cost"].numel() + 1 for layer, _ in self.owners]
        like = pruner.layers[0].weight
        self.pending = like.new_zeros(sum(self.sizes) + 1, dtype=torch.float64)
        modules = [module for _, module in self.owners]
        self.parts = dict(zip(modules, self._split(self.pending), strict=True))
        pruner.memory["activity"] = torch.zeros_like(self.pending)
        self.batch = 0
        self.first = True  # whether the next layer is the first of a forward pass
        self.interval = min(SELDOM, max(1, pruner.total_steps // COUNTED))
        self.resume()
        self.hooks.handles.append(model.register_forward_pre_hook(_BatchHook(self)))

    def _split(self, sums: Tensor) -> Sequence[Tensor]:
        return sums[:-1].split(self.sizes)

    def resume(self) -> None:
        """Find out whether the next step is counted: the first is, and then every n-th."""
        self.counting = self.pruner.step % self.interval == 0

    def begin(self, images: Tensor) -> None:
        """Note how many images the model is given."""
        self.batch, self.first = len(images), True
        self.pending[-1] += self.batch

    def see(self, layer: Layer, module: nn.Module, inputs: Tensor, output: Tensor) -> None:
        """Add the spikes of a forward pass in training."""
        if not (module.training and self.counting):
            return
        features = 1 if layer.weight.dim() == 2 else layer.weight.dim() - 1
        frames = inputs.reshape(-1, *inputs.shape[inputs.dim() - features :])
        some = frames[:: max(1, len(frames) // FRAMES)]
        analogue = _more_than_one_value(some)
        if not self.first:  # no image: it may be a sum of spikes
            analogue &= ~_are_sums(some)
        self.first = False
        uses = uses_per_weight(module, some.sum(0, dtype=torch.float32).double())
        scale = len(frames) / len(some)
        if self.time_steps and len(frames) == self.batch * self.model.time_steps:
            scale *= self.time_steps / self.model.time_steps
        part = self.parts[module]
        part[:-1].add_(uses.flatten(), alpha=scale)
        part[-1] += analogue

    def end_step(self) -> None:
        """Add what was seen, on all ranks, to the running sums; earlier steps then weigh less."""
        if self.counting:
            sums = self.pruner.memory["activity"]
            sums.mul_(KEPT).add_(self.sum_over_ranks(self.pending))
            self.pending.zero_()
        self.resume()

    def update_costs_(self, layers: Sequence[Layer]) -> None:
        """Write the mean operations per image."""
        sums = self.pruner.memory["activity"]
        images = sums[-1].clamp(min=1.0)
        costs: dict[str, Tensor] = {}
        for (layer, _), part in zip(self.owners, self._split(sums), strict=True):
            cost = part[:-1] / images * (part[-1] == 0)
            costs[layer.name] = costs[layer.name] + cost if layer.name in costs else cost
        for layer in self.layers:
            layer.state["cost"].copy_(costs[layer.name].view_as(layer.state["cost"]))

    def fraction(self, target: float, dense: Tensor) -> Tensor:
        """Return the target as a fraction of the dense network's operations."""
        return (target / dense.clamp(min=1e-9)).clamp(max=1.0)


def _more_than_one_value(x: Tensor) -> Tensor:
    """Return whether inputs have more than one value other than 0, as a 0-d tensor."""
    return ((x != 0) & (x != x.amax())).any()


def _are_sums(x: Tensor) -> Tensor:
    """Return whether inputs are sums of spikes, which dropout may have scaled up.

    They are whole multiples of the least of them, up to rounding in half precision; averages of
    spikes have a least one below 1.
    """
    wide = x.float()
    least = torch.where(wide == 0, torch.inf, wide).amin()
    counts = wide / least
    whole = (counts - counts.round()).abs() < 0.02 * counts.abs().clamp(min=1.0)
    return (whole & (counts >= 0) & (counts <= MOST)).all() & (least > 0.99)


class _BatchHook:
    """The hook on the model that counts images. A copy of the model has one that does nothing."""

    capturable = True

    def __init__(self, meter: SynOps) -> None:
        self.meter = meter

    def __getstate__(self) -> dict[str, Any]:
        return {"meter": None}

    @torch.no_grad()
    def __call__(self, module: nn.Module, args: Any) -> None:
        meter = self.meter
        if meter is not None and meter.counting and module.training and args:
            meter.begin(args[0])


class Bytes(Meter):
    """The bytes of each weight in a packed file of 16-bit values, positions included.

    A layer of n weights of which k exist takes ``2 k + min(k + skips, n / 8)`` bytes: a byte per
    gap and one more for every 255 positions skipped, or a bit per position. One weight more or less
    is 3 bytes or 2; all else, with the header and the biases, is taken from the target first.

    Args:
        pruner: the pruner; ``layer.state`` gains `cost` and, for all else of a layer, `fixed`.
    """

    rounds = 3  # of selection: what positions take depends on the selection itself

    def __init__(self, pruner: "Pruner") -> None:
        super().__init__(pruner)
        self.remove()
        assert pruner.model is not None
        self.overhead = _overhead(pruner.model, len(self.owners))
        self.copies = Counter(layer.name for layer, _ in self.owners)  # one per module in the file
        target = getattr(pruner.method, "bytes", None)
        check(
            target is None or target > self.overhead,
            "bytes",
            target,
            f"above {self.overhead:,.0f}, which header and biases of this network take",
        )
        for layer in pruner.layers:
            shape, each = [1] * layer.weight.dim(), 2.0 * self.copies[layer.name]
            layer.state["cost"] = layer.weight.new_full(shape, each, dtype=torch.float64)
            layer.state["fixed"] = layer.weight.new_zeros((), dtype=torch.float64)

    def take_masks(self, layers: Sequence[Layer], masks: Sequence[Tensor]) -> None:
        """Write the cost of one weight more, and of all else, under these masks."""
        for layer, mask in zip(layers, masks, strict=True):
            values, positions = 2 * mask.sum(), position_bytes(mask)
            cost = torch.where(positions < bit_bytes(mask), 3.0, 2.0)
            copies = self.copies[layer.name]
            layer.state["cost"].copy_((copies * cost).view_as(layer.state["cost"]))
            layer.state["fixed"].copy_(copies * (values + positions - cost * mask.sum()))

    def fraction(self, target: float, dense: Tensor) -> Tensor:
        """Return what is left of the target for weights, as a fraction of all weights' cost."""
        fixed = torch.stack([layer.state["fixed"] for layer in self.layers]).sum()
        return ((target - self.overhead - fixed) / dense).clamp(0.0, 1.0)


def bit_bytes(mask: Tensor) -> int:
    """Return the size of a bit per position."""
    return (mask.numel() + 7) // 8


def position_bytes(mask: Tensor) -> Tensor:
    """Return the size of a layer's positions in a packed file, as a 0-d tensor."""
    present = mask.flatten()
    place = torch.arange(present.numel(), dtype=torch.int32, device=mask.device)
    last = torch.where(present, place, -1).cummax(0).values
    before = torch.cat([last.new_full((1,), -1), last[:-1]])
    skips = torch.where(present, (place - before - 1) // GAP, 0).sum()
    return (present.sum() + skips).clamp(max=bit_bytes(mask))


def _overhead(model: nn.Module, layers: int) -> float:
    """Return the size of header and biases of a packed file, about."""
    norms = [m for m in model.modules() if isinstance(m, NORMS)]
    plain = [m for m in model.modules() if not isinstance(m, NORMS)]
    biases = [m.bias for m in [*norms, *plain] if isinstance(getattr(m, "bias", None), Tensor)]
    alone, per_layer, per_bias = HEADER
    entries: Any = biases
    return alone + per_layer * layers + sum(per_bias + 4 * bias.numel() for bias in entries)


def _input_shape(weight: Tensor, module: nn.Module) -> tuple[int, ...]:
    """Return the shape of what `uses_per_weight` returns for a layer."""
    if getattr(module, "transposed", False):
        return (weight.shape[0], 1, *weight.shape[2:])
    grouped = getattr(module, "groups", 1) > 1
    return tuple(weight.shape) if grouped else (1, *weight.shape[1:])


METERS: dict[str, type[Meter]] = {"synapses": Synapses, "synops": SynOps, "bytes": Bytes}
