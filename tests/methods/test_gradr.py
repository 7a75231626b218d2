"""Grad R against Algorithm 1 of its paper, against torch's own optimizers, and by hand."""

import math
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import Task, close, gradr_adam, gradr_sgd, location, pull, row
from torch.optim import Optimizer

from spikewire import GradR, SpikewireError
from spikewire.methods.gradr import expected_connectivity, laplace_location, laplace_sparsity

torch.set_num_threads(1)  # tiny tensors: threads only cost
SIZES = (6, 5, 3)
STEPS = 200


def run(task: Task, optimizer: Optimizer, method: GradR, steps: int = STEPS):
    """Train; yield the flat weights and masks after every step."""
    pruner = method.attach(task.model, optimizer, total_steps=steps)
    for step in range(steps):
        task.backward(step)
        optimizer.step()
        masks = torch.cat([mask.flatten() for mask in pruner.masks().values()])
        yield task.flat(), masks.tolist()


def agree(ours, reference, mu: float) -> dict[str, int]:
    """Compare step by step; count what happened, so that a test knows its case was a real one."""
    seen = {"pruned": 0, "regrown": 0, "below mu": 0}
    before = None
    for (weights, mask), (theta, w) in zip(ours, reference, strict=True):
        assert mask == [x > 0 for x in theta]
        assert close(weights, w, atol=1e-10)
        if before is not None:
            seen["pruned"] += sum(a and not b for a, b in zip(before, mask, strict=True))
            seen["regrown"] += sum(b and not a for a, b in zip(before, mask, strict=True))
        seen["below mu"] += sum(x < mu for x in theta)
        before = mask
    return seen


# alpha, p, and whether theta gets down to mu within the run
CASES = [(0.0, 0.95, False), (0.02, 0.95, False), (0.5, 0.55, True), (2.0, 0.51, True)]


@pytest.mark.parametrize(("alpha", "p", "reaches_mu"), CASES)
def test_with_sgd_equals_algorithm_1(alpha, p, reaches_mu):
    task, lr = Task(*SIZES), 1.0
    optimizer = torch.optim.SGD(task.weights, lr=lr)
    reference = gradr_sgd(task.flat(), task.gradient(), lr=lr, alpha=alpha, p=p, steps=STEPS)
    ours = run(task, optimizer, GradR(alpha=alpha, p=p))
    seen = agree(ours, reference, location(p, alpha) if alpha else -math.inf)
    assert (seen["below mu"] > 0) == reaches_mu
    assert seen["pruned"] > 0
    assert seen["regrown"] > 0


@pytest.mark.parametrize(("alpha", "p", "reaches_mu"), CASES)
def test_with_adam_the_prior_stays_outside_the_moments(alpha, p, reaches_mu):
    task, lr = Task(*SIZES, seed=1), 0.02
    optimizer = torch.optim.Adam(task.weights, lr=lr)
    reference = gradr_adam(task.flat(), task.gradient(), lr=lr, alpha=alpha, p=p, steps=STEPS)
    ours = run(task, optimizer, GradR(alpha=alpha, p=p))
    seen = agree(ours, reference, location(p, alpha) if alpha else -math.inf)
    assert (seen["below mu"] > 0) == reaches_mu
    assert seen["pruned"] > 0
    assert seen["regrown"] > 0


@pytest.mark.parametrize("alpha", [0.05, 0.5])
def test_with_adam_in_float32_on_recorded_gradients(alpha):
    # weights stay below 1/8, where each of the 400 roundings errs by 4e-9 at most
    task, lr = Task(64, 64, 4, gain=0.5, dtype=torch.float32), 2e-4
    start, recorded = task.flat(), []
    optimizer = torch.optim.Adam(task.weights, lr=lr)
    pruner = GradR(alpha=alpha).attach(task.model, optimizer, total_steps=STEPS)
    ours = []
    for step in range(STEPS):
        task.backward(step)
        recorded.append(torch.cat([w.grad.flatten() for w in task.weights]).tolist())
        optimizer.step()
        ours.append(task.flat())
    replay = gradr_adam(
        start, lambda _, step: recorded[step], lr=lr, alpha=alpha, p=0.95, steps=STEPS
    )
    for weights, (_, w) in zip(ours, replay, strict=True):
        assert close(weights, w, atol=1e-6)
    assert 0 < pruner.connectivity() < 1


