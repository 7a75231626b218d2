"""File formats for finished networks: the record of a network, and readers and writers of it.

``trace_model(model)`` turns a torch model into a `Network`; `packed`, `nir`, `coo` and `c` write it
to disk. `packed.read` and `nir.from_nir` return a `Network` again.
"""

from spikewire.formats import c, coo, nir, packed
from spikewire.formats.network import Geometry, Network, Neuron, Pool, Source, Stage
from spikewire.formats.trace import trace_model

__all__ = [
    "Geometry",
    "Network",
    "Neuron",
    "Pool",
    "Source",
    "Stage",
    "c",
    "coo",
    "nir",
    "packed",
    "trace_model",
]
