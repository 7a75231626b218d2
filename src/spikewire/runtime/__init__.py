"""Event-driven sparse inference on the CPU, where only arriving spikes cost work."""

from spikewire.runtime.model import Runtime, Stream, from_nir, load

__all__ = ["Runtime", "Stream", "from_nir", "load"]
