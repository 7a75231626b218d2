"""The weights of a packed file in a torch network of the same layers, to train it on.

A packed file has BatchNorm folded into weights and biases. Any mean m and deviation s unfold it
again, with the gain g and the bias b of the normalisation::

    w' x + b' = g (w' x - m) / s + b,   g = s,   b = b' + m

Training normalises by the statistics of its batches, so m and s are those of the training images.
"""

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from spikewire.data import AnyDataset
from spikewire.errors import SpikewireError, check
from spikewire.formats import packed
from spikewire.formats.network import Network, Stage
from spikewire.formats.trace import trace_model
from spikewire.metrics.counting import preserve_state
from spikewire.nn.layers import Spiking
from spikewire.nn.neurons import PLIF, Neuron
from spikewire.nn.synapses import SYNAPTIC
from spikewire.zoo.cards import PREFIX

Norm = nn.BatchNorm1d | nn.BatchNorm2d
ARRAYS = {"index": 0.0, "values": 1e-4, "bias": 1e-4}  # relative tolerances


def is_packed(path: str | Path) -> bool:
    """Return whether a path is that of a packed file, or ``zoo:NAME``; not a run directory."""
    return str(path).startswith(PREFIX) or Path(path).is_file()


@torch.no_grad()
def load_packed_(
    model: nn.Module, path: str, data: AnyDataset, images: Tensor | None = None
) -> None:
    """Write the weights of a packed file into a network.

    Args:
        model: a network with the layers that the file was exported from.
        path: path of the file, or ``zoo:NAME``.
        data: the data set, which must be normalised as that of the file.
        images: a batch of training images, from which BatchNorm gets its statistics; None for a
            network that is only evaluated.

    Raises:
        SpikewireError: if the file cannot be read or is of another network.
    """
    network = packed.read(path)
    _require_same_inputs(network, data, path)
    example = _example(model, data)
    norms = _norms(model, example)
    _write_time_constants_(model, network, example)
    modules = dict(model.named_modules())
    own = _trace(model, network, example).stages
    fixed = {x.name for x in own if not isinstance(modules.get(x.name), SYNAPTIC)}  # identities
    for stage in network.stages:
        if stage.name not in fixed:
            _write_(modules.get(stage.name), norms.get(stage.name), stage, path)
    for stage, factors in _average_factors(network, _trace(model, network, example)):
        _write_(modules.get(stage.name), norms.get(stage.name), stage, path, factors)
    if images is not None:
        _take_statistics_(model, norms, images)
    _require_same_network(network, model, example, path)


def _require_same_inputs(network: Network, data: AnyDataset, path: str) -> None:
    shape, own = network.input_shape, tuple(data.shape)
    check(shape == own, f"{path}: shape of an image", shape, f"{own}, as in the data set")
    for name in ("mean", "std"):
        own, stored = tuple(getattr(data, name)), getattr(network, name)
        fits = len(own) == len(stored) and np.allclose(own, stored)
        check(fits, f"{path}: {name} of pixels", stored, f"{own}, as in this run")


def _example(model: nn.Module, data: AnyDataset) -> Tensor:
    """Return two empty samples."""
    like = next(model.parameters())
    steps = (getattr(model, "time_steps", 1),) if data.temporal else ()
    return like.new_zeros(*steps, 2, *data.shape)


def _norms(model: nn.Module, images: Tensor) -> dict[str, Norm]:
    """Return, by the name of a synaptic layer, the BatchNorm that is called right after it."""
    found: dict[str, Norm] = {}
    last: list[str] = []

    def see(name: str, module: nn.Module) -> None:
        if isinstance(module, SYNAPTIC):
            last[:] = [name]
        elif last:
            assert isinstance(module, Norm)
            found[last.pop()] = module

    with preserve_state(model):
        for name, module in model.named_modules():
            if isinstance(module, (*SYNAPTIC, Norm)):
                module.register_forward_hook(lambda module, *_, name=name: see(name, module))
        model(images)
    return found


def _write_time_constants_(model: nn.Module, network: Network, example: Tensor) -> None:
    """Write the learnt time constants of neurons, which are called in the order of the stages."""
    called: list[nn.Module] = []
    with preserve_state(model):
        for module in model.modules():
            if isinstance(module, Neuron):
                module.register_forward_hook(lambda module, *_: called.append(module))
        model(example)
    stages = [stage for stage in network.stages if stage.neuron is not None]
    for module, stage in zip(called, stages, strict=False):
        tau = stage.neuron and stage.neuron.tau
        if isinstance(module, PLIF) and tau is not None and tau > 1:
            module.tau = tau


