"""Synapses between neurons: how often each is used, and which the input reaches.

A convolution weight is one parameter, and one synapse per position at which it is applied;
positions on padding have none. A layer that is called several times per time step has those of
every call. `count_synapses` counts three sets, each a part of the one before::

    present   weights that exist, times their positions
    reached   those whose source neuron is reached from the input over present synapses
    alive     those of them whose target neuron also leads to the output
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.overrides import TorchFunctionMode

from spikewire.errors import SpikewireError
from spikewire.nn.calls import Calls
from spikewire.nn.crossings import Encoder
from spikewire.nn.synapses import NORMS, is_spiking, synaptic_layers

CONVOLUTIONS = {F.conv1d: 1, F.conv2d: 2, F.conv3d: 3}  # and their dimensions
CONV_TRANSPOSE = {3: F.conv_transpose1d, 4: F.conv_transpose2d, 5: F.conv_transpose3d}


def feature_dims(module: nn.Module) -> int:
    """Return how many trailing dimensions of its input are features, after time and batch."""
    return 1 if isinstance(module, nn.Linear) else module.weight.dim() - 1  # pyright: ignore


def apply_weight(module: nn.Module, x: Tensor, weight: Tensor) -> Tensor:
    """Run the layer on `x` with another weight and no bias; leading dimensions are kept."""
    if isinstance(module, nn.Linear):
        return F.linear(x, weight)
    assert isinstance(module, _ConvNd)
    leading = x.shape[: x.dim() - feature_dims(module)]
    flat = x.reshape(-1, *x.shape[len(leading) :])
    if isinstance(module, _ConvTransposeNd):
        convolve: Callable[..., Tensor] = CONV_TRANSPOSE[weight.dim()]
        y = convolve(
            flat, weight, None, module.stride, module.padding,
            module.output_padding, module.groups, module.dilation,
        )  # fmt: skip
    else:
        y = module._conv_forward(flat, weight, None)  # pyright: ignore
    return y.reshape(*leading, *y.shape[1:])


def fan_out(module: nn.Module, mask: Tensor) -> Tensor:
    """Return the mask summed over output channels, so that one channel counts all synapses."""
    if isinstance(module, nn.Linear):
        return mask.sum(0, keepdim=True, dtype=torch.float64)
    assert isinstance(module, _ConvNd)
    if isinstance(module, _ConvTransposeNd):
        return mask.sum(1, keepdim=True, dtype=torch.float64)
    return mask.unflatten(0, (module.groups, -1)).sum(1, dtype=torch.float64)


def count_operations(module: nn.Module, activity: Tensor, fan: Tensor) -> float:
    """Return the sum over inputs of ``activity * surviving fan-out``; exact, as it is linear.

    `activity` is the number of events per input of one sample; `fan` is `fan_out` of the mask.
    """
    return float(apply_weight(module, activity.double(), fan).sum())


def count_activity(module: nn.Module, x: Tensor, spikes: bool) -> tuple[Tensor, int]:
    """Return the events of each input over time and batch, and the number of frames.

    A sum of n spikes is n events; any other input is one where it is not zero.
    """
    leading = x.dim() - feature_dims(module)
    frames = (x if spikes else x.ne(0)).reshape(-1, *x.shape[leading:])
    return frames.sum(0, dtype=torch.float64), len(frames)


def first_tensor(output: Any) -> Tensor:
    """Return a module's output, or the spikes of one that returns ``(spikes, state)``."""
    while not isinstance(output, Tensor):
        output = output[0]
    return output


# ---------------------------------------------------------------------- synapses on a path


class Synapses(NamedTuple):
    """Synapses of one layer: present, reached, alive, and of the unpruned layer."""

    present: int
    reached: int
    alive: int
    dense: int


