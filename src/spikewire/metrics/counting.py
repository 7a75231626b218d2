"""`measure`: run a model and count operations, spikes and bytes; the model is left unchanged."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from spikewire.errors import SpikewireError, check, check_word
from spikewire.metrics.links import (
    Synapses,
    count_activity,
    count_operations,
    count_synapses,
    fan_out,
    first_tensor,
)
from spikewire.metrics.records import Firing, LayerMeasure, Measurement
from spikewire.metrics.sizes import parameter_bytes
from spikewire.nn.calls import Calls, keeps_state, over_time
from spikewire.nn.names import unwrap
from spikewire.nn.synapses import NORMS, is_spiking, synaptic_layers
from spikewire.pruning.warn import warn_caller

MODULE = "a torch module; for a Runtime call its count_operations(images)"


def measure(
    model: nn.Module,
    batch: Tensor | Iterable[Any],
    masks: Mapping[str, Tensor] | None = None,
    *,
    time_first: bool = False,
    time_steps: int | None = None,
    spiking: Callable[[nn.Module], bool] = is_spiking,
    synapses: bool = True,
) -> Measurement:
    """Run a model in evaluation mode and count what one sample costs.

    Works on models of spikewire, SpikingJelly, snnTorch, Norse and plain torch. Modes, neuron
    states, buffers, hooks and random number generators are left as they were. An input of a layer
    that has only 0 and 1 is counted as spikes (`synops`), and so is a sum of spikes, as shortcuts
    of residual networks make it: n spikes are n operations per synapse. Any other input is analogue
    (`macs`).

    Args:
        model: The network; it needs at least one convolution or linear layer.
        batch: Inputs: one tensor, or an iterable such as a `DataLoader` of tensors or of tuples
            whose first item is the input.
        masks: Which weights exist, by the name of the weight; a weight without a mask uses
            ``weight != 0``.
        time_first: Whether inputs have the shape ``[time, batch, ...]`` instead of
            ``[batch, ...]``.
        time_steps: How often the model is called with each batch, for a model that runs one time
            step per call: its neurons keep their state, or it returns (output, state). None is one
            call, with a warning where neurons that keep their state were called only once.
        spiking: Returns whether a module is a layer of spiking neurons; by default those of
            spikewire, SpikingJelly, snnTorch and Norse.
        synapses: Whether to count synapses for `synapses`, `synapses_reached` and
            `synapses_alive`, which takes one more forward and one backward pass of one sample.

    Returns:
        Costs per layer, firing rates and totals.

    Raises:
        SpikewireError: The model has no convolution or linear layer, a mask has the wrong shape or
            the name of no parameter, `batch` is empty, the model does not allow counting synapses,
            or it keeps no state between the calls of `time_steps`.

    Example:
        >>> found = spikewire.measure(model, images, masks=pruner.masks())
        >>> found.synops, found.synapses_reached, found.energy().compute
    """
    check(isinstance(model, nn.Module), "model", type(model).__name__, MODULE)
    check(isinstance(masks, Mapping | None), "masks", type(masks).__name__, "a mapping from names")
    model = unwrap(model)  # the hooks count in the modules themselves, by their own names
    layers = synaptic_layers(model)
    check(bool(layers), "model", type(model).__name__, "one with conv or linear layers")
    given = _masks_of_all_names(model, masks or {})
    present = {name: _mask(name, module, given) for name, module in layers.items()}
    counter = _Counter(layers, present)
    check(time_steps is None or time_steps >= 1, "time_steps", time_steps, "at least 1")
    with torch.no_grad(), preserve_state(model):
        example = _count_batches(counter, model, batch, spiking, time_first, time_steps or 1)
    if time_steps is None and counter.is_one_step:
        warn_caller(
            "measure: the model runs one time step per call, and only one was counted; pass "
            "time_steps= for all of them, or 1"
        )
    counts: dict[str, Synapses] = {}
    if synapses:
        with preserve_state(model):
            counts = count_synapses(model, example, present, spiking)
    bytes_dense, bytes_packed = parameter_bytes(model, present)
    return Measurement(
        samples=counter.samples,
        layers=counter.layer_measures(counts),
        firing=counter.firing(),
        bytes_dense=bytes_dense,
        bytes_packed=bytes_packed,
        uncounted=uncounted(model, counter.called),
    )


def _masks_of_all_names(model: nn.Module, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the masks, also under the other names of tied weights.

    Raises:
        SpikewireError: A mask has the name of no parameter.
    """
    named = list(model.named_parameters(remove_duplicate=False))
    known = [name for name, _ in named]
    for name in masks:
        check_word("masks", name, known)
    found = {parameter: masks[name] for name, parameter in named if name in masks}
    tied = {name: found[parameter] for name, parameter in named if parameter in found}
    return {**tied, **masks}


