"""The LSNN layer: a slow transcription of its equations, delays, refractory time, counts."""

import math
import shutil

import pytest
import torch
from refusal import refused

import spikewire
from spikewire.cli import main
from spikewire.config import resolve
from spikewire.nn.adaptive import AdaptiveRecurrent, Dynamics
from spikewire.nn.crossings import Crossings
from spikewire.nn.delays import DelayedLinear
from spikewire.nn.losses import ce_rate
from spikewire.nn.penalty import rate_penalty
from spikewire.nn.recurrent import LastSteps, LeakyIntegrator
from spikewire.nn.sequence import run_layers
from spikewire.runs import RunDir
from spikewire.train.step import prepare


class Spike(torch.autograd.Function):
    """The published spike: a step, and 0.3 max(0, 1 - |s|) for its derivative."""

    @staticmethod
    def forward(ctx, s):
        ctx.save_for_backward(s)
        return (s > 0).to(s)

    @staticmethod
    def backward(ctx, grad):
        (s,) = ctx.saved_tensors
        return grad * 0.3 * max(0.0, 1 - abs(float(s)))


def slow(x, w_in, w_rec, d_in, d_rec, beta, tau, tau_a, base, refractory):
    """The equations, one neuron and one synapse at a time, differentiated by autograd."""
    time, batch, inputs = x.shape
    size = len(beta)
    alpha, rho = math.exp(-1 / tau), math.exp(-1 / tau_a)
    zero = torch.zeros((), dtype=x.dtype)
    rows = []
    for n in range(batch):
        v, b = [zero] * size, [zero] * size
        z = []
        for t in range(time):
            last = z[-1] if z else [zero] * size
            b = [rho * b[j] + (1 - rho) * last[j] for j in range(size)]
            level = [base + beta[j] * b[j] for j in range(size)]
            spikes = []
            for j in range(size):
                blocked = any(old[j].item() for old in z[max(0, t - refractory) : t])
                spikes.append(zero if blocked else Spike.apply((v[j] - level[j]) / level[j]))
            new = []
            for j in range(size):
                current = zero
                for i in range(inputs):
                    if t >= d_in[j][i]:
                        current = current + w_in[j, i] * x[t - d_in[j][i], n, i]
                for i in range(size):
                    source = t - 1 - d_rec[j][i]
                    if i != j and source >= 0:
                        current = current + w_rec[j, i] * z[source][i]
                new.append(alpha * v[j] + (1 - alpha) * current - last[j] * level[j])
            v = new
            z.append(spikes)
        rows.append(torch.stack([torch.stack(step) for step in z]))
    return torch.stack(rows, 1)


@pytest.mark.parametrize("refractory", [0, 3])
@pytest.mark.parametrize("span", [1, 4])
def test_spikes_and_gradients_are_those_of_the_equations(span, refractory):
    torch.manual_seed(span + refractory)
    dynamics = Dynamics(tau=4.0, tau_adaptation=6.0, threshold=0.1, refractory=refractory)
    layer = AdaptiveRecurrent(3, 4, adaptive=2, span=span, dynamics=dynamics).double()
    layer.inputs.weight.data.mul_(2)
    x = (torch.rand(12, 2, 3, dtype=torch.float64) < 0.5).double().requires_grad_()
    found = layer(x)
    assert 0.05 < found.mean() < 0.6
    cost = torch.randn(found.shape, dtype=torch.float64)
    (found * cost).sum().backward()
    weights = [
        w.detach().clone().requires_grad_() for w in (layer.inputs.weight, layer.synapses.weight)
    ]
    own = x.detach().clone().requires_grad_()
    delays = [m.delays.tolist() for m in (layer.inputs, layer.synapses)]
    beta = [0.0, 0.0, 1.8, 1.8]
    expected = slow(own, *weights, *delays, beta, 4.0, 6.0, 0.1, refractory)
    (expected * cost).sum().backward()
    assert torch.equal(found, expected.detach())
    torch.testing.assert_close(x.grad, own.grad)
    for module, weight in zip((layer.inputs, layer.synapses), weights, strict=True):
        torch.testing.assert_close(module.weight.grad, weight.grad)
    assert not layer.synapses.weight.grad.diagonal().any()


