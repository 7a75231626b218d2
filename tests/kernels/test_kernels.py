"""Every kernel against its float64 twin, on the GPU where there is one, else interpreted."""

import copy
import logging
import subprocess
import sys
from itertools import product

import pytest
import torch
from torch import Tensor, nn

from spikewire import kernels
from spikewire.errors import SpikewireError
from spikewire.kernels import choice, ops, weights
from spikewire.methods import gradr
from spikewire.nn import fusion as fuse
from spikewire.nn.models import Dropout, Spiking, conv, linear
from spikewire.nn.neurons import IF, LIF, Neuron, lif
from spikewire.pruning import selection as cut

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Relative error allowed in the norm: the arithmetic is float32, results are rounded to the dtype.
DTYPES = {torch.float32: 1e-5, torch.bfloat16: 4e-3, torch.float16: 1e-3}
# On a GPU every new set of constants costs seconds of compilation: there, fewer combinations.
FULL = DEVICE == "cpu"
MARGIN = 1e-4  # closer to the threshold than this, float32 and float64 may decide differently


@pytest.fixture(autouse=True)
def _fused():
    before = kernels.use("triton")
    yield
    kernels.use(before)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(DEVICE, dtype)


def running(channels: int) -> tuple[Tensor, Tensor, float]:
    """Return running statistics to move, and their momentum."""
    return torch.zeros(channels, device=DEVICE), torch.ones(channels, device=DEVICE), 0.1


def far(a: Tensor, b: Tensor) -> float:
    """Return ``|a - b| / |b|``; not a number is infinitely far."""
    a, b = a.double(), b.double()
    error = float((a - b).norm() / b.norm().clamp(min=1e-12))
    return error if error == error else float("inf")


def clear(current: Tensor, neuron: Neuron) -> Tensor:
    """Return which neurons never come near the threshold, for float64 currents ``[time, ...]``."""
    u, near = torch.full_like(current[0], neuron.rest), torch.full_like(current[0], 9.0)
    for x in current:
        m = u + x if neuron.tau is None else u + (x - (u - neuron.rest)) / neuron.tau
        near = torch.minimum(near, (m - neuron.threshold).abs())
        soft = m - (neuron.threshold - neuron.rest)
        after = soft if neuron.reset == "soft" else neuron.rest
        u = torch.where(m >= neuron.threshold, after, m)
    return near > MARGIN


def backward(spikes: Tensor, grad: Tensor, *leaves: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(spikes, leaves, grad.to(spikes.dtype)))


def against_float64(x: Tensor, neuron: Neuron, grad: Tensor | None = None) -> None:
    """Compare spikes and gradient of plain neurons where float32 can decide."""
    x = x.detach().requires_grad_()
    wide = x.detach().double().requires_grad_()
    spikes, truth = neuron(x), neuron(wide)
    assert spikes.dtype == x.dtype
    assert spikes.shape == x.shape
    sure = clear(wide.detach(), neuron)
    assert sure.float().mean() > 0.9
    assert torch.equal((spikes.double() * sure), truth * sure)
    grad = normal(*x.shape, seed=1, dtype=x.dtype) if grad is None else grad
    (got,), (want,) = backward(spikes, grad * sure, x), backward(truth, grad * sure, wide)
    assert got.isfinite().all()
    assert far(got, want) < DTYPES[x.dtype]


ALONG = [(1, torch.bfloat16), (4, torch.float32), (8, torch.bfloat16), (16, torch.float16)]


@pytest.mark.parametrize(
    ("time_steps", "dtype"), list(product([1, 4, 8, 16], DTYPES)) if FULL else ALONG, ids=str
)
def test_neurons_over_time(time_steps, dtype):
    against_float64(normal(time_steps, 3, 397, dtype=dtype) * 2, LIF())


