"""A trained network teaches: Hinton, Vinyals, Dean, 2015, https://arxiv.org/abs/1503.02531."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from rewire.data import Dataset
from rewire.rundir import RunDir
from rewire.trained import blame, trained

SOFTNESS = 2.0


def lesson(output: Tensor, taught: Tensor, rate_scale: float) -> Tensor:
    """Return ``s^2 KL(softmax(teacher / s) || softmax(student / s))`` of scaled mean outputs."""
    student = functional.log_softmax(output.float().mean(0) * rate_scale / SOFTNESS, dim=1)
    teacher = functional.log_softmax(taught.float().mean(0) * rate_scale / SOFTNESS, dim=1)
    return SOFTNESS**2 * functional.kl_div(student, teacher, reduction="batchmean", log_target=True)


def load(run: str | Path, data: Dataset, device: torch.device) -> Callable[[Tensor], Tensor]:
    """Return the finished run's network as a function of images, without gradients."""
    with blame("teacher"):
        model, _ = trained(run, RunDir.open(run).config(), data, device)

    def teach(images: Tensor) -> Tensor:
        with torch.no_grad():
            return model(images)

    return teach
