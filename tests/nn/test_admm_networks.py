"""The networks of Deng et al.: their neuron as published, the random encoding, the sizes."""

from dataclasses import replace

import torch
from refusal import refused

import spikewire
from spikewire.config import resolve
from spikewire.nn.encoding import Bernoulli
from spikewire.nn.initialisation import scale_to_fire_
from spikewire.nn.layers import Spiking
from spikewire.nn.losses import mse_rate
from spikewire.nn.models import build
from spikewire.train.loop import fit

CONSTANTS = {"tau": 1.25, "threshold": 0.5, "surrogate": "rectangle"}


def published(current, decay=0.2, threshold=0.5):
    """Their equations: ``m = decay m (1 - s) + I``, a spike from the threshold on."""
    spikes, m, s = [], torch.zeros_like(current[0]), torch.zeros_like(current[0])
    for now in current:
        m = decay * m * (1 - s) + now
        s = (m >= threshold).to(m.dtype)
        spikes.append(s)
    return torch.stack(spikes)


def test_the_network_is_the_published_one_with_weights_times_1_25():
    torch.manual_seed(0)
    model = build("mnist-admm", time_steps=6, **CONSTANTS).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0)  # at first only few neurons fire
    images = torch.rand(2, 1, 28, 28, dtype=torch.float64)
    found = model(images)
    x = model.encode(images.expand(6, *images.shape))
    assert set(x.unique().tolist()) == {0.0, 1.0}
    for name, pooled in (("conv1", True), ("conv2", True), ("fc1", False), ("fc2", False)):
        layer = model.get_submodule(name)
        x = x.flatten(2) if name == "fc1" else x
        flat = x.flatten(0, 1)
        linear = torch.nn.functional.conv2d if pooled else torch.nn.functional.linear
        options = {"padding": 1} if pooled else {}
        current = linear(flat, layer.weight / 1.25, layer.bias / 1.25, **options)
        x = published(current.unflatten(0, x.shape[:2]))
        assert 0 < x.mean() < 1, "a layer that is silent would prove nothing"
        if pooled:
            x = torch.nn.functional.avg_pool2d(x.flatten(0, 1), 2).unflatten(0, x.shape[:2])
    assert torch.equal(found, x)


def test_the_gradient_of_a_spike_is_one_around_the_threshold():
    lif = build("mnist-admm", **CONSTANTS).lif1
    current = torch.tensor([[-0.1, 0.1, 0.5, 1.1, 1.3]]) * 1.25  # membrane: the numbers themselves
    current.requires_grad_()
    lif(current).sum().backward()
    assert torch.allclose(current.grad * 1.25, torch.tensor([[0.0, 1, 1, 0, 0]]) * 1.0)


def test_the_encoding_has_the_rates_of_the_pixels_and_repeats_in_a_test():
    pixels = torch.tensor([0.0, 0.2, 1.0]).expand(5000, 1, 3)
    encode = Bernoulli()
    assert torch.allclose(encode(pixels).mean((0, 1)), torch.tensor([0, 0.2, 1.0]), atol=0.03)
    assert not torch.equal(encode(pixels), encode(pixels))
    encode.eval()
    state = torch.get_rng_state()
    assert torch.equal(encode(pixels), encode(pixels))
    assert torch.equal(torch.get_rng_state(), state)


def test_the_gradient_passes_the_encoding_unchanged():
    pixels = torch.rand(4, 2, 3).requires_grad_()
    spikes = Bernoulli()(pixels)
    assert set(spikes.unique().tolist()) <= {0.0, 1.0}
    (spikes * 3).sum().backward()
    assert torch.equal(pixels.grad, torch.full_like(pixels, 3.0))


def test_no_format_holds_the_random_encoding_and_the_refusal_names_it(tmp_path):
    model, path = build("mnist-admm", **CONSTANTS), tmp_path / "net"
    refused(lambda: spikewire.export(model, torch.rand(1, 1, 28, 28), path), "encode: Bernoulli is")