OPTIMIZERS = {
    "sgd momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "sgd nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=5e-3),
    "rmsprop centered": lambda p: torch.optim.RMSprop(p, lr=5e-3, momentum=0.5, centered=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=5e-3, weight_decay=0.0),
    "adam amsgrad": lambda p: torch.optim.Adam(p, lr=5e-3, amsgrad=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=5e-3),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=5e-3),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(("alpha", "p"), [(0.2, 0.95), (1.0, 0.52)])
def test_moving_the_signed_latent_equals_moving_theta_itself(name, alpha, p):
    task = Task(*SIZES, seed=2)
    gradient, start = task.gradient(), torch.tensor(task.flat(), dtype=torch.float64)
    sign = torch.where(start < 0, -1.0, 1.0).double()
    theta = torch.nn.Parameter(start * sign)
    twin = OPTIMIZERS[name]([theta])
    mu, lr = location(p, alpha), twin.param_groups[0]["lr"]
    ours = run(task, OPTIMIZERS[name](task.weights), GradR(alpha=alpha, p=p), steps=50)
    for step, (weights, mask) in enumerate(ours):
        shown = (theta.detach().relu() * sign).tolist()
        theta.grad = sign * torch.tensor(gradient(shown, step), dtype=torch.float64)
        prior = lr * alpha * torch.sign(theta.detach() - mu)
        twin.step()
        with torch.no_grad():
            theta -= prior
        assert close(weights, (theta.detach().relu() * sign).tolist(), atol=1e-10)
        assert mask == (theta > 0).tolist()
    assert 0 < sum(mask) < len(mask)


def test_by_hand():
    layer = row(0.5, -0.2, 0.0, 0.05)  # theta = .5 .2 0 .05, s = + - + +
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    pruner = GradR(alpha=1.0, p=0.95).attach(layer, optimizer, total_steps=2)
    pull(layer, optimizer, 1.0, 1.0, -3.0, 2.0)
    # theta - .1 (s g + 1) = .5 - .2, .2 - 0, 0 + .2, .05 - .3
    assert layer.weight.tolist()[0] == pytest.approx([0.3, -0.2, 0.2, 0.0], abs=1e-7)
    assert pruner.masks()["weight"].tolist() == [[True, True, True, False]]
    pull(layer, optimizer, 0.0, 0.0, 0.0, -4.0)
    # .3 - .1, .2 - .1, .2 - .1, -.25 + .3: the gradient at weight 0 brought the last one back
    assert layer.weight.tolist()[0] == pytest.approx([0.2, -0.1, 0.1, 0.05], abs=1e-7)
    assert pruner.masks()["weight"].all()


def test_below_mu_the_prior_lifts_by_hand():
    layer = row(0.05, -0.05, 0.4, -0.4)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    GradR(alpha=1.0, p=0.5).attach(layer, optimizer, total_steps=2)  # mu = 0
    pull(layer, optimizer, 0.0, 0.0, 0.0, 0.0)  # theta = -.05 -.05 .3 .3
    assert layer.weight.tolist()[0] == pytest.approx([0.0, 0.0, 0.3, -0.3], abs=1e-7)
    pull(layer, optimizer, 0.0, 0.0, 0.0, 0.0)  # the first two are below mu: -.05 + .1
    assert layer.weight.tolist()[0] == pytest.approx([0.05, -0.05, 0.2, -0.2], abs=1e-7)


def test_a_zero_weight_gets_sign_plus_and_lives():
    layer = row(0.0, 0.0, 0.0, 0.0)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    pruner = GradR(alpha=0.0).attach(layer, optimizer, total_steps=1)
    assert pruner.connectivity() == 0
    pull(layer, optimizer, -1.0, -1.0, 1.0, 0.0)
    assert layer.weight.tolist()[0] == pytest.approx([0.1, 0.1, 0.0, 0.0])


def test_the_target_has_no_effect_where_mu_is_out_of_reach():
    ends = []
    for p in (0.6, 0.99):
        task = Task(*SIZES, dtype=torch.float32)
        optimizer = torch.optim.Adam(task.weights, lr=1e-2)
        ends.append(list(run(task, optimizer, GradR(alpha=1e-3, p=p), steps=100)))
    assert ends[0] == ends[1]
    assert ends[0][-1] != ends[0][0]


# ------------------------------------------------------------------ the prior's closed forms

