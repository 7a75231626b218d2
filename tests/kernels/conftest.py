"""All tests of this folder run on the Triton kernels."""

import pytest

from spikewire import kernels


@pytest.fixture(autouse=True)
def _fused():
    before = kernels.use("triton")
    yield
    kernels.use(before)
