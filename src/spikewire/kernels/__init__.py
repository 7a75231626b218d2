"""Triton kernels; `use` chooses between them and plain torch, which computes the same.

Each kernel has a twin in plain torch, which its docstring names. Modules that import Triton
(`adaptive`, `delays`, `lif`, `ops`, `selection`, `updates` and what they use) are imported at the
call, as Triton is optional.
"""

from spikewire.kernels.choice import event_driven, fusible, same_layout, use

__all__ = ["event_driven", "fusible", "same_layout", "use"]
