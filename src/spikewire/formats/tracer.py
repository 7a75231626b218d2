"""The tracer: follows a forward pass through modules and torch functions.

Modules that are known (convolutions, BatchNorm, neurons, pooling) are recorded as a whole; between
them torch functions are followed one by one. What is not known makes a value `Unknown`, which is
refused only where a recorded layer, or the output, uses it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from spikewire.errors import SpikewireError
from spikewire.formats import functions
from spikewire.formats.builder import Builder
from spikewire.formats.functions import tensors_in
from spikewire.formats.layers import Kind, pool_options, read_kind
from spikewire.formats.libraries import NeuronCall, read_neuron
from spikewire.formats.pooling import ARGUMENTS, read_pooling
from spikewire.formats.stage import IMAGE, Source
from spikewire.formats.values import (
    Current,
    Spikes,
    Unknown,
    Value,
    feed_back,
    feed_layer,
    normalise,
)
from spikewire.nn.names import named_modules

READS = {"__bool__", "__float__", "__int__", "__index__", "item", "tolist"}  # values, for Python


class Tracer(TorchFunctionMode):
    """Records the stages of a model while it runs.

    Args:
        model: The model.
        image: The tensor that the model is called with.

    Attributes:
        builder: The stages so far.
        spikes: Per stage, the spikes of each call: ``[batch, ...]``, or ``[time, batch, ...]``.
        multi_step: Whether one call of the neurons runs all time steps; None before the first.
        keeps_state: Whether all neurons keep their state from call to call.
        expanded: Whether the image was repeated over time.
        read: Names of the modules in which Python read a value, as ``if x.sum() > 0`` does.
        indexed: The dimension in which the image was indexed by time step, or None.
    """

    def __init__(self, model: nn.Module, image: Tensor) -> None:
        super().__init__()
        self.model = model
        self.values: dict[int, tuple[Tensor, Value]] = {}  # the tensor keeps its id alive
        self.builder = Builder()
        self.spikes: list[list[Tensor]] = []
        self.multi_step: bool | None = None
        self.keeps_state = True
        self.expanded, self.indexed = False, None
        self.calls: list[str] = []  # names of the modules that are running
        self.depth = 0  # of modules that are recorded as a whole
        self.read: dict[str, None] = {}  # modules that read a number out of a tensor, in order
        self.store(image, Spikes((Source(IMAGE),)))

    # ------------------------------------------------------------------ values

    def store(self, tensor: Tensor, value: Value) -> None:
        """Remember what a tensor is."""
        self.values[id(tensor)] = (tensor, value)

    def find(self, tensor: Any) -> Value | None:
        """Return what a tensor is; None if it does not depend on the image."""
        return self.values[id(tensor)][1] if id(tensor) in self.values else None

    def expect(self, tensor: Tensor) -> Value:
        """Return what a tensor is, `Unknown` if it does not depend on the image."""
        return self.find(tensor) or Unknown("it does not come from the example by torch functions")

    # ------------------------------------------------------------------ modules

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Watch all modules of the model."""
        handles = []
        try:
            for name, module in named_modules(self.model):
                kind = read_kind(module)
                call = read_neuron(name, module) if kind is None else None
                known = kind is not None or call is not None
                handles += [
                    module.register_forward_pre_hook(self.make_pre_hook(name, known)),
                    module.register_forward_hook(
                        self.make_hook(name, kind, call), with_kwargs=True, always_call=True
                    ),
                ]
            with self:
                yield
        finally:
            for handle in handles:
                handle.remove()

    def make_pre_hook(self, name: str, known: bool) -> Any:
        """Return the hook that runs before a module."""

        def pre_hook(module: nn.Module, args: Any) -> None:
            self.calls.append(name)
            self.depth += known

        return pre_hook

    def make_hook(self, name: str, kind: Kind | None, call: NeuronCall | None) -> Any:
        """Return the hook that runs after a module."""

        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            self.calls.pop()
            if kind is None and call is None:
                return
            self.depth -= 1
            if self.depth or output is None:  # part of a recorded module, or failed
                return
            with torch._C.DisableTorchFunction():
                x, *state = tensors_in(args, kwargs)
                if call is not None:
                    self.fire(name, call, (x, *state), output)
                elif kind is not None:
                    self.store(output, self.apply(name, kind, module, x))

        return hook

    def apply(self, name: str, kind: Kind, module: nn.Module, x: Tensor) -> Value:
        """Return the output of a module without state."""
        value = self.expect(x)
        if kind is Kind.SYNAPSES:
            return feed_layer(name, module, value)
        if kind is Kind.NORM:
            shape = x.shape[-3:] if isinstance(module, nn.BatchNorm2d) else x.shape[-1:]
            return normalise(name, module, value, tuple(shape))
        if kind is Kind.POOL:
            function, options = pool_options(module)
            return self.builder.pool(
                name, value, read_pooling(name, function, options, x.shape[-2:])
            )
        return value

    def fire(self, name: str, call: NeuronCall, inputs: tuple[Tensor, ...], output: Any) -> None:
        """Record the spikes of a neuron module as those of a stage."""
        x, *state = inputs
        if self.multi_step not in (None, call.multi_step):
            raise SpikewireError(f"{name}: neurons of single-step and multi-step mode are mixed")
        self.multi_step = call.multi_step
        self.keeps_state = self.keeps_state and call.keeps_state
        shape = tuple(x.shape[2 if call.multi_step else 1 :])
        feedback = call.synapses and feed_back(*call.synapses)
        number = self.builder.fire(name, self.expect(x), call.neuron, shape, feedback)
        self.check_state(name, number, call, state)
        spikes, *rest = tensors_in(output)
        if number == len(self.spikes):
            self.spikes.append([])
        self.spikes[number].append(spikes.detach().clone())
        time: dict[str, Any] = {"step": len(self.spikes[number])}
        time["steps"] = Fraction(self.count_steps([spikes]))
        self.store(spikes, Spikes((Source(number),), **time))
        for tensor, kind in zip(rest, call.states, strict=False):
            what = "membrane potential" if kind == "voltage" else "synaptic current"
            kept: Value = Unknown(f"the {what} of {name}", number)
            if kind == "voltage" and call.returns_membrane:
                kept = Spikes((Source(number),), membrane=True, **time)
            self.store(tensor, kept)

    def check_state(self, name: str, number: int, call: NeuronCall, state: list[Tensor]) -> None:
        """Refuse a state that is neither at rest nor the neurons' own."""
        for tensor, kind in zip(state, call.states, strict=False):
            value, rest = self.find(tensor), call.neuron.rest if kind == "voltage" else 0.0
            own = isinstance(value, Unknown) and value.step == number
            own = own or (isinstance(value, Spikes) and value.sources == (Source(number),))
            if not own and bool((tensor != rest).any()):
                raise SpikewireError(f"{name}: a membrane potential that is not its own or at rest")

    # ------------------------------------------------------------------ functions

    @property
    def running(self) -> str:
        """Name of the module that is running; of the model itself, its class."""
        return next((call for call in reversed(self.calls) if call), type(self.model).__name__)

    def count_steps(self, calls: list[Tensor]) -> int:
        """Return the time steps of a stage's spikes, from those of each call."""
        return sum(map(len, calls)) if self.multi_step else len(calls)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a torch function, and remember what its result is."""
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        if self.depth == 0 and not isinstance(output, torch.Size):
            results = [x for x in tensors_in(output) if isinstance(x, Tensor)]
            tracked = [x for x in tensors_in(args, kwargs) if id(x) in self.values]
            if tracked and func.__name__ in READS:
                self.read[self.running] = None
            if results and tracked:
                value = self.follow(func.__name__, args, kwargs, tracked, results[0])
                for result in results:
                    cut = func.__name__ in functions.PART
                    kept = functions.cut(value, tracked[0], result) if cut else value
                    self.store(result, kept)
        return output

    def follow(
        self, function: str, args: Any, kwargs: Any, tracked: list[Tensor], result: Tensor
    ) -> Value:
        """Return what the result of a function of tracked tensors is."""
        name = self.running
        x, value = tracked[0], self.expect(tracked[0])
        if isinstance(value, Unknown):
            return value
        if function in ARGUMENTS:
            options = {**dict(zip(ARGUMENTS[function], args[1:], strict=False)), **kwargs}
            options.pop("input", None)
            return self.builder.pool(
                name, value, read_pooling(name, function, options, x.shape[-2:])
            )
        if function == "avg_pool1d":
            return self.vote(name, value, args, kwargs)
        if function in functions.ADD and not kwargs:
            return functions.add_values(name, [(a, self.find(a)) for a in args])
        if function in functions.SCALE and not kwargs:
            return functions.scale_value(name, function, [(a, self.find(a)) for a in args])
        if function in functions.REDUCE:
            return self.reduce(name, value, x, args, kwargs)
        if function in functions.TRANSPOSE and not functions.keeps_order(x, result):
            return Unknown(f"{function} in {name}, except of time and batch")
        if function in functions.MOVE:
            merged = functions.join if function in functions.JOIN else functions.merge
            value = merged(name, [self.expect(tensor) for tensor in tracked])
            same = result.shape == x.shape and x.shape[:1] != (1,)  # expand adds no time steps
            if function not in functions.EXPAND or not same:
                self.note_time(function, value, args, len(tracked))
            return value
        return Unknown(f"{function} in {name}")

    def note_time(self, function: str, value: Value, args: Any, count: int) -> None:
        """Note where the image, or its current, gets or loses its time dimension."""
        if isinstance(value, Unknown) or value.sources != (Source(IMAGE),):
            return
        if function in functions.EXPAND or (function == "stack" and count > 1):
            self.expanded = True
        elif function in functions.TRANSPOSE:
            self.indexed = 1
        elif function == "__getitem__" and self.indexed is None:
            self.indexed = len(args[1]) - 1 if isinstance(args[1], tuple) else 0
        elif function in ("unbind", "select") and self.indexed is None:
            self.indexed = args[1] if len(args) > 1 else 0

    def vote(self, name: str, value: Spikes | Current, args: Any, kwargs: Any) -> Value:
        """Return the mean over neighbouring outputs."""
        options = dict(zip(("kernel_size", "stride", "padding"), args[1:], strict=False)) | kwargs
        size, *others = (
            int(torch.as_tensor(options.get(key, default)).flatten()[0])
            for key, default in (("kernel_size", 1), ("stride", options.get("kernel_size")))
        )
        padded = bool(torch.as_tensor(options.get("padding", 0)).any())
        if others != [size] or padded or value.vote > 1:
            return Unknown(f"avg_pool1d in {name}, except a vote of neighbouring outputs")
        return replace(value, vote=size)

    def reduce(
        self, name: str, value: Spikes | Current, x: Tensor, args: Any, kwargs: Any
    ) -> Value:
        """Return a mean or sum over time, or the mean over height and width."""
        dims = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if functions.find_map_dims(x, dims):
            pooling = read_pooling(name, "adaptive_avg_pool2d", {"output_size": 1}, x.shape[-2:])
            return self.builder.pool(name, value, pooling)
        over_time = dims in (0, (0,), [0]) and not value.reduced
        return replace(value, reduced=True) if over_time else Unknown(f"a reduction in {name}")
