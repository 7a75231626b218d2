"""Calls of layers in a forward pass: which are other time steps, and which are other uses.

A network that loops over time calls a layer once per time step, and a synapse is the same at all of
them. A layer that is called several times per time step stands for as many layers::

    uses = ceil(calls / steps)

with `steps` the calls of the neurons that fire next after the layer: 1 for neurons that see all
time steps in one call.
"""

from collections.abc import Hashable
from typing import Any

from torch import Tensor, nn

from spikewire.nn.neurons import Neuron

NORSE_SEQUENCES = ("SNN", "SNNRecurrent")  # Norse modules that run over time, unlike its cells


class Calls:
    """The calls of one forward pass, in their order."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all calls."""
        self._records: dict[Hashable, list[Any]] = {}
        self._fired: dict[nn.Module, int] = {}
        self._next: dict[Hashable, set[nn.Module]] = {}  # neurons that fired after each layer
        self._waiting: set[Hashable] = set()

    def add(self, layer: Hashable, record: Any) -> None:
        """Note a call of a layer."""
        self._records.setdefault(layer, []).append(record)
        self._waiting.add(layer)

    def fire(self, neurons: nn.Module) -> None:
        """Note a call of a layer of neurons."""
        self._fired[neurons] = self._fired.get(neurons, 0) + 1
        for layer in self._waiting:
            self._next.setdefault(layer, set()).add(neurons)
        self._waiting.clear()

    def uses(self, layer: Hashable) -> list[list[Any]]:
        """Return the records of a layer, a list for each use with one record per time step.

        In a network without known neurons all calls are time steps of one use.
        """
        records = self._records.get(layer, [])
        if not self._fired:
            return [records] if records else []
        neurons = self._next.get(layer, ())
        steps = min((1 if over_time(n) else self._fired[n] for n in neurons), default=1)
        count = -(-len(records) // steps)
        return [records[use::count] for use in range(count)]

    def __bool__(self) -> bool:
        return bool(self._records)


def over_time(neurons: nn.Module) -> bool:
    """Return whether neurons see all time steps in one call; by their class or SpikingJelly mode.

    Args:
        neurons: a module for which `is_spiking` holds.
    """
    names = {kind.__name__ for kind in type(neurons).__mro__}
    many = getattr(neurons, "step_mode", None) == "m"
    return many or isinstance(neurons, Neuron) or not names.isdisjoint(NORSE_SEQUENCES)


def keeps_state(module: nn.Module) -> bool:
    """Return whether neurons keep their state between calls (SpikingJelly, snnTorch)."""
    jelly = hasattr(module, "_memories") and hasattr(module, "reset")
    return jelly or bool(getattr(module, "init_hidden", False) and hasattr(module, "reset_mem"))


def has_state(neurons: nn.Module) -> bool:
    """Return whether neurons of one time step per call have run since their last reset.

    Known for SpikingJelly in single-step mode, and for snnTorch with ``init_hidden``, where a
    gradient leads back to the last call.

    Args:
        neurons: a module for which `keeps_state` holds.
    """
    memories: Any = getattr(neurons, "_memories", None)
    if memories is not None:
        kept = any(isinstance(value, Tensor) for value in memories.values())
        return kept and not over_time(neurons)
    state = getattr(neurons, "mem", None)
    return isinstance(state, Tensor) and state.grad_fn is not None
