"""Slow, literal transcriptions of the papers' equations, one synapse at a time in Python floats.

They share no code with the package. A `Gradient` maps all weights, flat, and the number of the step
(one step is one mini-batch) to the flat ``dL/dw`` at those weights.
"""

import copy
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

Gradient = Callable[[list[float], int], list[float]]
Draw = Callable[[list[int], int], list[int]]


def sign(x: float) -> float:
    return float((x > 0) - (x < 0))


def relu(x: float) -> float:
    return max(x, 0.0)


def location(p: float, alpha: float) -> float:
    """Eq. 10 of the Grad R paper; without a penalty the prior is flat and has no location."""
    if alpha == 0:
        return 0.0
    return -math.log(2 * p) / alpha if p < 0.5 else math.log(2 - 2 * p) / alpha


def signs_of(weights: Sequence[float]) -> list[float]:
    """+-1; the paper's sign(w), except that a zero weight is not condemned to stay zero."""
    return [-1.0 if w < 0 else 1.0 for w in weights]


# ---------------------------------------------------------------------------------- Grad R


def gradr_sgd(
    weights: Sequence[float], gradient: Gradient, *, lr: float, alpha: float, p: float, steps: int
) -> Iterator[tuple[list[float], list[float]]]:
    """Algorithm 1 of the Grad R paper; yields (theta, w) after every mini-batch."""
    s = signs_of(weights)
    theta = [w * s[k] for k, w in enumerate(weights)]
    w = list(weights)
    mu = location(p, alpha)
    for step in range(steps):
        g = gradient(w, step)
        for k in range(len(theta)):
            theta[k] = theta[k] - lr * (s[k] * g[k] + alpha * sign(theta[k] - mu))
            w[k] = s[k] * relu(theta[k])
        yield list(theta), list(w)


def gradr_adam(
    weights: Sequence[float],
    gradient: Gradient,
    *,
    lr: float,
    alpha: float,
    p: float,
    steps: int,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
) -> Iterator[tuple[list[float], list[float]]]:
    """Algorithm 1 with Adam's direction in place of the gradient, the prior outside its moments.

    theta <- theta - lr (s mhat / (sqrt(vhat) + eps) + alpha sign(theta - mu))
    """
    s = signs_of(weights)
    theta = [w * s[k] for k, w in enumerate(weights)]
    w = list(weights)
    m, v = [0.0] * len(w), [0.0] * len(w)
    mu = location(p, alpha)
    for step in range(steps):
        g = gradient(w, step)
        for k in range(len(theta)):
            m[k] = betas[0] * m[k] + (1 - betas[0]) * g[k]
            v[k] = betas[1] * v[k] + (1 - betas[1]) * g[k] ** 2
            m_hat = m[k] / (1 - betas[0] ** (step + 1))
            v_hat = v[k] / (1 - betas[1] ** (step + 1))
            direction = s[k] * m_hat / (math.sqrt(v_hat) + eps)
            theta[k] = theta[k] - lr * (direction + alpha * sign(theta[k] - mu))
            w[k] = s[k] * relu(theta[k])
        yield list(theta), list(w)


# ---------------------------------------------------------------------------------- Deep R


def deepr_step(
    theta: list[float],
    active: list[bool],
    g: Sequence[float],
    nu: Sequence[float],
    draw: Draw,
    *,
    lr: float,
    alpha: float,
    temperature: float,
) -> None:
    """One iteration of Deep R's Algorithm 1 on one layer, in place; g is dL/dtheta.

    `draw(dormant, count)` chooses which of the dormant are activated.
    """
    budget = sum(active)
    for k in range(len(theta)):
        if active[k]:
            theta[k] += -lr * g[k] - lr * alpha + math.sqrt(2 * lr * temperature) * nu[k]
            if theta[k] < 0:
                active[k] = False
    dormant = [k for k in range(len(theta)) if not active[k]]
    for k in draw(dormant, budget - sum(active)):
        active[k] = True
        theta[k] = 0.0


