"""The networks: their sizes, the static path, dropout over time, and a start that fires."""

import pytest
import torch
from torch import Tensor, nn

from spikewire.errors import SpikewireError
from spikewire.nn.models import MODELS, Dropout, Spiking, build, scale_to_fire_
from spikewire.nn.neurons import LIF, Neuron, lif

PRUNABLE = {
    "mnist-mlp": 784 * 800 + 800 * 10,
    "cifar10-conv": 3 * 256 * 9 + 5 * 256 * 256 * 9 + 16384 * 2048 + 2048 * 100,
    "digits-mlp": 64 * 256 + 256 * 10,
    "lenet5": 6 * 25 + 6 * 16 * 25 + 400 * 120 + 120 * 84 + 84 * 10,
}
PRUNABLE["cifar10-conv-avg"] = PRUNABLE["cifar10-conv"]
SMALL = sorted(set(MODELS) - {"cifar10-conv", "cifar10-conv-avg"})


def images(model: Spiking, batch: int = 6, seed: int = 0) -> Tensor:
    assert model.input_shape is not None
    return torch.rand(batch, *model.input_shape, generator=torch.Generator().manual_seed(seed))


def firing(model: Spiking, x: Tensor) -> dict[str, float]:
    """Return the firing rate of every neuron layer."""
    rates: dict[str, float] = {}
    hooks = [
        layer.register_forward_hook(
            lambda _m, _i, out, name=name: rates.update({name: out.mean().item()})
        )
        for name, layer in model.named_children()
        if isinstance(layer, Neuron)
    ]
    with torch.no_grad():
        model(x)
    for hook in hooks:
        hook.remove()
    return rates


def test_every_model_is_counted():
    assert set(PRUNABLE) == set(MODELS)
    assert round(PRUNABLE["cifar10-conv"] / 1e6, 1) == 36.7


@pytest.mark.parametrize("name", sorted(MODELS))
def test_counts_and_names(name):
    with torch.device("meta"):
        model = build(name)
    synapses = [m for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    assert sum(m.weight.numel() for m in synapses) == PRUNABLE[name]
    assert all(m.bias is None for m in synapses)
    keys = {key for key in model.state_dict() if not key.startswith("bn")}
    assert keys == {f"{n}.weight" for n, _ in model.named_children() if n[:2] in ("fc", "co")}


def test_cifar10_layers_are_the_papers():
    with torch.device("meta"):
        model = build("cifar10-conv")
    block = lambda *numbers: [f"{kind}{i}" for i in numbers for kind in ("conv", "bn", "lif")]  # noqa: E731
    head = ["flatten", "drop1", "fc1", "lif7", "fc2", "lif8", "vote"]
    expected = [*block(1, 2, 3), "pool1", *block(4, 5, 6), "pool2", *head]
    assert [name for name, _ in model.named_children()] == expected
    assert model.get_submodule("drop1").p == 0.5


@pytest.mark.parametrize("readout", ["spikes", "current"])
@pytest.mark.parametrize("name", SMALL)
def test_output_shape(name, readout):
    torch.manual_seed(0)
    model = build(name, time_steps=3, readout=readout, neuron="if")
    scale_to_fire_(model, images(model))
    out = model(images(model))
    assert out.shape == (3, 6, model.classes)
    assert (torch.unique(out).tolist() == [0, 1]) == (readout == "spikes")
    model.time_steps = 5
    assert model(images(model)).shape == (5, 6, 10)


def test_cifar10_output_shape():
    model = build("cifar10-conv", time_steps=1)
    out = model.eval()(images(model, batch=1))
    assert out.shape == (1, 1, 10)
    assert ((out * 10).round() == out * 10).all()  # ten neurons vote


def static_twin(model: Spiking, x: Tensor) -> Tensor:
    """Feed the repeated image to every layer in every time step."""
    x = x.repeat(model.time_steps, *[1] * x.ndim).contiguous()
    for layer in model:
        x = layer(x) if isinstance(layer, Neuron | Dropout) else torch.stack([layer(s) for s in x])
    return x


@pytest.mark.parametrize("name", SMALL)
def test_static_path_equals_the_repeated_image(name):
    torch.manual_seed(1)
    model = build(name, time_steps=4, readout="current").double()
    x = images(model).double()
    scale_to_fire_(model, x)
    torch.testing.assert_close(model(x), static_twin(model, x), rtol=1e-10, atol=1e-10)
    loss, twin = model(x).square().sum(), static_twin(model, x).square().sum()
    parameters = list(model.parameters())
    for ours, theirs in zip(
        torch.autograd.grad(loss, parameters), torch.autograd.grad(twin, parameters), strict=True
    ):
        assert ours.abs().sum() > 0
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-8)


def test_static_path_with_batchnorm_and_pooling_computes_the_first_layer_once():
    torch.manual_seed(2)
    layers = {
        "conv1": nn.Conv2d(1, 4, 3, padding=1, bias=False),
        "bn1": nn.BatchNorm2d(4),
        "lif1": LIF(),
        "pool1": nn.MaxPool2d(2),
        "flatten": nn.Flatten(),
        "fc1": nn.Linear(64, 3, bias=False),
    }
    model = Spiking(layers, time_steps=5).double().eval()
    seen = []
    for name in ("conv1", "fc1"):
        model.get_submodule(name).register_forward_hook(lambda _m, i, _o: seen.append(len(i[0])))
    x = 4 * torch.rand(3, 1, 8, 8, dtype=torch.float64)
    out = model(x)
    assert seen == [3, 15]
    assert out.abs().sum() > 0
    torch.testing.assert_close(out, static_twin(model, x), rtol=1e-10, atol=1e-10)


