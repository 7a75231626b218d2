"""Which recipe? Many MNIST networks, each with settings of its own, trained side by side on a GPU.

    python benchmarks/recipes.py --epochs 140 --seeds 4 base lr=2e-3 lr=2e-3,shrink=0

The network and step are those of `spikewire train --preset mnist-budget-current` with an axis over
networks put before all others (tests/benchmarks/test_recipes.py compares the two), captured in
CUDA graphs: 32 runs of 140 epochs took 65 s on an H200, one of 120 on a CPU core 13 minutes.
An image that stands still gives a neuron the same current at every time step, and the class is read
from a mean over time; so time is a loop inside one kernel, and nothing is kept for every step.

Judged on 5,000 held-out training images, as they are and as eight moved copies of each (by up to 1
pixel, 5 degrees, 5 %), whose loss jumps less from run to run. The test set is not read.
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import torch
from script import require_folder, run_script
from torch import Tensor
from torch.nn import functional

from spikewire.config import resolve
from spikewire.data import Batches, load
from spikewire.data.affine import affine
from spikewire.errors import SpikewireError

PRESET = resolve("mnist-budget-current")
INPUTS, HIDDEN, CLASSES = 784, 800, 10
TIME_STEPS, BATCH, EVERY = PRESET.time_steps, PRESET.batch_size, PRESET.options["every"]
FIRST, SECOND = INPUTS * HIDDEN, HIDDEN * CLASSES  # synapses of the two layers
MAGNITUDES = [float(x) for x in PRESET.augment[0].removeprefix("affine:").split("/")]

BASE = {
    **{key: getattr(PRESET, key) for key in ("lr", "dropout", "rate_scale", "centre")},
    **{key: PRESET.options[key] for key in ("connectivity", "ramp", "balance", "shrink")},
    **dict(zip(("pixels", "degrees", "share", "slant"), MAGNITUDES, strict=True)),
    # what the product has no flag for
    "power": 1.0,  # of the cosine of the rate
    "eps": 1e-8,  # Adam's
    "beta1": 0.9,
    "beta2": 0.999,
    "slope": 4.0,  # of the sigmoid surrogate
    "straight": 0.0,  # weight of the rate's own gradient, 1 inside [-1/4, 5/4], in the surrogate's
    "begin": 0.0,  # first voltage
    "bias": 0.0,  # learning rate of a bias of the hidden neurons, as a multiple of lr
    "felt": 1.0,  # fraction of the gradient that reaches absent synapses
    "stepped": 1.0,  # fraction of Adam's step that absent synapses take
    "forget": 0.0,  # decay of absent latents per step, as a multiple of lr
}


def neurons(
    current: Tensor, begin: Tensor, slope: Tensor, straight: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the rate of neurons without leak that reset softly, and its derivative.

    With the reset detached, ``dS[t]/dI`` is t times the surrogate's derivative.
    """
    u = begin.expand_as(current)
    spikes, derivative = torch.zeros_like(current), torch.zeros_like(current)
    for t in range(1, TIME_STEPS + 1):
        m = u + current
        spike = (m >= 1).to(m.dtype)
        u, spikes = m - spike, spikes + spike
        smooth = torch.sigmoid(slope * (m - 1))
        derivative = derivative + t * slope * smooth * (1 - smooth)
    inside = ((current > -0.25) & (current < 1.25)).to(current.dtype)
    derivative = torch.lerp(derivative / TIME_STEPS, inside, straight)
    return spikes / TIME_STEPS, derivative


def move(images: Tensor, drawn: Tensor, of: dict[str, Tensor]) -> Tensor:
    """Move each image as `affine` does, by magnitudes of its own; `drawn` is in [-1, 1]."""
    angle, zoom = drawn[:, 2] * of["degrees"] * (math.pi / 180), 1 + drawn[:, 3] * of["share"]
    cosine, sine = angle.cos() / zoom, angle.sin() / zoom
    x, y = drawn[:, 0] * of["pixels"], drawn[:, 1] * of["pixels"]
    top = torch.stack([cosine, sine, -cosine * x - sine * y], dim=1)
    bottom = torch.stack([-sine, cosine, sine * x - cosine * y], dim=1)
    top = top + bottom * (of["slant"] * drawn[:, 4])[:, None]
    return affine(images, torch.stack([top, bottom], dim=1))


