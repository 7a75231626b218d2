"""Adaptive pruning threshold over time and neurons (APTN), after Guo et al., Front. Neurosci. 2020.

https://doi.org/10.3389/fnins.2020.598876. Only the idea is known to us; the equation is ours.
"""

from dataclasses import dataclass

from torch import Tensor

from spikewire.methods.magnitude import Magnitude
from spikewire.pruning import Layer, setting


@dataclass(frozen=True, kw_only=True)
class APTN(Magnitude):
    """Small weights are pruned during learning, below a threshold that each neuron has of its own.

    A synapse of neuron i is pruned if ``|w| < t m_i^adapt``, m_i being the mean size of the weights
    that the neuron has left: a neuron of weak weights keeps inputs. The common factor t rises over
    the run so that the fraction that is left follows that of `magnitude`. Without a target,
    `connectivity` is 0.05.
    """

    name = "aptn"

    adapt: float = setting(
        0.5, "how far a threshold follows its neuron's mean weight: 0 not, 1 fully", within="[0, 1]"
    )

    def score(self, layer: Layer) -> Tensor:
        """Return ``|w| / m_i^adapt``."""
        size, mask = layer.weight.abs(), layer.state["mask"]
        inputs = tuple(range(1, size.dim()))
        present = mask.sum(inputs, keepdim=True).clamp(min=1)
        mean = (size * mask).sum(inputs, keepdim=True) / present
        return size / mean.clamp(min=1e-30).pow(self.adapt)
