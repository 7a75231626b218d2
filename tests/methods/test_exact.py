"""The connectivity at the end of a run is the target, whatever the length of the run."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from spikewire import METHODS
from spikewire.config import Config
from spikewire.data import load
from spikewire.fields import defaults
from spikewire.nn.models import MODELS, build
from spikewire.train.loop import fit

EXACT = ("magnitude", "set", "rigl", "deepr", "lottery", "admm", "budget")
STEERED = ("gradr", "stds", "upr")
RUNS = [  # 66, 264 and 880 steps are 3, 12 and 40 epochs of digits at a batch of 64
    pytest.param(target, steps, marks=[] if (target, steps) in usual else [pytest.mark.slow])
    for usual in [{(0.25, 66), (0.05, 66), (0.01, 66), (0.05, 264), (0.01, 880)}]
    for steps in (66, 264, 880)
    for target in (0.25, 0.05, 0.01)
]
FLOOR = 0.1  # of its even target, for layers that compete

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


def train(method, steps, data, total=None):
    """Train on real digits with a rate that falls to 0; return the masks."""
    images, labels = data
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    pruner = method.attach(model, optimizer, total_steps=total or steps)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps // method.cycles + 1)
    order = torch.Generator().manual_seed(1)
    for _ in range(steps):
        batch = torch.randint(len(images), (64,), generator=order)
        optimizer.zero_grad()
        functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
        schedule.step()
    masks = pruner.finish()
    weights = dict(model.named_parameters())
    assert all(not weights[name][~mask].any() for name, mask in masks.items())
    return list(masks.values())


def least(target, mask):
    return max(1, int(FLOOR * target * mask.numel()))


def meets(name, target, masks):
    """Hold the masks to what is promised."""
    wanted = target * sum(mask.numel() for mask in masks)
    actual = sum(int(mask.sum()) for mask in masks)
    if name == "deepr":  # keeps its connectivity in every layer
        assert all(abs(int(m.sum()) - target * m.numel()) <= 1 for m in masks)
    elif name in EXACT:
        assert abs(actual - wanted) <= 1
    else:
        assert abs(actual - wanted) <= max(2, 0.02 * wanted)
    assert all(int(mask.sum()) >= least(target, mask) for mask in masks)


@pytest.mark.parametrize(("target", "steps"), RUNS)
@pytest.mark.parametrize("name", [*EXACT, *STEERED])
def test_a_run_of_any_length_ends_at_the_target(name, target, steps, digits):
    meets(name, target, train(METHODS[name](connectivity=target), steps, digits))


@pytest.fixture(scope="module")
def mnist(mnist):
    """Real images, 10 steps per epoch."""
    data = mnist
    few = {"train_images": data.train_images[:1280], "train_labels": data.train_labels[:1280]}
    return replace(
        data, **few, test_images=data.test_images[:500], test_labels=data.test_labels[:500]
    )


@pytest.mark.slow
@pytest.mark.parametrize("epochs", [3, 12, 40])
@pytest.mark.parametrize("target", [0.25, 0.05, 0.01])
@pytest.mark.parametrize("name", [*EXACT, *STEERED])
def test_on_mnist_too(name, target, epochs, mnist):
    config = Config(
        dataset="mnist", method=name, epochs=epochs, batch_size=128, time_steps=2, threads=1,
        init="firing", test_every=epochs, options={"connectivity": target},
    )  # fmt: skip
    meets(name, target, list(fit(config, data=mnist).masks.values()))


@pytest.mark.parametrize("steps", [59, 67])
@pytest.mark.parametrize("name", STEERED)
def test_a_run_of_a_few_steps_less_or_more_ends_at_the_target_too(name, steps, digits):
    """A GradScaler skips steps, which do not count; 60 steps were announced."""
    masks = train(METHODS[name](connectivity=0.05), steps, digits, total=60)
    wanted = 0.05 * sum(mask.numel() for mask in masks)
    assert abs(sum(int(mask.sum()) for mask in masks) - wanted) <= 1


@pytest.mark.parametrize("name", [*EXACT, *STEERED])
def test_every_layer_meets_its_own_target_where_one_is_given(name):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    method, targets = METHODS[name](connectivity=0.5), {"[24]": 0.3, "0": 0.1}
    pruner = method.attach(model, optimizer, total_steps=6, targets=targets)
    wiggle(model, optimizer, 6)
    expected = {"0.weight": 0.1, "2.weight": 0.3, "4.weight": 0.3}
    for key, mask in pruner.finish().items():
        assert abs(int(mask.sum()) - expected[key] * mask.numel()) <= 1, key


def wiggle(model, optimizer, steps):
    """Steps along random gradients: no forward pass, so any network will do."""
    generator = torch.Generator().manual_seed(2)
    for _ in range(steps):
        for weight in model.parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.grad = noise.mul_(0.01).to(weight.dtype)
        optimizer.step()


QUICK = ("mnist-mlp", "digits-mlp", "lenet5", "mlp", "recurrent", "lsnn-short", "sew-resnet18")


def shapes(name):
    return pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow])


@pytest.mark.parametrize("network", [shapes(name) for name in MODELS])
@pytest.mark.parametrize("name", METHODS)
def test_no_layer_of_any_network_is_left_without_synapses(name, network):
    torch.manual_seed(0)
    any_size = MODELS[network].input_shape is None
    inputs = 2 if network.startswith("lsnn") else 40  # pixel and cue
    sizes = {"input_shape": (inputs,), "classes": 10} if any_size else {}
    narrow = {"width": 0.0625} if MODELS[network].scalable else {}
    readout = {"readout": "leaky"} if network.startswith("lsnn") else {}
    model = build(network, **sizes, **narrow, **readout)
    takes = "connectivity" in defaults(METHODS[name])
    method = METHODS[name](**({"connectivity": 0.005} if takes else {}))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = method.attach(model, optimizer, total_steps=4)
    wiggle(model, optimizer, 4)
    masks = pruner.finish()
    assert len(masks) >= 2
    for key, mask in masks.items():
        assert mask.any(), key
        if takes and name not in ("set", "rigl", "deepr"):
            assert int(mask.sum()) >= least(0.005, mask), key
    if takes:
        wanted = 0.005 * sum(mask.numel() for mask in masks.values())
        assert abs(sum(int(m.sum()) for m in masks.values()) - wanted) <= max(
            len(masks), 0.02 * wanted
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", [*EXACT, *STEERED])
def test_weights_in_half_precision_meet_the_target_or_say_why_not(name, dtype, recwarn):
    """Many are equal: those at a threshold are pruned together."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(700, 700), nn.Linear(700, 10)).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = METHODS[name](connectivity=0.01).attach(model, optimizer, total_steps=24)
    wiggle(model, optimizer, 24)
    masks = list(pruner.finish().values())
    actual, size = sum(int(mask.sum()) for mask in masks), sum(mask.numel() for mask in masks)
    said = any("at the threshold" in str(warning.message) for warning in recwarn)
    assert said or abs(actual - 0.01 * size) <= 0.02 * 0.01 * size
