"""A trained network teaches: Hinton, Vinyals, Dean, 2015, https://arxiv.org/abs/1503.02531."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from rewire.data import Dataset
from rewire.losses import logits
from rewire.rundir import RunDir
from rewire.trained import blame, trained

SOFTNESS = 2.0


def lesson(student: Tensor, teacher: Tensor) -> Tensor:
    """Return ``s^2 KL(softmax(teacher / s) || softmax(student / s))`` of logits."""
    student, teacher = (functional.log_softmax(x / SOFTNESS, dim=1) for x in (student, teacher))
    return SOFTNESS**2 * functional.kl_div(student, teacher, reduction="batchmean", log_target=True)


def load(run: str | Path, data: Dataset, device: torch.device) -> Callable[[Tensor], Tensor]:
    """Return the finished run's network as a function from images to logits, without gradients."""
    with blame("teacher"):
        config = RunDir.open(run).config()
        model, _ = trained(run, config, data, device)

    def teach(images: Tensor) -> Tensor:
        with torch.no_grad():
            return logits(model(images), config.rate_scale)

    return teach
