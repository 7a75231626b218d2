"""Links between neurons, in any library's layers: how often used, and which lead nowhere.

A convolution's weight is one parameter and one link for every position it is used at; what falls
on padding is no link.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.overrides import TorchFunctionMode

from spikewire.errors import SpikewireError
from spikewire.nn.neurons import Neuron

SYNAPTIC = (nn.Linear, _ConvNd)
NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.LocalResponseNorm)
SPIKING_HOMES = (
    "spikingjelly.activation_based.neuron",
    "snntorch._neurons",
    "norse.torch.module.snn",
)
TRANSPOSED = {3: F.conv_transpose1d, 4: F.conv_transpose2d, 5: F.conv_transpose3d}


def is_spiking(module: nn.Module) -> bool:
    """Tell neurons from other modules: ours, SpikingJelly's, snnTorch's, Norse's."""
    homes = tuple(kind.__module__ for kind in type(module).__mro__)
    return isinstance(module, Neuron) or any(home.startswith(SPIKING_HOMES) for home in homes)


def synaptic_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return conv and linear modules by the names of their weights."""
    found = ((name, m) for name, m in model.named_modules() if isinstance(m, SYNAPTIC))
    return {f"{name}.weight" if name else "weight": module for name, module in found}


def features(module: nn.Module) -> int:
    """Return how many trailing dimensions of its input a layer works on, after time and batch."""
    return 1 if isinstance(module, nn.Linear) else module.weight.dim() - 1  # pyright: ignore


def transmit(module: nn.Module, x: Tensor, weight: Tensor) -> Tensor:
    """Run the layer with another weight and no bias; leading dimensions are kept."""
    if isinstance(module, nn.Linear):
        return F.linear(x, weight)
    assert isinstance(module, _ConvNd)
    lead = x.shape[: x.dim() - features(module)]
    flat = x.reshape(-1, *x.shape[len(lead) :])
    if isinstance(module, _ConvTransposeNd):
        convolve: Callable[..., Tensor] = TRANSPOSED[weight.dim()]
        y = convolve(
            flat, weight, None, module.stride, module.padding,
            module.output_padding, module.groups, module.dilation,
        )  # fmt: skip
    else:
        y = module._conv_forward(flat, weight, None)  # pyright: ignore
    return y.reshape(*lead, *y.shape[1:])


def fan_out(module: nn.Module, mask: Tensor) -> Tensor:
    """Return the mask summed over output channels, so that one channel counts all links."""
    if isinstance(module, nn.Linear):
        return mask.sum(0, keepdim=True, dtype=torch.float64)
    assert isinstance(module, _ConvNd)
    if isinstance(module, _ConvTransposeNd):
        return mask.sum(1, keepdim=True, dtype=torch.float64)
    return mask.unflatten(0, (module.groups, -1)).sum(1, dtype=torch.float64)


def operations(module: nn.Module, activity: Tensor, fan: Tensor) -> float:
    """Return ``sum over inputs of activity * surviving fan-out``: exact, links being linear.

    `activity` counts events at each input of one sample; `fan` is `fan_out` of the mask.
    """
    return float(transmit(module, activity.double(), fan).sum())


def activity_of(module: nn.Module, x: Tensor) -> tuple[Tensor, int]:
    """Return how often each input was not zero over time and batch, and the number of frames."""
    lead = x.dim() - features(module)
    frames = x.ne(0).reshape(-1, *x.shape[lead:])
    return frames.sum(0), len(frames)


# ---------------------------------------------------------------------- links that carry something


class _MeanPooling(TorchFunctionMode):
    """Max pooling passes its gradient to one input only; every input is linked, as in a mean."""

    means: Mapping[Any, Any] = {
        F.max_pool1d: F.avg_pool1d,
        F.max_pool2d: F.avg_pool2d,
        F.max_pool3d: F.avg_pool3d,
    }

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Swap max pooling for the mean over the same windows."""
        if func not in self.means:
            return func(*args, **(kwargs or {}))
        names = ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode")
        given = {**dict(zip(names, args, strict=False)), **(kwargs or {})}
        given = {key: given[key] for key in names if key in given and key != "dilation"}
        given["stride"] = given.get("stride") or given["kernel_size"]
        return self.means[func](**given)


