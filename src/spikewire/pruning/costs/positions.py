"""What one weight costs: how often the network uses it per image.

A linear weight is used once, a convolution's once per position of its output; positions on padding
are no synapse::

    uses[input, tap] = sum over output positions of activity[input, position * stride + tap]

With an activity of 1 everywhere these are the synapses a weight stands for; with the number of
spikes per image, its synaptic operations.
"""

from itertools import product

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd


def uses_per_weight(module: nn.Module, activity: Tensor) -> Tensor:
    """Return how often each weight is used by inputs of this activity, for one output channel.

    Args:
        module: a linear or convolutional layer.
        activity: events per input of one sample, ``[inputs]`` or ``[channels, *image]``; one
            channel stands for all if they are the same.

    Returns:
        A tensor that broadcasts to the weight: ``[1, inputs]`` or ``[1, channels, *kernel]``, for a
        transposed convolution ``[channels, 1, *kernel]``.
    """
    if not isinstance(module, _ConvNd):
        return activity.unsqueeze(0)
    sides = _sides(module)
    if module.padding_mode != "zeros":  # the padding has activity too
        flat = [side for pair in reversed(sides) for side in pair]
        activity = F.pad(activity.unsqueeze(0), flat, module.padding_mode).squeeze(0)
        sides = [(0, 0)] * len(sides)
    ranges = [
        _ranges(module, dim, size, pair)
        for dim, (size, pair) in enumerate(zip(activity.shape[1:], sides, strict=True))
    ]
    taps = [activity[:, *slices].flatten(1).sum(1) for slices in product(*ranges)]
    uses = torch.stack(taps, 1).unflatten(1, module.kernel_size)
    if isinstance(module, _ConvTransposeNd):
        return uses.unsqueeze(1)
    if module.groups == 1 or len(activity) == 1:
        return uses.unsqueeze(0)
    per_group = module.out_channels // module.groups
    return uses.unflatten(0, (module.groups, -1)).repeat_interleave(per_group, 0)


def _sides(module: _ConvNd) -> list[tuple[int, int]]:
    """Return the padding before and after the image, per dimension."""
    if not isinstance(module.padding, str):
        return [(pad, pad) for pad in module.padding]
    spans = [(k - 1) * d for k, d in zip(module.kernel_size, module.dilation, strict=True)]
    same = module.padding == "same"  # an even kernel has one more after the image
    return [(span // 2, span - span // 2) if same else (0, 0) for span in spans]


def _ranges(module: _ConvNd, dim: int, size: int, sides: tuple[int, int]) -> list[slice]:
    """Return for every tap of one dimension the inputs that it meets."""
    kernel, stride, dilation = module.kernel_size[dim], module.stride[dim], module.dilation[dim]
    span, found = (kernel - 1) * dilation, []
    for tap in range(kernel):
        start = tap * dilation - sides[0]
        if isinstance(module, _ConvTransposeNd):  # input i feeds output i * stride + start
            outputs = (size - 1) * stride - sum(sides) + span + module.output_padding[dim] + 1
            first, last = max(0, -(start // stride)), min(size - 1, (outputs - 1 - start) // stride)
            found.append(slice(first, max(first, last + 1)))
            continue
        outputs = (size + sum(sides) - span - 1) // stride + 1
        low = max(0, -(start // stride))  # the first output that meets an input
        high = min(outputs - 1, (size - 1 - start) // stride)
        first = low * stride + start
        found.append(slice(first, max(first, high * stride + start + 1), stride))
    return found
