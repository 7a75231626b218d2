"""Comparison of kernels with plain torch, on the GPU if there is one, else interpreted."""

import torch
from torch import Tensor

from spikewire import kernels
from spikewire.nn.neurons import LIF, Neuron

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Relative error allowed in the norm: the arithmetic is float32, results are rounded to the dtype.
DTYPES = {torch.float32: 1e-5, torch.bfloat16: 4e-3, torch.float16: 1e-3}
# On a GPU every new set of constants costs seconds of compilation: there, fewer combinations.
FULL = DEVICE == "cpu"
MARGIN = 1e-4  # closer to the threshold than this, float32 and float64 may decide differently


class Driven(LIF):
    """Neurons of a user, with a constant current added to their input."""

    def forward(self, current: Tensor) -> Tensor:
        return super().forward(current + 1)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(DEVICE, dtype)


def relative_error(a: Tensor, b: Tensor) -> float:
    """Return ``|a - b| / |b|``; NaN counts as infinite."""
    a, b = a.detach().double(), b.detach().double()
    error = float((a - b).norm() / b.norm().clamp(min=1e-12))
    return error if error == error else float("inf")


def far_from_threshold(current: Tensor, neuron: Neuron) -> Tensor:
    """Return which neurons never come near the threshold, for float64 currents ``[time, ...]``."""
    u, near = torch.full_like(current[0], neuron.rest), torch.full_like(current[0], 9.0)
    for x in current:
        m = u + x if neuron.tau is None else u + (x - (u - neuron.rest)) / neuron.tau
        near = torch.minimum(near, (m - neuron.threshold).abs())
        soft = m - (neuron.threshold - neuron.rest)
        after = soft if neuron.reset == "soft" else neuron.rest
        u = torch.where(m >= neuron.threshold, after, m)
    return near > MARGIN


def gradients(spikes: Tensor, grad: Tensor, *leaves: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(spikes, leaves, grad.to(spikes.dtype)))


def on_torch(function, *arguments):
    """Call the function on the plain-torch path."""
    before = kernels.use("torch")
    result = function(*arguments)
    kernels.use(before)
    return result
