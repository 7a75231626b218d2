"""Synapses with a fixed delay each: ``y_j[t] = sum over i of W_ji x_i[t - d_ji]``."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from spikewire.errors import check


class DelayedLinear(nn.Linear):
    """Fully connected synapses without bias, each with a delay of its own, in time steps.

    The delays are drawn once, uniformly, and saved with the weights. To pruning methods and
    metrics it is a linear layer.

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