def _mask(name: str, module: nn.Module, masks: Mapping[str, Tensor]) -> Tensor:
    """Return the mask given for a layer, else where its weight is not zero."""
    weight: Any = module.weight
    if name not in masks:
        return weight.detach() != 0
    shape, expected = tuple(masks[name].shape), tuple(weight.shape)
    check(shape == expected, f"masks[{name!r}]", shape, f"of shape {expected}")
    return masks[name].to(weight.device).bool()


def _count_batches(
    counter: "_Counter",
    model: nn.Module,
    batch: Tensor | Iterable[Any],
    spiking: Callable[[nn.Module], bool],
    time_first: bool,
    time_steps: int,
) -> Tensor:
    """Run the model on all batches with the counter's hooks; return one sample."""
    counter.register_hooks_(model, spiking)
    example = None
    for x in _inputs(batch):
        counter.begin_batch(x.shape[1] if time_first else len(x))
        _call(model, x, time_steps, counter)
        counter.end_batch()
        if example is None:
            example = x[:, :1] if time_first else x[:1]
        reset_neurons_(model)
    if example is None:
        raise SpikewireError("batch: is empty; there is nothing to measure")
    return example


def _call(model: nn.Module, x: Tensor, time_steps: int, counter: "_Counter") -> None:
    """Call the model once per time step; a state that it returns is passed to the next call."""
    state: tuple[Any, ...] = ()
    for step in range(time_steps):
        output = model(x, *state)
        if step + 1 < time_steps and not counter.steps:
            returned = isinstance(output, tuple) and len(output) == 2
            kept = "1 or None: the model keeps no state between calls"
            check(returned, "time_steps", time_steps, kept)
            state = (output[1],)


def _inputs(batch: Tensor | Iterable[Any]) -> Iterator[Tensor]:
    for item in [batch] if isinstance(batch, Tensor) else batch:
        x = item[0] if isinstance(item, tuple | list) else item
        check(isinstance(x, Tensor), "batch", type(x).__name__, "a tensor, or batches of tensors")
        check(x.numel() > 0, "batch", tuple(x.shape), "at least one sample")
        yield x


# ---------------------------------------------------------------------- counting by hooks


class _Operations(NamedTuple):
    """Operations of one call of a layer: over present and over all synapses."""

    largest: float  # input, if all are whole numbers from 0 on, else infinity
    sources: int  # layers of neurons that have fired before
    events: tuple[float, ...]  # where an input of n is n spikes
    values: tuple[float, ...]  # where any input but 0 is one operation
    dense: float