SHARES = st.floats(1e-6, 1 - 1e-6)
ALPHAS = st.floats(1e-4, 1e2)


@given(p=SHARES, alpha=ALPHAS)
def test_location_and_sparsity_are_inverse(p, alpha):
    mu = laplace_location(p, alpha)
    assert (mu > 0) == (p < 0.5)
    assert laplace_sparsity(mu, alpha) == pytest.approx(p, rel=1e-9)


@given(spread=st.floats(-12, 12), alpha=ALPHAS)
def test_sparsity_and_location_are_inverse(spread, alpha):
    mu = spread / alpha
    assert laplace_location(laplace_sparsity(mu, alpha), alpha) == pytest.approx(
        mu, abs=1e-8 / alpha
    )


@given(spread=st.floats(-8, 8), alpha=st.floats(1e-2, 10))
def test_sparsity_is_the_integral_of_the_prior(spread, alpha):
    mu, width = spread / alpha, 40 / alpha
    low = min(mu, 0.0) - width
    edges = sorted({low, min(mu, 0.0), 0.0})  # the density has a kink at mu
    total = 0.0
    for a, b in zip(edges, edges[1:], strict=False):
        x = np.linspace(a, b, 20_001)
        total += np.trapezoid(alpha / 2 * np.exp(-alpha * np.abs(x - mu)), x)
    assert laplace_sparsity(mu, alpha) == pytest.approx(total, rel=1e-5)


def test_a_flat_prior_pulls_nowhere():
    assert laplace_location(0.95, 0.0) == -math.inf


