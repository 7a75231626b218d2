"""Distillation from a trained network: Hinton, Vinyals, Dean, 2015, https://arxiv.org/abs/1503.02531."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from spikewire.config import Config
from spikewire.data import AnyDataset
from spikewire.data.reference import (
    call_function,
    errors_from_file,
    errors_of_file,
    is_python,
    named_path,
)
from spikewire.errors import check
from spikewire.nn.layers import Spiking
from spikewire.nn.losses import logits
from spikewire.runs.rundir import RunDir
from spikewire.train.build import autocast, build_model, forward_of
from spikewire.train.pretrained import field_of_errors, load_trained
from spikewire.train.unpack import is_packed, load_packed_

TEMPERATURE = 2.0
NOT_SETTABLE = "0 for data over time, and for a network of your own"


def distillation_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Return ``s^2 KL(softmax(teacher / s) || softmax(student / s))`` of logits, s = 2."""
    student, teacher = (functional.log_softmax(x / TEMPERATURE, dim=1) for x in (student, teacher))
    loss = functional.kl_div(student, teacher, reduction="batchmean", log_target=True)
    return TEMPERATURE**2 * loss


def load_teacher(
    student: Config, data: AnyDataset, device: torch.device
) -> Callable[[Tensor], Tensor]:
    """Return the teacher as a function from the student's images to logits, without gradients.

    Args:
        student: settings of the run; `teacher` names the teacher: a run directory, a packed
            file of the student's own network, or a Python function that returns a trained module,
            from the student's images to logits ``[batch, classes]`` or ``[time, batch, classes]``.
        data: the data set.
        device: where to put the teacher.

    Raises:
        SpikewireError: if the teacher's run has not finished or does not fit the data, if its
            number of time steps cannot be set, or if it is Python code that raises or that the
            user has not named.
    """
    if is_python(student.teacher):
        return _own_teacher(student, data, device)
    with field_of_errors("teacher"):
        model, config = _load(student, data, device)
    if time_steps := student.teacher_time_steps:
        settable = isinstance(model, Spiking) and not model.temporal
        check(settable, "teacher_time_steps", time_steps, NOT_SETTABLE)
        assert isinstance(model, Spiking)
        model.time_steps = time_steps
    return _logits(model, config.rate_scale, student.centre - config.centre)


def _own_teacher(
    student: Config, data: AnyDataset, device: torch.device
) -> Callable[[Tensor], Tensor]:
    """Return the teacher that the user's function returns, after a trial on two black images."""
    check(
        not student.teacher_time_steps,
        "teacher_time_steps",
        student.teacher_time_steps,
        NOT_SETTABLE,
    )
    path = named_path(student.teacher)
    assert path is not None
    shape, classes = data.shape, len(data.classes)
    name = student.confirm("teacher")
    model = call_function("teacher", name, input_shape=shape, classes=classes)
    what = f"teacher: what {name} returns"
    check(isinstance(model, nn.Module), what, type(model).__name__, "a module")
    images = torch.zeros(2, *shape, device=device)
    images = images.expand(student.time_steps, *images.shape) if data.temporal else images
    with errors_of_file("teacher", path), torch.no_grad(), autocast(student, device):
        model.to(device).eval()
        if student.channels_last:
            model.to(memory_format=torch.channels_last)
        found = tuple(forward_of(model)(images).shape)
    allowed = f"[time, 2, {classes}] or [2, {classes}] for 2 samples"
    check(found[1:] == (2, classes), "teacher: shape of its output", found, allowed)
    run = _logits(model, 1.0)

    def forward(images: Tensor) -> Tensor:
        with errors_from_file("teacher", path):
            return run(images)

    return forward


def _load(student: Config, data: AnyDataset, device: torch.device) -> tuple[nn.Module, Config]:
    """Return the trained network of the teacher, and the settings it runs with."""
    if is_packed(student.teacher):
        model = build_model(student, data, device)
        load_packed_(model, student.teacher, data)
        return model.eval(), student
    config = RunDir.open(student.teacher).config()
    own = (config.pixel_mean, config.pixel_std)
    alike = own == (student.pixel_mean, student.pixel_std)
    check(alike, student.teacher, own, "normalised as the student's run")
    same = (key for key in config.unconfirmed if getattr(config, key) == getattr(student, key))
    config.unconfirmed = tuple({*config.unconfirmed} - {*same})  # the user named it for both
    return load_trained(student.teacher, config, data, device)[0], config


def _logits(model: nn.Module, scale: float, difference: float = 0.0) -> Callable[[Tensor], Tensor]:
    """Return a network as a function from images, to which `difference` is added, to logits."""
    run = forward_of(model)

    def forward(images: Tensor) -> Tensor:
        with torch.no_grad():
            images = images + difference if difference else images
            return logits(run(images), scale)

    return forward
