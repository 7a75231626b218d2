"""Grad R's updates of a whole weight; on CUDA one kernel each, elsewhere plain torch."""

import torch
from torch import Tensor

from spikewire.kernels import same_layout


def drag_(latent: Tensor, sign: Tensor, mu: float, pull: float | Tensor) -> None:
    """Move every theta towards mu: ``u <- u - s sign(s u - mu) pull``.

    Args:
        latent: ``u = s theta``, changed in place.
        sign: ``s``, +1 or -1.
        mu: location of the prior.
        pull: length of the move; a tensor where the learning rate is one.
    """
    if isinstance(pull, float) and same_layout(latent, sign):
        from spikewire.kernels import updates  # imports Triton, which is optional

        updates.drag_(latent, sign, mu, pull)
    else:
        latent.sub_(sign * torch.sign(latent * sign - mu) * pull)


def rectify(latent: Tensor, sign: Tensor, out: Tensor | None = None) -> Tensor:
    """Return ``s relu(s u)``, in `out` if given."""
    out = torch.empty_like(latent) if out is None else out
    if same_layout(latent, sign, out):
        from spikewire.kernels import updates

        return updates.rectify(latent, sign, out)
    return torch.mul((latent * sign).relu_(), sign, out=out)
