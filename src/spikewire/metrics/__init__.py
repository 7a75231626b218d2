"""Costs of a network (SynOps, energy, bytes) and the firing rates of its neurons.

`measure` runs a model and returns a `Measurement`; `records` holds the results, `counting` the
counters, `links` the synapses between neurons, `sizes` the bytes.
"""

from spikewire.metrics.counting import measure
from spikewire.metrics.records import Costs, Energy, Firing, LayerMeasure, Measurement
from spikewire.metrics.sizes import packed_bytes

__all__ = [
    "Costs",
    "Energy",
    "Firing",
    "LayerMeasure",
    "Measurement",
    "measure",
    "packed_bytes",
]