def test_step_by_step_gives_the_same_spikes():
    torch.manual_seed(0)
    layer = AdaptiveRecurrent(5, 8, adaptive=3, dynamics=Dynamics(tau_adaptation=30.0))
    x = (torch.rand(40, 3, 5) < 0.3).float()
    spikes = layer(x)
    seen = []
    layer.synapses.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    again = layer(x)
    assert torch.equal(again, spikes)
    assert torch.equal(torch.stack(seen), spikes[:-1])
    assert spikes.sum() > 20
    cost, weights = torch.randn(spikes.shape), [layer.inputs.weight, layer.synapses.weight]
    found = torch.autograd.grad((again * cost).sum(), weights)
    expected = torch.autograd.grad((spikes * cost).sum(), weights)
    assert expected[1].any()
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_a_delay_shifts_the_input():
    layer = DelayedLinear(1, 1, span=4)
    layer.delays.fill_(2)
    layer.weight.data.fill_(3.0)
    x = torch.tensor([1.0, 0, 0, 2, 0]).view(5, 1, 1)
    assert layer(x).flatten().tolist() == [0, 0, 3, 0, 0]


def test_a_neuron_is_silent_for_the_refractory_time():
    layer = AdaptiveRecurrent(1, 1, span=1)
    layer.inputs.weight.data.fill_(1.0)
    spikes = layer(torch.ones(60, 1, 1)).flatten()
    times = spikes.nonzero().flatten()
    assert len(times) > 3
    assert (times.diff() == 6).all()


def test_sources_have_one_sign_and_deep_r_keeps_it():
    torch.manual_seed(0)
    layer = AdaptiveRecurrent(8, 12, inhibitory=0.25)
    signs = [weight.sign() for weight in (layer.inputs.weight, layer.synapses.weight)]
    model = torch.nn.Sequential(layer)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    method = spikewire.DeepR(connectivity=0.3, constraint="global", alpha=0.01)
    pruner = method.attach(model, optimizer, total_steps=30)
    before = pruner.masks()
    for _ in range(30):
        optimizer.zero_grad()
        model((torch.rand(10, 4, 8) < 0.4).float()).sub(0.1).square().sum().backward()
        optimizer.step()
    after = pruner.masks()
    assert any(not torch.equal(after[name], before[name]) for name in before)
    assert sum(int(m.sum()) for m in after.values()) == round(0.3 * (8 * 12 + 12 * 12))
    for weight, sign in zip((layer.inputs.weight, layer.synapses.weight), signs, strict=True):
        assert weight.any()
        assert (weight * sign >= 0).all()


@pytest.mark.parametrize(("method", "dale"), [("deepr", True), ("gradr", True), ("dense", False)])
def test_all_first_weights_of_a_source_have_one_sign_if_the_method_keeps_signs(method, dale):
    training = prepare(resolve("seqdigits-lsnn", flags={"method": method}))
    for layer in (training.model.rec1.inputs, training.model.rec1.synapses, training.model.fc2):
        weight = layer.weight.detach()
        assert bool(((weight >= 0).all(0) | (weight <= 0).all(0)).all()) == dale


def test_the_published_network_starts_with_balanced_signs_per_source():
    # Bellec et al.: of 80 inputs any 19 inhibit, of 220 neurons the first 54, which do not adapt;
    # the readout has the signs of its neurons, and biases of 0
    torch.manual_seed(0)
    shape = {"input_shape": (2,), "classes": 10, "temporal": True}
    model = spikewire.build("lsnn", readout="leaky", dale=True, **shape)
    layers = model.rec1.inputs, model.rec1.synapses, model.fc2
    into, own, out = (layer.weight.detach() for layer in layers)
    inhibitory = []
    for weight in (into, own, out):
        negative = (weight <= 0).all(0)
        assert (weight[:, ~negative] >= 0).all()
        torch.testing.assert_close(weight.sum(1), torch.zeros(len(weight)), atol=1e-4, rtol=0.0)
        inhibitory.append(negative)
    assert int(inhibitory[0].sum()) == 19
    assert inhibitory[0].nonzero().max() > 39, "not only the channels of rising pixels"
    for negative in inhibitory[1:]:
        assert negative.nonzero().flatten().tolist() == list(range(54))
    assert not model.rec1.cell.beta[:54].any()
    assert not own.diagonal().any()
    assert torch.linalg.eigvals(own).abs().max() == pytest.approx(1.0, abs=1e-3)
    assert not model.fc2.bias.any()
    # other weights have the scale of a square matrix of that radius: sqrt(n var) with var the mean
    # of both kinds, 1 - 2/pi of a half normal number, times 3.2 and 3.07 squared for inhibition
    for weight, n, few in ((into, 80, 19), (out, 220, 54)):
        ratio = (n - few) / few
        radius = math.sqrt((1 - 2 / math.pi) * (n - few + few * ratio**2))
        excitation = weight[weight > 0].mean()
        assert float(excitation) == pytest.approx(math.sqrt(2 / math.pi) / radius, rel=0.15)


