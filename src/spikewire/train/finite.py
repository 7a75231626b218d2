"""The check that all of a run's state is finite: no checkpoint keeps NaN or infinity."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from spikewire.errors import TrainingFailed
from spikewire.train.step import Training


class Diverged(TrainingFailed):
    """Training failed: loss, weights or other state are not finite any more."""


def require_finite(training: Training) -> None:
    """Check loss, parameters, buffers, moments, latents and averages.

    Spikes are bounded, so the loss alone does not show a failure, and a moment can be infinite
    while the weights still are finite.

    Raises:
        Diverged: if one of them is infinite or NaN.
    """
    lost = "" if math.isfinite(training.position.loss_sum) else "loss"
    lost = lost or _first_nonfinite(dict(_state(training)))
    if not lost:
        return
    if training.steps == 0:
        raise Diverged(
            f"{lost} is not finite before the first step; "
            f"check threshold {training.config.threshold:g}, init, start and the data"
        )
    raise Diverged(
        f"{lost} is not finite at step {training.steps} of {training.total_steps}; "
        f"try a lower lr than {training.config.lr:g}; the last good checkpoint is kept"
    )


def _state(training: Training) -> Iterator[tuple[str, Tensor]]:
    """Return every tensor that a checkpoint holds, by a name for the message."""
    yield from training.model.state_dict().items()
    names: dict[Tensor, str] = {p: name for name, p in training.model.named_parameters()}
    for parameter, moments in training.optimizer.state.items():
        for key, value in moments.items():
            if isinstance(value, Tensor):
                yield f"{names.get(parameter, 'a parameter')} ({key})", value
    for layer in training.pruner.layers:
        yield from ((f"{layer.name} ({key})", value) for key, value in layer.state.items())
    yield from ((f"{key} (remembered)", value) for key, value in training.pruner.memory.items())
    means = training.average.state_dict() if training.average else {}
    yield from ((f"{key} (averaged)", value) for key, value in means.items())


def _first_nonfinite(tensors: dict[str, Tensor]) -> str:
    """Return the name of the first tensor that is not finite, else ""; waits for a GPU once."""
    device = next(iter(tensors.values())).device
    flags = torch.stack([x.isfinite().all().to(device) for x in tensors.values()])
    return next((name for name, good in zip(tensors, flags.tolist(), strict=True) if not good), "")
