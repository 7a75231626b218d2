"""Synapses with a fixed delay each: ``y_j[t] = sum over i of W_ji x_i[t - d_ji]``."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from spikewire.errors import check
from spikewire.kernels import event_driven


class DelayedLinear(nn.Linear):
    """Fully connected synapses without bias, each with a delay of its own, in time steps.

    The delays are drawn once, uniformly, and saved with the weights. To pruning methods and
    metrics it is a linear layer. On CUDA the currents of all time steps are computed by kernels
    that skip inputs of 0: they are made for spikes.

    Args:
        inputs: number of inputs.
        outputs: number of outputs.
        span: number of different delays: they are 0 to ``span - 1``.
        self_connections: whether output i may depend on input i; if not, that weight is 0 and
            stays without effect and without gradient, but is counted in the size of the layer.

    Raises:
        SpikewireError: `span` is below 1.

    Example:
        >>> DelayedLinear(80, 220)(torch.rand(840, 16, 80)).shape  # time, batch, inputs
        torch.Size([840, 16, 220])
    """

    delays: Tensor

    def __init__(
        self, inputs: int, outputs: int, span: int = 10, *, self_connections: bool = True
    ) -> None:
        super().__init__(inputs, outputs, bias=False)
        check(span >= 1, "span", span, "at least 1")
        self.span = span
        delays = torch.randint(span, (outputs, inputs), dtype=torch.int8)
        if not self_connections:
            delays.fill_diagonal_(-1)
            nn.init.zeros_(self.weight.data.diagonal())
        self.register_buffer("delays", delays)

    def parts(self) -> list[Tensor]:
        """Return the weights of each delay, from 0 on; all others are 0 there."""
        return [self.weight * (self.delays == d) for d in range(self.span)]

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x: Tensor, earlier: Sequence[Tensor] | None = None
    ) -> Tensor:
        """Return the currents.

        Args:
            x: ``[time, batch, inputs]``, 0 before the first step; or one step, ``[batch, inputs]``.
            earlier: the steps before that one step, the latest first.

        Returns:
            ``[time, batch, outputs]``, or ``[batch, outputs]``.
        """
        if earlier is None and event_driven(x, self.weight, self.span):
            half = torch.is_autocast_enabled(x.device.type)
            dtype = torch.get_autocast_dtype(x.device.type) if half else x.dtype
            return _Currents.apply(x, self.weight, self.delays, self.span).to(dtype)  # pyright: ignore
        parts = self.parts()
        current = x @ parts[0].T
        if earlier is not None:
            for past, part in zip(earlier, parts[1:], strict=False):
                current = current + past @ part.T
            return current
        for delay, part in enumerate(parts[1 : len(x)], 1):
            current[delay:] += x[:-delay] @ part.T
        return current

    def extra_repr(self) -> str:
        """Show the delays."""
        return f"{super().extra_repr()}, span={self.span}"


class _Currents(torch.autograd.Function):
    """The currents of all time steps by kernels that skip inputs of 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, delays: Tensor, span: int) -> Tensor:
        from spikewire.kernels import delays as kernel  # imports Triton, which is optional

        ctx.save_for_backward(x, weight, delays)
        ctx.span = span
        return kernel.currents(x, weight, delays, span)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from spikewire.kernels import delays as kernel

        (dy,), (x, weight, delays) = grads, ctx.saved_tensors
        need_x, need_weight, *_ = ctx.needs_input_grad
        dx = input_gradient(dy, weight, delays, ctx.span).to(x.dtype) if need_x else None
        change = kernel.weight_gradient(x, dy, delays).to(weight.dtype) if need_weight else None
        return dx, change, None, None


def input_gradient(dy: Tensor, weight: Tensor, delays: Tensor, span: int) -> Tensor:
    """Return ``dx_i[t] = sum over j of W_ji dy_j[t + d_ji]``, one matrix product per delay.

    Args:
        dy: gradient of the currents, ``[time, batch, outputs]``.
        weight: ``[outputs, inputs]``.
        delays: of that shape.
        span: number of different delays.
    """
    weight = weight.to(dy.dtype)
    dx = dy @ (weight * (delays == 0))
    for delay in range(1, min(span, len(dy))):
        dx[:-delay] += dy[delay:] @ (weight * (delays == delay))
    return dx
