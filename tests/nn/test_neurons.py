"""The neurons against SpikingJelly, against a slow float64 transcription, and at their edges."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from spikingjelly.activation_based import neuron as peer
from spikingjelly.activation_based import surrogate as peer_surrogate
from torch import Tensor

from spikewire.errors import SpikewireError
from spikewire.nn.neurons import IF, LIF, RESETS, integrate_and_fire, lif, step
from spikewire.nn.surrogates import SURROGATES

PEER_ATAN = 2.0  # SpikingJelly's alpha at which its derivative is 1 / (1 + (pi x)^2)
TAUS = st.floats(1.01, 20.0)
LEAKS = [None, 1.0, 1.7, 2.0]


class HardStep(torch.autograd.Function):
    """A step whose backward is written out here, independent of the library's surrogates."""

    @staticmethod
    def forward(ctx, x, name):
        ctx.save_for_backward(x)
        ctx.name = name
        return (x >= 0).to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        slope = {
            "atan": lambda: 1 / (1 + (math.pi * x) ** 2),
            "sigmoid": lambda: 4 * torch.sigmoid(4 * x) * torch.sigmoid(-4 * x),
            "triangle": lambda: torch.relu(1 - x.abs()),
            "rectangle": lambda: (x.abs() < 0.5).to(x.dtype),
        }[ctx.name]()
        return grad * slope, None


def slow(
    current: Tensor, tau=2.0, threshold=1.0, rest=0.0, surrogate="atan", reset="hard"
) -> Tensor:
    """One Python graph per time step; autograd does the rest."""
    voltage, spikes = torch.full_like(current[0], rest), []
    for now in current:
        drive = now if tau is None else (now - (voltage - rest)) / tau
        membrane = voltage + drive
        spike = HardStep.apply(membrane - threshold, surrogate)
        lower = (
            membrane - (threshold - rest) if reset == "soft" else torch.full_like(membrane, rest)
        )
        voltage = torch.where(spike.detach() > 0, lower, membrane)
        spikes.append(spike)
    return torch.stack(spikes)


def fast(current: Tensor, tau=2.0, **constants) -> Tensor:
    return (
        integrate_and_fire(current, **constants) if tau is None else lif(current, tau, **constants)
    )


def both(function, current: Tensor, upstream: Tensor, **constants) -> tuple[Tensor, Tensor]:
    """Return spikes and the gradient of the current."""
    current = current.detach().clone().requires_grad_()
    spikes = function(current, **constants)
    return spikes.detach(), torch.autograd.grad(spikes, current, upstream)[0]


