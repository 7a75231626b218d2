"""Neurons over time as one kernel: the fast twin of the function in `spikewire.nn.neurons`."""

from torch import Tensor

from spikewire.kernels import ops


def fire(
    current: Tensor, tau: float | None, threshold: float, rest: float, surrogate: str, reset: str
) -> Tensor:
    """Return the spikes for currents ``[time, ...]``; what is expanded over time is read once."""
    time_steps = len(current)
    static = time_steps > 1 and current.stride(0) == 0
    x = current[:1] if static else current
    # Every neuron is alone, so channels-last images stay as they lie in memory.
    moved = x.ndim == 5 and not x.is_contiguous()
    x = x.movedim(2, -1) if moved else x
    constants = tau, threshold, rest, surrogate, reset
    flat = x.reshape(len(x), -1).contiguous()
    none = (None, None, None, None, 0.0, False)
    spikes, _ = ops.fire(flat, *none, time_steps, static, False, *constants)
    spikes = spikes.view(time_steps, *x.shape[1:])
    return spikes.movedim(-1, 2) if moved else spikes
