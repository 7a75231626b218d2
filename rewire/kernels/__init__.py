"""Fused GPU kernels; `use` chooses between them and plain torch, which computes the same."""

from rewire.kernels.choice import fusible, use

__all__ = ["fusible", "use"]