def _write_(
    module: nn.Module | None,
    norm: Norm | None,
    stage: Stage,
    path: str,
    factors: tuple[float, float] = (1.0, 1.0),
) -> None:
    """Write weights and bias of a stage; BatchNorm then only adds the bias.

    Args:
        module: the layer.
        norm: the BatchNorm after it.
        stage: what is stored.
        path: path of the file.
        factors: what weights and bias are divided by.
    """
    shape = tuple(module.weight.shape) if isinstance(module, SYNAPTIC) else None
    if not isinstance(module, SYNAPTIC) or shape != stage.shape:
        here = shape or "no such layer"
        raise SpikewireError(f"{path}: {stage.name} has shape {stage.shape}; here: {here}")
    if norm is not None and norm.weight is None:
        raise SpikewireError(
            f"{path}: {stage.name}: the BatchNorm behind it has no weight (affine=False), so what "
            "the file has folded into the layer cannot be taken out again"
        )
    module.weight.copy_(torch.from_numpy(stage.to_dense()) / factors[0])
    bias = torch.from_numpy(stage.bias) / factors[1]
    if module.bias is not None:
        module.bias.copy_(torch.zeros_like(bias) if norm else bias)
    if norm:
        _set_(norm, torch.zeros_like(bias), torch.ones_like(bias), bias)


def _average_factors(network: Network, own: Network) -> Iterator[tuple[Stage, tuple[float, float]]]:
    """Yield stages with the factors that the model applies to weights and bias a second time.

    Those are the factors of average poolings, which the file has folded in.
    """
    for stage, mine in zip(network.stages, own.stages, strict=False):
        if stage.name == mine.name:
            factors = _ratio(mine.values, _field(stage, "values")), _ratio(mine.bias, stage.bias)
            if factors != (1.0, 1.0):
                yield stage, factors


def _ratio(found: NDArray[np.float32], stored: NDArray[np.float32]) -> float:
    """Return the factor between two arrays, 1 where they do not differ by one."""
    if len(found) != len(stored) or not stored.any():
        return 1.0
    ratio = float(np.median(found[stored != 0] / stored[stored != 0]))
    return 1.0 if np.isclose(ratio, 1.0) or ratio <= 0 else ratio


def _trace(model: nn.Module, network: Network, example: Tensor) -> Network:
    steps = None if isinstance(model, Spiking) else network.time_steps  # its own may be others
    return trace_model(model, example, time_steps=steps)


def _set_(norm: Norm, mean: Tensor, variance: Tensor, bias: Tensor) -> None:
    """Set statistics of a BatchNorm, and gain and bias such that it only adds `bias`."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.running_mean.copy_(mean)
    norm.running_var.copy_(variance)
    norm.weight.copy_((norm.running_var + norm.eps).sqrt())
    norm.bias.copy_(bias.to(norm.bias) + norm.running_mean)


def _take_statistics_(model: nn.Module, norms: dict[str, Norm], images: Tensor) -> None:
    """Give every BatchNorm the statistics of what it receives; the network stays as it was."""
    received: dict[Norm, tuple[Tensor, Tensor]] = {}

    def see(norm: Norm, inputs: tuple[Tensor]) -> None:
        channel = -3 if isinstance(norm, nn.BatchNorm2d) else 1
        channels = inputs[0].float().transpose(0, channel).flatten(1)
        received[norm] = channels.mean(1), channels.var(1)

    with preserve_state(model):
        for norm in norms.values():
            norm.register_forward_pre_hook(see)
        model(images)
    for norm, (mean, variance) in received.items():
        used = variance > 0  # a channel without synapses may get some
        _set_(norm, mean, variance.where(used, torch.ones_like(variance)), norm.bias.clone())


def _require_same_network(network: Network, model: nn.Module, example: Tensor, path: str) -> None:
    """Raise unless the model now computes what the file does."""
    own = _trace(model, network, example)
    names, found = ([stage.name for stage in x.stages] for x in (network, own))
    check(names == found, f"{path}: layers", names, f"{found}, as in the network")
    for stage, mine in zip(network.stages, own.stages, strict=True):
        for field in fields(stage):
            stored, here = _field(stage, field.name), getattr(mine, field.name)
            if field.name in ARRAYS:
                same = len(stored) == len(here) and np.allclose(
                    stored, here, ARRAYS[field.name], 1e-4 if field.name == "bias" else 0.0
                )
                detail = "" if same else "other than in the network"
            elif field.name == "neuron" and stored and here and stored.tau and here.tau:
                near = np.isclose(stored.tau, here.tau, 1e-5)  # one that is learnt is rounded
                same = near and stored._replace(tau=here.tau) == here
                detail = f"{stored}; here: {here}"
            else:
                same, detail = stored == here, f"{stored}; here: {here}"
            if not same:
                raise SpikewireError(f"{path}: {field.name} of {stage.name} is {detail}")


def _field(stage: Stage, name: str) -> Any:
    """Return a field of a stored stage, without weights that were rounded to 0."""
    value = getattr(stage, name)
    return value[stage.values != 0] if name in ("index", "values") else value
