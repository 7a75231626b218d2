"""Builders of what a config names: device, network, optimizer, batches, autocast."""

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from spikewire import data as datasets
from spikewire.config import Config
from spikewire.data import Batches, Dataset
from spikewire.distributed import ALONE, Ranks
from spikewire.errors import check
from spikewire.nn import models
from spikewire.nn.layers import Spiking


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


def load_data(config: Config, data: Dataset | None = None) -> Dataset:
    """Return the data set as the network sees it; `data` replaces the named one."""
    data = data or datasets.load(config.dataset, config.data_dir or None)
    return data.normalised(config.pixel_mean, config.pixel_std).centred(config.centre)


def build_model(config: Config, data: Dataset, device: torch.device) -> Spiking:
    """Return the network, if it fits the data."""
    model = models.build(
        config.model,
        time_steps=config.time_steps,
        readout=config.readout,
        neuron=config.neuron,
        tau=config.tau,
        threshold=config.threshold,
        surrogate=config.surrogate,
        reset=config.reset,
        dropout=config.dropout,
        batchnorm=config.batchnorm,
    )
    wanted = (*(model.input_shape or ()), model.classes)
    found = (*data.shape, len(data.classes))
    sizes = ["{} x {} x {} images of {} classes".format(*four) for four in (found, wanted)]
    fits = f"one for {sizes[0]}, not {sizes[1]}"
    check(wanted == found, "model", config.model, fits)
    model.to(device)
    if config.channels_last:
        model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    return model


def build_optimizer(config: Config, model: nn.Module) -> Optimizer:
    """Return the optimizer over all parameters."""
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


def training_batches(config: Config, data: Dataset, device: torch.device) -> Batches:
    """Return shuffled, augmented batches of the training images."""
    return Batches(
        data.train_images,
        data.train_labels,
        batch_size=config.batch_size,
        device=device,
        mean=data.mean,
        std=data.std,
        augment=config.augment,
        seed=config.seed,
        channels_last=config.channels_last,
    )


def test_batches(config: Config, data: Dataset, device: torch.device) -> Batches:
    """Return the test images in their order."""
    return Batches(
        data.test_images,
        data.test_labels,
        batch_size=config.eval_batch_size,
        device=device,
        mean=data.mean,
        std=data.std,
        shuffle=False,
        drop_last=False,
        channels_last=config.channels_last,
    )


def autocast(config: Config, device: torch.device) -> torch.autocast:
    """Return bf16 autocast where the config sets it; losses are computed in fp32 anyway.

    Every weight is used once, so there is nothing to cache; a CUDA graph must not find a cache.
    """
    half = config.precision == "bf16"
    return torch.autocast(device.type, torch.bfloat16, enabled=half, cache_enabled=False)
