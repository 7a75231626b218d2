"""Noisy leaky neurons with a refractory period: one time step in one kernel.

The twin in plain torch is `Layer.step` in `spikewire.plasticity.ecd`, which calls this where
`same_layout` holds.
"""

# Triton's tensors carry no types a checker could follow.
# pyright: basic, reportArgumentType=false, reportOperatorIssue=false, reportIndexIssue=false
# pyright: reportCallIssue=false, reportAttributeAccessIssue=false, reportGeneralTypeIssues=false
# pyright: reportReturnType=false

import torch
import triton
import triton.language as tl
from torch import Tensor

SIZE = 512  # neurons per program


@triton.jit
def _step(
    x_ptr, noise_ptr, u_ptr, blind_ptr, trace_ptr, spike_ptr, new_trace_ptr, total,
    leak, offset, threshold, pause, fading, SIZE: tl.constexpr,
):  # fmt: skip
    """Integrate, fire and fade."""
    index = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    inside = index < total
    x = tl.load(x_ptr + index, mask=inside, other=0.0) - offset
    blind = tl.load(blind_ptr + index, mask=inside, other=0.0)
    u = tl.load(u_ptr + index, mask=inside, other=0.0) * leak + x * (1 - leak)
    u += tl.load(noise_ptr + index, mask=inside, other=0.0)
    u = tl.where(blind <= 0, u, 0.0)
    fires = u >= threshold
    trace = tl.load(trace_ptr + index, mask=inside, other=0.0) * fading
    tl.store(u_ptr + index, tl.where(fires, 0.0, u), mask=inside)
    tl.store(blind_ptr + index, tl.where(fires, pause, blind - 1), mask=inside)
    tl.store(spike_ptr + index, fires.to(tl.float32), mask=inside)
    tl.store(new_trace_ptr + index, trace + fires.to(tl.float32), mask=inside)


def step_(
    x: Tensor, noise: Tensor, u: Tensor, blind: Tensor, trace: Tensor, **constants: float
) -> tuple[Tensor, Tensor]:
    """Advance neurons by one time step; return their spikes and traces.

    The twin is `spikewire.plasticity.ecd.Layer.step`.

    Args:
        x: input, float32, contiguous, as all others.
        noise: what is added to the potentials.
        u: potentials; changed.
        blind: steps until the end of the refractory period; changed.
        trace: traces of earlier spikes.
        **constants: leak, offset, threshold, pause and fading, as in `Layer`.
    """
    spikes, traces, total = torch.empty_like(u), torch.empty_like(u), u.numel()
    grid = (triton.cdiv(total, SIZE),)
    _step[grid](x, noise, u, blind, trace, spikes, traces, total, **constants, SIZE=SIZE)
    return spikes, traces
