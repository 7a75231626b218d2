"""The connectivity asked for is the one reached, whatever the method, the length and the share."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from spikewire import METHODS
from spikewire.config import Config
from spikewire.data import load
from spikewire.nn.models import MODELS, build
from spikewire.train.loop import fit

EXACT = ("magnitude", "set", "rigl", "deepr", "lottery", "admm", "budget")
STEERED = ("gradr", "stds", "upr")
RUNS = [  # 66, 264 and 880 steps are 3, 12 and 40 epochs of digits at a batch of 64
    pytest.param(share, steps, marks=[] if (share, steps) in usual else [pytest.mark.slow])
    for usual in [{(0.25, 66), (0.05, 66), (0.01, 66), (0.05, 264), (0.01, 880)}]
    for steps in (66, 264, 880)
    for share in (0.25, 0.05, 0.01)
]
FLOOR = 0.1  # of its even share, for layers that compete

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def digits():
    data = load("digits")
    images = data.train_images.flatten(1).float()
    return images / images.max(), data.train_labels.long()


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 20), nn.ReLU(), nn.Linear(20, 10)
    )


def train(method, steps, data):
    """Train on real digits with a rate that falls to 0; return the masks."""
    images, labels = data
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    method.attach(model, optimizer, total_steps=steps)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps // method.rounds + 1)
    order = torch.Generator().manual_seed(1)
    for _ in range(steps):
        batch = torch.randint(len(images), (64,), generator=order)
        optimizer.zero_grad()
        functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
        schedule.step()
    masks = method.finish()
    weights = dict(model.named_parameters())
    assert all(not weights[name][~mask].any() for name, mask in masks.items())
    return list(masks.values())


def least(share, mask):
    return max(1, int(FLOOR * share * mask.numel()))


def meets(name, share, masks):
    """Hold the masks to what is promised."""
    asked = share * sum(mask.numel() for mask in masks)
    reached = sum(int(mask.sum()) for mask in masks)
    if name == "deepr":  # keeps its share in every layer
        assert all(abs(int(m.sum()) - share * m.numel()) <= 1 for m in masks)
    elif name in EXACT:
        assert abs(reached - asked) <= 1
    else:
        assert abs(reached - asked) <= max(2, 0.02 * asked)
    assert all(int(mask.sum()) >= least(share, mask) for mask in masks)


@pytest.mark.parametrize(("share", "steps"), RUNS)
@pytest.mark.parametrize("name", [*EXACT, *STEERED])
def test_a_run_of_any_length_ends_at_the_asked_share(name, share, steps, digits):
    meets(name, share, train(METHODS[name](connectivity=share), steps, digits))


@pytest.fixture(scope="module")
def mnist():
    """Real images, 10 steps an epoch."""
    data = load("mnist")
    few = {"train_images": data.train_images[:1280], "train_labels": data.train_labels[:1280]}
    return replace(
        data, **few, test_images=data.test_images[:500], test_labels=data.test_labels[:500]
    )


@pytest.mark.slow
@pytest.mark.parametrize("epochs", [3, 12, 40])
@pytest.mark.parametrize("share", [0.25, 0.05, 0.01])
@pytest.mark.parametrize("name", [*EXACT, *STEERED])
def test_on_mnist_too(name, share, epochs, mnist):
    config = Config(
        dataset="mnist", method=name, epochs=epochs, batch_size=128, time_steps=2, threads=1,
        init="firing", test_every=epochs, options={"connectivity": share},
    )  # fmt: skip
    meets(name, share, list(fit(config, data=mnist).masks.values()))


@pytest.mark.parametrize("name", [*EXACT, *STEERED])
def test_every_layer_reaches_its_own_share_where_one_is_given(name):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    method = METHODS[name](connectivity=0.5)
    method.attach(model, optimizer, total_steps=6, targets={"[24]": 0.3, "0": 0.1})
    wiggle(model, optimizer, 6)
    shares = {"0.weight": 0.1, "2.weight": 0.3, "4.weight": 0.3}
    for key, mask in method.finish().items():
        assert abs(int(mask.sum()) - shares[key] * mask.numel()) <= 1, key


def wiggle(model, optimizer, steps):
    """Steps along random gradients: no forward pass, so any network will do."""
    generator = torch.Generator().manual_seed(2)
    for _ in range(steps):
        for weight in model.parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.grad = noise.mul_(0.01)
        optimizer.step()


def shapes(name):
    slow = [pytest.mark.slow] if name.startswith("cifar10-conv") else []
    return pytest.param(name, marks=slow)


@pytest.mark.parametrize("network", [shapes(name) for name in MODELS])
@pytest.mark.parametrize("name", METHODS)
def test_no_layer_of_any_network_is_left_without_synapses(name, network):
    torch.manual_seed(0)
    model = build(network)
    takes = "connectivity" in METHODS[name].defaults()
    method = METHODS[name](**({"connectivity": 0.005} if takes else {}))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method.attach(model, optimizer, total_steps=4)
    wiggle(model, optimizer, 4)
    masks = method.finish()
    assert len(masks) >= 2
    for key, mask in masks.items():
        assert mask.any(), key
        if takes and name not in ("set", "rigl", "deepr"):
            assert int(mask.sum()) >= least(0.005, mask), key
    if takes:
        asked = 0.005 * sum(mask.numel() for mask in masks.values())
        assert abs(sum(int(m.sum()) for m in masks.values()) - asked) <= max(
            len(masks), 0.02 * asked
        )