def draw(seed: int, *shape: int, dtype=torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    current = 2 * torch.randn(shape, generator=generator, dtype=dtype) + 0.5
    return current, torch.randn(shape, generator=generator, dtype=dtype)


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    time=st.integers(1, 9),
    tau=st.none() | TAUS,
    threshold=st.floats(0.1, 3.0),
    rest=st.none() | st.just(0.0) | st.floats(-1.0, 0.05),
)
def test_equals_spikingjelly(seed, time, tau, threshold, rest):
    """SpikingJelly's name of the soft reset is `v_reset` None, which rests at 0."""
    options = {
        "v_threshold": threshold,
        "v_reset": rest,
        "surrogate_function": peer_surrogate.ATan(alpha=PEER_ATAN),
        "detach_reset": True,
        "step_mode": "m",
    }
    node = peer.IFNode(**options) if tau is None else peer.LIFNode(tau=tau, **options)
    current, upstream = draw(seed, time, 3, 7)
    ours = {"reset": "soft"} if rest is None else {"rest": rest}
    spikes, grad = both(fast, current, upstream, tau=tau, threshold=threshold, **ours)
    peer_spikes, peer_grad = both(node, current, upstream)
    assert torch.equal(spikes, peer_spikes)
    torch.testing.assert_close(grad, peer_grad, rtol=1e-5, atol=1e-5)


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    tau=st.none() | TAUS,
    rest=st.sampled_from([0.0, -0.3, 0.2]),
    surrogate=st.sampled_from(sorted(SURROGATES)),
    reset=st.sampled_from(RESETS),
)
def test_equals_the_slow_transcription_in_float64(seed, tau, rest, surrogate, reset):
    current, upstream = draw(seed, 6, 2, 5, dtype=torch.float64)
    constants = {"tau": tau, "threshold": 0.8, "rest": rest}
    constants |= {"surrogate": surrogate, "reset": reset}
    spikes, grad = both(fast, current, upstream, **constants)
    slow_spikes, slow_grad = both(slow, current, upstream, **constants)
    assert spikes.dtype == torch.float64
    assert torch.equal(spikes, slow_spikes)
    torch.testing.assert_close(grad, slow_grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("reset", RESETS)
@pytest.mark.parametrize("surrogate", sorted(SURROGATES))
@pytest.mark.parametrize("tau", LEAKS)
def test_streaming_one_step_at_a_time_equals_all_at_once(tau, surrogate, reset):
    constants = {"tau": tau, "threshold": 0.9, "rest": -0.1}
    constants |= {"surrogate": surrogate, "reset": reset}

    def streamed(current: Tensor, **constants) -> Tensor:
        voltage, spikes = None, []
        for now in current:
            spike, voltage = step(now, voltage, **constants)
            spikes.append(spike)
        return torch.stack(spikes)

    current, upstream = draw(3, 7, 4, 5, dtype=torch.float64)
    spikes, grad = both(fast, current, upstream, **constants)
    step_spikes, step_grad = both(streamed, current, upstream, **constants)
    assert torch.equal(spikes, step_spikes)
    torch.testing.assert_close(grad, step_grad, rtol=1e-12, atol=1e-12)


def test_voltage_trace_by_hand():
    current = torch.tensor([1.0, 1.0, 2.0, 0.0, 3.0]).requires_grad_()
    # m = 0.5, 0.75, 1.375 (fires, back to 0), 0, 1.5 (fires)
    spikes = lif(current)
    assert spikes.tolist() == [0, 0, 1, 0, 1]
    (grad,) = torch.autograd.grad(spikes[2], current)
    peak = 1 / (1 + (math.pi * 0.375) ** 2)
    expected = torch.tensor([peak / 8, peak / 4, peak / 2, 0, 0])
    torch.testing.assert_close(grad, expected)


def test_hitting_the_threshold_exactly_fires():
    assert lif(torch.tensor([2.0])).item() == 1
    assert lif(torch.tensor([math.nextafter(2.0, 0.0)], dtype=torch.float64)).item() == 0
    assert integrate_and_fire(torch.tensor([0.5, 0.5, 0.5])).tolist() == [0, 1, 0]


def test_the_voltage_returns_to_rest():
    spike, voltage = step(torch.tensor([9.0, 0.1]), rest=-0.25)
    assert spike.tolist() == [1, 0]
    torch.testing.assert_close(voltage, torch.tensor([-0.25, -0.2]))


def test_a_soft_reset_keeps_what_is_above_the_threshold():
    """Without leak a current of 3/4 fires three times in four steps, where a hard reset has two."""
    current = torch.full((4,), 0.75)
    assert integrate_and_fire(current, reset="soft").tolist() == [0, 1, 1, 1]
    assert integrate_and_fire(current).tolist() == [0, 1, 0, 1]
    _, voltage = step(torch.tensor([1.75]), tau=None, rest=-0.5, reset="soft")
    assert voltage.item() == -0.25  # -0.5 + 1.75 - (1 + 0.5)


def test_layouts_do_not_matter_and_are_kept():
    current, upstream = draw(5, 4, 2, 3, 6, 5)
    spikes, grad = both(lif, current, upstream)
    last = torch.flatten(current, 0, 1).contiguous(memory_format=torch.channels_last)
    timed = last.unflatten(0, (4, 2)).requires_grad_()
    again = lif(timed)
    assert torch.equal(again, spikes)
    assert again.stride() == timed.stride()
    again.backward(upstream)
    assert torch.equal(timed.grad, grad)  # pyright: ignore
    swapped = current.transpose(0, 2).contiguous().transpose(0, 2)
    sliced = torch.stack([current, -current], -1)[..., 0]
    for view in (swapped, sliced):
        assert not view.is_contiguous()
        assert torch.equal(lif(view), spikes)


@pytest.mark.parametrize("tau", LEAKS)
def test_an_expanded_current_gets_the_summed_gradient(tau):
    still, _ = draw(6, 3, 5, dtype=torch.float64)
    upstream = draw(7, 8, 3, 5, dtype=torch.float64)[1]
    spikes, grad = both(lambda x: fast(x.expand(8, 3, 5), tau), still, upstream)
    copies, full = both(fast, still.repeat(8, 1, 1), upstream, tau=tau)
    assert torch.equal(spikes, copies)
    torch.testing.assert_close(grad, full.sum(0), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rest", [0.0, -0.4])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_integrates_in_float32(dtype, rest):
    current, upstream = draw(8, 8, 3, 11)
    current, upstream = current.to(dtype), upstream.to(dtype)
    spikes, grad = both(lif, current, upstream, tau=3.0, rest=rest)
    wide, wide_grad = both(lif, current.float(), upstream.float(), tau=3.0, rest=rest)
    assert spikes.dtype == grad.dtype == dtype
    assert torch.equal(spikes.float(), wide)
    assert torch.equal(grad, wide_grad.to(dtype))


def test_without_gradients_the_spikes_are_the_same():
    current, _ = draw(9, 5, 4, 4)
    with torch.no_grad():
        quiet = lif(current.requires_grad_())
    assert not quiet.requires_grad
    assert torch.equal(quiet, lif(current))


# Dynamo itself makes an instance of the autograd function.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_compiles_in_one_graph():
    current, upstream = draw(10, 4, 3, 5)
    compiled = torch.compile(LIF(tau=1.5, rest=-0.2), backend="aot_eager", fullgraph=True)
    spikes, grad = both(compiled, current, upstream)
    eager, eager_grad = both(lif, current, upstream, tau=1.5, rest=-0.2)
    assert torch.equal(spikes, eager)
    torch.testing.assert_close(grad, eager_grad)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_networks_of_several_constants_compile_in_one_process():
    """Dynamo makes a float symbolic once it has seen two values of it."""
    current, upstream = draw(10, 4, 3, 5)
    for tau, rest in ((1.5, -0.2), (1.7, -0.3), (1.9, -0.4)):
        compiled = torch.compile(LIF(tau=tau, rest=rest), backend="aot_eager", fullgraph=True)
        spikes, grad = both(compiled, current, upstream)
        eager, eager_grad = both(lif, current, upstream, tau=tau, rest=rest)
        assert torch.equal(spikes, eager)
        torch.testing.assert_close(grad, eager_grad)


def test_modules_keep_no_state_between_calls():
    current, _ = draw(11, 4, 2, 3)
    for module, function in ((LIF(tau=3.0), fast), (IF(threshold=0.7), fast)):
        once = module(current)
        constants = {"tau": module.tau, "threshold": module.threshold}
        assert torch.equal(module(current), once)
        assert torch.equal(function(current, **constants), once)
        assert not module.state_dict()
    assert repr(LIF()) == "LIF(tau=2.0, threshold=1.0, rest=0.0, surrogate='atan')"
    assert repr(IF()) == "IF(threshold=1.0, rest=0.0, surrogate='atan')"
    assert "reset='soft'" in repr(IF(reset="soft"))


@pytest.mark.parametrize(
    ("constants", "text"),
    [
        ({"tau": 0.5}, "tau: 0.5 is not allowed; it must be a finite number of at least 1"),
        ({"tau": math.nan}, "tau: nan"),
        ({"threshold": 0.0}, r"threshold: 0.0 .* above rest \(0.0\)"),
        ({"threshold": 1.0, "rest": 1.5}, "threshold: 1.0"),
        ({"rest": -math.inf}, "rest: -inf"),
        ({"reset": "sof"}, "reset: unknown 'sof'; did you mean 'soft'?"),
        ({"surrogate": "sigmod"}, "surrogate: unknown 'sigmod'; did you mean 'sigmoid'?"),
    ],
)
def test_a_wrong_constant_is_one_line(constants, text):
    for make in (lambda: LIF(**constants), lambda: lif(torch.zeros(2, 1), **constants)):
        with pytest.raises(SpikewireError, match=text) as caught:
            make()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("current", [torch.zeros(()), torch.zeros(0, 3), torch.zeros(2, 3).int()])
def test_a_wrong_current_is_refused(current):
    with pytest.raises(SpikewireError, match="current"):
        lif(current)
