"""BatchNorm, neurons and max-pool as one operator: on tensors, and found in a row of layers."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from spikewire.errors import check
from spikewire.nn.neurons import Neuron

Group = tuple[nn.Module, ...]


def groups(layers: Iterable[nn.Module], fuse: bool = True) -> list[Group]:
    """Return the layers in order, BatchNorm2d with its neurons and a 2x2 max-pool in one tuple.

    A layer with a hook stays alone: whoever watches its output must see it.
    """
    found: list[Group] = []
    for layer in layers:
        last = found[-1] if found else ()
        if fuse and (_fires(last, layer) or _pools(last, layer)):
            found[-1] = (*last, layer)
        else:
            found.append((layer,))
    return found


def _fires(group: Group, layer: nn.Module) -> bool:
    return len(group) == 1 and isinstance(layer, Neuron) and _is_norm(group[0]) and _free(layer)


def _pools(group: Group, layer: nn.Module) -> bool:
    return len(group) == 2 and _is_pool(layer)


def _free(layer: nn.Module) -> bool:
    return not (
        layer._forward_hooks
        or layer._forward_pre_hooks
        or layer._backward_hooks
        or layer._backward_pre_hooks
    )


def _is_norm(layer: nn.Module) -> bool:
    if type(layer) is not nn.BatchNorm2d or not _free(layer):
        return False
    return layer.affine and layer.track_running_stats and layer.momentum is not None


def _is_pool(layer: nn.Module) -> bool:
    if type(layer) is not nn.MaxPool2d or not _free(layer) or layer.return_indices:
        return False
    fields = layer.kernel_size, layer.stride, layer.padding, layer.dilation
    pairs = [(x, x) if isinstance(x, int) else tuple(x) for x in fields]
    return pairs == [(2, 2), (2, 2), (0, 0), (1, 1)] and not layer.ceil_mode


def run(group: Sequence[nn.Module], x: Tensor, time_steps: int) -> Tensor:
    """Run a group on ``[time, batch, channels, height, width]``; time 1 is a static current.

    The layers keep their parameters and buffers; what they hold changes as if they had run.
    """
    norm, neuron = group[:2]
    assert isinstance(norm, nn.BatchNorm2d)
    assert isinstance(neuron, Neuron)
    check(len(x) in (1, time_steps), "time", len(x), f"1 or {time_steps}")
    if len(group) == 3:
        check(min(x.shape[3:]) >= 2, "images", tuple(x.shape), "2x2 or more where pooled")
    images = x.flatten(0, 1)
    mean, variance = _statistics(norm, images)
    from spikewire.kernels import ops

    spikes, _ = ops.fire(
        images,
        mean,
        variance,
        norm.weight,
        norm.bias,
        norm.eps,
        norm.training,
        time_steps,
        len(x) == 1 < time_steps,
        len(group) == 3,
        neuron.tau,
        neuron.threshold,
        neuron.rest,
        neuron.surrogate,
        neuron.reset,
    )
    return spikes.unflatten(0, (time_steps, x.shape[1]))


@torch.no_grad()
def _statistics(norm: nn.BatchNorm2d, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and variance to use; in training move the running ones, as torch does."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    if not norm.training:
        return norm.running_mean, norm.running_var
    from spikewire.kernels import ops

    count = images.numel() // images.shape[1]
    check(count > 1, "values per channel", count, "more than 1 when training")
    assert norm.num_batches_tracked is not None
    assert norm.momentum is not None
    norm.num_batches_tracked.add_(1)
    running = norm.running_mean, norm.running_var
    return ops.statistics(images.detach(), *running, norm.momentum)