def count_synapses(
    model: nn.Module,
    example: Tensor,
    masks: Mapping[str, Tensor],
    spiking: Callable[[nn.Module], bool] = is_spiking,
) -> dict[str, Synapses]:
    """Return the synapses of each layer that the model calls.

    `reached` is the count of UPR (Shi, Ding, Hao, Yu, ICLR 2024), which follows dead neurons
    forward only; `alive` also drops synapses that lead nowhere.

    Reachability by one forward and one backward pass: with weights 0 or 1 and neurons replaced by
    the identity, an output is positive if a path leads to it from the input, and its gradient is
    positive if a path leads from it to the readout.
    """
    ones = torch.ones_like(example).requires_grad_()
    try:
        with (
            torch.enable_grad(),
            torch.autocast(example.device.type, enabled=False),  # counts must stay exact
            _MeanPooling(),
            _record_paths(model, masks, spiking) as calls,
        ):
            first_tensor(model(ones)).sum().backward()
    except (RuntimeError, IndexError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise SpikewireError(
            f"synapses: those of this model cannot be traced ({reason}); pass synapses=False"
        ) from error
    found = {}
    for name, module in synaptic_layers(model).items():
        if uses := calls.uses(name):
            found[name] = _sum([_count(module, masks[name], use) for use in uses])
    return found


def _sum(counts: Sequence[Synapses]) -> Synapses:
    """Return the synapses of all uses of one layer."""
    return Synapses(
        present=sum(count.present for count in counts),
        reached=sum(count.reached for count in counts),
        alive=sum(count.alive for count in counts),
        dense=sum(count.dense for count in counts),
    )


class _MeanPooling(TorchFunctionMode):
    """Max pooling passes its gradient to one input only; a mean links every input."""

    means: Mapping[Any, Any] = {
        F.max_pool1d: F.avg_pool1d,
        F.max_pool2d: F.avg_pool2d,
        F.max_pool3d: F.avg_pool3d,
    }
    convolutions: Mapping[Any, Any] = {
        F.max_pool1d: F.conv1d,
        F.max_pool2d: F.conv2d,
        F.max_pool3d: F.conv3d,
    }
    adaptive: Mapping[Any, Any] = {
        F.adaptive_max_pool1d: F.adaptive_avg_pool1d,
        F.adaptive_max_pool2d: F.adaptive_avg_pool2d,
        F.adaptive_max_pool3d: F.adaptive_avg_pool3d,
    }

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Replace max pooling by the mean over the same windows."""
        if func in self.adaptive:
            given = {**dict(zip(("input", "output_size"), args, strict=False)), **(kwargs or {})}
            return self.adaptive[func](given["input"], given["output_size"])
        if func not in self.means:
            return func(*args, **(kwargs or {}))
        names = ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode")
        given = {**dict(zip(names, args, strict=False)), **(kwargs or {})}
        given = {key: given[key] for key in names if key in given}
        given["stride"] = given.get("stride") or given["kernel_size"]
        dilation = given.pop("dilation", 1)
        if set(_each(dilation, 1)) == {1}:
            return self.means[func](**given)
        convolve = self.convolutions[func]
        return _dilated_mean(convolve, func(*args, **(kwargs or {})).shape, given, dilation)


def _each(value: int | Sequence[int], dims: int) -> list[int]:
    """Return an argument of pooling as one number per dimension."""
    values = [value] if isinstance(value, int) else list(value)
    return values * dims if len(values) == 1 else values


def _dilated_mean(
    convolve: Callable[..., Tensor], shape: Sequence[int], given: Mapping[str, Any], dilation: Any
) -> Tensor:
    """Return the mean over windows with gaps, as a convolution of each channel with ones.

    Args:
        convolve: for the number of dimensions.
        shape: that max pooling returns; it decides how far `ceil_mode` extends the input.
        given: the other arguments of max pooling.
        dilation: distance between the inputs of a window.
    """
    x, dims = given["input"], CONVOLUTIONS[convolve]
    names = (given["kernel_size"], given["stride"], given.get("padding", 0), dilation)
    kernel, stride, padding, gaps = (_each(value, dims) for value in names)
    pads: list[int] = []  # from the last dimension to the first
    for d in reversed(range(dims)):
        needed = (shape[d - dims] - 1) * stride[d] + gaps[d] * (kernel[d] - 1) + 1
        size = x.shape[d - dims] + padding[d]
        pads += [padding[d], max(needed - size, 0)]
    channels = x.shape[-dims - 1]
    ones = x.new_full((channels, 1, *kernel), 1 / math.prod(kernel))
    return convolve(F.pad(x, pads), ones, None, stride, 0, gaps, channels)


@contextmanager
def _record_paths(
    model: nn.Module, masks: Mapping[str, Tensor], spiking: Callable[[nn.Module], bool]
) -> Iterator[Calls]:
    """Replace weights by masks and neurons by the identity; yield (input, output) per call."""
    calls = Calls()
    hooks = [
        module.register_forward_hook(_masked_forward(calls, name, masks[name]))
        for name, module in synaptic_layers(model).items()
    ]
    for module in model.modules():
        if spiking(module) or isinstance(module, NORMS):
            hooks.append(module.register_forward_hook(_identity))
        if spiking(module):
            hooks.append(module.register_forward_hook(lambda neurons, *_: calls.fire(neurons)))
    encoders = (module for module in model.modules() if isinstance(module, Encoder))
    hooks += [module.register_forward_hook(_all_ones) for module in encoders]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def _masked_forward(calls: Calls, name: str, mask: Tensor) -> Callable[..., Tensor]:
    """Return a hook that runs a layer with its mask as weight and adds (input, output)."""

    def hook(module: nn.Module, inputs: Any, output: Any) -> Tensor:
        y = _binarize(apply_weight(module, inputs[0], mask.to(inputs[0])))
        y.retain_grad()
        calls.add(name, (inputs[0].detach(), y))
        return y

    return hook


def _identity(module: nn.Module, inputs: Any, output: Any) -> Any:
    """Return, as a hook, the first input in place of the first output."""
    return inputs[0] if isinstance(output, Tensor) else (inputs[0], *output[1:])


def _all_ones(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    """Return, as a hook, a spike at every output of an encoder: each is an input by itself."""
    return torch.ones_like(output) + 0 * inputs[0].sum()


def _binarize(x: Tensor) -> Tensor:
    """Return 1 where x is positive, else 0; the gradient passes, and becomes 0 or 1 as well."""
    binary = x / x.detach().clamp(min=torch.finfo(x.dtype).tiny)
    binary.register_hook(lambda grad: (grad > 0).to(grad.dtype))
    return binary


def _count(module: nn.Module, mask: Tensor, pairs: list[tuple[Tensor, Tensor]]) -> Synapses:
    """Count the synapses of one use over all time; a source or sink counts if it does at any step.

    Args:
        module: the layer.
        mask: of its weight.
        pairs: its input and output, one pair per call.
    """
    dims = feature_dims(module)

    def any_positive(x: Tensor) -> Tensor:
        return x.gt(0).reshape(-1, *x.shape[x.dim() - dims :]).any(0).double()

    gradients = [torch.zeros_like(y) if y.grad is None else y.grad for _, y in pairs]
    sources = torch.stack([any_positive(x) for x, _ in pairs]).amax(0)
    sinks = torch.stack([any_positive(grad) for grad in gradients]).amax(0)
    everything, fan = torch.ones_like(sources), fan_out(module, mask)
    alive = (apply_weight(module, sources, mask.to(sources)) * sinks).sum()
    return Synapses(
        present=round(count_operations(module, everything, fan)),
        reached=round(count_operations(module, sources, fan)),
        alive=round(float(alive)),
        dense=round(count_operations(module, everything, fan_out(module, torch.ones_like(mask)))),
    )