def deepr_global_step(
    theta: list[list[float]],
    active: list[list[bool]],
    g: Sequence[Sequence[float]],
    nu: Sequence[Sequence[float]],
    draw_layers: Callable[[list[int], int], list[int]],
    draw: Draw,
    *,
    lr: float,
    alpha: float,
    temperature: float,
) -> None:
    """The same over all layers under the global constraint (LSNN paper), in place.

    `draw_layers(room, count)` gives the layer of each freed place, `draw` the places in a layer.
    """
    budget = sum(map(sum, active))
    for i, layer in enumerate(theta):
        for k in range(len(layer)):
            if active[i][k]:
                noise = math.sqrt(2 * lr * temperature) * nu[i][k]
                layer[k] += -lr * g[i][k] - lr * alpha + noise
                if layer[k] < 0:
                    active[i][k] = False
    freed = budget - sum(map(sum, active))
    if not freed:
        return
    chosen = draw_layers([len(mask) - sum(mask) for mask in active], freed)
    for i, layer in enumerate(theta):
        dormant = [k for k in range(len(layer)) if not active[i][k]]
        for k in draw(dormant, chosen.count(i)):
            active[i][k] = True
            layer[k] = 0.0


def softdeepr_step(
    theta: list[float],
    g: Sequence[float],
    nu: Sequence[float],
    *,
    lr: float,
    alpha: float,
    temperature: float,
    theta_min: float,
) -> None:
    """One iteration of soft Deep R's Algorithm 2, in place; g is dL/dtheta."""
    for k in range(len(theta)):
        noise = math.sqrt(2 * lr * temperature) * nu[k]
        theta[k] += -lr * g[k] - lr * alpha + noise if theta[k] >= 0 else noise
        if theta[k] < 0:
            theta[k] = max(theta[k], theta_min)


def softdeepr_limit(p: float, l1: float, gdnoise: float, lr: float) -> float:
    """theta_min as the authors' code derives it; their noise per step is lr * gdnoise."""
    temperature = lr * gdnoise**2 / 2
    beta = l1 / temperature
    return -(1 - p) / (p * beta)


# ---------------------------------------------------------------------- synaptic sampling


def sampling_weight(theta: float, theta0: float) -> float:
    """The size of a weight: w = exp(theta - theta0) if theta > 0, else 0."""
    return math.exp(theta - theta0) if theta > 0 else 0.0


def sampling_step(
    theta: list[float],
    g: Sequence[float],
    nu: Sequence[float],
    *,
    lr: float,
    b: float,
    theta0: float,
    mean: float,
    std: float,
) -> None:
    """A step of dtheta = b (d/dtheta log p_S + d/dtheta log p_N) dt + sqrt(2 b) dW, in place.

    p_S is the normal prior; b d/dtheta log p_N is -lr dL/dtheta; g is dL/d|w|.
    """
    for k, before in enumerate(theta):
        likelihood = -lr * g[k] * sampling_weight(before, theta0)
        prior = -b * (before - mean) / std**2
        theta[k] = before + likelihood + prior + math.sqrt(2 * b) * nu[k]


# ---------------------------------------------------------------------------------- STDS


def stds_rise(x: float, shape: str) -> float:
    """How far the threshold has risen at x of the run, as in the authors' code: half a sine wave
    from its lowest point to its highest, or a line."""
    return (1.0 + math.sin(math.pi * (x - 0.5))) / 2 if shape == "sine" else x


# ---------------------------------------------------------------------------------- a network


