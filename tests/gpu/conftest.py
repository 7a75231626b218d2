"""Tests of this folder run on the kernels that a user gets, whatever other tests have chosen."""

import pytest

from spikewire import kernels


@pytest.fixture(autouse=True)
def _auto():
    before = kernels.use("auto")
    yield
    kernels.use(before)
