"""Builders of what a config names: device, network, optimizer, batches, autocast."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from spikewire import data as datasets
from spikewire import plasticity
from spikewire.config import Config
from spikewire.data import AnyDataset, Batches, Dataset, StreamedBatches
from spikewire.data.reference import (
    call_function,
    errors_from_file,
    errors_of_file,
    is_python,
    named_path,
)
from spikewire.distributed import ALONE, Ranks
from spikewire.errors import check
from spikewire.fields import defaults
from spikewire.metrics.counting import preserve_state, reset_neurons_
from spikewire.metrics.links import first_tensor
from spikewire.nn import models
from spikewire.nn.layers import Spiking
from spikewire.plasticity import Plastic

OF_GRADIENTS = ("optimizer", "momentum", "weight_decay", "teacher", "label_smoothing", "average")
OF_GRADIENTS += ("synops_penalty",)
WITHOUT_EFFECT = (*OF_GRADIENTS, *models.OF_NEURONS, "readout", "batchnorm", "width", "init")
WITHOUT_EFFECT += ("compile", "graph")  # on a network with a learning rule of its own


def choose_device(name: str, ranks: Ranks = ALONE) -> torch.device:
    """Return the device; auto takes the GPU if one is available, each rank its own."""
    present = torch.cuda.is_available()
    check(name != "cuda" or present, "device", name, "cpu or auto; torch finds no CUDA device")
    if name == "cpu" or not present:
        return torch.device("cpu")
    if ranks.alone:
        return torch.device("cuda")
    count = torch.cuda.device_count()
    check(
        ranks.local_rank < count,
        "device",
        name,
        f"cpu for more ranks on a machine than GPUs, {count}",
    )
    torch.cuda.set_device(ranks.local_rank)
    return torch.device("cuda", ranks.local_rank)


def load_data(config: Config, data: AnyDataset | None = None) -> AnyDataset:
    """Return the data set as the network sees it; `data` replaces the named one.

    Raises:
        SpikewireError: if it cannot be read, or a run directory names a Python file for it.
    """
    if data is None:
        name = config.confirm("dataset")
        steps = config.time_steps
        folder = config.data_dir or None
        data = datasets.find(name, folder, resize=config.resize, time_steps=steps)
    if data.temporal:
        data = data.at(config.time_steps, config.frames)
        early = config.early_time_steps
        check(not any(early), "early_time_steps", early, "0 for data over time")
    if config.model in plasticity.NETWORKS:  # a pixel is a rate or a time, from 0 to 1
        data = data.normalised((0.0,) * len(data.mean), (1.0,) * len(data.mean))
    return data.normalised(config.pixel_mean, config.pixel_std).centred(config.centre)


def build_model(config: Config, data: AnyDataset, device: torch.device) -> nn.Module:
    """Return the network, if it fits the data.

    Raises:
        SpikewireError: if it does not, or a run directory names a Python file for it.
    """
    if is_python(config.model):
        model = _own_model(config, data)
    elif config.model in plasticity.NETWORKS:
        model = _plastic_model(config, data)
    else:
        model = _named_model(config, data)
    check(
        isinstance(model, Plastic) or not config.plasticity,
        "plasticity",
        config.plasticity,
        f"none for {config.model!r}, which learns by a gradient",
    )
    model.to(device)
    if config.channels_last:
        model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    return model


def _own_model(config: Config, data: AnyDataset) -> nn.Module:
    """Return the network that a function of the user builds."""
    check(config.init == "default", "init", config.init, "default for a network of your own")
    found = call_function(
        "model",
        config.confirm("model"),
        input_shape=data.shape,
        classes=len(data.classes),
        time_steps=config.time_steps,
    )
    early, kind = config.early_time_steps, type(found).__name__
    fits = isinstance(found, Spiking) or not any(early)
    check(fits, "early_time_steps", early, "0 for a network that is no spikewire.nn.Spiking")
    what = f"model: what {config.model} returns"
    check(isinstance(found, nn.Module), what, kind, "a module")
    check(bool(list(found.parameters())), what, kind, "a module with parameters")
    return found


def try_model(config: Config, model: nn.Module, images: Tensor, data: AnyDataset) -> None:
    """Run a network of the user's own on two samples, and check the shape of its output.

    State of the neurons, buffers and random number generators are left as they were.

    Args:
        config: All settings; `model` names the user's file.
        model: The network.
        images: A batch of inputs.
        data: The data set.

    Raises:
        SpikewireError: If the code of the network raises, or its output does not fit the data.
    """
    path = named_path(config.model)
    assert path is not None
    few = images[:, :2] if data.temporal else images[:2]
    devices = [images.device] if images.is_cuda else []
    with (
        errors_of_file("model", path),
        torch.no_grad(),
        torch.random.fork_rng(devices),
        preserve_state(model),
        autocast(config, images.device),
    ):
        shape = tuple(forward_of(model)(few).shape)
    samples, classes = few.shape[int(data.temporal)], len(data.classes)
    allowed = f"[time, {samples}, {classes}] or [{samples}, {classes}] for {samples} samples"
    check(shape[1:] == (samples, classes), "model: shape of its output", shape, allowed)


def errors_of_model(config: Config) -> AbstractContextManager[None]:
    """Let an error in the code of the user's own network be one line; others pass unchanged."""
    path = named_path(config.model) if is_python(config.model) else None
    return nullcontext() if path is None else errors_from_file("model", path)


