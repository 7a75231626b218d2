"""A torch model as the record of a network, from its forward pass on an example.

Models may be built of torch layers and the neurons of spikewire, SpikingJelly, snnTorch and Norse.
They run one time step per call or all of them, and may loop over time themselves.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from spikewire.errors import SpikewireError, check
from spikewire.formats.functions import tensors_in
from spikewire.formats.network import Network
from spikewire.formats.stage import IMAGE, Shape, Source, Stage
from spikewire.formats.tracer import Tracer
from spikewire.formats.values import Current, Spikes, Unknown, Value, expect_known
from spikewire.nn.layers import Spiking
from spikewire.plasticity import Plastic

RESETS = ("reset", "reset_mem")  # of neurons that keep their state: SpikingJelly, snnTorch


@dataclass(frozen=True, eq=False)
class Trace:
    """A recorded network, and what the model itself computed on the example.

    Args:
        network: The network.
        frames: The example: ``[time, batch, ...]``, or ``[batch, ...]`` for images that are fed at
            every time step.
        is_static: Whether `frames` has no time dimension.
        spikes: Spikes ``[time, batch, ...]`` of the model by the name of the stage.
    """

    network: Network
    frames: Tensor
    is_static: bool
    spikes: dict[str, Tensor]


def trace_model(
    model: nn.Module,
    example: Tensor | None = None,
    *,
    time_steps: int | None = None,
    **fields: Any,
) -> Network:
    """Return the record of a trained network.

    The model runs once on the example, in evaluation mode and without gradients; the state of its
    neurons is reset before and after.

    Args:
        model: A model of torch layers and neurons: convolutions, fully connected layers, BatchNorm,
            pooling, dropout, additions of spikes.
        example: Input of the model, as in training: images ``[batch, ...]``, or frames
            ``[time, batch, ...]``. None for a `spikewire.nn.Spiking` whose `input_shape` is set.
        time_steps: Time steps per image of a model that runs one per call; None for those that
            the model runs.
        **fields: Further fields of `Network`: `classes`, `mean`, `std`, `about`. Classes are
            numbered from 0 unless given.

    Returns:
        The network, with BatchNorm and average pooling folded into the weights.

    Raises:
        SpikewireError: If the model has a layer, or an order of layers, that is not supported. The
            message names the module and the reason.

    Example:
        >>> network = trace_model(spikewire.build("mnist-mlp"))
        >>> [stage.name for stage in network.stages]
        ['fc1', 'fc2']
    """
    return trace(model, example, time_steps=time_steps, **fields).network


def trace(
    model: nn.Module,
    example: Tensor | None = None,
    *,
    time_steps: int | None = None,
    **fields: Any,
) -> Trace:
    """Return the record of a trained network, and the spikes of the model; see `trace_model`."""
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    model = getattr(model, "module", model) if hasattr(model, "device_ids") else model
    check(isinstance(model, nn.Module), "model", type(model).__name__, "an nn.Module")
    rule = isinstance(model, Plastic)
    check(not rule, "model", type(model).__name__, "one that learns by a gradient")
    image = _make_example(model, example)
    tracer = Tracer(model, image)
    with _evaluation(model), torch.no_grad(), tracer.hooks(), _eager(model):
        output = model(image)
    _warn_of_branches(tracer)
    found = _find_outputs(tracer, output)
    check(bool(tracer.spikes), "model", type(model).__name__, "one with spiking neurons")
    steps = _count_steps(tracer)
    value = _find_whole(found, steps)
    if steps == 1 and not tracer.multi_step and time_steps is not None:
        steps = _repeat_(tracer, image, time_steps)
    time_steps = _check_steps(tracer, steps, time_steps)
    frames, is_static = _find_frames(tracer, image, steps)
    stages, numbers = tracer.builder.finish(value)
    shape = tuple(frames.shape[1 if is_static else 2 :])
    fields |= {"vote": value.vote, "membrane": value.membrane}
    network = _make_network(stages, shape, time_steps, fields)
    spikes = {stages[new].name: _stack(tracer, old) for old, new in numbers.items()}
    return Trace(network, frames.cpu(), is_static, spikes)


def _eager(model: nn.Module) -> Any:
    """Return a context in which modules that were compiled run as they are."""
    own = (vars(module) for module in model.modules())
    if any(x.get("_compiled_call_impl") or "_orig_mod" in x.get("_modules", {}) for x in own):
        return torch.compiler.set_stance("force_eager")  # imports a compiler, which takes seconds
    return nullcontext()


def _make_example(model: nn.Module, example: Tensor | None) -> Tensor:
    if example is None:
        shape = getattr(model, "input_shape", None)
        known = "given, or input_shape known to the network"
        check(isinstance(model, Spiking) and shape is not None, "example", None, known)
        some = next(model.parameters(), torch.zeros(0))
        example = some.new_zeros(1, *(shape or ()))
    check(isinstance(example, Tensor), "example", type(example).__name__, "a tensor")
    check(example.ndim >= 2 and len(example) > 0, "example", (*example.shape,), "[batch, ...]")
    return example.detach()


@contextmanager
def _evaluation(model: nn.Module) -> Iterator[None]:
    """Run in evaluation mode, with neurons that start at rest; both as before at the end."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    _reset_(model)
    try:
        yield
    finally:
        _reset_(model)
        for module, mode in modes:
            module.training = mode


