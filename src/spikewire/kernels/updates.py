"""Weight updates of Grad R in one pass over memory.

The twins in plain torch are the functions of the same names in `spikewire.pruning.updates`, which
call these where `same_layout` holds.
"""

# Triton's tensors carry no types a checker could follow.
# pyright: basic, reportArgumentType=false, reportOperatorIssue=false, reportIndexIssue=false
# pyright: reportCallIssue=false, reportAttributeAccessIssue=false, reportGeneralTypeIssues=false
# pyright: reportReturnType=false

import torch
import triton
import triton.language as tl
from torch import Tensor

SIZE = 2048  # weights per program


@triton.jit
def _drag(weight_ptr, sign_ptr, total, mu, pull, SIZE: tl.constexpr):
    """Write ``w - s sign(s w - mu) pull``."""
    offset = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    inside = offset < total
    weight = tl.load(weight_ptr + offset, mask=inside, other=0.0)
    sign = tl.load(sign_ptr + offset, mask=inside, other=0.0)
    theta = weight * sign
    down = tl.where(theta > mu, pull, 0.0) - tl.where(theta < mu, pull, 0.0)
    tl.store(weight_ptr + offset, weight - sign * down, mask=inside)


@triton.jit
def _rectify(latent_ptr, sign_ptr, out_ptr, total, SIZE: tl.constexpr):
    """Write ``s relu(s u)``."""
    offset = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    inside = offset < total
    latent = tl.load(latent_ptr + offset, mask=inside, other=0.0)
    sign = tl.load(sign_ptr + offset, mask=inside, other=0.0)
    tl.store(out_ptr + offset, tl.where(latent * sign <= 0, 0.0, latent), mask=inside)


def drag_(weight: Tensor, sign: Tensor, mu: float, pull: float) -> None:
    """Move every weight: ``w <- w - s sign(s w - mu) pull``.

    The twin is `spikewire.pruning.updates.drag_`.

    Args:
        weight: float32, updated in place.
        sign: +1 or -1 per weight, in the same memory layout.
        mu: location of the prior.
        pull: size of the move, ``lr alpha``.
    """
    total = weight.numel()
    _drag[(triton.cdiv(total, SIZE),)](weight, sign, total, mu, pull, SIZE=SIZE)
    torch.autograd.graph.increment_version(weight)  # as torch does for its own writes


def rectify(latent: Tensor, sign: Tensor, out: Tensor) -> Tensor:
    """Write ``s relu(s u)`` to `out` and return it.

    The twin is `spikewire.pruning.updates.rectify`.

    Args:
        latent: u, float32.
        sign: +1 or -1 per weight, in the same memory layout.
        out: written in place, in the same memory layout.

    Returns:
        `out`.
    """
    total = latent.numel()
    _rectify[(triton.cdiv(total, SIZE),)](latent, sign, out, total, SIZE=SIZE)
    torch.autograd.graph.increment_version(out)
    return out