@pytest.mark.parametrize(
    "neuron",
    [
        IF(),
        IF(threshold=0.7, rest=-0.3, surrogate="sigmoid"),
        LIF(tau=3.3, threshold=0.4, rest=-0.5, surrogate="triangle"),
        LIF(tau=1.0),
        LIF(tau=7.5, surrogate="sigmoid"),
        IF(reset="soft"),
        LIF(tau=2.5, threshold=0.8, rest=-0.2, reset="soft", surrogate="sigmoid"),
    ],
    ids=repr,
)
def test_every_neuron_and_surrogate(neuron):
    against_float64(normal(5, 301) * 1.5, neuron)


@pytest.mark.parametrize("dtype", DTYPES)
def test_exact_threshold_hits_fire(dtype):
    halves = (normal(8, 5, 77) * 6).round().clamp(-8, 8).to(dtype) / 2
    x, wide = halves.requires_grad_(), halves.detach().double().requires_grad_()
    hits = (wide[0] == 2).sum()  # m = 2 / tau = 1, the threshold
    spikes, truth = lif(x), lif(wide)
    assert hits > 5
    assert torch.equal(spikes.double(), truth)  # tau = 2: no rounding anywhere
    assert bool(spikes[0][x[0] == 2].all())
    grad = normal(8, 5, 77, seed=1, dtype=dtype)
    assert far(*backward(spikes, grad, x), *backward(truth, grad, wide)) < DTYPES[dtype]


@pytest.mark.filterwarnings("ignore:overflow encountered")  # numpy's, inside the interpreter
@pytest.mark.parametrize("dtype", DTYPES)
def test_huge_currents(dtype):
    x = normal(8, 130).sign().to(dtype) * torch.finfo(dtype).max
    x[:, ::3] = normal(8, 130)[:, ::3].to(dtype) * 2
    against_float64(x, LIF())


@pytest.mark.parametrize(
    "make",
    [
        lambda: normal(4, 1),
        lambda: normal(1, 1) + 3,
        lambda: normal(4, 9, 33).transpose(1, 2),
        lambda: normal(8, 3, 50)[::2, :, ::3],
        lambda: normal(4, 2, 6, 5, 3).movedim(-1, 2),  # channels-last
        lambda: normal(1, 2, 37).expand(6, 2, 37),  # static: nothing to read but the first step
        lambda: normal(33, 4).t(),
    ],
    ids=["one neuron", "one value", "transposed", "sliced", "channels-last", "static", "2-D"],
)
def test_sizes_and_strides(make):
    x = make()
    grad = normal(*reversed(x.shape), seed=3).permute(*reversed(range(x.ndim)))
    against_float64(x * 2, LIF())
    against_float64(x * 2, LIF(), grad)


def test_static_gradient_is_the_sum_over_time():
    x = normal(2, 37).requires_grad_()
    spikes = lif(x.expand(6, 2, 37))
    grad = normal(6, 2, 37, seed=1)
    (static,) = backward(spikes, grad, x)
    full = x.detach().repeat(6, 1, 1).view(6, 2, 37).requires_grad_()
    copied = full.detach().clone().contiguous().requires_grad_()
    assert torch.equal(lif(copied), spikes)
    assert far(static, backward(lif(copied), grad, copied)[0].sum(0)) < 1e-5


def layers(channels: int, pool: bool, training: bool, seed: int = 0) -> list[nn.Module]:
    """Return BatchNorm with random parameters and statistics, neurons and a pool."""
    norm = nn.BatchNorm2d(channels)
    with torch.no_grad():
        norm.weight.copy_(normal(channels, seed=seed) + 1.5)
        norm.bias.copy_(normal(channels, seed=seed + 1) / 2 + 0.5)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        norm.running_mean.copy_(normal(channels, seed=seed + 2))
        norm.running_var.copy_(normal(channels, seed=seed + 3).abs() + 0.5)
    row: list[nn.Module] = [norm.to(DEVICE).train(training), LIF()]
    return [*row, nn.MaxPool2d(2)] if pool else row


