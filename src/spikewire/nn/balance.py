"""First weights with one sign per source, in which excitation and inhibition cancel."""

import torch
from torch import Tensor


@torch.no_grad()
def balance_(weight: Tensor, inhibitory: Tensor, *, self_connections: bool = True) -> None:
    """Draw weights of one sign per source, as the LSNN starts with.

    They are ``|N(0, 1)|``, negative for inhibitory sources and scaled so that excitation and
    inhibition of each neuron cancel, then all divided by the spectral radius of a square matrix
    of them, which for a square `weight` is its own.

    Args:
        weight: ``[neurons, sources]``, overwritten.
        inhibitory: indices of the inhibitory sources.
        self_connections: whether the diagonal is drawn; if not, it is 0.
    """
    outputs, inputs = weight.shape
    drawn = torch.randn(max(outputs, inputs), inputs).abs_()
    if not self_connections:
        drawn.fill_diagonal_(0.0)
    excited = drawn.index_fill(1, inhibitory, 0.0).sum(1, keepdim=True)
    inhibited = drawn[:, inhibitory]
    total = inhibited.sum(1, keepdim=True)  # 0: only the neuron itself inhibits
    drawn[:, inhibitory] = inhibited * (-excited / total).where(total > 0, 0.0)
    radius = torch.linalg.eigvals(drawn[:inputs]).abs().max()
    weight.copy_(drawn[:outputs] / radius.clamp(min=torch.finfo(drawn.dtype).tiny))
