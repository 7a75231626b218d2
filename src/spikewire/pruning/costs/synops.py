"""The meter of synaptic operations: the spikes per image that reach a weight."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from spikewire.nn.adaptive import AdaptiveRecurrent
from spikewire.nn.names import unwrap
from spikewire.nn.recurrent import Recurrent
from spikewire.pruning.costs.meter import COMPILED, Meter
from spikewire.pruning.costs.passes import Passes, in_backward, remove_copied_pass_hooks
from spikewire.pruning.costs.positions import uses_per_weight
from spikewire.pruning.costs.spacing import evenly_spaced
from spikewire.pruning.hooks import ForwardHooks, Named
from spikewire.pruning.layers import Layer
from spikewire.pruning.owners import unpruned_layers
from spikewire.pruning.ranks import sum_over_ranks
from spikewire.pruning.spending import cost_of
from spikewire.pruning.warn import warn_caller

if TYPE_CHECKING:
    from spikewire.pruning.pruner import Pruner

FRAMES = 256  # frames of a layer's input that are counted per step, evenly spaced
COUNTED = 256  # steps of a run in which spikes are counted, at least
SELDOM = 16  # steps between two of them, at most
SILENT = 1e-3  # uses of weights per image: no spike in about a thousand images
LESS, MORE = 0.5, 1.2  # factors of the part of a move that is taken: after a turn, without one
LEAST_PART = 0.1  # of a move
CLOSE = 0.02  # a move by a smaller part of the fraction is noise
MOST = 64  # spikes that shortcuts may add to one number
RECURRENT = (Recurrent, AdaptiveRecurrent)
PARTS = 20  # of a run: the running mean reaches back about one of them
LEAST_WEIGHT, MOST_WEIGHT = 0.1, 0.5  # of a counted step in the running mean


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
        sum_over_ranks: replaces a tensor by its sum over all ranks and returns it.
        called: whether a layer was seen in a forward pass.
    """

    capturable = True

    def __init__(self, pruner: "Pruner") -> None:
        super().__init__(pruner)
        assert pruner.model is not None
        model: Any = unwrap(pruner.model)
        self.sum_over_ranks: Callable[[Tensor], Tensor] = sum_over_ranks
        self.called = False
        self.selected = -1  # the step of the last selection
        self.model, self.time_steps = model, getattr(model, "time_steps", None)
        for layer in pruner.layers:
            shape = _input_shape(self.modules[layer.name])
            layer.state["cost"] = layer.weight.new_zeros(shape, dtype=torch.float64)
        self.others = unpruned_layers(model, pruner.layers)
        more = ForwardHooks(self.others, [*map(Named, self.others)], self.see, self.capturable)
        self.hooks.handles += more.handles
        # for every module the uses of weights; last the images
        modules = [*(module for _, module in self.owners), *self.others.values()]
        self.sizes = [math.prod(_input_shape(module)) for module in modules]
        like = pruner.layers[0].weight
        self.pending = like.new_zeros(sum(self.sizes) + 1, dtype=torch.float64)
        self.parts = dict(zip(modules, self._split(self.pending), strict=True))
        self.after_rest = {m.synapses for m in model.modules() if isinstance(m, RECURRENT)}
        pruner.memory["activity"] = torch.zeros_like(self.pending)
        # the fraction that was last selected, its last move, and the part of it that was taken
        pruner.memory["approach"] = self.pending.new_tensor([-1.0, 0.0, 1.0])
        self.passes = Passes(
            model, modules, lambda: self.counting, self.add_images, capturable=self.capturable
        )
        self.interval = min(SELDOM, max(1, pruner.total_steps // COUNTED))
        counted = -(-pruner.total_steps // self.interval)
        self.weight = min(MOST_WEIGHT, max(LEAST_WEIGHT, PARTS / counted))
        self.resume()

    def _split(self, sums: Tensor) -> Sequence[Tensor]:
        return sums[:-1].split(self.sizes)

    def resume(self) -> None:
        """Find out whether the next step is counted: the first is, and then every n-th."""
        self.counting = self.pruner.step % self.interval == 0

    def add_images(self, count: int) -> None:
        """Add to the number of images of this step."""
        self.pending[-1] += count

    def see(self, layer: Any, module: nn.Module, inputs: Tensor, output: Tensor) -> None:
        """Add the spikes of a call in training."""
        if not (self.counting and self.passes.counted) or in_backward():
            return
        self.follow(inputs.device)
        weight: Any = module.weight
        features = 1 if weight.dim() == 2 else weight.dim() - 1
        frames = inputs.reshape(-1, *inputs.shape[inputs.dim() - features :])
        some = evenly_spaced(frames, FRAMES)
        analogue = _more_than_one_value(some)
        if not self.passes.first:  # no image: it may be a sum of spikes
            analogue &= ~_are_sums(some)
        self.passes.first, self.called = False, True
        uses = uses_per_weight(module, some.sum(0, dtype=torch.float32).double())
        scale = len(frames) / len(some) * self._missing_time(module, len(frames))
        self.parts[module].add_(torch.where(analogue, 0.0, uses.flatten()), alpha=scale)

    def _missing_time(self, module: nn.Module, frames: int) -> float:
        """Return all time steps over those of now, for a call that sees all or one of these.

        Recurrent synapses are called at all time steps but the first.
        """
        every, now = self.time_steps, getattr(self.model, "time_steps", None)
        if not every or not now or every == now:
            return 1.0
        if module in self.after_rest:
            return (every - 1) / max(now - 1, 1)
        return every / now if frames == self.passes.images * now else 1.0

    def follow(self, device: torch.device) -> None:
        """Move the sums to a device: ``model.to(device)`` moves only the model."""
        if self.pending.device != device:
            self.pending = self.pending.to(device)
            self.parts = dict(zip(self.parts, self._split(self.pending), strict=True))
            memory = self.pruner.memory
            memory.update({key: value.to(device) for key, value in memory.items()})

    def end_step(self) -> None:
        """Add what was seen, on all ranks, to the running sums; earlier steps then weigh less."""
        self.follow(self.layers[0].weight.device)
        if self.pruner.step == 1 and not self.called:
            warn_caller(
                f"{self.pruner.method.name}: no layer was seen in the first step, so no spikes are "
                f"counted; train in training mode; {COMPILED}"
            )
        if self.counting:
            sums = self.pruner.memory["activity"]
            sums.mul_(1 - self.weight).add_(self.sum_over_ranks(self.pending))
            self.pending.zero_()
        self.passes.end_step()
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
        """Return the target as a fraction of the operations of the pruned layers, if dense.

        Layers that are not pruned are paid first. How often a layer is used follows the masks of
        those before it, with a delay: masks that meet the target by the counts of now make fewer
        spikes, or more, and could alternate between too many and too few. The fraction is therefore
        approached: where it turns back by more than 2 %, half as large a part of the move is taken
        as the last time, and a fifth more where it keeps its direction; at first, the whole move.
        """
        if self.pruner.step != self.selected:
            self.selected = self.pruner.step
            found = ((target - self.fixed()) / dense.clamp(min=1e-9)).clamp(0.0, 1.0)
            last, moved, part = self.pruner.memory["approach"]
            move = torch.where(last < 0, 0.0, found - last)
            scale = torch.where(move * moved < 0, LESS, MORE)
            scale = torch.where(move.abs() < CLOSE * last, 1.0, scale)
            part = (part * scale).clamp(LEAST_PART, 1.0)
            now = torch.where(last < 0, found, last + part * move)
            self.pruner.memory["approach"].copy_(torch.stack([now, move, part]))
        return self.pruner.memory["approach"][0].clone()

    def actual(self, masks: Mapping[str, Tensor]) -> float | None:
        """Return the operations per image by the newest counts; None where no image was seen."""
        self.follow(self.layers[0].weight.device)
        if not self.pruner.memory["activity"][-1]:
            return None
        self.update_costs_(self.layers)
        own = [cost_of(masks[layer.name], layer.state["cost"]) for layer in self.layers]
        return float(sum(own) + self.fixed())

    def remove(self) -> None:
        """Remove the forward hooks, also their copies on copied modules."""
        super().remove()
        self.passes.remove()
        for module in self.model.modules():
            remove_copied_pass_hooks(module)

    def why_missed(self) -> str:
        """Return that the network is silent or was not seen: every mask then costs nothing."""
        if float(sum(mean.sum() for mean in self._means())) >= SILENT:
            return ""
        if self.called:
            return "no spikes in the measured layers"
        return f"no layer was seen ({COMPILED})"


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