def first_tensor(output: Any) -> Tensor:
    """Return a module's output, or the spikes of one that returns its state beside them."""
    while not isinstance(output, Tensor):
        output = output[0]
    return output


def _replace_first(output: Any, new: Tensor) -> Any:
    return new if isinstance(output, Tensor) else (new, *output[1:])


def _mark(x: Tensor) -> Tensor:
    """Return 1 where x is positive, else 0; the gradient passes, and is made 0 or 1 too."""
    marked = x / x.detach().clamp(min=torch.finfo(x.dtype).tiny)
    marked.register_hook(lambda grad: (grad > 0).to(grad.dtype))
    return marked


@contextmanager
def _transparent(
    model: nn.Module, masks: Mapping[str, Tensor], spiking: Callable[[nn.Module], bool]
) -> Iterator[dict[str, list[tuple[Tensor, Tensor]]]]:
    """Inside, weights are masks and neurons wires; yields each layer's (input, output) pairs."""
    seen: dict[str, list[tuple[Tensor, Tensor]]] = {}
    hooks = []

    def synaptic(name: str) -> Callable[..., Tensor]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> Tensor:
            y = _mark(transmit(module, inputs[0], masks[name].to(inputs[0])))
            y.retain_grad()
            seen.setdefault(name, []).append((inputs[0].detach(), y))
            return y

        return hook

    def wire(module: nn.Module, inputs: Any, output: Any) -> Any:
        return _replace_first(output, inputs[0])

    for name, module in synaptic_layers(model).items():
        hooks.append(module.register_forward_hook(synaptic(name)))
    hooks += [
        module.register_forward_hook(wire)
        for module in model.modules()
        if spiking(module) or isinstance(module, NORMS)
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def living_links(
    model: nn.Module,
    example: Tensor,
    masks: Mapping[str, Tensor],
    spiking: Callable[[nn.Module], bool] = is_spiking,
) -> dict[str, tuple[int, int]]:
    """Return for each layer (links on a path from input to output, links of the dense layer).

    Reachability by one pass and its gradient: with weights 0 or 1 and neurons as wires, an output
    is positive if the input reaches it, its gradient is positive if it reaches the readout.
    """
    ones = torch.ones_like(example).requires_grad_()
    try:
        with (
            torch.enable_grad(),
            torch.autocast(example.device.type, enabled=False),  # counts must stay exact
            _MeanPooling(),
            _transparent(model, masks, spiking) as seen,
        ):
            first_tensor(model(ones)).sum().backward()
    except (RuntimeError, IndexError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise SpikewireError(
            f"synapses: this model's links cannot be traced ({reason}); pass synapses=False"
        ) from error
    layers = synaptic_layers(model)
    return {name: _count(layers[name], masks[name], pairs) for name, pairs in seen.items()}


def _count(module: nn.Module, mask: Tensor, pairs: list[tuple[Tensor, Tensor]]) -> tuple[int, int]:
    """Count links i -> o with i reached and o leading on, each once, whatever the time steps."""
    size = features(module)

    def once(x: Tensor) -> Tensor:
        return x.gt(0).reshape(-1, *x.shape[x.dim() - size :]).any(0).double()

    reached = torch.stack([once(x) for x, _ in pairs]).amax(0)
    nothing = torch.zeros_like(pairs[0][1])
    leads = torch.stack([once(nothing if y.grad is None else y.grad) for _, y in pairs]).amax(0)
    living = (transmit(module, reached, mask.to(reached)) * leads).sum(dtype=torch.float64)
    dense = operations(module, torch.ones_like(reached), fan_out(module, torch.ones_like(mask)))
    return round(float(living)), round(dense)
