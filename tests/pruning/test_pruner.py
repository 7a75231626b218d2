"""The hooks, point by point: rates, optimizers, scalers, exceptions, weight decay, state."""

import copy
import dataclasses
import gc
import io
import pickle
import weakref
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.optim import LBFGS, SGD, Adam, AdamW, NAdam, RMSprop
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils._python_dispatch import TorchDispatchMode

from spikewire import Budget, DeepR, Dense, GradR, RigL, SoftDeepR, SpikewireError, apply_masks
from spikewire.fields import defaults, values
from spikewire.methods.gradr import laplace_location
from spikewire.nn.neurons import LIF
from spikewire.pruning import Latent, Pruner, setting
from spikewire.pruning.moments import masked_median


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Use one thread: on tensors this small, several only wait for one another."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def net(seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def backward(model, step):
    generator = torch.Generator().manual_seed(1000 + step)
    model.zero_grad()
    loss = (model(torch.randn(16, 6, generator=generator)) - 1).square().mean()
    loss.backward()


def train(model, *optimizers, steps=1, start=0):
    for step in range(start, start + steps):
        backward(model, step)
        for optimizer in optimizers:
            optimizer.step()


def latents(pruner):
    return {name: state["latent"] for name, state in pruner.state_dict()["layers"].items()}


def same(first, second):
    return list(first) == list(second) and all(torch.equal(first[k], second[k]) for k in first)


def weights(model):
    return {name: value.detach().clone() for name, value in model.named_parameters()}


@dataclass(frozen=True, kw_only=True)
class Recorder(GradR):
    """Grad R that also records, on the pruner, what its hooks are called with."""

    def init(self, pruner):
        super().init(pruner)
        pruner.calls, pruner.rates, pruner.gradients = [], [], []

    def before_step(self, pruner, layers):
        pruner.rates += [float(layer.lr) for layer in layers]
        pruner.gradients += [layer.grad.clone() for layer in layers]
        super().before_step(pruner, layers)

    def after_step(self, pruner, layers):
        pruner.calls.append([layer.name for layer in layers])


# ---------------------------------------------------------------------- rates


def test_the_rate_is_read_live_while_a_scheduler_moves_it():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler = CosineAnnealingLR(optimizer, 5)
    pruner = Recorder(alpha=0.5).attach(model, optimizer, total_steps=5)
    expected = []
    for step in range(5):
        expected += [optimizer.param_groups[0]["lr"]] * 2
        train(model, optimizer, start=step)
        scheduler.step()
    assert pruner.rates == expected
    assert len(set(expected)) == 5


def test_each_layer_reads_the_rate_of_its_own_group():
    model = net()
    groups = [{"params": model[3].parameters(), "lr": 0.3}, {"params": model[0].parameters()}]
    pruner = Recorder(alpha=0.5).attach(model, optimizer := SGD(groups, lr=0.1), total_steps=5)
    train(model, optimizer)
    assert pruner.rates == [0.1, 0.3]


def cosine_run(model, steps):
    optimizer = SGD(model.parameters(), lr=0.2, momentum=0.9)
    scheduler = CosineAnnealingLR(optimizer, steps)
    pruner = GradR(alpha=0.2).attach(model, optimizer, total_steps=steps)
    return optimizer, scheduler, pruner


def run_on(model, parts, start, stop):
    optimizer, scheduler, _ = parts
    for step in range(start, stop):
        train(model, optimizer, start=step)
        scheduler.step()


def test_a_changing_rate_survives_a_resume():
    whole = net()
    parts = cosine_run(whole, 40)
    run_on(whole, parts, 0, 40)
    first = net()
    stopped = cosine_run(first, 40)
    run_on(first, stopped, 0, 15)
    saved = copy.deepcopy([x.state_dict() for x in (first, *stopped)])
    second = net(seed=1)
    resumed = cosine_run(second, 40)
    for part, state in zip((second, *resumed), saved, strict=True):
        part.load_state_dict(state)
    assert resumed[2].layers[0].lr == stopped[0].param_groups[0]["lr"] < 0.2
    run_on(second, resumed, 15, 40)
    assert same(parts[2].masks(), resumed[2].masks())
    assert same(weights(whole), weights(second))
    assert parts[2].connectivity() < 0.9, "the prior has to act for this test"


# ---------------------------------------------------------------------- several optimizers


def split(model, kind=lambda p: SGD(p, lr=0.1, momentum=0.9)):
    return [kind(model[i].parameters()) for i in (0, 1, 3)]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_several_optimizers_in_any_order_equal_one(order):
    one, many = net(), net()
    optimizer, parts = SGD(one.parameters(), lr=0.1, momentum=0.9), split(many)
    single = Recorder(alpha=0.3).attach(one, optimizer, total_steps=9)
    several = Recorder(alpha=0.3).attach(many, *parts, total_steps=9)
    assert not parts[1]._optimizer_step_pre_hooks, "it owns no target"
    train(one, optimizer, steps=9)
    train(many, *(parts[i] for i in order), steps=9)
    assert several.step == single.step == 9
    assert [sorted(names) for names in several.calls] == single.calls
    assert same(weights(one), weights(many))


def test_between_two_optimizers_the_weights_are_projected():
    model = net()
    first, _, last = split(model)
    pruner = GradR(alpha=3.0).attach(model, first, last, total_steps=9)
    for step in range(4):
        backward(model, step)
        first.step()
        assert pruner.step == step
        assert (model[0].weight[~pruner.masks()["0.weight"]] == 0).all()
        last.step()
    assert pruner.connectivity() < 0.9