@pytest.mark.parametrize("turn", [lambda step: step % 2, lambda step: step // 20])
@pytest.mark.parametrize("unit", ["connectivity", "bytes"])
def test_the_target_counts_layers_without_a_gradient_in_the_due_step(turn, unit):
    torch.manual_seed(0)
    model = torch.nn.ModuleList(torch.nn.Linear(50, 50, bias=False) for _ in range(2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    method = GradR(**{unit: {"connectivity": 0.1, "bytes": 3000}[unit]})
    pruner = method.attach(model, optimizer, total_steps=40)
    for step in range(40):
        optimizer.zero_grad(set_to_none=True)
        model[turn(step)](torch.randn(8, 50)).square().mean().backward()
        optimizer.step()
    if unit == "bytes":
        assert pruner.uses.actual(pruner.masks()) == pytest.approx(3000, rel=0.02)
    else:
        assert sum(int(mask.sum()) for mask in pruner.masks().values()) == 500
    pruner.finish()
    assert sum(int((layer.weight != 0).sum()) for layer in model) == sum(
        int(mask.sum()) for mask in pruner.masks().values()
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_target_of_1_keeps_every_synapse_even_a_zero_weight(dtype):
    layer = row(0.5, -0.2, 0.3, 0.0).to(dtype)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    pruner = GradR(connectivity=1.0, every=1).attach(layer, optimizer, total_steps=2)
    for _ in range(2):
        optimizer.zero_grad()
        layer(torch.tensor([[9.0, 0.0, -1.0, 0.0]], dtype=dtype)).sum().backward()
        optimizer.step()  # the first theta falls from .5 to -.4: all are shifted up by .4
        assert pruner.masks()["weight"].all()
    # then its own gradient, -.9, is undone by another shift
    assert layer.weight[0].tolist() == pytest.approx([0.0, -1.5, 1.8, 1.3], abs=1e-6)


# ------------------------------------------------------------------ a drift that is too small


@pytest.mark.parametrize(
    ("alpha", "published"), [(0.0, 48.35), (1e-4, 37.79), (2e-4, 28.41), (5e-4, 12.04)]
)
def test_the_estimate_is_near_the_published_runs_of_small_alpha(alpha, published):
    """CIFAR-10, 2048 epochs of 3125 steps at 1e-4; FC1, most weights, starts within 1/128."""
    theta = torch.rand(100_000, generator=torch.Generator().manual_seed(0)) / 128
    steps, lr = 2048 * 3125, 1e-4
    left = expected_connectivity(theta, alpha * lr * steps, lr * math.sqrt(steps))
    assert 100 * left == pytest.approx(published, abs=3)


def attach(method, steps, optimizer=torch.optim.Adam, lr=1e-3):
    torch.manual_seed(0)
    layer = torch.nn.Linear(784, 100)
    return method.attach(layer, optimizer([layer.weight], lr=lr), total_steps=steps)


SMALL = r"^gradr: alpha 0\.001 moves theta by only .* give connectivity instead, or a larger alpha$"


@pytest.mark.parametrize("steps", [1, 100, 4690, 50_000])
@pytest.mark.parametrize("method", [GradR(), GradR(alpha=1e-3)])
def test_an_alpha_too_small_for_the_run_warns_in_one_line(method, steps):
    with pytest.warns(UserWarning, match=SMALL) as caught:
        attach(method, steps)
    assert len(caught) == 1
    assert "\n" not in str(caught[0].message)
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("method", "steps"),
    [(GradR(alpha=0.05), 11_232), (GradR(alpha=2e-4), 6_400_000), (GradR(connectivity=0.05), 100),
     (GradR(alpha=0), 100)],
)  # fmt: skip
def test_an_alpha_that_is_large_enough_does_not_warn(method, steps):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attach(method, steps, lr=2e-3 if steps < 10**6 else 1e-4)


def test_the_gradient_of_sgd_has_no_known_size_so_the_drift_alone_counts():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attach(GradR(alpha=1e-3), 10_000, torch.optim.SGD, lr=0.1)  # drift 1, weights below 0.04
    with pytest.warns(UserWarning, match=r"about 9\d% of the weights will stay"):
        attach(GradR(alpha=1e-3), 20, torch.optim.SGD, lr=0.1)  # drift 0.002


def test_the_highest_rate_of_a_warm_up_counts():
    layer = torch.nn.Linear(784, 100)
    optimizer = torch.optim.Adam([layer.weight], lr=2e-3)
    torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GradR(alpha=0.05).attach(layer, optimizer, total_steps=11_232)


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize("p", [0.49, 0.0, 1.0, -1.0, math.nan])
def test_a_target_below_one_half_is_refused(p):
    with pytest.raises(SpikewireError, match=r"^p: .* it must be in \[0\.5, 1\)"):
        GradR(p=p)


@pytest.mark.parametrize("alpha", [-1e-9, math.nan, math.inf])
def test_a_senseless_penalty_is_refused(alpha):
    with pytest.raises(SpikewireError, match=r"^alpha: "):
        GradR(alpha=alpha)


class Plain(Optimizer):
    """An optimizer torch does not know; `direction` is what distinguishes its children."""

    def __init__(self, params, lr: float = 0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p -= group["lr"] * self.direction(p.grad)

    def direction(self, grad):
        raise NotImplementedError


class SignDescent(Plain):
    def direction(self, grad):
        return grad.sign()


class OnlyUp(Plain):
    def direction(self, grad):
        return grad.clamp(max=0)


class Centred(Plain):
    def direction(self, grad):
        return grad - grad.mean()


def test_a_sign_equivariant_optimizer_of_ones_own_is_accepted():
    layer = row(0.5, -0.2, 0.3, -0.4)
    optimizer = SignDescent(layer.parameters(), lr=0.1)
    GradR(alpha=1.0).attach(layer, optimizer, total_steps=1)
    pull(layer, optimizer, 3.0, 3.0, -0.1, 0.0)  # theta - .1 (s sign(g) + 1)
    assert layer.weight.tolist()[0] == pytest.approx([0.3, -0.2, 0.3, -0.3])


UNFIT = {
    "OnlyUp": OnlyUp,
    "Centred": Centred,
    "LBFGS": torch.optim.LBFGS,
}
if hasattr(torch.optim, "Muon"):  # torch 2.9 and later
    UNFIT["Muon"] = partial(torch.optim.Muon, weight_decay=0.0)


@pytest.mark.parametrize("name", UNFIT)
def test_an_optimizer_that_depends_on_signs_is_refused(name):
    layer = row(0.5, -0.2, 0.3, -0.4)
    optimizer = UNFIT[name](layer.parameters(), lr=0.1)
    with pytest.raises(SpikewireError, match=rf"^gradr: .*{name}.*use .*SGD"):
        GradR().attach(layer, optimizer, total_steps=1)
    assert not optimizer._optimizer_step_pre_hooks


def test_weight_decay_is_warned_of():
    layer = row(0.5, -0.2, 0.3, -0.4)
    optimizer = torch.optim.AdamW(layer.parameters())  # 0.01 by default
    with pytest.warns(UserWarning, match="weight decay is on for weight; published"):
        GradR().attach(layer, optimizer, total_steps=1)
