"""A trained network teaches: Hinton, Vinyals, Dean, 2015, https://arxiv.org/abs/1503.02531."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from spikewire.config import Config
from spikewire.data import Dataset
from spikewire.nn.losses import logits
from spikewire.runs.rundir import RunDir
from spikewire.train.trained import field_of_errors, trained

SOFTNESS = 2.0


def distillation_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Return ``s^2 KL(softmax(teacher / s) || softmax(student / s))`` of logits."""
    student, teacher = (functional.log_softmax(x / SOFTNESS, dim=1) for x in (student, teacher))
    return SOFTNESS**2 * functional.kl_div(student, teacher, reduction="batchmean", log_target=True)


def load(student: Config, data: Dataset, device: torch.device) -> Callable[[Tensor], Tensor]:
    """Return the teacher as a function from the student's images to logits, without gradients."""
    with field_of_errors("teacher"):
        config = RunDir.open(student.teacher).config()
        model, _ = trained(student.teacher, config, data, device)
    apart = student.centre - config.centre

    def teach(images: Tensor) -> Tensor:
        with torch.no_grad():
            return logits(model(images + apart if apart else images), config.rate_scale)

    return teach
