"""Event-driven inference of exported networks on the CPU: work grows with the spikes, not the size.

`load` and `from_nir` return a `Runtime`; `Stream` keeps membrane potentials between time steps.
"""

from spikewire.runtime.model import Runtime, from_nir, load
from spikewire.runtime.stream import Stream

__all__ = ["Runtime", "Stream", "from_nir", "load"]
