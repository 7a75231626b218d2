"""C files of SpikingJelly's, snnTorch's and Norse's models: the outputs of the runtime."""

import peer_models as peers
import pytest
import torch
from compiled import means_over_time, measure_memory, run_c, run_over_time, runtime_scores

from spikewire.formats.trace import trace_model


@pytest.fixture(autouse=True)
def _compiler(need):
    need("gcc")


def assert_same_images(model, images, folder, **options):
    """fp32 gives the scores of the runtime, int8 almost all classes; return the network."""
    network = trace_model(model.eval(), images, **options)
    scores, memory = run_c(network, images, folder, "fp32")
    expected = runtime_scores(network, images, "fp32")
    assert expected.std() > 0, "silent: nothing is compared"
    torch.testing.assert_close(scores, expected, rtol=1e-5, atol=1e-5)
    rounded, less = run_c(network, images, folder, "int8")
    expected = runtime_scores(network, images, "int8")
    assert (rounded - expected).abs().mean() <= 0.02 * expected.abs().max()
    assert less.flash < memory.flash
    assert less.ram == memory.ram <= measure_memory(folder)[1] <= memory.ram + 256, "aligned"
    return network


def assert_same_frames(model, frames, folder):
    """fp32 gives the scores of the runtime after every time step; return the network."""
    network = trace_model(model, frames)
    expected = means_over_time(network, frames, "fp32")
    assert expected[-1].std() > 0, "silent: nothing is compared"
    scores = run_over_time(network, frames, folder, "fp32")
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-4)
    return network


@pytest.mark.parametrize("kind", peers.NODES)
def test_every_update_and_reset_of_spikingjelly(kind, tmp_path):
    node, options = peers.NODES[kind]
    model = peers.settle_(peers.JellyConv(node, **options))
    assert_same_images(model, 2 * torch.rand(4, 1, 28, 28), tmp_path)


def test_strides_groups_dilation_and_overlapping_pools_on_frames(tmp_path):
    model = peers.settle_(peers.JellyVgg())
    frames = 2 * torch.rand(5, 4, 2, 20, 20)
    network = assert_same_frames(model, frames, tmp_path)
    leaks = {stage.neuron.update for stage in network.stages if stage.neuron}
    assert leaks == {"multiply", "divide then add", "divide"}


@pytest.mark.parametrize("reset", ["subtract", "zero"])
def test_snntorch_tutorial_with_dense_layers(reset, tmp_path):
    model = peers.settle_(peers.SnnTorchDense(reset_mechanism=reset), gain=1.5)
    network = assert_same_images(model, 3 * torch.rand(4, 1, 28, 28), tmp_path)
    assert network.stages[0].neuron.strict


class MeanMembrane(peers.SnnTorchDense):
    def forward(self, x):
        return super().forward(x)[1].sum(0) / self.time_steps


@pytest.mark.parametrize("reset", ["subtract", "zero"])
def test_membrane_potentials_as_output(reset, tmp_path):
    model = peers.settle_(MeanMembrane(reset_mechanism=reset), gain=1.5)
    images = 3 * torch.rand(4, 1, 28, 28)
    network = assert_same_images(model, images, tmp_path)
    assert network.membrane
    with torch.no_grad():
        own = model(images)
    scores, _ = run_c(network, images, tmp_path, "fp32")
    torch.testing.assert_close(scores, own, rtol=1e-4, atol=1e-4)


def test_snntorch_tutorial_with_currents_that_are_pooled(tmp_path):
    model = peers.settle_(peers.SnnTorchConv())
    network = assert_same_images(model, 4 * torch.rand(4, 1, 28, 28), tmp_path)
    assert [stage.current_pool.kind for stage in network.stages[:2]] == ["max", "sum"]


FRAMES = {
    "norse": (peers.NorseFrames, 1.5, 6, (7, 3, 20)),
    "norse, synaptic currents": (peers.norse_sequence, 8.0, 2, (30, 3, 20)),
    "sew resnet": (peers.sew_block, 4.0, 2, (4, 2, 3, 32, 32)),
    "spiking resnet": (peers.spiking_block, 4.0, 2, (4, 2, 3, 16, 16)),
}


@pytest.mark.parametrize("kind", FRAMES)
def test_frames_shortcuts_and_synaptic_currents(kind, tmp_path):
    make, gain, scale, shape = FRAMES[kind]
    model = peers.settle_(make(), gain=gain)
    assert_same_frames(model, scale * torch.rand(shape), tmp_path)


@pytest.mark.parametrize("reset", ["subtract", "zero"])
def test_snntorch_synaptic_currents(reset, tmp_path):
    model = peers.settle_(peers.SnnTorchSynaptic(reset_mechanism=reset), gain=1.5)
    assert_same_images(model, 3 * torch.rand(4, 1, 28, 28), tmp_path)
