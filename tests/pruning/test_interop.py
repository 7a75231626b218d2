"""Networks of SpikingJelly, snnTorch and Norse under our methods."""

import warnings

import pytest
import torch
from torch import Tensor, nn

from spikewire import DeepR, GradR, Method, SpikewireError
from spikewire.data import load

with warnings.catch_warnings():  # what they do when imported is not ours to fix
    warnings.simplefilter("ignore")
    import norse.torch as norse
    import snntorch
    from spikingjelly.activation_based import functional, layer, neuron, surrogate

torch.set_num_threads(1)  # small tensors: threads only cost
TIME_STEPS, STEPS, BATCH = 4, 60, 64


class Jelly(nn.Sequential):
    """Convolution, batch norm and linear, in SpikingJelly's multi-step mode."""

    def __init__(self):
        node = {"surrogate_function": surrogate.ATan(), "detach_reset": True}
        super().__init__(
            layer.Conv2d(1, 16, 3, padding=1, bias=False),
            layer.BatchNorm2d(16),
            neuron.LIFNode(**node),
            layer.MaxPool2d(2),
            layer.Flatten(),
            layer.Linear(256, 10, bias=False),
        )
        functional.set_step_mode(self, "m")

    def forward(self, images: Tensor) -> Tensor:
        functional.reset_net(self)
        return super().forward(images.expand(TIME_STEPS, *images.shape)).mean(0)


class Torch(nn.Module):
    """Linear layers between snnTorch's leaky neurons."""

    def __init__(self):
        super().__init__()
        self.first, self.hidden = nn.Linear(64, 100), snntorch.Leaky(beta=0.8)
        self.second, self.output = nn.Linear(100, 10), snntorch.Leaky(beta=0.8)

    def forward(self, images: Tensor) -> Tensor:
        first, second = self.hidden.init_leaky(), self.output.init_leaky()
        membranes = []
        for _ in range(TIME_STEPS):
            spikes, first = self.hidden(self.first(images.flatten(1)), first)
            spikes, second = self.output(self.second(spikes), second)
            membranes.append(second)
        return torch.stack(membranes).mean(0)


class Norse(nn.Module):
    """Linear layers around a recurrent cell, whose matrices are raw parameters."""

    def __init__(self):
        super().__init__()
        self.first, self.cell = nn.Linear(64, 60), norse.LIFBoxCell(dt=0.005)
        self.recurrent = norse.LIFRecurrentCell(60, 60, dt=0.005)
        self.readout = nn.Linear(120, 10)

    def forward(self, images: Tensor) -> Tensor:
        state, inner, rate = None, None, torch.zeros(())
        for _ in range(2 * TIME_STEPS):
            spikes, state = self.cell(4 * self.first(images.flatten(1)), state)
            echo, inner = self.recurrent(spikes, inner)
            rate = rate + torch.cat([spikes, echo], dim=1) / TIME_STEPS
        return self.readout(rate)


NETS = {"spikingjelly": Jelly, "snntorch": Torch, "norse": Norse}
TARGETS = {
    "spikingjelly": ["0.weight", "5.weight"],
    "snntorch": ["first.weight", "second.weight"],
    "norse": ["first.weight", "readout.weight"],
}
METHODS = {
    "gradr": lambda: GradR(alpha=0.3),
    "deepr": lambda: DeepR(connectivity=0.3, alpha=1e-3),
}


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    """Run anybody's loop; it knows nothing of spikewire."""
    data, losses = load("digits"), []
    images = data.train_images.float() / 255
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        pick = torch.randint(len(images), (BATCH,), generator=generator)
        loss = nn.functional.cross_entropy(model(images[pick]), data.train_labels[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def hooks(optimizer: torch.optim.Optimizer) -> int:
    return len(optimizer._optimizer_step_pre_hooks) + len(optimizer._optimizer_step_post_hooks)


@pytest.mark.filterwarnings("ignore:.*left dense")
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("package", NETS)
def test_three_lines_prune_a_net_of(package, name):
    torch.manual_seed(0)
    model = NETS[package]()
    keys, kinds = list(model.state_dict()), [type(m) for m in model.modules()]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    method: Method = METHODS[name]().attach(model, optimizer, total_steps=STEPS)
    losses = train(model, optimizer, STEPS)
    masks = method.finish()

    assert sum(losses[-10:]) < 0.6 * sum(losses[:10])
    assert list(masks) == TARGETS[package]
    assert 0 < method.connectivity() < 0.6
    for target, mask in masks.items():
        weight = model.get_parameter(target)
        assert not mask.all()
        assert not weight[~mask].any()  # exact zeros
        assert weight[mask].abs().gt(0).float().mean() > 0.9
    assert hooks(optimizer) == 0
    assert list(model.state_dict()) == keys
    assert [type(m) for m in model.modules()] == kinds
    again = NETS[package]()
    again.load_state_dict(model.state_dict())
    images = load("digits").test_images[:32].float() / 255
    with torch.no_grad():
        assert torch.equal(again.eval()(images), model.eval()(images))
    with pytest.warns(UserWarning, match="keep_masks=True"):  # a plain model: it may fill again
        train(model.train(), optimizer, 3)
    weight = model.get_parameter(TARGETS[package][0])
    assert weight[~masks[TARGETS[package][0]]].any()


def test_recurrent_matrices_of_norse_are_named_as_skipped():
    model = Norse()
    optimizer = torch.optim.Adam(model.parameters())
    with pytest.warns(UserWarning, match="LIFRecurrentCell: recurrent.input_weights and 1 more"):
        method = GradR().attach(model, optimizer, total_steps=1)
    assert [(x.name, x.weights) for x in method.skipped] == [
        ("recurrent.input_weights", 3600),
        ("recurrent.recurrent_weights", 3600),
    ]
    method.detach()


def test_recurrent_matrices_of_norse_are_pruned_when_named():
    torch.manual_seed(0)
    model = Norse()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    names = ["recurrent.input_weights", "recurrent.recurrent_weights"]
    method = DeepR(connectivity=0.1).attach(model, optimizer, total_steps=5, targets=names)
    train(model, optimizer, 5)
    masks = method.finish()
    assert list(masks) == names
    assert [int(mask.sum()) for mask in masks.values()] == [360, 360]
    assert {(x.name, x.reason) for x in method.skipped} == {
        ("first.weight", "not in targets"),
        ("readout.weight", "not in targets"),
    }


def test_a_net_of_raw_matrices_alone_names_its_candidates():
    model = norse.LIFRecurrentCell(3, 4)
    optimizer = torch.optim.Adam(model.parameters())
    with pytest.raises(SpikewireError, match="input_weights, recurrent_weights"):
        GradR().attach(model, optimizer, total_steps=1)


def test_every_synaptic_layer_of_spikingjelly_is_found():
    model = nn.Sequential(
        layer.Conv1d(2, 4, 3),
        layer.Conv2d(2, 4, 3),
        layer.Conv3d(2, 4, 3),
        layer.ConvTranspose2d(2, 4, 3),
        layer.Linear(4, 4),
        layer.SeqToANNContainer(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)),
        layer.Conv2d(4, 4, 3, groups=4),  # depthwise: never, unless named
        layer.BatchNorm2d(4),
        neuron.ParametricLIFNode(),
    )
    functional.set_step_mode(model, "m")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(UserWarning, match="depthwise convolution: 6.weight, 36 weights;"):
        method = GradR().attach(model, optimizer, total_steps=1)
    assert list(method.masks()) == [f"{i}.weight" for i in range(5)] + ["5.0.weight"]
    method.detach()
