"""Triton kernels; `use` chooses between them and plain torch, which computes the same.

Each kernel has a twin in plain torch, which its docstring names. Modules that import Triton (`lif`,
`ops`, `selection`, `updates` and what they use) are imported at the call, as Triton is optional.
"""

from spikewire.kernels.choice import fusible, same_layout, use

__all__ = ["fusible", "same_layout", "use"]