def test_a_skipped_optimizer_leaves_its_layers_alone_and_the_steps_count():
    model = net()
    first, _, last = split(model)
    pruner = Recorder(alpha=0.3).attach(model, first, last, total_steps=9)
    before = model[3].weight.detach().clone()
    train(model, first, steps=3)
    assert torch.equal(model[3].weight, before)
    train(model, last, first, start=3)
    assert pruner.step == 3  # 1, 2, and 3 together with `last`; the first optimizer began step 4
    pruner.finish()
    assert pruner.step == 4
    assert pruner.calls == [["0.weight"], ["0.weight"], ["0.weight", "3.weight"], ["0.weight"]]


def test_half_a_step_is_saved_and_resumed():
    runs = []
    for resume in (False, True):
        model = net()
        first, _, last = split(model)
        pruner = DeepR(connectivity=0.5, alpha=1.0).attach(model, first, last, total_steps=9)
        train(model, first, last, steps=2)
        backward(model, 2)
        first.step()
        if resume:
            pruner.load_state_dict(copy.deepcopy(pruner.state_dict()))
        last.step()
        assert pruner.step == 3
        runs.append(weights(model))
    assert same(*runs)


# ---------------------------------------------------------------------- GradScaler


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", [GradR, DeepR, SoftDeepR])
def test_a_skipped_step_changes_nothing(kind, fused):
    model = net()
    optimizer = Adam(model.parameters(), lr=0.01, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    pruner = kind().attach(model, optimizer, total_steps=9)

    def step(spoil):
        model.zero_grad()
        scaler.scale((model(torch.ones(4, 6)) - 1).square().mean()).backward()
        if spoil:
            model[3].weight.grad[0, 0] = torch.inf
        scaler.step(optimizer)
        scaler.update()

    step(spoil=False)
    before, saved = weights(model), pruner.state_dict()
    step(spoil=True)
    after = pruner.state_dict()
    assert same(before, weights(model))
    assert all(same(saved["layers"][name], after["layers"][name]) for name in saved["layers"])
    assert torch.equal(saved["generator"], after["generator"])
    assert pruner.step == 1
    step(spoil=False)
    assert pruner.step == 2
    assert not same(before, weights(model))


@pytest.mark.filterwarnings("ignore:gradr")
def test_a_fused_optimizer_under_a_scaler_equals_a_plain_one():
    ends, gradients = [], []
    for fused in (False, True):
        model = net()
        optimizer = Adam(model.parameters(), lr=0.01, weight_decay=0.3, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0, enabled=fused)
        pruner = Recorder(alpha=2.0).attach(model, optimizer, total_steps=20)
        for _ in range(20):
            model.zero_grad()
            scaler.scale((model(torch.eye(6)) - 1).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
        assert pruner.connectivity() < 0.9, "some have to be absent for this test"
        ends.append(latents(pruner))
        gradients.append(pruner.gradients[0])
    assert torch.allclose(*gradients)
    for name in ends[0]:
        assert torch.allclose(ends[0][name], ends[1][name], atol=1e-5)


# ---------------------------------------------------------------------- exceptions and odd steps


class Fragile(SGD):
    """SGD that can fail after it has moved the weights."""

    fails, move = False, True

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups if self.move else ():
            for weight in group["params"]:
                weight.sub_(weight.grad, alpha=group["lr"])
        if self.fails:
            raise MemoryError("in mid-step")


def absent_net():
    """Return a net under Grad R with many absent synapses, whose latents are far below 0."""
    model = net()
    optimizer = Fragile(model.parameters(), lr=0.1)
    pruner = GradR(alpha=0.5).attach(model, optimizer, total_steps=20)
    train(model, optimizer, steps=5)
    assert pruner.connectivity() < 0.8
    return model, optimizer, pruner


def aborted_net():
    model, optimizer, pruner = absent_net()
    optimizer.fails = True
    kept = {name: w for name, w in weights(model).items() if name not in pruner.masks()}
    with pytest.raises(MemoryError):
        train(model, optimizer, start=77)
    assert any((model.get_parameter(k)[~m] != 0).any() for k, m in pruner.masks().items())
    optimizer.fails = False
    model.load_state_dict(kept, strict=False)  # biases are not ours to bring back
    return model, optimizer, pruner


@pytest.mark.parametrize("call", ["state_dict", "finish", "detach"])
def test_after_an_exception_the_next_call_restores_the_projection(call):
    expected, _, twin = absent_net()
    masks = twin.masks()
    model, _, pruner = aborted_net()
    getattr(pruner, call)()
    assert same(weights(model), weights(expected))
    if call != "detach":
        assert same(pruner.masks(), masks)
    assert pruner.step == 5


def test_after_an_exception_the_next_step_continues_as_if_nothing_had_happened():
    expected, optimizer, twin = absent_net()
    train(expected, optimizer, start=5)
    model, optimizer, pruner = aborted_net()
    pruner.state_dict()  # so that the forward pass sees the projection
    train(model, optimizer, start=5)
    assert same(latents(pruner), latents(twin))
    assert same(weights(model), weights(expected))


def test_a_skipped_step_after_an_exception_restores_too():
    expected, _, _ = absent_net()
    model, optimizer, _ = aborted_net()
    optimizer.found_inf = torch.tensor(1.0)  # as a GradScaler tells a fused optimizer
    optimizer.move = False
    optimizer.step()
    assert same(weights(model), weights(expected))


@dataclass(frozen=True, kw_only=True)
class Failing(GradR):
    """Grad R that fails in its own code once."""

    def after_step(self, pruner, layers):
        if pruner.step == 5:
            raise KeyboardInterrupt


def test_an_exception_in_the_method_itself_never_leaves_latents_in_the_weights():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    pruner = Failing(alpha=0.5).attach(model, optimizer, total_steps=20)
    with pytest.raises(KeyboardInterrupt):
        train(model, optimizer, steps=5)
    assert pruner.step == 5
    pruner.state_dict()
    masks = pruner.masks()
    assert pruner.connectivity() < 0.8
    assert all((model.get_parameter(name)[~mask] == 0).all() for name, mask in masks.items())
    train(model, optimizer, start=5)


def test_lbfgs_is_refused():
    model = net()
    with pytest.raises(SpikewireError, match=r"^dense: LBFGS evaluates its closure several times"):
        Dense().attach(model, LBFGS(model.parameters()), total_steps=1)


class Twice(SGD):
    """An optimizer that evaluates its closure before and after it moves."""

    @torch.no_grad()
    def step(self, closure=None):
        if closure is not None:
            closure()
        super().step()
        return closure() if closure is not None else None


@pytest.mark.parametrize("keep", [False, True])
def test_an_optimizer_that_evaluates_the_closure_again_is_refused(keep):
    model = net()
    optimizer = Twice(model.parameters(), lr=0.1)
    pruner = GradR(alpha=0.5).attach(model, optimizer, total_steps=1)
    if keep:
        pruner.finish(keep_masks=True)
    with pytest.raises(SpikewireError, match=r"Twice evaluates the closure more than once"):
        optimizer.step(lambda: backward(model, 0))


def test_a_closure_runs_once_per_step_with_gradients_on_and_returns_its_loss():
    model, calls = net(), []
    optimizer = SGD(model.parameters(), lr=0.1)
    pruner = GradR(alpha=0.5).attach(model, optimizer, total_steps=9)

    def closure():
        calls.append(
            all((model.get_parameter(k)[~m] == 0).all() for k, m in pruner.masks().items())
        )
        backward(model, len(calls))
        return torch.tensor(7.0)

    with torch.no_grad():
        losses = [optimizer.step(closure) for _ in range(6)]
    assert calls == [True] * 6, "once per step, on weights as the network sees them"
    assert losses == [7.0] * 6
    assert pruner.connectivity() < 0.8


def test_an_exception_in_a_closure_changes_nothing():
    model, _, pruner = absent_net()
    before = weights(model)

    def closure():
        raise MemoryError

    with pytest.raises(MemoryError):
        pruner.optimizers[0].step(closure)
    assert same(weights(model), before)
    assert pruner.step == 5


def test_a_closure_under_kept_masks_keeps_moments_of_absent_synapses_at_0():
    model = net()
    optimizer = Adam(model.parameters(), lr=0.01)
    pruner = DeepR(connectivity=0.3).attach(model, optimizer, total_steps=1)
    masks = pruner.finish(keep_masks=True)
    optimizer.state.clear()
    for step in range(3):
        optimizer.step(lambda step=step: backward(model, step))
    for name, mask in masks.items():
        assert (optimizer.state[model.get_parameter(name)]["exp_avg_sq"][~mask] == 0).all()


class Outer(Adam):
    """An optimizer whose step() calls its parent's: torch then runs every hook twice."""

    def step(self, closure=None):
        return super().step(closure)


def test_a_closure_of_a_step_around_its_parents_step_runs_once():
    plain, model, calls = net(), net(), []
    optimizers = [Adam(plain.parameters(), lr=0.01), Outer(model.parameters(), lr=0.01)]
    for network, optimizer in zip((plain, model), optimizers, strict=True):
        GradR(alpha=0.3).attach(network, optimizer, total_steps=9)
    train(plain, optimizers[0], steps=5)
    for step in range(5):
        optimizers[1].step(lambda step=step: calls.append(backward(model, step)))
    assert len(calls) == 5
    assert same(weights(plain), weights(model))


def test_a_step_around_its_parents_step_counts_once():
    expected, model = net(), net()
    plain = Recorder(alpha=0.3).attach(
        expected, optimizer := Adam(expected.parameters(), lr=0.01), total_steps=9
    )
    train(expected, optimizer, steps=9)
    nested = Recorder(alpha=0.3).attach(
        model, optimizer := Outer(model.parameters(), lr=0.01), total_steps=9
    )
    train(model, optimizer, steps=9)
    assert nested.step == 9
    assert nested.calls == plain.calls
    assert same(weights(expected), weights(model))


def test_a_layer_without_a_gradient_skips_the_step():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    pruner = Recorder(alpha=0.3).attach(model, optimizer, total_steps=9)
    before = latents(pruner)
    backward(model, 0)
    model[3].weight.grad = None
    optimizer.step()
    assert pruner.calls == [["0.weight"]]
    assert torch.equal(latents(pruner)["3.weight"], before["3.weight"])
    assert not torch.equal(latents(pruner)["0.weight"], before["0.weight"])


def test_the_gradient_of_an_absent_synapse_reaches_neither_weight_nor_moments():
    model = net()
    optimizer = Adam(model.parameters(), lr=0.01)
    pruner = DeepR(connectivity=0.5).attach(model, optimizer, total_steps=9)
    weight, mask = model[0].weight, pruner.masks()["0.weight"]
    backward(model, 0)
    weight.grad[~mask] = torch.inf
    optimizer.step()
    assert weight.isfinite().all()
    moments = optimizer.state[weight]
    still = ~mask & ~pruner.masks()["0.weight"]
    assert (moments["exp_avg"][still] == 0).all()
    assert (moments["exp_avg_sq"][still] == 0).all()
    assert (moments["exp_avg"][mask] != 0).any()


# ---------------------------------------------------------------------- weight decay

DECAYING = {
    "sgd": lambda p, d: SGD(p, lr=0.1, weight_decay=d),
    "momentum": lambda p, d: SGD(p, lr=0.1, momentum=0.9, weight_decay=d),
    "maximize": lambda p, d: SGD(p, lr=0.1, weight_decay=d, maximize=True),
    "adam": lambda p, d: Adam(p, lr=0.05, weight_decay=d),
    "adam-maximize": lambda p, d: Adam(p, lr=0.05, weight_decay=d, maximize=True),
    "adamw": lambda p, d: AdamW(p, lr=0.05, weight_decay=d),
    "adamw-maximize": lambda p, d: AdamW(p, lr=0.05, weight_decay=d, maximize=True),
    "nadam": lambda p, d: NAdam(p, lr=0.05, weight_decay=d),
    "nadam-decoupled": lambda p, d: NAdam(p, lr=0.05, weight_decay=d, decoupled_weight_decay=True),
    "rmsprop": lambda p, d: RMSprop(p, lr=0.05, weight_decay=d),
}
DECAY, ALPHA, PRESENT = 0.5, 0.1, torch.tensor([[True, False], [True, False]])


def oracle(kind, decay, start, gradients):
    """Move theta by the prior and a bare torch optimizer."""
    latent, sign = nn.Parameter(start.clone()), torch.tensor([[1.0, 1.0], [-1.0, -1.0]])
    optimizer = kind([latent], decay)
    mu = laplace_location(0.95, ALPHA)
    for gradient in gradients:
        with torch.no_grad():
            rate = optimizer.param_groups[0]["lr"]
            latent -= rate * ALPHA * sign * torch.sign(latent * sign - mu)
        latent.grad = gradient.clone()
        optimizer.step()
    return latent.detach()


@pytest.mark.parametrize("name", DECAYING)
def test_weight_decay_acts_on_present_synapses_only(name):
    kind = DECAYING[name]
    model = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[2.0, 3.0], [-4.0, -5.0]]))
    optimizer = kind(model.parameters(), DECAY)
    with pytest.warns(UserWarning, match="gradr: weight decay is on for weight"):
        pruner = GradR(alpha=ALPHA).attach(model, optimizer, total_steps=9)
    state = pruner.state_dict()
    start = torch.tensor([[2.0, -3.0], [-4.0, 5.0]])  # the second column is absent
    state["layers"]["weight"]["latent"] = start
    pruner.load_state_dict(state)
    gradients = torch.randn(4, 2, 2, generator=torch.Generator().manual_seed(1)) * 0.1
    for gradient in gradients:
        model.weight.grad = gradient.clone()
        optimizer.step()
        assert torch.equal(pruner.masks()["weight"], PRESENT)
    decayed, spared = (oracle(kind, decay, start, gradients) for decay in (DECAY, 0.0))
    assert torch.allclose(
        latents(pruner)["weight"], torch.where(PRESENT, decayed, spared), atol=2e-6
    )
    assert (decayed - spared).abs().min() > 1e-3, "decay has to matter for this test"