def test_fully_connected_neurons_still_learn_after_a_step_of_adam_at_the_rate_of_the_preset():
    # 32,768 inputs, a quarter of which spike: without BatchNorm the step moves a current by several
    # thresholds, and 72 % of the neurons fire always or never, where their gradient is 0
    torch.manual_seed(0)
    layers = dict(build("cifar10-admm", **CONSTANTS).named_children())
    names = list(layers)
    head = Spiking({name: layers[name] for name in names[names.index("drop1") :]}, temporal=True)
    spikes = (torch.rand(2, 16, 2048 * 16) < 0.25).float()
    labels = torch.arange(16) % 10
    scale_to_fire_(head, spikes)
    optimizer = torch.optim.Adam(head.parameters(), resolve("cifar10-admm").lr)
    for _ in range(2):
        optimizer.zero_grad()
        mse_rate(head(spikes), labels).backward()
        learning = head.fc1.weight.grad.any(1).float().mean()
        assert learning > 0.9
        optimizer.step()


def test_it_learns_a_few_images_of_mnist_and_is_pruned(mnist):
    few = replace(
        mnist,
        train_images=mnist.train_images[:600],
        train_labels=mnist.train_labels[:600],
        test_images=mnist.test_images[:300],
        test_labels=mnist.test_labels[:300],
    )
    flags = {"epochs": "5", "time_steps": "4", "batch_size": "20", "lr": "2e-3", "every": "30"}
    result = fit(resolve("mnist-admm", flags=flags | {"connectivity": "0.5"}), data=few)
    assert result.connectivity == 0.5
    assert result.accuracy > 0.5


def test_the_network_of_seven_convolutions_is_the_published_neuron_after_batchnorm():
    torch.manual_seed(0)
    model = build("cifar10-admm", time_steps=3, **CONSTANTS)
    images = torch.rand(2, 3, 32, 32)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm1d | torch.nn.BatchNorm2d):
            module.momentum = 1.0
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
            torch.nn.init.uniform_(module.bias, 0.3, 0.6)
    with torch.no_grad():
        model.train()(images)  # each BatchNorm has the statistics of this batch
        model.fc3.weight.mul_(8)
    model.double().eval()
    found, x = model(images.double()), images.double().expand(3, *images.shape)
    strides = {2: 2, 4: 2, 7: 2}
    for number in range(1, 11):
        layer = model.get_submodule(f"conv{number}" if number < 8 else f"fc{number - 7}")
        x = x.flatten(2) if number == 8 else x
        if number < 8:
            options = {"stride": strides.get(number, 1), "padding": 1}
            current = torch.nn.functional.conv2d(x.flatten(0, 1), layer.weight, **options)
        else:
            current = torch.nn.functional.linear(x.flatten(0, 1), layer.weight)
        if number < 10:
            norm = model.get_submodule(f"bn{number}")
            shape = (1, -1, *[1] * (current.ndim - 2))
            mean, variance, gain, shift = (
                each.view(shape)
                for each in (norm.running_mean, norm.running_var, norm.weight, norm.bias)
            )
            current = gain * (current - mean) / (variance + norm.eps).sqrt() + shift
        x = published(0.8 * current.unflatten(0, x.shape[:2]))
        assert 0 < x.mean() < 1, "a layer that is silent would prove nothing"
    assert torch.equal(found, x.unflatten(2, (10, 10)).mean(3))


def test_the_network_of_seven_convolutions_learns_a_few_images_of_cifar10_and_is_pruned(cifar10):
    few = {f"{part}_{what}": getattr(cifar10, f"{part}_{what}")[:8]
           for part in ("train", "test") for what in ("images", "labels")}  # fmt: skip
    flags = {"epochs": "5", "time_steps": "2", "early_time_steps": "1", "test_every": "5"}
    flags |= {"batch_size": "4", "augment": "none", "precision": "fp32", "every": "2"}
    flags |= {"connectivity": "0.5", "channels_last": "false", "eval_batch_size": "8"}
    result = fit(resolve("cifar10-admm", flags=flags), data=replace(cifar10, **few))
    assert result.connectivity == 0.5
    assert result.history[-1]["loss"] < 0.09, "a network that is silent has 0.1"