def adam(
    u: Tensor,
    gradient: Tensor,
    mean: Tensor,
    square: Tensor,
    mask: Tensor,
    lr: Tensor,
    step: Tensor,
    of: dict[str, Tensor],
) -> None:
    """Take Adam's step in place, absent synapses with the settings of their own."""
    gradient = torch.where(mask, gradient, gradient * of["felt"])
    mean.lerp_(gradient, 1 - of["beta1"])
    square.lerp_(gradient * gradient, 1 - of["beta2"])
    first, second = 1 - of["beta1"] ** step, 1 - of["beta2"] ** step
    change = lr * (mean / first) / ((square / second).sqrt() + of["eps"])
    left = torch.where(mask, 1.0, 1 - lr * of["forget"])
    u.copy_(u * left - change * torch.where(mask, 1.0, of["stepped"]))


def project(weight: Tensor, latent: Tensor, mask: Tensor, favour: Tensor, taken: Tensor) -> None:
    """Write present latents into the weights, less what is taken from all of them."""
    bound = taken / favour
    weight.copy_(torch.where(mask, latent - latent.clamp(-bound, bound), 0.0))


def count_from(keys: Tensor, low: Tensor) -> Tensor:
    """Return for each network how many keys are `low` or more."""
    return (keys >= low[:, None]).sum(1)


@cache
def fused(function: Callable[..., Any], device: str) -> Callable[..., Any]:
    """Return the function as one kernel on a GPU, as it is elsewhere."""
    return torch.compile(function, dynamic=False) if device == "cuda" else function