@pytest.mark.parametrize("name", DECAYING)
def test_dense_is_the_bare_optimizer_bit_for_bit(name):
    bare, managed = net(), net()
    optimizers = [DECAYING[name](model.parameters(), 0.1) for model in (bare, managed)]
    Dense().attach(managed, optimizers[1], total_steps=9)
    train(bare, optimizers[0], steps=5)
    train(managed, optimizers[1], steps=5)
    assert same(weights(bare), weights(managed))


KINDS = [SGD, AdamW, torch.optim.Adafactor, getattr(torch.optim, "Muon", AdamW)]


@pytest.mark.parametrize("kind", dict.fromkeys(KINDS))
def test_weight_decay_of_any_kind_leaves_absent_latents_where_they_are(kind):
    torch.manual_seed(0)
    model = nn.Linear(8, 8, bias=False)
    optimizer = kind(model.parameters(), lr=0.01, weight_decay=0.5)
    pruner = Budget(connectivity=0.25, ramp=0.1, every=1000).attach(
        model, optimizer, total_steps=20
    )
    for _ in range(2):
        model.weight.grad = torch.zeros_like(model.weight)
        optimizer.step()
    absent, before = ~pruner.masks()["weight"], latents(pruner)["weight"]
    for _ in range(8):
        model.weight.grad = torch.zeros_like(model.weight)
        optimizer.step()
    after = latents(pruner)["weight"]
    assert torch.allclose(after[absent], before[absent], atol=1e-5)
    assert (after[~absent].abs() < before[~absent].abs()).all()


