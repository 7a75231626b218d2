"""Labels of neurons that learned without labels, and prediction from their spikes."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from spikewire.fields import setting, validate
from spikewire.plasticity.network import Plastic, Sizes

VOTES = ("label", "proportion")


@dataclass(frozen=True, kw_only=True)
class Voting:
    """Constants of `Labels`."""

    vote: str = setting(
        "proportion",
        "how spikes become a class",
        choices=("spikewire.plasticity.labels:VOTES",),
    )
    window: float = setting(
        10_000.0, "images from which labels of neurons are taken", within="[1, inf)"
    )

    def __post_init__(self) -> None:
        validate(self)


class Labels(nn.Module):
    """Which class each neuron responds to, from the images that were shown most recently.

    ``R[k, j]`` is the mean number of spikes of neuron j per image of class k, over about the last
    `window` images (an exponential mean). With ``vote = "label"`` (Diehl & Cook 2015) a neuron has
    the label of its largest response, and the score of a class is the mean number of spikes of its
    neurons. With ``"proportion"`` (ours) a spike of neuron j counts ``R[k, j] / sum_k R[k, j]`` for
    class k. Scores are divided by their sum.

    Args:
        classes: number of classes.
        neurons: number of neurons.
        window: images that the mean extends over.
        vote: "label" or "proportion".
    """

    responses: Tensor
    shown: Tensor

    def __init__(self, classes: int, neurons: int, window: float, vote: str) -> None:
        super().__init__()
        self.window, self.vote = window, vote
        self.register_buffer("responses", torch.zeros(classes, neurons))
        self.register_buffer("shown", torch.zeros(classes, 1))

    def update_(self, counts: Tensor, labels: Tensor) -> None:
        """Include a batch: spikes per image ``[batch, neurons]`` and classes ``[batch]``."""
        classes = functional.one_hot(labels, len(self.shown)).to(counts.dtype).T
        kept = max(0.0, 1 - len(labels) / self.window)
        self.responses.mul_(kept).add_(classes @ counts)
        self.shown.mul_(kept).add_(classes.sum(1, keepdim=True))

    def forward(self, counts: Tensor) -> Tensor:
        """Return the score of each class ``[batch, classes]``; all 0 where no neuron spiked."""
        scores = counts @ self.weights().T
        return scores / scores.sum(1, keepdim=True).clamp(min=1e-12)

    def weights(self) -> Tensor:
        """Return what one spike of each neuron adds to each class, ``[classes, neurons]``."""
        mean = self.responses / self.shown.clamp(min=1e-12)
        if self.vote == "proportion":
            return mean / mean.sum(0).clamp(min=1e-12)
        own = functional.one_hot(mean.argmax(0), len(mean)).to(mean.dtype).T
        own = own * (mean.sum(0) > 0)  # a neuron that never spiked has no label
        return own / own.sum(1, keepdim=True).clamp(min=1)


class Labelled(Plastic):
    """A network whose neurons learn without labels; what they respond to is their label.

    A subclass writes `show`, `update_` and `optimizer`. Its `Constants` are a `Voting`.
    """

    def __init__(self, constants: Voting, sizes: Sizes) -> None:
        super().__init__(constants, sizes)
        self.labels = Labels(sizes.classes, sizes.hidden, constants.window, constants.vote)

    def show(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the spikes of inputs and neurons ``[time, batch, ...]`` while images are shown."""
        raise NotImplementedError

    def update_(self, pre: Tensor, post: Tensor) -> None:
        """Leave minus the rule's update in ``.grad`` for these spikes of inputs and neurons."""
        raise NotImplementedError

    @torch.no_grad()
    def learn(self, images: Tensor, labels: Tensor) -> Tensor:
        """Show the images; leave the update of the rule, and update the labels."""
        pre, post = self.show(images)
        counts = post.sum(0)
        scores = self.labels(counts)
        self.update_(pre, post)
        self.labels.update_(counts, labels)
        return scores.unsqueeze(0)

    def forward(self, images: Tensor) -> Tensor:
        """Return the score of each class ``[1, batch, classes]``."""
        return self.labels(self.show(images)[1].sum(0)).unsqueeze(0)

    def random(self, images: Tensor) -> torch.Generator | None:
        """Return where spikes are drawn from: in evaluation a fixed seed, so that it repeats."""
        return None if self.training else torch.Generator(images.device).manual_seed(0)
