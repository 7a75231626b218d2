"""All tests of this folder run on the Triton kernels."""

import pytest
import torch

from spikewire import kernels


@pytest.fixture(autouse=True)
def _fused():
    before = kernels.use("triton")
    tf32, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, False
    yield
    torch.backends.cudnn.allow_tf32 = tf32
    kernels.use(before)