def test_grad_r_is_silent_without_weight_decay(recwarn):
    model = net()
    optimizer = AdamW(model.parameters(), weight_decay=0.0)
    GradR(connectivity=0.5).attach(model, optimizer, total_steps=1)
    assert not recwarn.list


# ---------------------------------------------------------------------- regrowth


def test_a_regrown_synapse_starts_with_no_first_and_a_median_second_moment():
    model = net()
    optimizer = Adam(model.parameters(), lr=0.05)
    method = DeepR(connectivity=0.4, alpha=1.0, initial="largest")
    pruner = method.attach(model, optimizer, total_steps=50)
    regrowths = 0
    for step in range(10):
        before = pruner.masks()
        train(model, optimizer, start=step)
        for name, mask in pruner.masks().items():
            weight = model.get_parameter(name)
            regrown, survived = mask & ~before[name], mask & before[name]
            if not regrown.any():
                continue
            regrowths += 1
            moments = optimizer.state[weight]
            assert (weight[regrown] == 0).all()
            assert (moments["exp_avg"][regrown] == 0).all()
            assert (moments["exp_avg"][survived] != 0).any()
            assert (moments["exp_avg_sq"][regrown] == moments["exp_avg_sq"][regrown][0]).all()
            assert moments["exp_avg_sq"][regrown][0] > 0
            # one that was dropped may have been drawn again at once: it is no survivor then
            kept = survived & (weight != 0)
            assert moments["exp_avg_sq"][regrown][0] == masked_median(moments["exp_avg_sq"], kept)
    assert regrowths > 3