class Networks:
    """Networks with weights ``[network, synapse]``, those of both layers in a row."""

    def __init__(self, recipes: list[dict[str, float]], seeds: list[int], device: str):
        full = [BASE | recipe for recipe in recipes]
        settings = {key: torch.tensor([one[key] for one in full], device=device) for key in BASE}
        self.count, self.device = len(recipes), device
        self.one = {key: value[:, None] for key, value in settings.items()}  # [network, 1]
        self.two = {key: value[:, None, None] for key, value in settings.items()}
        self.images = {key: value.repeat_interleave(BATCH) for key, value in settings.items()}
        draws = [torch.Generator().manual_seed(seed) for seed in seeds]
        start = torch.stack([torch.rand(FIRST + SECOND, generator=draw) for draw in draws])
        self.latent = (2 * start - 1).to(device)
        self.latent[:, :FIRST] *= INPUTS**-0.5
        self.latent[:, FIRST:] *= HIDDEN**-0.5
        self.bias = torch.zeros(self.count, HIDDEN, device=device)
        self.weight, self.gradient = self.latent.clone(), torch.zeros_like(self.latent)
        self.pull = torch.zeros_like(self.bias)
        self.moments = [torch.zeros_like(self.latent) for _ in range(2)]
        self.bias_moments = [torch.zeros_like(self.bias) for _ in range(2)]
        self.mask = torch.ones_like(self.latent, dtype=torch.bool)
        self.taken = torch.zeros(self.count, 1, device=device)
        sizes = torch.ones_like(self.latent)
        sizes[:, FIRST:] = (FIRST / SECOND) ** self.one["balance"]
        self.favour = sizes
        self.neurons, self.move, self.adam, self.project, self.count_from = (
            fused(function, device) for function in (neurons, move, adam, project, count_from)
        )

    def scale_to_fire_(self, images: Tensor) -> None:
        """Scale the first layer to currents with a spread of 1, as `scale_to_fire_` does."""
        for i in range(self.count):
            current = (images - self.one["centre"][i]) @ self.hidden(self.latent)[i].T
            self.latent[i, :FIRST] /= current.std(correction=0)
        self.weight.copy_(self.latent)

    @staticmethod
    def hidden(flat: Tensor) -> Tensor:
        """Return the first layer's part, ``[network, hidden, inputs]``."""
        return flat[:, :FIRST].unflatten(1, (HIDDEN, INPUTS))

    @staticmethod
    def output(flat: Tensor) -> Tensor:
        """Return the second layer's part, ``[network, classes, hidden]``."""
        return flat[:, FIRST:].unflatten(1, (CLASSES, HIDDEN))

    def fire(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the hidden neurons' rates and derivatives for ``[network, batch, inputs]``."""
        current = images @ self.hidden(self.weight).mT + self.bias[:, None]
        return self.neurons(current, *(self.two[key] for key in ("begin", "slope", "straight")))

    def logits(self, rate: Tensor) -> Tensor:
        """Return the mean output current, scaled."""
        return self.two["rate_scale"] * (rate @ self.output(self.weight).mT)

    def learn(self, images: Tensor, labels: Tensor, progress: Tensor, step: Tensor) -> Tensor:
        """Take one optimizer step, `step` counting from 1; return the losses ``[network]``."""
        rate, derivative = self.fire(images)
        keep = 1 - self.two["dropout"]
        drop = (torch.rand_like(rate) < keep) / keep
        rate = rate * drop
        log = self.logits(rate).log_softmax(-1)
        wanted = functional.one_hot(labels, CLASSES).to(log.dtype)
        back = (log.exp() - wanted) * (self.two["rate_scale"] / labels.shape[1])
        self.output(self.gradient).copy_(back.mT @ rate)
        back = (back @ self.output(self.weight)) * drop * derivative
        self.hidden(self.gradient).copy_(back.mT @ images)
        self.pull.copy_(back.sum(1))
        lr = self.one["lr"] * ((1 + torch.cos(math.pi * progress)) / 2) ** self.one["power"]
        self.adam(self.latent, self.gradient, *self.moments, self.mask, lr, step, self.one)
        everywhere = torch.ones_like(self.bias, dtype=torch.bool)
        rate_of_bias = lr * self.one["bias"]
        self.adam(
            self.bias, self.pull, *self.bias_moments, everywhere, rate_of_bias, step, self.one
        )
        self.show()
        return -(wanted * log).sum(-1).mean(-1)

    def show(self) -> None:
        """Write the weights the network sees."""
        self.project(self.weight, self.latent, self.mask, self.favour, self.taken)

    def rewire(self, progress: Tensor) -> None:
        """Keep the synapses of highest score; the k-th largest is found bit by bit."""
        share, left = self.one["connectivity"], 1 - (progress / self.one["ramp"]).clamp(max=1)
        places = ((share + (1 - share) * left**3) * (FIRST + SECOND)).round().long()[:, 0]
        score = self.latent.abs() * self.favour
        keys = score.view(torch.int32)  # in the order of the floats, none being negative
        low = torch.zeros(self.count, dtype=torch.int32, device=self.device)
        for bit in range(30, -1, -1):
            higher = low + (1 << bit)
            low = torch.where(self.count_from(keys, higher) >= places, higher, low)
        self.mask.copy_(keys >= low[:, None])
        level = torch.where(self.mask, 0.0, score).amax(1, keepdim=True)
        self.taken.copy_(self.one["shrink"] * level)
        self.show()


class Race:
    """Trains networks on the same images, each in an order of its own."""

    def __init__(self, networks: Networks, images: Tensor, labels: Tensor, epochs: int):
        self.networks, device = networks, networks.device
        self.pixels, self.labels = images.to(device), labels.to(device)
        self.per_epoch = len(labels) // BATCH
        self.total = epochs * self.per_epoch
        self.done = torch.zeros((), dtype=torch.int64, device=device)
        self.loss = torch.zeros(networks.count, device=device)
        shape = (networks.count, self.per_epoch * BATCH)
        self.order = torch.zeros(shape, dtype=torch.int64, device=device)
        networks.scale_to_fire_(self.pixels[:512].flatten(1) / 255)

    def step(self) -> None:
        """Take a batch and learn from it."""
        nets = self.networks
        place = (self.done % self.per_epoch) * BATCH + torch.arange(BATCH, device=nets.device)
        index = self.order.gather(1, place.expand(nets.count, -1)).flatten()
        drawn = 2 * torch.rand(len(index), 5, device=nets.device) - 1
        images = nets.move(self.pixels[index], drawn, nets.images) / 255
        images = images.view(nets.count, BATCH, INPUTS) - nets.two["centre"]
        labels = self.labels[index].view(nets.count, BATCH)
        self.loss += nets.learn(images, labels, self.done / self.total, self.done + 1)
        self.done += 1

    def rewire(self) -> None:
        """Let the networks rewire."""
        self.networks.rewire(self.done / self.total)

    def shuffle(self) -> None:
        """Begin an epoch."""
        self.loss.zero_()
        for order in self.order:
            order.copy_(torch.randperm(len(self.labels), device=order.device)[: len(order)])

    def run(self) -> None:
        """Train to the end."""
        step, rewire = (
            self.captured() if self.networks.device == "cuda" else (self.step, self.rewire)
        )
        for done in range(self.total):
            if done % self.per_epoch == 0:
                self.shuffle()
            step()
            if (done + 1) % EVERY == 0:
                rewire()
        rewire()
        self.loss /= self.per_epoch

    def captured(self) -> list[Callable[[], None]]:
        """Return step and rewiring as CUDA graphs, all state being as it was."""
        nets = self.networks
        state = [nets.latent, nets.bias, nets.weight, nets.mask, nets.taken, self.done, self.loss]
        state += nets.moments + nets.bias_moments
        saved = [tensor.clone() for tensor in state]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self.step()
                self.rewire()
        torch.cuda.current_stream().wait_stream(side)
        replays = []
        for work in (self.step, self.rewire):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                work()
            replays.append(graph.replay)
        for tensor, value in zip(state, saved, strict=True):
            tensor.copy_(value)
        return replays


@torch.no_grad()
def judge(networks: Networks, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return accuracy in percent and loss of every network."""
    right, loss = 0.0, 0.0
    for some, answers in zip(images.split(500), labels.split(500), strict=True):
        centred = some.flatten(1)[None] - networks.two["centre"]
        logits = networks.logits(networks.fire(centred)[0])
        wanted = answers.expand(networks.count, -1)
        right = right + (logits.argmax(-1) == wanted).sum(1)
        each = functional.cross_entropy(logits.transpose(1, 2), wanted, reduction="none")
        loss = loss + each.sum(1)
    return 100 * right / len(labels), loss / len(labels)  # pyright: ignore[reportReturnType]


def compare(
    recipes: dict[str, dict[str, float]], seeds: list[int], epochs: int, device: str
) -> list[dict[str, Any]]:
    """Train every recipe with every seed; return one row for each."""
    data = load("mnist").hold_out(5000)
    pairs = list(product(recipes, seeds))
    networks = Networks([recipes[n] for n, _ in pairs], [seed for _, seed in pairs], device)
    race = Race(networks, data.train_images, data.train_labels, epochs)
    begin = time.perf_counter()
    race.run()
    plain = data.test_images.to(device) / 255, data.test_labels.to(device)
    copies = Batches(
        data.test_images,
        data.test_labels,
        batch_size=500,
        mean=[0.0],
        std=[1.0],
        augment=["affine:1/5/0.05"],
        seed=77,
    )
    several = [pair for epoch in range(8) for pair in copies.epoch(epoch)]
    moved = [torch.cat(parts).to(device) for parts in zip(*several, strict=True)]
    learned = race.pixels[:20000] / 255, race.labels[:20000]
    figures = {
        "training_loss": race.loss,
        **dict(zip(("accuracy", "loss"), judge(networks, *plain), strict=True)),
        **dict(zip(("moved_accuracy", "moved_loss"), judge(networks, *moved), strict=True)),
        "learned_accuracy": judge(networks, *learned)[0],
    }
    seconds = time.perf_counter() - begin
    print(f"{len(pairs)} runs of {epochs} epochs in {seconds:.0f} s", flush=True)
    return [
        {"recipe": name, "seed": seed, "epochs": epochs}
        | {key: float(value[i]) for key, value in figures.items()}
        for i, (name, seed) in enumerate(pairs)
    ]


def parse(name: str) -> dict[str, float]:
    """Turn ``key=value,key=value`` into settings; ``base`` has none."""
    settings = {}
    for word in [] if name == "base" else name.split(","):
        key, _, value = word.partition("=")
        if key not in BASE:
            raise SpikewireError(f"recipe: {key!r} is unknown; there are {', '.join(BASE)}")
        try:
            settings[key] = float(value)
        except ValueError:
            raise SpikewireError(f"recipe: {word!r} must be {key}=NUMBER") from None
    return settings


def table(rows: list[dict[str, Any]]) -> str:
    """Return a Markdown table of means over seeds, lowest losses first."""
    columns = ("accuracy", "loss", "moved_accuracy", "moved_loss", "training_loss")
    columns += ("learned_accuracy",)
    lines = []
    for name in dict.fromkeys(row["recipe"] for row in rows):
        same = [row for row in rows if row["recipe"] == name]
        means = [sum(row[key] for row in same) / len(same) for key in columns]
        cells = [
            f"{x:.4f}" if "loss" in key else f"{x:.2f}"
            for key, x in zip(columns, means, strict=True)
        ]
        lines.append((means[1] + means[3], f"| `{name}` | {' | '.join(cells)} | {len(same)} |"))
    head = f"| recipe | {' | '.join(columns)} | n |\n|{'---|' * (len(columns) + 2)}"
    return "\n".join([head, *(line for _, line in sorted(lines))])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("recipes", nargs="+", help=f"base, or key=value,... of {', '.join(BASE)}")
    parser.add_argument("--epochs", type=int, default=140)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--at-once", type=int, default=32, help="networks side by side")
    parser.add_argument("--out", type=Path, help="JSON lines, one per run, appended")
    given = parser.parse_args()
    if min(given.seeds, given.epochs) < 1:
        parser.error("--seeds and --epochs must be 1 or more")
    if given.out:
        require_folder("--out", given.out.parent)
    recipes = {name: parse(name) for name in given.recipes}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    seeds, rows = list(range(given.seeds)), []
    size = max(1, given.at_once // given.seeds)
    names = list(recipes)
    for first in range(0, len(names), size):
        some = {name: recipes[name] for name in names[first : first + size]}
        new = compare(some, seeds, given.epochs, device)
        rows += new
        if given.out:
            with given.out.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in new)
    print(table(rows))


if __name__ == "__main__":
    run_script(main)
