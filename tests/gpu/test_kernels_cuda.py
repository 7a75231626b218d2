"""What needs a GPU: real sizes, the compiler's code, graph capture, equal bits.

Every new set of constants costs seconds of compilation, so all tests use few of them.
"""

import copy
import re

import pytest
import torch
from torch import Tensor, nn
from torch._inductor.utils import run_and_get_code
from torch.nn import functional as F

from spikewire import kernels
from spikewire.kernels import ops
from spikewire.nn.fusion import find_groups, run_group
from spikewire.nn.initialisation import scale_to_fire_
from spikewire.nn.layers import Spiking
from spikewire.nn.models import build
from spikewire.nn.neurons import LIF, NeuronConstants
from spikewire.pruning.selection import top_k_mask

pytestmark = pytest.mark.gpu


def network() -> tuple[Spiking, Tensor, Tensor]:
    """Return the paper's network, channels-last and firing, with a batch; dropout is off."""
    torch.manual_seed(0)
    model = build("cifar10-conv", time_steps=4, dropout=0.0).cuda()
    model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    images = torch.randn(16, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)
    scale_to_fire_(model, images)
    return model, images, torch.arange(16, device="cuda") % 10


def loss_of(forward, images: Tensor, labels: Tensor) -> Tensor:
    with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
        output = forward(images)
    return F.cross_entropy(10 * output.float().mean(0), labels)


def relative_error(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


@pytest.mark.parametrize(
    ("dtype", "static", "pool"),
    [
        (torch.bfloat16, False, False),
        (torch.bfloat16, False, True),
        (torch.bfloat16, True, False),
        (torch.float32, False, True),
    ],
)
def test_layer_of_the_real_size(dtype, static, pool):
    torch.manual_seed(1)
    x = torch.randn(1 if static else 4, 8, 32, 32, 256, device="cuda", dtype=dtype).movedim(-1, 2)
    group = [nn.BatchNorm2d(256).cuda(), LIF(), *([nn.MaxPool2d(2)] if pool else [])]
    nn.init.normal_(group[0].weight, 1.5, 0.3)
    wide_group = [copy.deepcopy(layer).double() for layer in group]
    x, wide = x.requires_grad_(), x.detach().double().requires_grad_()
    spikes = run_group(group, x, 4)
    truth = wide_group[0](wide.flatten(0, 1)).unflatten(0, wide.shape[:2])
    truth = wide_group[1](truth.expand(4, *truth.shape[1:]))
    if pool:
        truth = wide_group[2](truth.flatten(0, 1)).unflatten(0, (4, 8))
    assert (spikes != truth).double().mean() < 1e-5  # float32 decides at the threshold itself
    grad = torch.randn_like(spikes)
    got = torch.autograd.grad(spikes, [x, *group[0].parameters()], grad)
    want = torch.autograd.grad(truth, [wide, *wide_group[0].parameters()], grad.double())
    for a, b in zip(got, want, strict=True):
        assert relative_error(a, b) < 5e-3
    for a, b in zip(group[0].buffers(), wide_group[0].buffers(), strict=True):
        assert relative_error(a, b) < 1e-5


def test_more_currents_than_32_bits_can_count():
    x = torch.full((4, 2**29), 1.5, device="cuda", dtype=torch.bfloat16)
    x[:, -1] = 4.0
    spikes = LIF()(x)
    assert spikes[:, 0].tolist() == [0, 1] * 2  # m = 0.75, then 1.125
    assert bool(spikes[:, -1].all())
    assert bool((spikes[-1, :-1] == 1).all())


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("values", ["many", "tied", "equal"])
def test_selection_of_the_real_size_does_not_wait_for_the_device(values):
    """More values than the programs can count in one set of bytes."""
    torch.manual_seed(3)
    scores = torch.randn(150_000_001, device="cuda")
    scores = {"many": scores, "tied": (9 * scores).round(), "equal": torch.ones_like(scores)}[
        values
    ]
    torch.cuda.set_sync_debug_mode("error")
    try:
        mask = top_k_mask(scores, 7_000_000)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    kernels.use("torch")
    assert mask.sum() == 7_000_000
    assert torch.equal(mask, top_k_mask(scores, 7_000_000))


def test_auto_takes_the_kernels():
    model, images, _ = network()
    assert kernels.fusible(images, 4)
    assert sum(len(group) > 1 for group in find_groups(model)) == 6


def test_network_learns_the_same_on_both_paths():
    """Twelve steps of Adam: rounding makes the weights differ, the loss must not."""
    losses = {}
    for path in ("triton", "torch"):
        kernels.use(path)
        model, images, labels = network()
        optimizer = torch.optim.Adam(model.parameters(), 1e-3, fused=True)
        for _ in range(12):
            optimizer.zero_grad()
            loss = loss_of(model, images, labels)
            loss.backward()
            optimizer.step()
        losses[path] = loss.item()
    assert losses["triton"] < 1.5
    assert losses["triton"] == pytest.approx(losses["torch"], abs=0.3)


def test_compiled_network():
    """The same loss and gradients, and no kernel that copies currents to change their layout."""
    model, images, labels = network()
    twin = copy.deepcopy(model)
    compiled = torch.compile(model, fullgraph=True, dynamic=False)

    def step() -> Tensor:
        loss = loss_of(compiled, images, labels)
        loss.backward()
        return loss

    loss, sources = run_and_get_code(step)
    expected = loss_of(twin, images, labels)
    expected.backward()
    assert not re.search(r"fused_\w*statistics", "".join(sources))
    assert loss.item() == pytest.approx(expected.item(), rel=0.05)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert relative_error(model.fc2.weight.grad, twin.fc2.weight.grad) < 0.2


def test_two_runs_are_equal_bit_for_bit():
    torch.manual_seed(2)
    x = torch.randn(4 * 16, 32, 32, 256, device="cuda", dtype=torch.bfloat16).permute(0, 3, 1, 2)
    grad = torch.randn_like(x)
    one = torch.ones(256, device="cuda")
    constants = {"eps": 1e-5, "batch_statistics": True, **NeuronConstants().keywords()}
    constants |= {"time_steps": 4, "static": False, "pool": False}
    runs = []
    for _ in range(2):
        mean, variance = ops.statistics(x, one.clone(), one.clone(), momentum=0.1)
        inputs = x, mean, variance, one, one
        spikes, winners = ops.fire(*inputs, None, None, None, **constants)
        backward = ops.fire_backward(grad, winners, *inputs, None, None, **constants)
        runs.append((mean, variance, spikes, *backward))
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_whole_step_in_a_cuda_graph():
    model, images, labels = network()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, fused=True, capturable=True)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, images, labels)
        loss.backward()
        optimizer.step()
        return loss

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        first = [step().item() for _ in range(3)]
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    tracked = model.bn3.num_batches_tracked.item()
    for _ in range(12):
        graph.replay()
    assert loss.item() < first[0] / 2
    assert model.bn3.num_batches_tracked.item() == tracked + 12
