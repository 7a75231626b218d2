"""Without a GPU, Triton programs run in its interpreter; it looks once, at its import."""

import os

import torch
from faults.summary import pytest_terminal_summary  # noqa: F401

collect_ignore = []
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
    collect_ignore = ["gpu"]
