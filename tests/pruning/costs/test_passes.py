"""Targets in operations per image: images are counted in networks of any layout, however called."""

import warnings

import pytest
import torch
from spikingjelly.activation_based import functional
from spikingjelly.activation_based import layer as sj
from spikingjelly.activation_based import neuron as sj_neuron
from torch import nn
from torch.utils.checkpoint import checkpoint

from spikewire import Budget, measure
from spikewire.nn.layers import Spiking
from spikewire.nn.neurons import IF, LIF

with warnings.catch_warnings():  # what it does when imported is not ours to fix
    warnings.simplefilter("ignore")
    import snntorch

STEPS, TARGET = 10, 500.0


def network(temporal=False):
    torch.manual_seed(0)
    layers = {"fc1": nn.Linear(20, 50, bias=False), "lif1": LIF()}
    layers |= {"fc2": nn.Linear(50, 50, bias=False), "lif2": LIF()}
    layers |= {"fc3": nn.Linear(50, 5, bias=False), "lif3": LIF()}
    model = Spiking(layers, time_steps=STEPS, input_shape=(20,), temporal=temporal)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)
    return model


def train(model, call, steps=60, reset=lambda: None, **attach):
    """Train at a low rate towards `TARGET`; return the final masks."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    pruner = Budget(synops=TARGET).attach(model, optimizer, total_steps=steps, **attach)
    for _ in range(steps):
        reset()
        optimizer.zero_grad()
        call().mean().backward()
        optimizer.step()
    return pruner.finish()


@pytest.mark.parametrize("batch", [4, 10, 40])
def test_a_temporal_network_meets_its_operations_at_every_batch_size(batch):
    model = network(temporal=True)
    x = (torch.rand(STEPS, batch, 20) < 0.3).float()
    masks = train(model, lambda: model(x))
    found = measure(model, x, masks, time_first=True)
    assert found.synops == pytest.approx(TARGET, rel=0.03)


class MultiStep(nn.Module):
    """A SpikingJelly network of multi-step modules; it may repeat a still image itself."""

    def __init__(self, repeat):
        super().__init__()
        torch.manual_seed(0)
        kinds = [(20, 50), (50, 50), (50, 5)]
        layers = [(sj.Linear(*n, bias=False), sj_neuron.IFNode(v_threshold=0.2)) for n in kinds]
        self.layers = nn.Sequential(*(module for pair in layers for module in pair))
        self.repeat = repeat
        functional.set_step_mode(self, "m")

    def forward(self, x):
        return self.layers(x.expand(STEPS, *x.shape) if self.repeat else x)


@pytest.mark.parametrize("repeat", [False, True])
@pytest.mark.parametrize("batch", [4, 10, 32])
def test_a_multi_step_network_of_spikingjelly_counts_images_in_both_layouts(batch, repeat):
    model = MultiStep(repeat)
    still = torch.rand(batch, 20)
    x = still if repeat else still.expand(STEPS, batch, 20)
    masks = train(model, lambda: model(x), reset=lambda: functional.reset_net(model))
    functional.reset_net(model)
    found = measure(model, x, masks, time_first=not repeat)
    assert found.synops == pytest.approx(TARGET, rel=0.03)


def single_step(library):
    """Return a network that runs one time step per call, and how its neurons are reset."""
    torch.manual_seed(0)
    make = {
        "spikingjelly": lambda: sj_neuron.IFNode(v_threshold=0.2),
        "snntorch": lambda: snntorch.Leaky(beta=0.99, threshold=0.2, init_hidden=True),
    }[library]
    pairs = [(nn.Linear(*n, bias=False), make()) for n in [(20, 50), (50, 50), (50, 5)]]
    model = nn.Sequential(*(module for pair in pairs for module in pair))
    if library == "spikingjelly":
        return model, lambda: functional.reset_net(model)
    return model, lambda: [neurons.reset_mem() for neurons in model[1::2]]


class ResetInside(nn.Module):
    """A network whose forward resets its neurons, and then runs all time steps."""

    def __init__(self, library):
        super().__init__()
        self.net, self.reset_all = single_step(library)

    def forward(self, x):
        self.reset_all()
        return sum(self.net(x) for _ in range(STEPS))


@pytest.mark.parametrize("library", ["spikingjelly", "snntorch"])
def test_images_of_micro_batches_add_up_where_the_model_resets_its_neurons_itself(library):
    """When the second one begins, the neurons still have the state of the first."""
    model, x = ResetInside(library), torch.rand(16, 20)
    masks = train(model, lambda: sum(model(part).mean() for part in x.chunk(2)))
    assert measure(model, x, masks).synops == pytest.approx(TARGET, rel=0.03)


@pytest.mark.parametrize("library", ["spikingjelly", "snntorch"])
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_loop_over_time_outside_of_the_model_counts_images_once(library, micro_batches):
    model, reset = single_step(library)
    x = torch.rand(16, 20)

    def call():
        total = torch.zeros(())
        for part in x.chunk(micro_batches):
            reset()
            total = total + sum(model(part) for _ in range(STEPS)).mean()
        return total

    masks = train(model, call, reset=reset)
    reset()
    found = measure(model, x, masks, time_steps=STEPS)
    assert found.synops == pytest.approx(TARGET, rel=0.03)


class Loop(nn.Module):
    """Layers and neurons of spikewire in a module of one's own, for ``[time, batch, inputs]``."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.fc1, self.fc2 = nn.Linear(20, 50, bias=False), nn.Linear(50, 50, bias=False)
        self.one, self.two = IF(threshold=0.1), IF(threshold=0.1)

    def forward(self, x):
        return self.two(self.fc2(self.one(self.fc1(x))))


