"""Meters of the units of a target: what every weight of a network costs now.

===========  ======================================================================  =============
unit         a weight costs                                                          target
===========  ======================================================================  =============
synapses     the positions at which it is applied                                    fraction
synops       the spikes per image that reach it, over all positions and time steps   per image
bytes        two bytes for its value, and what its position takes in a packed file   size of file
===========  ======================================================================  =============
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from spikewire.errors import SpikewireError
from spikewire.pruning.costs import (
    ForwardHooks,
    Meter,
    ModelHook,
    Named,
    unpruned_layers,
    uses_per_weight,
)
from spikewire.pruning.filesize import Bytes
from spikewire.pruning.layers import Layer
from spikewire.pruning.selection import target_count
from spikewire.pruning.spending import cost_of, dense_cost
from spikewire.pruning.uses import OnePass

if TYPE_CHECKING:
    from spikewire.pruning.pruner import Pruner

FRAMES = 256  # frames of a layer's input that are counted per step, evenly spaced
COUNTED = 256  # steps of a run in which spikes are counted, at least
SELDOM = 16  # steps between two of them, at most
MOST = 64  # spikes that shortcuts may add to one number
PARTS = 20  # of a run: the running mean reaches back about one of them
LEAST_WEIGHT, MOST_WEIGHT = 0.1, 0.5  # of a counted step in the running mean


class Synapses(OnePass):
    """The synapses each weight stands for: 1 in a linear layer, its positions in a convolution.

    They follow from the sizes of the images alone, and count once per use of the layer.

    Args:
        pruner: the pruner; the cost of its weights is ``layer.state["cost"]``, int64.
    """

    def __init__(self, pruner: "Pruner") -> None:
        super().__init__(pruner)
        everywhere = torch.empty(0, dtype=torch.int64)
        self._groups = {layer.name: {1: everywhere} for layer in pruner.layers}
        for layer in pruner.layers:
            shape = (1, 1, *layer.weight.shape[2:])
            layer.state["cost"] = layer.weight.new_ones(shape, dtype=torch.int64)
        self.run()
        self.end_step()

    @property
    def known(self) -> bool:
        """Whether the costs are known: linear weights have 1, unless a forward pass shows more."""
        linear = all(layer.weight.dim() == 2 for layer in self.layers)
        return super().known or (linear and len(self.owners) == len(self.layers))

    def cost_of_call(
        self, layer: Layer, module: nn.Module, inputs: Tensor, output: Tensor
    ) -> Tensor:
        """Return the positions of each weight of one input and output."""
        kernel = layer.weight.dim() - 2
        image = inputs.shape[-kernel:] if kernel > 0 else ()
        return uses_per_weight(module, torch.ones(1, *image, dtype=torch.int64))

    def end_step(self) -> None:
        """Write the costs once a forward pass was seen; the hooks are then removed."""
        if not self.hooks.handles or not self.calls:
            return
        found = self.found()
        for layer in (layer for layer in self.layers if layer.name in found):
            cost = found[layer.name]
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

    def actual(self, masks: Mapping[str, Tensor]) -> float | None:
        """Return the fraction of the synapses of pruned layers; None before a forward pass."""
        if self.hooks.handles:
            return None
        dense = sum(int(dense_cost(x.weight, x.state["cost"])) for x in self.layers)
        return sum(int(cost_of(masks[x.name], x.state["cost"])) for x in self.layers) / dense


class SynOps(Meter):
    """The synaptic operations of each weight per image: the spikes that reach it.

    Spikes are counted in the forward passes of training, in evenly spaced frames, at one of up to
    16 steps, and averaged over images: ``sums <- (1 - a) sums + those of a step``. The mean reaches
    back about 1 / a counted steps. While the network changes this is a lag, so a follows from the
    n steps of the run that are counted: ``a = clip(20 / n, 0.1, 0.5)``, a twentieth of a short run.

    A spike that dropout has scaled counts as its value, so that the mean is that of the network
    without dropout, and a sum of n spikes, as shortcuts make it, counts as n. A call of a layer
    with other inputs, such as an image or averages, makes no synaptic operations but
    multiply-accumulates: it costs nothing here. A network with an attribute `time_steps` that is
    trained with fewer of them than it was attached with is counted as if it had all. Operations of
    layers that are not pruned are subtracted from the target.

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
            shape = _input_shape(self.modules[layer.name])
            layer.state["cost"] = layer.weight.new_zeros(shape, dtype=torch.float64)
        self.others = unpruned_layers(model, pruner.layers)
        more = ForwardHooks(self.others, [*map(Named, self.others)], self.see, self.capturable)
        begin = model.register_forward_pre_hook(ModelHook(self.begin, self.capturable))
        self.hooks.handles += [*more.handles, begin]
        # for every module the uses of weights; last the images
        modules = [*(module for _, module in self.owners), *self.others.values()]
        self.sizes = [math.prod(_input_shape(module)) for module in modules]
        like = pruner.layers[0].weight
        self.pending = like.new_zeros(sum(self.sizes) + 1, dtype=torch.float64)
        self.parts = dict(zip(modules, self._split(self.pending), strict=True))
        pruner.memory["activity"] = torch.zeros_like(self.pending)
        self.batch = 0
        self.first = True  # whether the next layer is the first of a forward pass
        self.interval = min(SELDOM, max(1, pruner.total_steps // COUNTED))
        counted = -(-pruner.total_steps // self.interval)
        self.weight = min(MOST_WEIGHT, max(LEAST_WEIGHT, PARTS / counted))
        self.resume()

    def _split(self, sums: Tensor) -> Sequence[Tensor]:
        return sums[:-1].split(self.sizes)

    def resume(self) -> None:
        """Find out whether the next step is counted: the first is, and then every n-th."""
        self.counting = self.pruner.step % self.interval == 0

    def begin(self, args: Any) -> None:
        """Note how many images the model is given."""
        if self.counting and self.model.training and args:
            self.batch, self.first = len(args[0]), True
            self.pending[-1] += self.batch

    def see(self, layer: Any, module: nn.Module, inputs: Tensor, output: Tensor) -> None:
        """Add the spikes of a call in training."""
        if not (module.training and self.counting):
            return
        weight: Any = module.weight
        features = 1 if weight.dim() == 2 else weight.dim() - 1
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
        self.parts[module].add_(torch.where(analogue, 0.0, uses.flatten()), alpha=scale)

    def end_step(self) -> None:
        """Add what was seen, on all ranks, to the running sums; earlier steps then weigh less."""
        if self.counting:
            sums = self.pruner.memory["activity"]
            sums.mul_(1 - self.weight).add_(self.sum_over_ranks(self.pending))
            self.pending.zero_()
        self.resume()

    def update_costs_(self, layers: Sequence[Layer]) -> None:
        """Write the mean operations per image."""
        costs: dict[str, Tensor] = {}
        for (layer, _), cost in zip(self.owners, self._means(), strict=False):
            costs[layer.name] = costs[layer.name] + cost if layer.name in costs else cost
        for layer in self.layers:
            layer.state["cost"].copy_(costs[layer.name].view_as(layer.state["cost"]))

    def _means(self) -> list[Tensor]:
        """Return for every module the mean operations of its weights per image."""
        sums = self.pruner.memory["activity"]
        return [*self._split(sums / sums[-1].clamp(min=1.0))]

    def fixed(self) -> Any:
        """Return the operations per image of the layers that are not pruned."""
        means = self._means()[len(self.owners) :]
        modules: Sequence[Any] = [*self.others.values()]
        pairs = zip(modules, means, strict=True)
        return sum(cost_of(m.weight != 0, mean.view(_input_shape(m))) for m, mean in pairs)

    def fraction(self, target: float, dense: Tensor) -> Tensor:
        """Return the target as a fraction of the operations of the pruned layers, if dense."""
        return ((target - self.fixed()) / dense.clamp(min=1e-9)).clamp(0.0, 1.0)

    def actual(self, masks: Mapping[str, Tensor]) -> float | None:
        """Return the operations per image by the newest counts; None where no image was seen."""
        if not self.pruner.memory["activity"][-1]:
            return None
        self.update_costs_(self.layers)
        own = [cost_of(masks[layer.name], layer.state["cost"]) for layer in self.layers]
        return float(sum(own) + self.fixed())


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


def _input_shape(module: nn.Module) -> tuple[int, ...]:
    """Return the shape of what `uses_per_weight` returns for a layer."""
    weight: Any = module.weight
    if getattr(module, "transposed", False):
        return (weight.shape[0], 1, *weight.shape[2:])
    grouped = getattr(module, "groups", 1) > 1
    return tuple(weight.shape) if grouped else (1, *weight.shape[1:])


METERS: dict[str, type[Meter]] = {"synapses": Synapses, "synops": SynOps, "bytes": Bytes}
