"""A ReLU network to distill from: ResNet-18 for images of 32 x 32 pixels, trained in a minute.

    python benchmarks/ann_teacher.py cifar100
    spikewire train --preset cifar100-sew18 --teacher benchmarks/ann_teacher.py:cifar100

The first command writes ``runs/ann-cifar100.safetensors``, with training time and accuracy on the
test set, which it prints; the functions `cifar10` and `cifar100` return the network with these
weights. A student that is tested with ``--hold-out 5000`` needs a teacher that has not seen these
images either: the same flag here writes ``runs/ann-cifar100-held-out.safetensors``, which
`cifar100_held_out` returns. SGD with Nesterov momentum 0.9, one cosine cycle after a warm-up, bf16;
no label smoothing, which would hide from a student how similar classes are.
"""

import argparse
import time
from collections.abc import Iterable
from math import cos, pi
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from spikewire import data as datasets
from spikewire.data import Batches
from spikewire.errors import SpikewireError
from spikewire.train.cuda_graph import Graph

RUNS = Path("runs")


class Block(nn.Module):
    """Two 3 x 3 convolutions with a shortcut, which is a 1 x 1 convolution where sizes differ."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            conv = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum after a ReLU."""
        return functional.relu(self.branch(x) + self.shortcut(x), inplace=True)


def resnet18(classes: int, channels: int = 64) -> nn.Sequential:
    """Return an untrained ResNet-18 for 3 x 32 x 32 pixels."""
    stem = [nn.Conv2d(3, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels)]
    blocks, before = [], channels
    for i in range(4):
        size = channels * 2**i
        blocks += [Block(before, size, 1 if i == 0 else 2), Block(size, size, 1)]
        before = size
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes)]
    return nn.Sequential(*stem, nn.ReLU(inplace=True), *blocks, *head)


def cifar10() -> nn.Module:
    """Return the network trained on CIFAR-10."""
    return load("cifar10")


def cifar10_held_out() -> nn.Module:
    """Return the network trained on CIFAR-10 without the held-out images."""
    return load("cifar10_held_out")


def cifar100() -> nn.Module:
    """Return the network trained on CIFAR-100."""
    return load("cifar100")


def cifar100_held_out() -> nn.Module:
    """Return the network trained on CIFAR-100 without the held-out images."""
    return load("cifar100_held_out")


def path_of(name: str) -> Path:
    """Return the file with the weights that a function of this name returns."""
    return RUNS / f"ann-{name.replace('_', '-')}.safetensors"


class Replayed(nn.Module):
    """A trained network that runs as a CUDA graph on a GPU, one per shape of its batches."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.graphs: dict[torch.Size, Graph] = {}

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the network."""
        if not x.is_cuda:
            return self.network(x)
        if x.shape not in self.graphs:
            self.graphs[x.shape] = Graph(self.network, self.network)
        return self.graphs[x.shape](x)


def load(name: str) -> nn.Module:
    """Return a trained network; it has the channels and classes of its weights."""
    weights = load_file(path_of(name))
    model = resnet18(len(weights["13.bias"]), len(weights["0.weight"]))
    model.load_state_dict(weights)
    return Replayed(model)


def recorded(name: str, figure: str) -> float:
    """Return a figure of the network that a function of this name returns.

    Args:
        name: name of the function.
        figure: ``"seconds"`` of training, or ``"accuracy"`` on the images it was tested on.

    Raises:
        SpikewireError: there is no such network, or it was written without this figure.
    """
    try:
        with safe_open(path_of(name), "pt") as file:
            return float(file.metadata()[figure])
    except (OSError, TypeError, KeyError):
        raise SpikewireError(f"{path_of(name)}: has no {figure}; train it again") from None


def train(model: nn.Module, batches: Batches, epochs: int, lr: float) -> float:
    """Train a network; print a line per ten epochs; return the seconds."""
    optimizer = torch.optim.SGD(
        model.parameters(), lr, momentum=0.9, nesterov=True, weight_decay=5e-4, fused=True
    )

    def learn(images: Tensor, labels: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(images.device.type, torch.bfloat16, cache_enabled=False):
            output = model(images)
        loss = functional.cross_entropy(output.float(), labels)
        loss.backward()
        return loss.detach()

    compute = Graph(learn, model) if batches.device.type == "cuda" else learn
    total, step, begin = epochs * len(batches), 0, time.perf_counter()
    for epoch in range(epochs):
        summed = torch.zeros((), device=batches.device)
        for images, labels in batches.epoch(epoch):
            progress = step / total
            warm = min(1.0, progress / 0.1)
            optimizer.param_groups[0]["lr"] = lr * warm * (1 + cos(pi * progress)) / 2
            summed += compute(images, labels)
            optimizer.step()
            step += 1
        if (epoch + 1) % 10 == 0 or epoch + 1 == epochs:
            mean = float(summed) / len(batches)
            seconds = time.perf_counter() - begin
            print(f"  epoch {epoch + 1}: loss {mean:.3f}, {seconds:.0f} s", flush=True)
    return time.perf_counter() - begin


@torch.no_grad()
def accuracy(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Return the fraction of images that are classified correctly."""
    model.eval()
    right, count = 0, 0
    for images, labels in batches:
        with torch.autocast(images.device.type, torch.bfloat16):
            right += int((model(images).argmax(1) == labels).sum())
        count += len(labels)
    return right / count


def main() -> None:
    """Train a teacher and write its weights."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("dataset", choices=["cifar10", "cifar100"])
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--lr", type=float, default=0.4)
    parser.add_argument("--channels", type=int, default=64, help="of the first convolution")
    parser.add_argument("--augment", default="crop:4,flip,cutout:8")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hold-out", type=int, default=0, help="training images to test on")
    parser.add_argument("--limit", type=int, default=0, help="images to use; 0: all")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.backends.cudnn.benchmark = True  # all batches have one shape
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = datasets.load(args.dataset)
    data = data.hold_out(args.hold_out) if args.hold_out else data  # the student's images
    few = slice(args.limit or None)
    same = {"mean": data.mean, "std": data.std, "device": device, "channels_last": True}
    augment = tuple(filter(None, args.augment.split(",")))
    own = {"batch_size": args.batch_size, "augment": augment, "seed": args.seed}
    batches = Batches(data.train_images[few], data.train_labels[few], **same, **own)
    held = data.test_images[few], data.test_labels[few]
    test = Batches(*held, batch_size=500, shuffle=False, drop_last=False, **same)
    model = resnet18(len(data.classes), args.channels).to(device)
    model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    seconds = train(model, batches, args.epochs, args.lr)
    right = accuracy(model, test.epoch(0))
    print(f"{args.dataset}: {right:.2%}")
    path = path_of(args.dataset + "_held_out" * bool(args.hold_out))
    path.parent.mkdir(exist_ok=True)
    weights = {name: value.contiguous() for name, value in model.state_dict().items()}
    save_file(weights, path, {"seconds": f"{seconds:.2f}", "accuracy": f"{right:.4f}"})


if __name__ == "__main__":
    try:
        main()
    except SpikewireError as error:
        raise SystemExit(f"ann_teacher: {error}") from None