def one_by_one(row: list[nn.Module], x: Tensor, time_steps: int) -> tuple[Tensor, Tensor]:
    """Run the layers as torch does; return the output and where it is beyond doubt."""
    norm, neuron, *pool = row
    current = norm(x.flatten(0, 1)).unflatten(0, x.shape[:2]).expand(time_steps, *x.shape[1:])
    assert isinstance(neuron, Neuron)
    spikes, sure = neuron(current), clear(current.detach(), neuron).double()
    for layer in pool:
        spikes = layer(spikes.flatten(0, 1)).unflatten(0, spikes.shape[:2])
        sure = 1 - layer(1 - sure)
    return spikes, sure


def group_against_float64(row: list[nn.Module], x: Tensor, time_steps: int) -> None:
    """Compare spikes, all gradients and running statistics of a group."""
    wide_row = [copy.deepcopy(layer).double() for layer in row]
    x = x.detach().requires_grad_()
    wide = x.detach().double().requires_grad_()
    truth, sure = one_by_one(wide_row, wide, time_steps)
    spikes = fuse.run(tuple(row), x, time_steps)
    assert spikes.dtype == x.dtype
    assert torch.equal(spikes.double() * sure, truth * sure)
    grad = normal(*spikes.shape, seed=9, dtype=x.dtype) * sure
    norm, wide_norm = row[0], wide_row[0]
    got = backward(spikes, grad, x, *norm.parameters())
    want = backward(truth, grad, wide, *wide_norm.parameters())
    for name, a, b in zip(("x", "weight", "bias"), got, want, strict=True):
        assert far(a, b) < (DTYPES[x.dtype] if name == "x" else 2e-5), name
    for (name, a), b in zip(norm.named_buffers(), wide_norm.buffers(), strict=True):
        assert far(a, b) < 1e-5, name


@pytest.mark.parametrize("static", [True, False])
def test_norm_fire_pool_with_a_soft_reset(static):
    row = layers(5, pool=True, training=True)
    row[1] = LIF(tau=2.5, rest=-0.1, reset="soft", surrogate="sigmoid")
    group_against_float64(row, normal(1 if static else 4, 3, 5, 6, 6) * 2, 4)


SETTINGS = [  # dtype, static, pool, training: every pair of values once, at least
    (torch.float32, False, True, True),
    (torch.float32, True, False, False),
    (torch.bfloat16, False, False, True),
    (torch.bfloat16, True, True, False),
    (torch.float16, True, True, True),
    (torch.float16, False, False, False),
]
BOTH = (False, True)


@pytest.mark.parametrize(
    ("dtype", "static", "pool", "training"),
    list(product(DTYPES, BOTH, BOTH, BOTH)) if FULL else SETTINGS,
    ids=str,
)
def test_norm_fire_pool(dtype, static, pool, training):
    x = normal(1 if static else 4, 3, 20, 5, 7, dtype=dtype)
    group_against_float64(layers(20, pool, training), x, 4)


@pytest.mark.parametrize("shape", [(1, 1, 1, 2, 2), (8, 1, 3, 2, 9), (16, 2, 1, 3, 2)], ids=str)
def test_norm_fire_pool_sizes(shape):
    group_against_float64(layers(shape[2], True, True, seed=5), normal(*shape), shape[0])
    group_against_float64(layers(shape[2], False, True, seed=5), normal(*shape), shape[0])


def test_norm_fire_takes_channels_last_and_strided():
    x = normal(4, 2, 10, 12, 6)
    group_against_float64(layers(6, True, True), x.movedim(-1, 2), 4)
    group_against_float64(layers(6, True, True), x.transpose(2, 3).movedim(-1, 2)[:, :, :, ::2], 4)


def test_many_rounds_a_program(monkeypatch):
    """With few programs each one goes through many tiles, the last of them cut off."""
    monkeypatch.setattr(ops, "SUM_PROGRAMS", 3)
    monkeypatch.setattr(ops, "MOMENT_PROGRAMS", 3)
    monkeypatch.setattr(ops, "TILE", 64)
    monkeypatch.setattr(ops, "BACKWARD_TILE", 64)
    group_against_float64(layers(11, False, True), normal(4, 3, 11, 5, 7), 4)