def _reset_(model: nn.Module) -> None:
    for module in model.modules():
        for name in RESETS:
            method = getattr(module, name, None)
            if callable(method) and type(module).__module__.split(".")[0] in (
                "spikingjelly",
                "snntorch",
            ):
                method()


def _warn_of_branches(tracer: Tracer) -> None:
    """Warn where ``if x.sum() > 0`` may have chosen a branch: only that one is recorded."""
    if tracer.read:
        message = (
            "%s: forward() reads a number out of a tensor, as in `if x.sum() > 0`; if a branch or "
            "a factor depends on it, the export has that of the example for all inputs"
        )
        logging.getLogger("spikewire").warning(message, ", ".join(tracer.read))


def _find_outputs(tracer: Tracer, output: Any) -> list[Spikes | Current]:
    """Return the known values among the outputs of the model, at least one."""
    tensors = {id(x): x for x in tensors_in(output)}
    values: list[Value] = [tracer.expect(x) for x in tensors.values()]
    known = [value for value in values if not isinstance(value, Unknown)]
    nothing = Unknown("the model returns no tensor")
    return known or [expect_known("output", values[0] if values else nothing)]


def _find_whole(found: list[Spikes | Current], steps: int) -> Spikes | Current:
    """Return the first output that has all time steps, alone or, in a list, with others."""
    for value in found:
        together = sum(other.steps for other in found if other.key == value.key)
        if steps in (value.steps, together) or value.sources == (Source(IMAGE),):
            return value
    held = found[0].steps
    what = f"{held} of {steps} time steps" if held.denominator == 1 else "a part of its values"
    raise SpikewireError(f"output: {what} is not allowed; it must be all, summed or not")


def _count_steps(tracer: Tracer) -> int:
    """Return the time steps of one call of the model, the same for all neurons."""
    counts = set(map(tracer.count_steps, tracer.spikes))
    check(len(counts) == 1, "time steps", sorted(counts), "the same for all neurons")
    return counts.pop()


def _repeat_(tracer: Tracer, image: Tensor, time_steps: int) -> int:
    """Run a model of one time step per call from the start; return how many steps it ran.

    The state is kept in the neurons, or returned by the model and passed to the next call. Where
    neither is the case, only one time step can be compared.
    """
    for spikes in tracer.spikes:
        spikes.clear()
    state: tuple[Any, ...] = ()
    with _evaluation(tracer.model), torch.no_grad(), tracer.hooks(), _eager(tracer.model):
        for step in range(1, time_steps + 1):
            tracer.store(image, Spikes((Source(IMAGE),)))
            output = tracer.model(image, *state)
            if not tracer.keeps_state:
                if not (isinstance(output, tuple) and len(output) == 2):
                    return step
                state = (output[1],)
    return time_steps


def _check_steps(tracer: Tracer, steps: int, given: int | None) -> int:
    if given is None:
        single = steps == 1 and not tracer.multi_step
        check(not single, "time_steps", None, "given: the model runs one time step per call")
        return steps
    check(given >= 1, "time_steps", given, "at least 1")
    check(steps in (1, given), "time_steps", given, f"{steps}, as the model runs, or None")
    return given


def _find_frames(tracer: Tracer, image: Tensor, steps: int) -> tuple[Tensor, bool]:
    """Return the image with time first, or as it is where it has no time dimension."""
    if getattr(tracer.model, "temporal", False):
        return image, False
    static = tracer.expanded
    if not static and tracer.indexed == 1:
        return image.transpose(0, 1), False
    batch = tracer.spikes[0][0].shape[1 if tracer.multi_step else 0]
    timed = tracer.indexed == 0 or bool(tracer.multi_step)
    if not static and timed and image.ndim > 2 and image.shape[:2] == (steps, batch):
        return image, False
    return image, True


def _make_network(
    stages: list[Stage], shape: Shape, time_steps: int, fields: dict[str, Any]
) -> Network:
    """Return the network, its classes numbered unless given."""
    if "classes" not in fields:
        outputs = Network.count_outputs(stages, shape)
        fields["classes"] = tuple(map(str, range(outputs // fields["vote"])))
    return Network(stages=tuple(stages), input_shape=shape, time_steps=time_steps, **fields)


def _stack(tracer: Tracer, number: int) -> Tensor:
    """Return the spikes of a stage, ``[time, batch, ...]``."""
    spikes = tracer.spikes[number]
    return (torch.cat(spikes) if tracer.multi_step else torch.stack(spikes)).bool().cpu()