class Spikes(Spike):
    """The published spike, of many neurons."""

    @staticmethod
    def backward(ctx, grad):
        (s,) = ctx.saved_tensors
        return grad * 0.3 * (1 - s.abs()).clamp(min=0)


def published_spikes(y, cue):
    """The 80 channels of pixels ``[time, batch]`` in 0..1: rises, falls, white, cue."""
    x = torch.zeros(*y.shape, 80, dtype=y.dtype)
    for i, level in enumerate(torch.linspace(0, 1, 40)[:-1]):
        x[:-1, :, i] = ((y[:-1] < level) & (y[1:] >= level)).to(y)
        x[:-1, :, 39 + i] = ((y[:-1] >= level) & (y[1:] < level)).to(y)
    x[..., 78], x[..., 79] = (y == 1).to(y), cue
    return x


def published_loss(x, labels, weights, delays, adaptive, last):
    """Cross-entropy of the readout, and the penalty on rates; currents wait in a buffer."""
    into, own, out, bias = weights
    batch, size = x.shape[1], len(own)
    alpha, rho = math.exp(-1 / 20), math.exp(-1 / 700)
    own = own * (1 - torch.eye(size, dtype=x.dtype))
    beta = torch.tensor([0.0] * (size - adaptive) + [1.8] * adaptive, dtype=x.dtype)
    pairs = zip((into, own), delays, strict=True)
    layers = [torch.stack([w * (d == k) for k in range(10)]) for w, d in pairs]
    v, b, z, y = torch.zeros(4, batch, size, dtype=x.dtype)
    waiting = [torch.zeros_like(v)] * 10
    spikes, logits = [torch.zeros_like(v)] * 5, []
    for now in x:
        sent = now @ layers[0].mT + z @ layers[1].mT
        waiting = [old + new for old, new in zip(waiting, sent, strict=True)]
        b = rho * b + (1 - rho) * z
        level = 0.01 + beta * b
        rested = torch.stack(spikes[-5:]).amax(0) == 0
        fired = Spikes.apply((v - level) / level) * rested
        v = alpha * v + (1 - alpha) * waiting[0] - z * level
        waiting, z = [*waiting[1:], torch.zeros_like(v)], fired
        spikes.append(z)
        y = alpha * y + (1 - alpha) * z
        logits.append(y @ out.T + bias)
    rates = torch.stack(spikes[5:]).mean((0, 1))
    loss = torch.nn.functional.cross_entropy(torch.stack(logits[-last:]).mean(0), labels)
    return loss + 0.1 * (rates - 0.01).square().sum()


def test_training_steps_of_the_preset_are_those_of_the_paper():
    torch.manual_seed(0)
    config = resolve("seqmnist-lsnn", flags={"lr": "1e-2"})  # theirs
    sizes = {"input_shape": (2,), "classes": 10, "hidden": 22}
    model = spikewire.build("lsnn", readout=config.readout, temporal=True, **sizes).double()
    optimizer = torch.optim.Adam(model.parameters(), config.lr)
    pruner = config.build_method().attach(model, optimizer, total_steps=3)
    data = spikewire.data.load("seqdigits")
    images, labels = data.train_images[:12].transpose(0, 1).double(), data.train_labels[:12]
    images = torch.cat([torch.zeros(840 - len(images), 12, 2), images])  # black at first
    x = published_spikes(images[..., 0] / 255, images[..., 1])
    delays = model.rec1.inputs.delays, model.rec1.synapses.delays
    signs = [layer.state["sign"] for layer in pruner.layers]
    theta = [s * layer.weight.detach() for s, layer in zip(signs, pruner.layers, strict=True)]
    mean, var = [torch.zeros_like(t) for t in theta], [torch.zeros_like(t) for t in theta]
    for step in (1, 2, 3):
        weights = [(s * t).requires_grad_() for s, t in zip(signs, theta, strict=True)]
        weights.append(model.fc2.bias.detach().clone().requires_grad_())
        expected = published_loss(x, labels, weights, delays, adaptive=10, last=28)
        grads = torch.autograd.grad(expected, weights)
        optimizer.zero_grad()
        loss = ce_rate(model(images), labels, config.rate_scale) + rate_penalty(model)
        loss.backward()
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(model.fc2.bias.grad, grads[3])
        active = [mask.clone() for mask in pruner.masks().values()]
        optimizer.step()
        replaced = 0
        for i, layer in enumerate(pruner.layers):
            change = signs[i] * grads[i]  # of all theta: moments of dormant ones are updated too
            mean[i] = 0.9 * mean[i] + 0.1 * change
            var[i] = 0.999 * var[i] + 0.001 * change**2
            size = (var[i] / (1 - 0.999**step)).sqrt() + 1e-8
            moved = theta[i] - 1e-2 * (mean[i] / (1 - 0.9**step)) / size - 1e-2 * 1e-2
            theta[i] = moved.where(active[i], 0.0).clamp(min=0)
            torch.testing.assert_close(signs[i] * layer.weight.detach(), theta[i])
            present = layer.state["mask"]
            assert present[theta[i] > 0].all()
            replaced += int((present & (theta[i] == 0)).sum())
        assert replaced > 0
        present = sum(int(mask.sum()) for mask in pruner.masks().values())
        assert present == sum(round(0.12 * t.numel()) for t in theta)


