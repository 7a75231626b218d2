"""BatchNorm, neurons and max-pool run as one operator of `spikewire.kernels.ops`.

The plain-torch twin of a group is its layers, run one after another.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from spikewire.errors import check
from spikewire.nn.membrane import NeuronConstants
from spikewire.nn.neurons import Neuron
from spikewire.nn.recurrent import is_hooked

Group = tuple[nn.Module, ...]


def find_groups(layers: Iterable[nn.Module], fuse: bool = True) -> list[Group]:
    """Group layers that `run_group` can run as one.

    A group is a BatchNorm2d followed by neurons and, if present, a 2x2 max-pool. A layer with a
    hook, or with a forward of its own, is never part of a group, so that these run.

    Args:
        layers: the layers in order.
        fuse: False: every layer stays alone.

    Returns:
        All layers in order, as tuples of one, two or three.
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
    fires = is_neuron(layer) and _is_plain(layer)
    return fires and len(group) == 1 and _is_plain_norm(group[0])


def _pools(group: Group, layer: nn.Module) -> bool:
    return len(group) == 2 and _is_plain_pool(layer)


def _is_plain_norm(layer: nn.Module) -> bool:
    return type(layer) is nn.BatchNorm2d and _is_plain(layer) and is_norm(layer)


def _is_plain_pool(layer: nn.Module) -> bool:
    return type(layer) is nn.MaxPool2d and _is_plain(layer) and is_pool(layer)


def _is_plain(layer: nn.Module) -> bool:
    return not is_hooked(layer) and not is_replaced(layer)


def is_replaced(module: nn.Module) -> bool:
    """Return whether the forward of a module was replaced, as Accelerate does; not by `fuse`."""
    forward = vars(module).get("forward")
    owner = getattr(forward, "__self__", None)
    return forward is not None and not getattr(owner, "same_results", False)


def is_neuron(layer: nn.Module) -> TypeGuard[Neuron]:
    """Return whether a layer is our neurons, also of a subclass without a forward of its own."""
    return isinstance(layer, Neuron) and type(layer).forward is Neuron.forward


def is_norm(layer: Any) -> bool:
    """Return whether the kernels can run a BatchNorm with these settings."""
    return layer.affine and layer.track_running_stats and layer.momentum is not None


def is_pool(layer: Any) -> bool:
    """Return whether a max-pool has windows of 2x2 that do not overlap."""
    fields = layer.kernel_size, layer.stride, layer.padding, layer.dilation
    pairs = [(x, x) if isinstance(x, int) else tuple(x) for x in fields]
    return pairs == [(2, 2), (2, 2), (0, 0), (1, 1)] and not (
        layer.ceil_mode or layer.return_indices
    )


def run_group(
    group: Sequence[nn.Module],
    x: Tensor,
    time_steps: int,
    *,
    add: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """Run a group of two or three layers as one operator.

    ``residual + neurons(BatchNorm(x) + add)``, or ``pool(neurons(BatchNorm(x)))``. The layers keep
    their parameters and buffers; running statistics move as if they had run.

    Args:
        group: BatchNorm2d, neurons and, if present, a 2x2 max-pool, as `find_groups` returns them.
        x: currents ``[time, batch, channels, height, width]``; time 1: the same at every step.
        time_steps: how many time steps to run.
        add: added to the currents of the neurons, of the shape of the spikes; not with a pool.
        residual: added to the spikes, of their shape; not with a pool.

    Returns:
        Spikes ``[time_steps, batch, channels, height, width]``, height and width halved by a pool.

    Raises:
        SpikewireError: time is neither 1 nor `time_steps`, the channels are not those of BatchNorm,
            an image is smaller than the pool's window, or BatchNorm trains on one value per
            channel.
    """
    norm, neuron = group[:2]
    assert isinstance(norm, nn.BatchNorm2d)
    assert isinstance(neuron, Neuron)
    added = {"add": add, "residual": residual, "pool": len(group) == 3}
    return run_fused(norm, neuron.constants, neuron.rate, x, time_steps, **added)


def run_fused(
    norm: nn.BatchNorm2d,
    constants: NeuronConstants,
    rate: Tensor | None,
    x: Tensor,
    time_steps: int,
    *,
    pool: bool = False,
    add: Tensor | None = None,
    residual: Tensor | None = None,
    statistics: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Run BatchNorm, neurons of some constants and perhaps a pool; see `run_group`.

    With `statistics`, from `move_statistics`, the running ones do not move again.
    """
    from spikewire.kernels import ops  # imported here: Triton may not be installed

    check(len(x) in (1, time_steps), "time", len(x), f"1 or {time_steps}")
    channels = norm.num_features
    check(x.shape[2] == channels, "channels", x.shape[2], f"{channels}, those of BatchNorm")
    if pool:
        check(min(x.shape[3:]) >= 2, "images", tuple(x.shape), "2x2 or more where pooled")
    more = [None if y is None else y.flatten(0, 1).to(x.dtype) for y in (add, residual)]
    if more != [None, None] and len(x) < time_steps:
        x = x.expand(time_steps, *x.shape[1:])
    images = x.flatten(0, 1)
    mean, variance = statistics or move_statistics(norm, images)
    spikes, _ = ops.fire(
        images,
        mean,
        variance,
        norm.weight,
        norm.bias,
        *more,
        rate,
        eps=norm.eps,
        batch_statistics=norm.training,
        time_steps=time_steps,
        static=len(x) == 1 < time_steps,
        pool=pool,
        **constants.keywords(),
    )
    return spikes.unflatten(0, (time_steps, x.shape[1]))


@torch.no_grad()
def move_statistics(norm: nn.BatchNorm2d, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and variance to use; in training update the running ones, as torch does."""
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
    return ops.statistics(images.detach(), *running, momentum=norm.momentum)