def test_neurons_show_which_dimension_counts_images_and_lose_their_hooks_again():
    model = Loop()
    x = torch.rand(STEPS, 4, 20)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    pruner = Budget(synops=TARGET).attach(model, optimizer, total_steps=60)
    for _ in range(2):
        model(x).mean().backward()
        optimizer.step()
        assert not model.one._forward_pre_hooks, "hooks would keep neurons from being fused"
    weight = pruner.uses.weight
    assert pruner.memory["activity"][-1] == pytest.approx(4 + 4 * (1 - weight))


def test_a_keyword_argument_is_counted():
    model, x = network(), torch.rand(16, 20)
    masks = train(model, lambda: model(images=x))
    assert measure(model, x, masks).synops == pytest.approx(TARGET, rel=0.03)


class Wrapper(nn.Module):
    """A module around a network, as a LightningModule is."""

    def __init__(self):
        super().__init__()
        self.net = network()

    def forward(self, x):
        return self.net(x)


@pytest.mark.parametrize("inside", [False, True])
def test_a_part_of_the_model_may_be_called_instead_of_the_model(inside):
    model, x = Wrapper(), torch.rand(16, 20)
    masks = train(model, lambda: model.net(x) if inside else model(x))
    assert measure(model, x, masks).synops == pytest.approx(TARGET, rel=0.03)


def test_layers_in_evaluation_mode_are_counted_in_a_pass_of_training():
    """Fine-tuning with a block that is kept in evaluation mode."""
    model, x = network(), torch.rand(16, 20)
    model.fc2.eval()
    masks = train(model, lambda: model(x))
    assert measure(model, x, masks).synops == pytest.approx(TARGET, rel=0.03)


def test_no_hooks_are_left():
    model, x = MultiStep(repeat=True), torch.rand(4, 20)
    train(model, lambda: model(x), reset=lambda: functional.reset_net(model))
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())


class Checkpointed(Loop):
    """A still image at all time steps; the layers behind the first are computed again later."""

    def __init__(self, reentrant):
        super().__init__()
        self.reentrant = reentrant

    def block(self, x):
        return self.two(self.fc2(x))

    def forward(self, x):
        spikes = self.one(self.fc1(x).expand(STEPS, -1, -1))
        if not self.training:
            return self.block(spikes)
        return checkpoint(self.block, spikes, use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [False, True])
def test_layers_that_checkpointing_computes_again_are_counted_once(reentrant):
    model, x = Checkpointed(reentrant), torch.rand(16, 20)
    masks = train(model, lambda: model(x))
    assert measure(model, x, masks).synops == pytest.approx(TARGET, rel=0.03)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # dynamo
@pytest.mark.parametrize("outside", [False, True])
def test_a_compiled_network_meets_its_operations(outside):
    torch._dynamo.reset()
    model, x = network(), torch.rand(16, 20)
    compiled = torch.compile(model, backend="eager")
    masks = train(compiled if outside else model, lambda: compiled(x))
    assert measure(model, x, masks).synops == pytest.approx(TARGET, rel=0.03)


class BatchFirst(nn.Module):
    """Linear layers see ``[batch, time, features]``: rows of time steps, image by image."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.fc1, self.fc2 = nn.Linear(20, 50, bias=False), nn.Linear(50, 50, bias=False)
        self.fc3, self.one, self.two = nn.Linear(50, 5, bias=False), IF(0.1), IF(0.1)

    def forward(self, x):
        current = self.fc1(x).expand(STEPS, -1, -1)
        spikes = self.two(self.fc2(self.one(current).transpose(0, 1)).transpose(0, 1))
        return self.fc3(spikes.transpose(0, 1))


@pytest.mark.parametrize("batch", [64, 128, 256])
def test_time_steps_beside_images_are_counted_evenly(batch):
    """640, 1,280 and 2,560 rows: every 2nd, 5th or 10th would be the same steps of all images."""
    model, x = BatchFirst(), torch.rand(batch, 20)
    masks = train(model, lambda: model(x))
    assert measure(model, x, masks, synapses=False).synops == pytest.approx(TARGET, rel=0.05)


def test_a_run_whose_passes_are_never_counted_says_so_at_its_first_step_and_at_its_end():
    model, x = network().eval(), torch.rand(16, 20)
    with pytest.warns(UserWarning, match="no layer was seen|not met") as caught:
        train(model, lambda: model(x), steps=4)
    first, last = (str(warning.message) for warning in caught)
    assert "no layer was seen in the first step" in first
    assert "in training mode that was counted; the target of 500 synops is not met" in last