class Heaviside(torch.autograd.Function):
    """H(x) = 1 where x >= 0; backward H1'(x) = 1 / (1 + (pi x)^2)."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (x >= 0).to(x)

    @staticmethod
    def backward(ctx, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grads[0] / (1 + (math.pi * x) ** 2)


class SpikingNet(nn.Module):
    """FC-LIF-FC-LIF, Eq. 2 unrolled in Python, reset gradient dropped; returns the firing rate."""

    def __init__(self, *sizes: int, gain: float, time_steps: int = 4):
        super().__init__()
        self.time_steps = time_steps
        pairs = zip(sizes, sizes[1:], strict=False)
        self.layers = nn.ModuleList([nn.Linear(a, b, bias=False) for a, b in pairs])
        with torch.no_grad():
            for layer in self.layers:
                layer.weight.mul_(gain)  # the default is too weak to reach the threshold

    def forward(self, x: Tensor) -> Tensor:
        tau, threshold = 2.0, 1.0
        potentials: list[Tensor | float] = [0.0] * len(self.layers)
        rate = torch.zeros(())
        for _ in range(self.time_steps):
            spikes = x
            for i, layer in enumerate(self.layers):
                m = potentials[i] + (layer(spikes) - potentials[i]) / tau
                spikes = Heaviside.apply(m - threshold)
                potentials[i] = (1 - spikes.detach()) * m
            rate = rate + spikes / self.time_steps
        return rate


class Task:
    """A spiking net, mini-batches, and the two views of its gradient: hooks and reference."""

    def __init__(self, *sizes: int, seed: int = 0, gain: float = 3.0, dtype=torch.float64):
        torch.manual_seed(seed)
        self.model = SpikingNet(*sizes, gain=gain).to(dtype)
        inputs = torch.rand(8, 16, sizes[0], dtype=dtype) * 2
        teacher = torch.randn(sizes[0], sizes[-1], dtype=dtype)
        labels = ((inputs - 1) @ teacher).argmax(-1)
        targets = nn.functional.one_hot(labels, sizes[-1]).to(dtype)
        self.batches = list(zip(inputs, targets, strict=True))

    @property
    def weights(self) -> list[nn.Parameter]:
        return list(self.model.parameters())

    def flat(self) -> list[float]:
        return torch.cat([w.detach().flatten() for w in self.weights]).tolist()

    def loss(self, step: int) -> Tensor:
        x, y = self.batches[step % len(self.batches)]
        return nn.functional.mse_loss(self.model(x), y)

    def backward(self, step: int) -> None:
        for weight in self.weights:
            weight.grad = None
        self.loss(step).backward()

    def gradient(self) -> Gradient:
        """Return dL/dw at any weights, from a copy the methods never touch."""
        twin = copy.deepcopy(self)

        def at(weights: list[float], step: int) -> list[float]:
            with torch.no_grad():
                start = 0
                for weight in twin.weights:
                    values = weights[start : start + weight.numel()]
                    weight.copy_(torch.tensor(values, dtype=weight.dtype).view_as(weight))
                    start += weight.numel()
            twin.backward(step)
            return torch.cat([w.grad.flatten() for w in twin.weights]).tolist()  # pyright: ignore

        return at


def close(ours: Sequence[float], theirs: Sequence[float], atol: float) -> bool:
    return bool(np.abs(np.subtract(ours, theirs)).max() <= atol)


def row(*weights: float) -> nn.Linear:
    """A layer with these weights as its only row; `pull` gives it any gradient."""
    layer = nn.Linear(len(weights), 1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([weights]))
    return layer


def pull(layer: nn.Linear, optimizer: torch.optim.Optimizer, *gradient: float) -> None:
    """One ordinary training step whose dL/dw is `gradient`: the loss is linear in the weights."""
    optimizer.zero_grad()
    layer(torch.tensor([gradient])).sum().backward()
    optimizer.step()


# ---------------------------------------------------------------------------------- rivals


def ranked(scores: Sequence[float]) -> list[int]:
    """Places from the highest score to the lowest; ties in order."""
    return sorted(range(len(scores)), key=lambda k: (-scores[k], k))


def top_k_mask(scores: Sequence[float], count: int) -> list[bool]:
    """The `count` highest of one layer."""
    chosen = set(ranked(scores)[:count])
    return [k in chosen for k in range(len(scores))]


def compete(
    scores: Sequence[Sequence[float]], fraction: float, floor: float = 0.1
) -> list[list[bool]]:
    """The `fraction` highest of all; each layer first takes `floor` of its even fraction."""
    even = [fraction * len(layer) for layer in scores]
    first = [ranked(s)[: max(1, int(floor * e))] for s, e in zip(scores, even, strict=True)]
    chosen = {(i, k) for i, places in enumerate(first) for k in places}
    others = [(i, k) for i, layer in enumerate(scores) for k in range(len(layer))]
    others = [place for place in others if place not in chosen]
    others.sort(key=lambda place: (-scores[place[0]][place[1]], *place))
    chosen |= set(others[: max(0, round(sum(even)) - len(chosen))])
    return [[(i, k) in chosen for k in range(len(layer))] for i, layer in enumerate(scores)]


def path(done: float, fraction: float, begin: float = 1.0) -> float:
    """The fraction left on the way from `begin` to `fraction`."""
    return fraction + (begin - fraction) * (1 - min(max(done, 0.0), 1.0)) ** 3


class Twin:
    """A copy of a task under a plain optimizer, whose layers are read and written as lists."""

    def __init__(self, task: Task, kind: Callable[..., torch.optim.Optimizer], lr: float):
        self.task = copy.deepcopy(task)
        self.optimizer = kind(self.task.weights, lr=lr)
        self.masks = [[True] * w.numel() for w in self.task.weights]

    def read(self) -> list[list[float]]:
        return [w.detach().flatten().tolist() for w in self.task.weights]

    def write(self, values: Sequence[Sequence[float]]) -> None:
        with torch.no_grad():
            for weight, layer in zip(self.task.weights, values, strict=True):
                weight.copy_(torch.tensor(layer, dtype=weight.dtype).view_as(weight))

    def gradient(self, step: int) -> list[list[float]]:
        self.task.backward(step)
        return [w.grad.flatten().tolist() for w in self.task.weights]  # pyright: ignore

    def move(self, gradient: Sequence[Sequence[float]]) -> None:
        """One optimizer step with this gradient."""
        for weight, layer in zip(self.task.weights, gradient, strict=True):
            weight.grad = torch.tensor(layer, dtype=weight.dtype).view_as(weight)
        self.optimizer.step()

    def masked_step(self, step: int, add: Sequence[Sequence[float]] | None = None) -> None:
        """One step of the present synapses; `add` goes to the gradient first."""
        g = self.gradient(step)
        if add is not None:
            g = [[x + y for x, y in zip(*pair, strict=True)] for pair in zip(g, add, strict=True)]
        self.move(blank(g, self.masks))
        self.write(blank(self.read(), self.masks))

    def sizes(self) -> list[list[float]]:
        """|w| of the present, less than any of them for the absent."""
        return [
            [abs(w) if here else -1.0 for w, here in zip(*pair, strict=True)]
            for pair in zip(self.read(), self.masks, strict=True)
        ]

    def prune(self, masks: list[list[bool]]) -> None:
        self.masks = masks
        self.write(blank(self.read(), masks))


def blank(values: Sequence[Sequence[float]], masks: Sequence[Sequence[bool]]) -> list[list[float]]:
    """0 where there is no synapse."""
    return [
        [v if here else 0.0 for v, here in zip(*pair, strict=True)]
        for pair in zip(values, masks, strict=True)
    ]


def agrees(task: Task, masks: dict[str, Tensor], twin: Twin, atol: float = 1e-12) -> bool:
    """Weights to `atol`, masks exactly."""
    flat = [x for layer in twin.read() for x in layer]
    wiring = [mask.flatten().tolist() for mask in masks.values()]
    return close(task.flat(), flat, atol) and wiring == twin.masks


def weakest_apart(weights: Sequence[float], here: Sequence[bool], moves: int) -> list[int]:
    """The places SET drops: zeros, then of each sign the nearest to 0, in proportion to its number.

    The authors sort all weights, and cut the same fraction from the upper end of the negative ones
    and from the lower end of the positive ones; weights of exactly 0 are between the two.
    """
    order = sorted((w, k) for k, w in enumerate(weights) if here[k])
    zeros = [k for w, k in order if w == 0]
    negative = [k for w, k in order if w < 0]  # the last is the nearest to 0
    positive = [k for w, k in order if w > 0]  # the first is
    if moves <= len(zeros):
        return zeros[::-1][:moves]
    left = len(negative) + len(positive) - (moves - len(zeros))
    stay = round(left * len(positive) / (len(positive) + len(negative)))
    above, below = len(positive) - stay, len(negative) - (left - stay)
    return zeros + positive[:above] + negative[len(negative) - below :]


def drop_and_grow(
    twin: Twin, promise: Sequence[Sequence[float]], fraction: float, apart: bool = False
) -> int:
    """Replace `fraction` of each layer's weakest by the most promising; return how many are new.

    New ones start at weight 0 with first moment 0 and the median second moment of the others. With
    `apart` the weakest are those of `weakest_apart`.
    """
    weights, masks, born = twin.read(), [], 0
    for i, mask in enumerate(twin.masks):
        present = sum(mask)
        moves = min(round(fraction * present), len(mask) - present)
        kept = top_k_mask(twin.sizes()[i], present - moves)
        if apart:
            gone = weakest_apart(weights[i], mask, moves)
            kept = [here and k not in gone for k, here in enumerate(mask)]
        hopes = [-1.0 if here else p for p, here in zip(promise[i], kept, strict=True)]
        grown = top_k_mask(hopes, moves)
        fresh = [k for k, here in enumerate(mask) if grown[k] and not here]
        stay = [k for k, here in enumerate(mask) if kept[k] or (here and grown[k])]
        for k in fresh:
            weights[i][k] = 0.0
        start_afresh(twin.optimizer, twin.task.weights[i], fresh, stay)
        masks.append([k in {*fresh, *stay} for k in range(len(mask))])
        born += len(fresh)
    twin.write(weights)
    twin.prune(masks)
    return born


def start_afresh(optimizer, weight: nn.Parameter, fresh: list[int], others: list[int]) -> None:
    state = optimizer.state[weight]
    if "exp_avg" not in state:
        return
    first, second = state["exp_avg"].view(-1), state["exp_avg_sq"].view(-1)
    middle = sorted(second[others].tolist())[(len(others) - 1) // 2] if others else 0.0
    for k in fresh:
        first[k], second[k] = 0.0, middle