# ---------------------------------------------------------------------- state


def attached(pruner, model=None, targets=("*",), steps=9):
    model = model or net()
    targets = targets if isinstance(targets, dict) else list(targets)
    optimizer = Adam(model.parameters(), lr=0.01)
    return pruner.attach(model, optimizer, total_steps=steps, targets=targets)


def shape_net():
    return nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 3))


@pytest.mark.parametrize(
    ("saved", "loaded", "message"),
    [
        (attached(Dense()), attached(GradR()), "method: the state is of 'dense', not 'gradr'"),
        (
            attached(GradR(alpha=0.1)),
            attached(GradR(alpha=0.2)),
            r"alpha: the state was saved with 0\.1, not 0\.2",
        ),
        (
            attached(DeepR(connectivity=0.1)),
            attached(DeepR(connectivity=0.2)),
            r"connectivity: the state was saved with 0\.1, not 0\.2",
        ),
        (
            attached(GradR(), targets=["0"]),
            attached(GradR()),
            r"3\.weight: not in the saved state; the targets must be the same",
        ),
        (
            attached(GradR()),
            attached(GradR(), targets=["0"]),
            r"3\.weight: in the saved state but not a target here",
        ),
        (
            attached(Budget(), targets={"0": 0.5, "3": 0.1}),
            attached(Budget()),
            r"targets: the state was saved with 0\.5 for 0\.weight, not None",
        ),
        (
            attached(GradR(), steps=10),
            attached(GradR(), steps=20),
            r"total_steps: the state was saved with 10, not 20",
        ),
        (
            attached(GradR(), shape_net()),
            attached(GradR()),
            r"0\.weight: saved latent has shape \(9, 6\), not \(8, 6\)",
        ),
    ],
)
def test_a_foreign_state_is_refused_in_one_line_and_nothing_changes(saved, loaded, message):
    before = copy.deepcopy(loaded.state_dict())
    with pytest.raises(SpikewireError, match=f"^{message}$"):
        loaded.load_state_dict(saved.state_dict())
    after = loaded.state_dict()
    assert all(same(before["layers"][k], after["layers"][k]) for k in before["layers"])


@pytest.mark.parametrize(("state", "kind"), [(net().state_dict(), "OrderedDict"), (None, "None")])
def test_what_is_not_a_state_of_a_pruner_is_refused_in_one_line(state, kind):
    with pytest.raises(
        SpikewireError, match=rf"^state: an? {kind}\w* is not what a pruner's state"
    ):
        attached(Budget()).load_state_dict(state)


def test_a_state_from_before_an_option_and_layer_targets_existed_is_loaded():
    saved, loaded = attached(Budget()).state_dict(), attached(Budget())
    del saved["options"]["shrink"], saved["targets"]
    loaded.load_state_dict(saved)
    with pytest.raises(SpikewireError, match=r"^shrink: the state was saved with 0\.0, not 0\.5$"):
        attached(Budget(shrink=0.5)).load_state_dict(saved)


def test_the_state_is_a_copy_and_reads_back_without_running_anything():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    pruner = DeepR(connectivity=0.5, alpha=1.0).attach(model, optimizer, total_steps=9)
    state = pruner.state_dict()
    torch.save(state, file := io.BytesIO())
    file.seek(0)
    read = torch.load(file, weights_only=True)
    train(model, optimizer, steps=4)
    assert state["step"] == read["step"] == 0
    assert all(same(state["layers"][k], read["layers"][k]) for k in state["layers"])
    assert not same(pruner.masks(), {k: v["mask"] for k, v in read["layers"].items()})


def test_loading_weights_in_mid_run_needs_the_methods_state_last():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    pruner = GradR().attach(model, optimizer, total_steps=9)
    best, state = copy.deepcopy(model.state_dict()), pruner.state_dict()
    train(model, optimizer, steps=2)
    model.load_state_dict(best)
    for call in (pruner.state_dict, pruner.finish, optimizer.step):
        with pytest.raises(SpikewireError, match=r"values were written.*load_state_dict\(\) last"):
            call()
    pruner.load_state_dict(state)
    train(model, optimizer)
    pruner.finish()


# ---------------------------------------------------------------------- what a user reads


