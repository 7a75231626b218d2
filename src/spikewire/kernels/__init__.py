"""Fused GPU kernels; `use` chooses between them and plain torch, which computes the same."""

from spikewire.kernels.choice import fusible, same_layout, use

__all__ = ["same_layout", "fusible", "use"]