@pytest.mark.parametrize("bias", [True, False])
def test_a_readout_of_the_last_steps_is_the_same_with_the_filter_first(bias):
    torch.manual_seed(0)
    linear = torch.nn.Linear(7, 4, bias=bias).double()
    tail = [linear, LeakyIntegrator(20.0), LastSteps(0.1)]
    x = torch.rand(150, 3, 7, dtype=torch.float64, requires_grad=True)
    expected = tail[2](tail[1](linear(x)))
    found = run_layers(tail, x, 150)
    torch.testing.assert_close(found, expected)
    leaves = [x, *linear.parameters()]
    cost = torch.randn_like(found)
    grads = [torch.autograd.grad((y * cost).sum(), leaves) for y in (found, expected)]
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)
    calls = []
    linear.register_forward_hook(lambda *_: calls.append(1))
    torch.testing.assert_close(run_layers(tail, x, 150), expected)
    assert calls == [1], "a hook sees its layer"


def test_bad_arguments_are_refused():
    refused(lambda: AdaptiveRecurrent(3, 4, adaptive=5), "adaptive", "between 0 and 4")
    refused(lambda: AdaptiveRecurrent(3, 4, span=0), "span", "at least 1")
    refused(lambda: AdaptiveRecurrent(3, 4)(torch.zeros(5, 3)), "[time, batch, 3]")


@pytest.mark.parametrize(
    ("key", "value"),
    [("neuron", "if"), ("tau", 5.0), ("threshold", 2.0), ("surrogate", "rectangle")]
    + [("reset", "soft"), ("dropout", 0.5)],
)
def test_settings_of_other_neurons_are_refused_not_ignored(key, value):
    sizes = {"readout": "leaky", "input_shape": (2,), "classes": 10, "temporal": True}
    refused(lambda: spikewire.build("lsnn-short", **sizes, **{key: value}), key, "unused")


def test_weights_that_fire_are_refused_by_a_network_with_first_weights_of_its_own():
    config = resolve("seqdigits-lsnn", flags={"init": "firing"})
    refused(lambda: prepare(config), "init: 'firing'", "default for 'lsnn-short'")


def test_data_that_are_not_pixel_and_cue_are_refused_before_training():
    sizes = {"readout": "leaky", "input_shape": (12,), "classes": 10, "temporal": True}
    refused(lambda: spikewire.build("lsnn", **sizes), "model: 'lsnn'", "pixel and cue")


@pytest.mark.parametrize("neurons", [5, 8])
def test_a_layer_whose_only_inhibitory_neuron_is_itself_starts_finite(neurons):
    torch.manual_seed(0)
    layer = AdaptiveRecurrent(4, neurons, inhibitory=54 / 220)
    weight = layer.synapses.weight.detach()
    assert weight.isfinite().all()
    assert (weight[1:, :1] <= 0).all()
    torch.testing.assert_close(weight[1:].sum(1), torch.zeros(neurons - 1), atol=1e-5, rtol=0.0)


def test_crossings_mark_what_the_paper_marks():
    pixels = [0, 255, 100, 100, 30, 0, 200]
    x = torch.tensor([[p, float(i > 4)] for i, p in enumerate(pixels)]).view(7, 1, 2)
    found = Crossings(5)(x)[:, 0]
    levels = [0, 0.25, 0.5, 0.75]
    for t, now in enumerate(pixels):
        after = pixels[t + 1] / 255 if t < 6 else None
        y = now / 255
        rise = [float(after is not None and y < level <= after) for level in levels]
        fall = [float(after is not None and y >= level > after) for level in levels]
        assert found[t].tolist() == [*rise, *fall, float(y == 1), float(t > 4)]