def test_stats_count_what_changed_since_the_last_call():
    model = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, -1.0], [2.0, 0.5]]))
    optimizer = SGD(model.parameters(), lr=1.0)
    pruner = GradR(alpha=0.0).attach(model, optimizer, total_steps=9)

    def step(gradient):
        model.weight.grad = torch.tensor(gradient)
        optimizer.step()

    step([[2.0, -2.0], [0.0, 0.0]])  # theta: -1, -1, 2, 0.5
    assert pruner.stats() == {"connectivity": 0.5, "pruned": 2.0, "regrown": 0.0}
    step([[-3.0, 0.0], [0.0, 1.0]])  # theta: 2, -1, 2, -0.5
    assert pruner.stats() == {"connectivity": 0.5, "pruned": 1.0, "regrown": 1.0}
    assert pruner.stats() == {"connectivity": 0.5, "pruned": 0.0, "regrown": 0.0}
    row = {"name": "weight", "shape": (2, 2), "present": 2, "total": 4, "connectivity": 0.5}
    assert pruner.summary() == [row]
    pruner.finish()
    assert pruner.summary() == [row]
    assert model.weight.tolist() == [[2.0, 0.0], [2.0, 0.0]]


class Operations(TorchDispatchMode):
    """Counts the operations on tensors."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", [Budget, DeepR, Dense])
def test_statistics_do_not_read_masks_that_were_not_written(kind):
    model = net()
    optimizer = SGD(model.parameters(), lr=0.0)
    options = {"every": 4} if kind is Budget else {}
    pruner = kind(**options).attach(model, optimizer, total_steps=8)
    for step in range(8):
        train(model, optimizer, start=step)
        first = pruner.stats()
        with Operations() as operations:
            again = pruner.stats()
        assert operations.count == 0
        assert again == {**first, "pruned": 0.0, "regrown": 0.0}
        assert first["connectivity"] == pruner.connectivity()


def test_masks_are_copies():
    pruner = attached(DeepR(connectivity=0.5))
    pruner.masks()["0.weight"].fill_(True)
    assert pruner.connectivity() == pytest.approx(0.5, abs=0.01)


def test_progress_runs_from_0_to_1_and_stays():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    pruner = Dense().attach(model, optimizer, total_steps=4)
    assert pruner.progress == 0
    seen = []
    for step in range(6):
        train(model, optimizer, start=step)
        seen.append(pruner.progress)
    assert seen == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_a_method_holds_plain_values_and_a_pruner_measures():
    method = DeepR(connectivity=0.25)
    assert type(method.connectivity) is float
    assert f"{method.connectivity:.1%}" == "25.0%"
    assert repr(method).startswith("DeepR(connectivity=0.25, alpha=0.0001, ")
    assert method == DeepR(connectivity=0.25) != DeepR(connectivity=0.5)
    assert values(dataclasses.replace(method, alpha=0.0))["connectivity"] == 0.25
    assert defaults(DeepR)["connectivity"] == DeepR().connectivity == 0.05
    assert attached(method).connectivity() == 0.25


def test_a_method_is_immutable_and_may_be_attached_to_several_models():
    method = GradR(alpha=0.5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        method.alpha = 1.0
    first, second = attached(method), attached(method)
    assert isinstance(first, Pruner)
    assert first is not second
    assert first.method is second.method is method


# ---------------------------------------------------------------------- guards of the calls


def test_attach_names_an_argument_in_the_wrong_place_in_one_line():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for arguments, message in (
        ((optimizer, model), r"dense: attach\(model, optimizer, \.\.\.\): the model comes first"),
        ((model.parameters(), optimizer), "a generator is not an nn.Module"),
        (
            (model, model.parameters()),
            "a generator is not a torch.optim optimizer; several go one by one",
        ),
        ((model, [optimizer]), "a list is not a torch.optim optimizer; several go one by one"),
        ((model, optimizer, 100), "an int is not a torch.optim optimizer; several go one by one"),
    ):
        with pytest.raises(SpikewireError, match=message) as caught:
            Dense().attach(*arguments, total_steps=1)
        assert "\n" not in str(caught.value)


def test_attach_on_a_class_says_how_a_method_is_created():
    model = net()
    with pytest.raises(SpikewireError, match=r"^attach: called on a class; create the method"):
        Dense.attach(model, SGD(model.parameters(), lr=0.1), total_steps=1)


def test_an_optimizer_that_is_not_attached_is_named_as_a_cause():
    model = net()
    pruner = DeepR(connectivity=0.25).attach(model, SGD(model.parameters(), 0.1), total_steps=4)
    other = SGD(model.parameters(), lr=0.1)
    train(model, other, steps=1)
    with pytest.raises(SpikewireError, match=r"attach\(\) to the optimizer that steps the model"):
        pruner.finish()


def test_a_pruner_shows_its_method_steps_and_connectivity():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    pruner = DeepR(connectivity=0.25).attach(model, optimizer, total_steps=4)
    train(model, optimizer, steps=3)
    text = repr(pruner)
    assert text.startswith("Pruner(DeepR(connectivity=0.25, ")
    assert text.endswith("step 3 of 4, connectivity 0.25 over 2 layers)")
    pruner.finish()
    assert repr(pruner).endswith("step 3 of 4, finished, connectivity 0.25 over 2 layers)")
    other = pruner.method.attach(model, optimizer, total_steps=4)
    other.detach()
    assert repr(other).endswith("step 0 of 4, detached)")


def test_attach_needs_an_optimizer_and_a_number_of_steps():
    model = net()
    with pytest.raises(SpikewireError, match="dense: attach.* needs the optimizer"):
        Dense().attach(model, total_steps=1)
    with pytest.raises(
        SpikewireError, match="total_steps: 0 is not allowed; it must be at least 1"
    ):
        Dense().attach(model, SGD(model.parameters(), lr=0.1), total_steps=0)


@pytest.mark.parametrize("call", ["masks", "connectivity", "summary", "state_dict", "finish"])
def test_after_detach_every_call_names_what_to_do(call):
    pruner = attached(Dense())
    pruner.detach()
    with pytest.raises(
        SpikewireError, match=r"dense: detached; call attach\(\) on the method again"
    ):
        getattr(pruner, call)()


def test_a_finished_method_may_be_attached_again():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    pruner = GradR(alpha=0.5).attach(model, optimizer, total_steps=3)
    train(model, optimizer, steps=3)
    pruner.finish()
    pruner = pruner.method.attach(model, optimizer, total_steps=3)
    assert pruner.step == 0
    train(model, optimizer, steps=2)
    assert pruner.step == 2


def test_keep_masks_after_a_plain_finish_is_refused_not_ignored():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    pruner = GradR().attach(model, optimizer, total_steps=1)
    pruner.finish()
    with pytest.raises(SpikewireError, match=r"already finished without it; .*apply_masks\(model"):
        pruner.finish(keep_masks=True)


@pytest.mark.parametrize("keep", [False, True])
def test_a_new_optimizer_after_finish_warns_once_that_it_fills_the_zeros(keep):
    model, other = net(), net()
    optimizer = SGD(model.parameters(), lr=0.1)
    pruner = DeepR(connectivity=0.3).attach(model, optimizer, total_steps=2)
    train(model, optimizer, steps=2)
    masks = pruner.finish(keep_masks=keep)
    train(other, SGD(other.parameters(), lr=0.1), steps=2)  # of another model: silent
    fresh = SGD(model.parameters(), lr=0.01)
    with pytest.warns(UserWarning, match=r"fills the pruned weights.*apply_masks") as caught:
        train(model, fresh, steps=3)
    assert len(caught) == 1
    assert any(model.get_parameter(name)[~mask].any() for name, mask in masks.items())


@pytest.mark.parametrize("keep", [False, True])
def test_a_new_optimizer_with_applied_masks_is_silent_and_keeps_the_zeros(keep):
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    pruner = DeepR(connectivity=0.3).attach(model, optimizer, total_steps=2)
    train(model, optimizer, steps=2)
    masks = pruner.finish(keep_masks=keep)
    fresh = SGD(model.parameters(), lr=0.01)
    apply_masks(model, masks, fresh)
    train(model, fresh, steps=3)  # warnings are errors here
    assert not any(model.get_parameter(name)[~mask].any() for name, mask in masks.items())


def test_a_finished_model_that_is_deleted_is_not_kept_alive():
    model = net()
    pruner = GradR(connectivity=0.3).attach(model, SGD(model.parameters(), lr=0.1), total_steps=1)
    train(model, pruner.optimizers[0], steps=1)
    pruner.finish()
    weight = weakref.ref(next(model.parameters()))
    del model, pruner
    gc.collect()
    assert weight() is None


def test_masks_kept_by_finish_are_released_by_detach():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    pruner = DeepR(connectivity=0.3).attach(model, optimizer, total_steps=1)
    pruner.finish(keep_masks=True)
    assert same(pruner.finish(keep_masks=True), pruner.masks())
    with pytest.raises(SpikewireError, match="another pruner has it"):
        Dense().attach(model, optimizer, total_steps=1)
    pruner.detach()
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    Dense().attach(model, optimizer, total_steps=1)


def test_a_device_generator_follows_the_pruners_generator():
    first, second = (attached(DeepR(), net()) for _ in range(2))
    device = torch.device("cpu")
    draws = [
        torch.rand(3, generator=pruner.device_generator(device))
        for pruner in (first, second, first)
    ]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_the_families_require_their_hooks():
    with pytest.raises(NotImplementedError):
        attached(Latent())


@pytest.mark.filterwarnings("error")
def test_an_attach_that_raises_a_warning_leaves_nothing_behind():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.Flatten(), nn.Linear(64, 5))
    optimizer, before = SGD(model.parameters(), lr=0.1), weights(model)
    method = RigL(connectivity=0.1)  # its first masks change weights
    with pytest.raises(UserWarning, match="left dense"):
        method.attach(model, optimizer, total_steps=9)
    assert not optimizer._optimizer_step_pre_hooks
    assert same(weights(model), before)
    assert method.attach(model, optimizer, total_steps=9, targets="2").layers


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("keep", [False, True])
def test_a_finish_that_raises_a_warning_is_complete(keep):
    model = net()
    optimizer = Adam(model.parameters(), lr=0.01)
    pruner = Budget(connectivity=0.1, every=1).attach(model, optimizer, total_steps=100)
    train(model, optimizer, steps=5)
    masks = pruner.masks()
    with pytest.raises(UserWarning, match="finished at step 5 of 100"):
        pruner.finish(keep_masks=keep)
    assert pruner.model is None
    assert same(pruner.finish(keep_masks=keep), masks)
    assert len(optimizer._optimizer_step_post_hooks) == keep
    pruner.detach()  # releases kept masks
    Budget(connectivity=0.1).attach(model, Adam(model.parameters()), total_steps=5)


# ---------------------------------------------------------------------------- target and actual


def test_a_run_that_ends_before_its_target_says_so():
    model = net()
    optimizer = Adam(model.parameters(), lr=0.01)
    pruner = Budget(connectivity=0.1).attach(model, optimizer, total_steps=100)
    train(model, optimizer, steps=5)
    with pytest.warns(
        UserWarning, match=r"budget: finished at step 5 of 100, .*the target was 0\.1"
    ) as caught:
        pruner.finish()
    assert caught[0].filename == __file__, "the warning points at the caller"


def test_a_run_of_many_more_steps_than_its_total_says_so():
    model = net()
    optimizer = Adam(model.parameters(), lr=0.01)
    pruner = Budget(connectivity=0.1).attach(model, optimizer, total_steps=5)
    train(model, optimizer, steps=11)
    message = "budget: finished at step 11, but schedules ended at total_steps = 5; .* not epochs"
    with pytest.warns(UserWarning, match=message):
        pruner.finish()


def test_a_run_that_reached_its_target_early_ends_in_silence():
    model = net()
    optimizer = Adam(model.parameters(), lr=0.01)
    pruner = Budget(connectivity=0.1, ramp=0.1, every=1).attach(model, optimizer, total_steps=50)
    train(model, optimizer, steps=10)
    pruner.finish()  # warnings are errors here
    assert sum(int(mask.sum()) for mask in pruner.masks().values()) == round(0.1 * (48 + 24))


@dataclass(frozen=True, kw_only=True)
class StaysDense(Dense):
    """A method that does not prune, whatever its target is."""

    name = "stays-dense"
    connectivity: float = setting(0.5, "target fraction of weights")


def test_a_full_run_that_missed_its_target_says_so():
    model = net()
    optimizer = Adam(model.parameters(), lr=0.01)
    pruner = StaysDense().attach(model, optimizer, total_steps=5)
    train(model, optimizer, steps=5)
    message = r"stays-dense: finished at step 5 of 5, with connectivity 1; the target was 0\.5"
    with pytest.warns(UserWarning, match=message):
        pruner.finish()


def test_a_connectivity_for_a_layer_is_refused_by_a_method_that_takes_none():
    model = net()
    optimizer = Adam(model.parameters(), lr=0.01)
    with pytest.raises(SpikewireError, match=r"0\.weight has a connectivity, but gradr takes none"):
        GradR(alpha=0.1).attach(model, optimizer, total_steps=9, targets={"0": 0.5})
    pruner = GradR(connectivity=0.5).attach(model, optimizer, total_steps=9, targets={"0": 0.6})
    assert pruner.target == 0.5
    assert [pruner.target_of(x) for x in pruner.layers] == [0.6, (36 - 29) / 24]


def test_pruned_and_regrown_are_counted_across_a_resume():
    def run(stop):
        model = net()
        optimizer = SGD(model.parameters(), lr=0.5)
        pruner = GradR(alpha=0.05).attach(model, optimizer, total_steps=40)
        train(model, optimizer, steps=10)
        pruner.stats()
        train(model, optimizer, steps=15, start=10)
        if stop:
            saved = copy.deepcopy((model.state_dict(), optimizer.state_dict(), pruner.state_dict()))
            model = net()
            optimizer = SGD(model.parameters(), lr=0.5)
            pruner = GradR(alpha=0.05).attach(model, optimizer, total_steps=40)
            for part, state in zip((model, optimizer, pruner), saved, strict=True):
                part.load_state_dict(state)
        train(model, optimizer, steps=15, start=25)
        return pruner.stats()

    whole = run(stop=False)
    assert whole["pruned"] > 0
    assert run(stop=True) == whole


@pytest.mark.parametrize("fires", [False, True])
def test_a_layer_that_no_spike_reaches_is_named_once(fires, caplog):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), LIF(), nn.Linear(8, 3, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.full((8, 6), 2.0 if fires else 0.01))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    Budget(connectivity=0.5).attach(model, optimizer, total_steps=40)
    for _ in range(40):
        optimizer.zero_grad()
        (model(torch.rand(4, 5, 6)).mean(0) - 1).square().mean().backward()
        optimizer.step()
    lines = [record.getMessage() for record in caplog.records]
    named = [line for line in lines if line.startswith("2.weight: the gradient is 0 at step 16")]
    assert len(named) == (0 if fires else 1)
    assert len(lines) == len(named), "the first layer has a gradient, through the surrogate"


@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps])
def test_a_pruner_is_not_copied_but_its_state_is_loaded_beside_a_copy(copied):
    """Torch's optimizers leave their hooks behind, so that a copied pruner would do nothing."""
    torch.manual_seed(0)
    model = nn.Linear(20, 10)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    pruner = Budget(connectivity=0.2).attach(model, optimizer, total_steps=10)
    images = torch.randn(10, 8, 20)
    for batch in images[:5]:
        optimizer.zero_grad()
        model(batch).square().sum().backward()
        optimizer.step()
    with pytest.raises(SpikewireError, match=r"pruner: cannot be copied .* pruner.state_dict\(\)"):
        copied((model, optimizer, pruner))
    twin, second = copy.deepcopy((model, optimizer))
    other = Budget(connectivity=0.2).attach(twin, second, total_steps=10)
    other.load_state_dict(pruner.state_dict())
    for net, stepped in ((model, optimizer), (twin, second)):
        for batch in images[5:]:
            stepped.zero_grad()
            net(batch).square().sum().backward()
            stepped.step()
    masks, same = pruner.finish(), other.finish()
    assert masks["weight"].equal(same["weight"])
    assert twin.weight.equal(model.weight)
    assert int(masks["weight"].sum()) == 40
