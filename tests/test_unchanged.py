"""Trained networks do not change, bit for bit, unless someone means them to.

`golden.json` holds hashes of final weights and masks, made with one thread and the torch version
named in it. A change of the mathematics changes them: record the new ones in the same commit, with
``python tests/test_unchanged.py``.
"""

import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from spikewire import METHODS
from spikewire import data as datasets
from spikewire.config import resolve
from spikewire.nn import models
from spikewire.nn.layers import Dropout, conv, linear
from spikewire.train.loop import fit

FILE = Path(__file__).with_name("golden.json")
GOLDEN = json.loads(FILE.read_text())
VERSION = torch.__version__.partition("+")[0]
NARROW = 16

pytestmark = pytest.mark.skipif(
    GOLDEN["torch"] != VERSION, reason=f"hashes are of torch {GOLDEN['torch']}, not {VERSION}"
)


def digest(tensors):
    total = hashlib.sha256()
    for name, x in sorted(tensors.items()):
        total.update(f"{name} {x.dtype} {tuple(x.shape)}".encode())
        total.update(x.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()[:16]


def first(data, train, test):
    return replace(
        data,
        train_images=data.train_images[:train],
        train_labels=data.train_labels[:train],
        test_images=data.test_images[:test],
        test_labels=data.test_labels[:test],
    )


def narrow(neuron, dropout):
    """The paper's CIFAR-10 network with 16 channels instead of 256."""
    layers = {}
    for i in range(1, 7):
        layers[f"conv{i}"] = conv(3 if i == 1 else NARROW, NARROW, 3, padding=1)
        layers[f"bn{i}"] = nn.BatchNorm2d(NARROW)
        layers[f"lif{i}"] = neuron()
        if i % 3 == 0:
            layers[f"pool{i // 3}"] = nn.MaxPool2d(2)
    return layers | {
        "flatten": nn.Flatten(),
        "drop1": Dropout(dropout),
        "fc1": linear(NARROW * 64, 128),
        "lif7": neuron(),
        "fc2": linear(128, 100),
        "lif8": neuron(),
        "vote": nn.AvgPool1d(10),
    }


def digits_run(method):
    flags = {"dataset": "digits", "method": method, "epochs": "3", "lr": "3e-2"}
    own = {"deepr": {"allocation": "uniform"}, "aptn": {"scope": "global"}}  # not the preset's
    return trained(flags | own.get(method, {}))


def mnist_run(method, data):
    flags = {"dataset": "mnist", "method": method, "epochs": "1", "connectivity": "0.05"}
    return trained(flags, first(data, 2000, 500))


def cifar10_run(method, data):
    flags = {"dataset": "cifar10", "method": method, "epochs": "1", "connectivity": "0.05"}
    flags |= {"batch_size": "64", "time_steps": "4", "precision": "fp32"}
    before = models.MODELS["cifar10-conv"]
    models.MODELS["cifar10-conv"] = models.Model(narrow, (3, 32, 32), dropout=0.5)
    try:
        return trained(flags, first(data, 512, 128))
    finally:
        models.MODELS["cifar10-conv"] = before


def trained(flags, data=None):
    result = fit(resolve(flags=flags | {"seed": "0", "threads": "1"}), data=data)
    return {"weights": digest(result.model.state_dict()), "masks": digest(result.masks)}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_ends_with_the_same_bits_on_digits(method):
    assert digits_run(method) == GOLDEN["digits"][method]


@pytest.mark.parametrize("method", GOLDEN["mnist"])
def test_the_mnist_network_ends_with_the_same_bits(method, mnist):
    assert mnist_run(method, mnist) == GOLDEN["mnist"][method]


@pytest.mark.parametrize("method", GOLDEN["cifar10"])
def test_a_narrow_convolutional_network_ends_with_the_same_bits(method, cifar10):
    assert cifar10_run(method, cifar10) == GOLDEN["cifar10"][method]


if __name__ == "__main__":
    found = {
        "torch": VERSION,
        "digits": {method: digits_run(method) for method in METHODS},
        "mnist": {method: mnist_run(method, datasets.load("mnist")) for method in GOLDEN["mnist"]},
        "cifar10": {
            method: cifar10_run(method, datasets.load("cifar10")) for method in GOLDEN["cifar10"]
        },
    }
    FILE.write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(found != GOLDEN)