@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler on a CPU")
def test_crossings_compile():
    x, encode = torch.randint(256, (20, 3, 2)).float(), Crossings(5)
    assert torch.equal(torch.compile(encode)(x), encode(x))


def test_images_become_sequences_with_a_cue():
    data = spikewire.data.load("seqdigits")
    images = spikewire.data.load("digits").test_images
    assert data.temporal
    assert tuple(data.test_images.shape[1:]) == (68, 2)
    assert torch.equal(data.test_images[:, :64, 0], images.flatten(1))
    assert data.test_images[0, :, 1].tolist() == [0] * 64 + [1] * 4
    assert not data.test_images[:, 64:, 0].any()


@pytest.fixture(scope="module")
def lsnn():
    torch.manual_seed(0)
    shape = {"input_shape": (2,), "classes": 10, "temporal": True, "hidden": 16}
    return spikewire.build("lsnn-short", readout="leaky", **shape)


def test_the_costs_of_the_network_are_counted(lsnn):
    x = spikewire.data.load("seqdigits").test_images[:8].transpose(0, 1).float()
    assert lsnn(x).shape == (2, 8, 10), "the last thirtieth of 68 steps"
    found = spikewire.measure(lsnn, x, time_first=True)
    spikes = lsnn.encode(x)
    own = lsnn.rec1(spikes).detach()
    layers = {layer.name: layer for layer in found.layers}
    assert layers["rec1.inputs.weight"].synops == pytest.approx(float(spikes.sum()) / 8 * 16)
    expected = float(own[:-1].sum(1).sum(0) @ (lsnn.rec1.synapses.weight != 0).sum(0).float()) / 8
    assert layers["rec1.synapses.weight"].synops == pytest.approx(expected)
    assert found.synapses == pytest.approx((32 * 16 + 15 * 16 + 160) / (32 * 16 + 16 * 16 + 160))
    assert found.firing[0].rates.mean() == pytest.approx(float(own.mean()))


@pytest.mark.parametrize("format", ["nir", "packed", "c"])
def test_a_format_names_what_it_cannot_hold(lsnn, tmp_path, format):
    path, spikes = tmp_path / "net", torch.zeros(68, 1, 32)
    refused(lambda: spikewire.export(lsnn, torch.zeros(68, 1, 2), path, format=format), "Crossings")
    layer = torch.nn.Sequential(lsnn.rec1)
    refused(lambda: spikewire.export(layer, spikes, path, format=format), "AdaptiveRecurrent")
    assert not path.exists()


@pytest.mark.parametrize("steps", [8, 140], ids=["step by step", "at once"])
def test_a_leaky_readout_is_named_where_no_format_can_hold_it(tmp_path, steps):
    sizes = {"input_shape": (2,), "classes": 3, "hidden": 4, "temporal": True}
    model, x = spikewire.build("recurrent", readout="leaky", **sizes), torch.rand(steps, 1, 2)
    refused(lambda: spikewire.export(model, x, tmp_path / "net"), "leaky: LeakyIntegrator is a")


def test_it_is_trained_from_the_command_line(tmp_path):
    run = tmp_path / "run"
    words = ["--preset", "seqdigits-lsnn", "--epochs", "4", "--hidden", "40", "--out", str(run)]
    assert main(["train", *words, "--batch-size", "32", "--lr", "2e-2", "--test-every", "4"]) == 0
    rows = RunDir.open(run).history()
    assert rows[-1]["loss"] < 2.25, "log 10 = 2.30 is what a network has that has learned nothing"
    assert rows[-1]["accuracy"] > 0.16
    assert rows[-1]["connectivity"] == pytest.approx(0.12, abs=1e-3)


def test_the_published_network_has_its_published_size():
    model = spikewire.build(
        "lsnn", readout="leaky", input_shape=(2,), classes=10, temporal=True, time_steps=840
    )
    sizes = [m.weight.numel() for m in spikewire.nn.synaptic_layers(model).values()]
    assert sizes == [80 * 220, 220 * 220, 220 * 10]
    assert round(0.12 * sum(sizes)) == 8184
    assert (model.rec1.cell.beta > 0).sum() == 100
    assert model(torch.zeros(840, 1, 2)).shape == (28, 1, 10)
