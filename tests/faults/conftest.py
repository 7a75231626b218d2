import pytest


@pytest.fixture
def faults(record_property):
    """Record for the summary how often a fault was tried and survived, and the steps repeated."""

    def record(fault: str, tried: int, survived: int, steps: int = 0) -> None:
        record_property("fault", [fault, tried, survived, steps])

    return record


@pytest.fixture
def figure(record_property):
    """Record a measured result for the summary."""
    return lambda text: record_property("figure", text)