def test_two_neurons_by_hand():
    model = Spiking(
        {
            "fc1": nn.Linear(1, 1, bias=False),
            "lif1": LIF(),
            "fc2": nn.Linear(1, 1, bias=False),
            "lif2": LIF(threshold=0.7),
        },
        time_steps=6,
    )
    with torch.no_grad():
        model.get_submodule("fc1").weight.fill_(1.5)
        model.get_submodule("fc2").weight.fill_(1.0)
    # m1 = .75, 1.125 (fires), .75, ...; m2 = 0, .5, .25, .625, .3125, .65625: below .7 throughout
    out = model(torch.ones(1, 1))
    assert lif(torch.full((6,), 1.5)).tolist() == [0, 1, 0, 1, 0, 1]
    assert out.flatten().tolist() == [0, 0, 0, 0, 0, 0]
    model.get_submodule("lif2").threshold = 0.625
    assert model(torch.ones(1, 1)).flatten().tolist() == [0, 0, 0, 1, 0, 0]


def test_dropout_keeps_its_mask_over_time_and_draws_anew():
    torch.manual_seed(0)
    drop, x = Dropout(0.25), torch.ones(4, 50, 40)
    first, second = drop(x), drop(x)
    assert torch.equal(first, first[:1].expand_as(first))
    assert not torch.equal(first, second)
    torch.testing.assert_close(torch.unique(first), torch.tensor([0, 1 / 0.75]))
    assert abs((first == 0).float().mean().item() - 0.25) < 0.05
    assert torch.equal(drop.eval()(x), x)
    assert torch.equal(Dropout(0.0)(x), x)
    torch.manual_seed(0)
    assert torch.equal(drop.train()(x), first)


@pytest.mark.parametrize("name", SMALL)
def test_excite_wakes_every_layer(name):
    torch.manual_seed(0)
    model = build(name)
    x = images(model, batch=32) * (torch.rand(32, *model.input_shape) < 0.2)  # pyright: ignore
    assert min(firing(model, x).values()) == 0
    scale_to_fire_(model, x)
    rates = firing(model, x)
    assert min(rates.values()) > 0.01
    assert max(rates.values()) < 0.9


def test_excite_sets_the_spread_is_deterministic_and_spares_batchnorm():
    def fresh() -> Spiking:
        torch.manual_seed(3)
        return Spiking(
            {
                "conv1": nn.Conv2d(1, 4, 3),
                "bn1": nn.BatchNorm2d(4),
                "lif1": LIF(),
                "flatten": nn.Flatten(),
                "drop1": Dropout(0.5),
                "fc1": nn.Linear(144, 20),
                "lif2": LIF(threshold=0.6, rest=0.1),
                "fc2": nn.Linear(20, 5),
            },
            time_steps=4,
        )

    x = torch.randn(16, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    one, two, untouched = fresh(), fresh().eval(), fresh()
    scale_to_fire_(one, x)
    torch.manual_seed(99)
    scale_to_fire_(two, x)
    changed = {"fc1.weight", "fc1.bias"}
    for key, value in one.state_dict().items():
        assert torch.equal(value, two.state_dict()[key])
        assert torch.equal(value, untouched.state_dict()[key]) == (key not in changed)
    assert one.training
    assert one.get_submodule("drop1").training
    assert not two.get_submodule("bn1").training

    one.get_submodule("drop1").p = 0.0
    currents = []
    one.get_submodule("fc1").register_forward_hook(lambda _m, _i, out: currents.append(out))
    one(x)
    torch.testing.assert_close(currents[0].std(correction=0).item(), 0.5, rtol=1e-4, atol=1e-4)


def test_excite_refuses_black_images():
    with pytest.raises(SpikewireError, match="images: std of the current of fc1: 0.0"):
        scale_to_fire_(build("digits-mlp"), torch.zeros(4, 1, 8, 8))


# Dynamo itself makes an instance of the autograd function.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_a_model_trains_under_compile():
    torch.manual_seed(0)
    model = build("digits-mlp", time_steps=3, dropout=0.2)
    x = images(model)
    scale_to_fire_(model, x)
    compiled = torch.compile(model.eval(), backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), model(x))
    compiled(x).mean().backward()
    assert model.get_submodule("fc1").weight.grad.abs().sum() > 0


def test_options_reach_the_layers():
    model = build("lenet5", tau=3.0, threshold=0.5, surrogate="triangle", dropout=0.1)
    neurons = [m for m in model if isinstance(m, Neuron)]
    assert [(n.tau, n.threshold, n.surrogate) for n in neurons] == [(3.0, 0.5, "triangle")] * 5
    assert model.get_submodule("drop1").p == 0.1
    assert [n for n, _ in build("mnist-mlp", neuron="if").named_children()][2] == "if1"
    assert len(model[:3]) == 3


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("mnist-mpl", {}, "model: unknown 'mnist-mpl'; did you mean 'mnist-mlp'?"),
        ("lenet5", {"readout": "spike"}, "readout: unknown 'spike'; did you mean 'spikes'?"),
        ("lenet5", {"neuron": "lfi"}, "neuron: unknown 'lfi'; did you mean 'lif'?"),
        ("lenet5", {"surrogate": "atam"}, "surrogate: unknown 'atam'; did you mean 'atan'?"),
        ("lenet5", {"time_steps": 0}, "time_steps: 0"),
        ("lenet5", {"dropout": 1.0}, "dropout: 1.0"),
        ("lenet5", {"tau": 0.1}, "tau: 0.1"),
    ],
)
def test_a_wrong_option_is_one_line(name, options, text):
    with pytest.raises(SpikewireError, match=text):
        build(name, **options)


def test_a_wrong_image_is_one_line():
    with pytest.raises(SpikewireError, match=r"images: \(2, 3, 32, 32\) is not allowed"):
        build("lenet5")(torch.zeros(2, 3, 32, 32))