def _named_model(config: Config, data: AnyDataset) -> Spiking:
    """Return one of spikewire's networks."""
    name = config.model
    if name == "auto":
        name = "recurrent" if data.temporal and len(data.shape) == 1 else "mlp"
    model = models.build(
        name,
        time_steps=config.time_steps,
        readout=config.readout,
        neuron=config.neuron,
        tau=config.tau,
        threshold=config.threshold,
        surrogate=config.surrogate,
        reset=config.reset,
        dropout=config.dropout,
        batchnorm=config.batchnorm,
        input_shape=data.shape,
        classes=len(data.classes),
        hidden=config.hidden,
        width=config.width,
        temporal=data.temporal,
        dale=config.build_method().keeps_signs,
    )
    scaled = config.init == "default" or not models.MODELS[name].own_neurons
    check(scaled, "init", config.init, f"default for {name!r}, which has first weights of its own")
    wanted = (*(model.input_shape or ()), model.classes)
    found = (*data.shape, len(data.classes))
    sizes = [f"{' x '.join(map(str, few))} inputs of {n} classes" for *few, n in (found, wanted)]
    check(wanted == found, "model", name, f"one for {sizes[0]}, not {sizes[1]}")
    return model


def _plastic_model(config: Config, data: AnyDataset) -> Plastic:
    """Return a network with a learning rule of its own; refuse what needs a gradient."""
    name = config.model
    check(not data.temporal, "model", name, "another one for data over time")
    usual = defaults(Config)
    for key in WITHOUT_EFFECT:
        value = getattr(config, key)
        allowed = f"{usual[key]!r}, unused: {name!r} has a learning rule of its own"
        check(value is False or value == usual[key], key, value, allowed)
    check("cutmix" not in config.augment, "augment", config.augment, f"without cutmix for {name!r}")
    return plasticity.build(
        name,
        input_shape=data.shape,
        classes=len(data.classes),
        hidden=config.hidden,
        time_steps=config.time_steps,
        constants=config.plasticity,
    )


def forward_of(model: nn.Module, compiled: bool = False) -> Callable[[Tensor], Tensor]:
    """Return the network as a function from inputs to outputs ``[time, batch, classes]``.

    A network of another library may return (output, state), keep the state of its neurons between
    calls, or return ``[batch, classes]``: one time step.

    Args:
        model: the network.
        compiled: whether to compile it.
    """
    run = torch.compile(model) if compiled else model
    if isinstance(model, Spiking):
        return run

    def forward(inputs: Tensor) -> Tensor:
        reset_neurons_(model)
        output = first_tensor(run(inputs))
        fits = output.ndim in (2, 3)
        shape = tuple(output.shape)
        check(
            fits, "model: shape of its output", shape, "[time, batch, classes] or [batch, classes]"
        )
        return output if output.ndim == 3 else output.unsqueeze(0)

    return forward


def build_optimizer(config: Config, model: nn.Module) -> Optimizer:
    """Return the optimizer over all parameters; a learning rule of the network is its own."""
    if isinstance(model, Plastic):
        return model.optimizer(config.lr)
    parameters, lr, decay = model.parameters(), config.lr, config.weight_decay
    match config.optimizer:
        case "adam":
            return Adam(parameters, lr, weight_decay=decay, fused=True)
        case "adamw":
            return AdamW(parameters, lr, weight_decay=decay, fused=True)
        case "rmsprop":
            return RMSprop(parameters, lr, momentum=config.momentum, weight_decay=decay)
        case _:
            return SGD(parameters, lr, config.momentum, weight_decay=decay, fused=True)


def training_batches(config: Config, data: AnyDataset, device: torch.device) -> Batches:
    """Return shuffled, augmented batches of the training samples."""
    options = {"batch_size": config.batch_size, "augment": config.augment, "seed": config.seed}
    return _batches(config, data, device, "train", **options)


def test_batches(config: Config, data: AnyDataset, device: torch.device) -> Batches:
    """Return the test samples in their order."""
    options = {"batch_size": config.eval_batch_size, "shuffle": False, "drop_last": False}
    return _batches(config, data, device, "test", **options)


def _batches(
    config: Config, data: AnyDataset, device: torch.device, part: str, **options: Any
) -> Batches:
    """Return batches of the training or the test part."""
    options |= {"mean": data.mean, "std": data.std, "temporal": data.temporal}
    options |= {"device": device, "channels_last": config.channels_last}
    if isinstance(data, Dataset):
        images, labels = (getattr(data, f"{part}_{key}") for key in ("images", "labels"))
        return Batches(images, labels, **options)
    options |= {"workers": data.workers, "collate": data.collate, "classes": len(data.classes)}
    return StreamedBatches(getattr(data, part), **options)


def autocast(config: Config, device: torch.device) -> torch.autocast:
    """Return bf16 autocast where the config sets it; losses are computed in fp32 anyway.

    Every weight is used once, so there is nothing to cache; a CUDA graph must not find a cache.
    """
    half = config.precision == "bf16"
    return torch.autocast(device.type, torch.bfloat16, enabled=half, cache_enabled=False)