def test_many_channels():
    group_against_float64(layers(300, True, True), normal(2, 1, 300, 4, 4), 2)


def test_current_at_the_threshold_after_norm():
    """A weight of 0 leaves the bias alone as current: 2 meets the threshold, less does not."""
    row = layers(2, False, True)
    with torch.no_grad():
        row[0].weight.zero_()
        row[0].bias.copy_(torch.tensor([2.0, 1.9999]))
    spikes = fuse.run(tuple(row), normal(4, 2, 2, 3, 3), 4)
    assert bool(spikes[:, :, 0].all())
    assert not bool(spikes[0, :, 1].any())


def test_pool_ties_go_to_the_first():
    """All four of a window fire, or none: the gradient goes where torch sends it."""
    row = layers(1, True, False)
    x = torch.zeros(4, 1, 1, 4, 4, device=DEVICE)
    x[..., :2, :] = 30.0
    norm = row[0]
    with torch.no_grad():
        norm.weight.fill_(1.0)
        norm.bias.zero_()
    group_against_float64(row, x, 4)
    x.requires_grad_()
    (grad,) = backward(fuse.run(tuple(row), x, 4), torch.ones(4, 1, 1, 2, 2, device=DEVICE), x)
    assert (grad[0, 0, 0] != 0).tolist() == [
        [i % 2 == 0 and j % 2 == 0 for j in range(4)] for i in range(4)
    ]


@pytest.mark.parametrize(("offset", "scale"), [(0, 1), (1000, 0.1), (-1e4, 3), (0, 1e-6)])
def test_statistics_are_stable(offset, scale):
    x = normal(6, 7, 5, 9) * scale + offset
    x[0, :, 0, 0] = offset + 50 * scale  # an outlier where a shift would be taken from
    mean, variance = ops.statistics(x, *running(7))
    wide = x.double().movedim(1, -1).flatten(0, 2)
    assert far(mean, wide.mean(0)) < 1e-6
    assert far(variance, wide.var(0, correction=0)) < 1e-4


def test_one_value_per_channel_cannot_train():
    with pytest.raises(SpikewireError, match="values per channel: 1"):
        fuse.run(tuple(layers(3, False, True)), normal(1, 1, 3, 1, 1), 4)


