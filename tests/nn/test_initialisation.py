"""Initial weights from which every layer fires."""

import pytest
import torch
from torch import Tensor, nn

from spikewire.errors import SpikewireError
from spikewire.nn.initialisation import scale_to_fire_
from spikewire.nn.layers import Dropout, Spiking
from spikewire.nn.models import build
from spikewire.nn.neurons import LIF, Neuron


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


@pytest.mark.parametrize("name", ["digits-mlp", "lenet5", "mnist-mlp"])
def test_every_silent_layer_fires_afterwards(name):
    torch.manual_seed(0)
    model = build(name)
    assert model.input_shape is not None
    shape = 32, *model.input_shape
    x = torch.rand(shape, generator=torch.Generator().manual_seed(0)) * (torch.rand(shape) < 0.2)
    assert min(firing(model, x).values()) == 0
    scale_to_fire_(model, x)
    rates = firing(model, x)
    assert min(rates.values()) > 0.01
    assert max(rates.values()) < 0.9


def test_it_sets_the_std_is_deterministic_and_leaves_batchnorm_alone():
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


def test_black_images_are_refused():
    with pytest.raises(SpikewireError, match="fc1: gets the same current .*higher connectivity"):
        scale_to_fire_(build("digits-mlp"), torch.zeros(4, 1, 8, 8))


def test_a_network_of_another_library_is_refused():
    model = nn.Sequential(nn.Linear(4, 3))
    with pytest.raises(SpikewireError, match="^model: 'Sequential' .* a network of spikewire"):
        scale_to_fire_(model, torch.rand(2, 4))