class _Counter:
    """Hooks that sum operations and spikes over batches."""

    def __init__(self, layers: Mapping[str, nn.Module], masks: Mapping[str, Tensor]) -> None:
        self.layers, self.masks = layers, masks
        self.samples, self.batch = 0, 0
        self.fans = {n: fan_out(m, masks[n]) for n, m in layers.items()}
        self.full = {n: fan_out(m, torch.ones_like(masks[n])) for n, m in layers.items()}
        self.sums = {n: dict.fromkeys(("synops", "macs", "unpruned", "dense"), 0.0) for n in layers}
        self.spikes: dict[tuple[str, torch.Size], tuple[Tensor, int]] = {}
        self.fired = set[str]()  # layers of neurons that have fired since the batch began
        self.called = set[str]()
        self.calls = Calls()  # of the batch; each with its `_Operations`
        self.steps: dict[str, int] = {}  # calls, in the batch, of neurons that keep their state

    def begin_batch(self, samples: int) -> None:
        """Note the number of samples in the next forward pass."""
        self.batch = samples
        self.samples += samples
        self.fired.clear()
        self.calls.clear()
        self.steps.clear()

    @property
    def is_one_step(self) -> bool:
        """Whether neurons that keep their state between calls were called once in the batch."""
        return bool(self.steps) and max(self.steps.values()) == 1

    def end_batch(self) -> None:
        """Add the operations of the batch; all time steps of a use are spikes, or none is."""
        for name, sums in self.sums.items():
            for use in self.calls.uses(name):
                # in a loop over time, neurons have fired before the first layer from step 2 on
                spikes = all(call.largest <= max(use[0].sources, 1) for call in use)
                for call in use:
                    present, full = call.events if spikes else call.values
                    sums["synops" if spikes else "macs"] += present
                    sums["unpruned"] += full
                    sums["dense"] += call.dense

    def register_hooks_(self, model: nn.Module, spiking: Callable[[nn.Module], bool]) -> None:
        """Register the hooks; `preserve_state` removes them."""
        for name, module in self.layers.items():
            module.register_forward_pre_hook(partial(self.count_operations, name))
        for name, module in model.named_modules():
            if spiking(module):
                module.register_forward_hook(partial(self.count_spikes, name))
                module.register_forward_hook(lambda neurons, *_: self.calls.fire(neurons))

    def count_operations(self, name: str, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Note one call of a synaptic layer."""
        x, largest = inputs[0], _largest_count(inputs[0])
        activity, frames = count_activity(module, x, spikes=False)
        fans = self.fans[name], self.full[name]
        values = events = tuple(count_operations(module, activity, fan) for fan in fans)
        if 1 < largest < math.inf:
            activity, _ = count_activity(module, x, spikes=True)
            events = tuple(count_operations(module, activity, fan) for fan in fans)
        dense = frames * count_operations(module, torch.ones_like(activity), self.full[name])
        self.called.add(name)
        self.calls.add(name, _Operations(largest, len(self.fired), events, values, dense))

    def count_spikes(self, name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        """Add one call of a spiking layer; one whose output is a voltage is skipped."""
        if keeps_state(module) and not over_time(module):
            self.steps[name] = self.steps.get(name, 0) + 1
        out = first_tensor(output)
        if not _is_binary(out):
            return
        self.fired.add(name)
        leading = _leading_dims(module, out, self.batch)
        counts = out.flatten(0, leading - 1).sum(0, dtype=torch.float64)
        layer = (name, counts.shape)  # neurons that are used twice may differ in number
        before, events = self.spikes.get(layer, (torch.zeros_like(counts), 0))
        self.spikes[layer] = (before + counts, events + math.prod(out.shape[:leading]))

    def layer_measures(self, counts: Mapping[str, Synapses]) -> list[LayerMeasure]:
        """Return one record per synaptic layer."""
        return [self._layer_measure(name, counts.get(name)) for name in self.layers]

    def _layer_measure(self, name: str, counted: Synapses | None) -> LayerMeasure:
        mask = self.masks[name]
        each = {key: value / self.samples for key, value in self.sums[name].items()}
        present, reached, alive, dense = counted or (None, None, None, None)
        return LayerMeasure(
            name,
            mask.numel(),
            int(mask.sum()),
            **each,
            synapses=present,
            reached=reached,
            alive=alive,
            dense_synapses=dense,
        )

    def firing(self) -> list[Firing]:
        """Return one record per spiking layer, and per shape of its output."""
        found = self.spikes.items()
        return [Firing(name, (counts / events).cpu()) for (name, _), (counts, events) in found]


def _is_binary(x: Tensor) -> bool:
    return bool(((x == 0) | (x == 1)).all())


def _largest_count(x: Tensor) -> float:
    """Return the largest value if all could be numbers of spikes, else infinity."""
    counts = bool(((x >= 0) & (x == x.round())).all())
    return (float(x.max()) if x.numel() else 0.0) if counts else math.inf


def _leading_dims(module: nn.Module, out: Tensor, batch: int) -> int:
    """Return how many leading dimensions of an output are time and batch, by its library."""
    if over_time(module):
        return 2
    if getattr(module, "step_mode", None) == "s":  # SpikingJelly
        return 1
    return 2 if out.dim() > 1 and out.shape[0] != batch and out.shape[1] == batch else 1


# ---------------------------------------------------------------------- state of the model


@contextmanager
def preserve_state(model: nn.Module) -> Iterator[None]:
    """Evaluate with reset neurons inside; afterwards restore modes, state, buffers and hooks."""
    attributes = [vars(module) for module in model.modules()]
    inner = [value for mapping in attributes for value in mapping.values()]
    # the same dict objects are filled again: handles of hooks point to them
    saved = [(d, dict(d)) for d in [*attributes, *inner] if isinstance(d, dict)]
    model.eval()
    reset_neurons_(model)
    try:
        yield
    finally:
        for mapping, content in saved:
            mapping.clear()
            mapping.update(content)


def reset_neurons_(model: nn.Module) -> None:
    """Reset neurons that keep their state between batches (SpikingJelly, snnTorch)."""
    for module in filter(keeps_state, model.modules()):
        getattr(module, "reset" if hasattr(module, "_memories") else "reset_mem")()


# ---------------------------------------------------------------------- what is left out


def uncounted(model: nn.Module, called: Collection[str]) -> list[str]:
    """Return matrices whose operations no hook sees: recurrent cells, attention, embeddings.

    A synaptic layer that was not called is one of them: attention uses the weight of its output
    layer without calling it.
    """
    return [
        name
        for name, parameter in model.named_parameters()
        if parameter.dim() >= 2
        and name not in called
        and not isinstance(model.get_submodule(name.rpartition(".")[0]), NORMS)
    ]