def network() -> Spiking:
    """Return a small relative of the CIFAR-10 network, made to fire."""
    row: dict[str, nn.Module] = {}
    for i, inputs in enumerate((3, 8, 8), start=1):
        row |= {f"conv{i}": conv(inputs, 8, 3, 1), f"bn{i}": nn.BatchNorm2d(8), f"lif{i}": LIF()}
        if i != 2:
            row[f"pool{i}"] = nn.MaxPool2d(2)
    row |= {"flatten": nn.Flatten(), "drop1": Dropout(0.0), "fc1": linear(32, 20), "lif4": LIF()}
    torch.manual_seed(0)
    model = Spiking({**row, "vote": nn.AvgPool1d(10)}, time_steps=4)
    for name, parameter in model.named_parameters():
        if name.startswith(("bn", "fc")):
            nn.init.normal_(parameter, 1.0, 0.5)
    return model.to(DEVICE, memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


def train_once(model, images: Tensor, path: str) -> tuple[Tensor, list[Tensor]]:
    kernels.use(path)
    output = model(images)
    return output, backward(output, normal(*output.shape, seed=4), *model.parameters())


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_network_is_the_same_on_both_paths(training, compiled):
    model = network().train(training)
    twin, images = copy.deepcopy(model), normal(3, 3, 8, 8)
    forward = torch.compile(model, fullgraph=True, backend="aot_eager") if compiled else model
    output, grads = train_once(forward, images, "triton")
    expected, truth = train_once(twin, images, "torch")
    assert output.any()
    assert torch.equal(output, expected)
    for (name, _), a, b in zip(model.named_parameters(), grads, truth, strict=True):
        assert b.any(), name
        assert far(a, b) < 1e-4, name
    for (name, a), b in zip(model.named_buffers(), twin.buffers(), strict=True):
        assert far(a, b) < 1e-5, name
    assert model.state_dict().keys() == twin.state_dict().keys()


def test_network_under_autocast():
    model, images = network(), normal(3, 3, 8, 8)
    with torch.autocast(DEVICE, torch.bfloat16):
        output, grads = train_once(model, images, "triton")
    assert output.dtype == torch.bfloat16
    assert all(g.dtype == torch.float32 and g.isfinite().all() and g.any() for g in grads)


def test_double_and_long_runs_take_plain_torch():
    assert not kernels.fusible(normal(4, 3).double(), 4)
    assert not kernels.fusible(normal(17, 3), 17)
    assert not kernels.fusible(normal(0, 3), 16)
    assert kernels.fusible(normal(16, 3), 16)


def test_groups():
    model = network()
    names = {layer: name for name, layer in model.named_children()}
    found = [" ".join(names[x] for x in group) for group in fuse.groups(model)]
    assert found[:4] == ["conv1", "bn1 lif1 pool1", "conv2", "bn2 lif2"]
    assert [len(group) for group in fuse.groups(model, fuse=False)] == [1] * len(model)


def test_a_watched_layer_is_left_alone():
    model, seen = network(), []
    handle = model.lif1.register_forward_hook(lambda _m, _i, out: seen.append(out.shape))
    model(normal(3, 3, 8, 8))
    assert seen == [(4, 3, 8, 8, 8)]
    handle.remove()
    model(normal(3, 3, 8, 8))
    assert len(seen) == 1


@pytest.mark.parametrize(
    "pool", [nn.MaxPool2d(3), nn.MaxPool2d(2, ceil_mode=True), nn.MaxPool2d(2, 1), nn.AvgPool2d(2)]
)
def test_other_pools_stay_outside(pool):
    row = [*layers(3, False, True), pool]
    assert [len(group) for group in fuse.groups(row)] == [2, 1]


@pytest.mark.parametrize(
    "norm", [nn.BatchNorm2d(3, affine=False), nn.BatchNorm2d(3, momentum=None), nn.BatchNorm1d(3)]
)
def test_other_norms_stay_outside(norm):
    assert [len(group) for group in fuse.groups([norm, LIF()])] == [1, 1]


def test_unknown_path():
    with pytest.raises(SpikewireError, match="did you mean 'triton'"):
        kernels.use("tritom")


def test_the_path_is_logged_once(caplog):
    choice._tell.cache_clear()
    with caplog.at_level(logging.INFO, logger="spikewire.kernels"):
        for _ in range(3):
            lif(normal(2, 3))
    assert [x.message for x in caplog.records] == [
        "neurons and updates run as fused Triton kernels (asked for)"
    ]


def on_torch(function, *arguments):
    kernels.use("torch")
    result = function(*arguments)
    kernels.use("triton")
    return result


VALUES = {
    "one": lambda: normal(1),
    "many": lambda: normal(10_007),
    "ties": lambda: (normal(5000) * 2).round(),
    "tiny": lambda: normal(777) * 1e-38,
    "infinite": lambda: torch.cat([normal(9), normal(6) / 0, normal(3) * 0]),
}


@pytest.mark.parametrize("make", VALUES.values(), ids=VALUES)
def test_kth_largest(make):
    values = make()
    for k in {1, values.numel(), values.numel() // 3 + 1}:
        assert cut.kth_largest(values, k) == cut.select(values.cpu(), k).item()


def test_top_k_mask_is_the_same_on_both_paths():
    scores = (normal(37, 50) * 8).round()
    mask = cut.top_k_mask(scores, 700)
    assert mask.sum() == 700
    assert torch.equal(mask, on_torch(cut.top_k_mask, scores, 700))


def test_selection_over_programs_of_several_rounds(monkeypatch):
    monkeypatch.setattr(weights, "PROGRAMS", 2)
    scores = (normal(9_003) * 8).round()
    assert torch.equal(cut.top_k_mask(scores, 4000), on_torch(cut.top_k_mask, scores, 4000))


def test_a_byte_holds_all_that_a_program_counts_in_it():
    tile, rounds = 16, weights.MOST_ROUNDS
    keys = torch.full((tile * weights.UNROLL * rounds,), 0x7F7F7F7F, device=DEVICE)
    counts = torch.zeros(weights.DIGITS, weights.BASE, dtype=torch.int64, device=DEVICE)
    key = {"DIGITS": weights.DIGITS, "BASE": weights.BASE}
    sizes = len(keys), 1, 0, rounds
    weights._count[(1,)](keys.int(), counts, *sizes, TILE=tile, UNROLL=weights.UNROLL, **key)
    assert counts[0].tolist() == [0] * 15 + [len(keys)]
    assert counts[1:].sum() == 0


def weight_and_sign() -> tuple[Tensor, Tensor]:
    """Return a channels-last weight that holds zeros, and signs that are not its own."""
    weight = normal(6, 5, 3, 3).contiguous(memory_format=torch.channels_last)
    weight[:2, :2] = 0.0
    return weight, torch.ones_like(weight).copysign_(normal(6, 5, 3, 3, seed=1))


@pytest.mark.parametrize("mu", [-2302.6, -0.5, 0.0, 0.3, float("-inf")])
def test_drag_has_equal_bits_on_both_paths(mu):
    weight, sign = weight_and_sign()
    twin, version = weight.clone(), weight._version
    gradr.drag_(weight, sign, mu, 3e-5)
    on_torch(gradr.drag_, twin, sign, mu, 3e-5)
    assert torch.equal(weight, twin)
    assert weight._version > version


def test_rectify_has_equal_bits_on_both_paths():
    weight, sign = weight_and_sign()
    weight[3, 3] = torch.nan
    shown = gradr.rectify(weight, sign)
    assert shown.stride() == weight.stride()
    assert torch.equal(shown.nan_to_num(9), on_torch(gradr.rectify, weight, sign).nan_to_num(9))
    assert shown[3, 3].isnan().all()
    place = torch.zeros_like(weight)
    assert gradr.rectify(weight, sign, out=place) is place
    assert torch.equal(place.nan_to_num(9), shown.nan_to_num(9))
    assert place._version > 0


def test_updates_leave_other_layouts_to_torch():
    weight, sign = weight_and_sign()
    assert kernels.same_layout(weight, sign)
    assert not kernels.same_layout(weight, sign.contiguous())
    assert not kernels.same_layout(weight[:, ::2], sign[:, ::2])
    assert not kernels.same_layout(weight.double(), sign.double())


def test_operators_are_registered_whole():
    """Schema, shapes for the compiler, and autograd agree with what runs."""
    x = normal(4, 4, 4, 6).permute(0, 3, 1, 2).requires_grad_()
    mean, variance = (v.detach() for v in ops.statistics(x.detach(), *running(6)))
    norm = (mean, variance, normal(6).requires_grad_(), normal(6).requires_grad_(), 1e-5, True)
    torch.library.opcheck(ops.fire, (x, *norm, 2, False, True, 2.0, 1.0, 0.0, "atan"))
    torch.library.opcheck(ops.statistics, (x.detach(), *running(6)))


def test_without_triton_everything_works():
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch; from spikewire import kernels; from spikewire.nn import models\n"
        "print(models.build('digits-mlp')(torch.rand(2, 1, 8, 8)).shape)\n"
        "kernels.use('triton')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "torch.Size([8, 2, 10])" in done.stdout
    assert done.stderr.strip().endswith("'triton' is not installed; allowed here: auto, torch")
