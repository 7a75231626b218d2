"""Fused GPU kernels; `use` chooses between them and plain torch, which computes the same."""

from spikewire.kernels.choice import alike, fusible, use

__all__ = ["alike", "fusible", "use"]
