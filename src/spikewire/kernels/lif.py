"""Neurons over time as one kernel; its twin is `spikewire.nn.neurons.lif` in plain torch."""

from typing import Any

from torch import Tensor

from spikewire.kernels import ops


def fire(current: Tensor, rate: Tensor | None = None, **constants: Any) -> Tensor:
    """Return the spikes of neurons for currents ``[time, ...]``.

    A current that is expanded over time is read only once. The twin is `spikewire.nn.neurons.lif`,
    or `integrate_and_fire` where `tau` is None.

    Args:
        current: input currents; `fusible` must hold.
        rate: a learnt ``1 / tau``, one number; `tau` is then not used.
        **constants: tau, threshold, rest, surrogate and reset, as in `NeuronConstants`.

    Returns:
        Spikes, 0 or 1, of the shape and dtype of `current`.
    """
    time_steps = len(current)
    static = time_steps > 1 and current.stride(0) == 0
    x = current[:1] if static else current
    # Neurons do not depend on each other, so channels-last images need no copy.
    moved = x.ndim == 5 and not x.is_contiguous()
    x = x.movedim(2, -1) if moved else x
    spikes, _ = ops.fire(
        x.reshape(len(x), -1).contiguous(),
        *(None,) * 6,
        rate,
        eps=0.0,
        batch_statistics=False,
        time_steps=time_steps,
        static=static,
        pool=False,
        **constants,
    )
    spikes = spikes.view(time_steps, *x.shape[1:])
    return spikes.movedim(-1, 2) if moved else spikes
