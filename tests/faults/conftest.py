import pytest


@pytest.fixture
def faults(record_property):
    """Tell the summary how often a fault was tried and survived, and the steps taken again."""

    def tell(fault: str, tried: int, survived: int, steps: int = 0) -> None:
        record_property("fault", [fault, tried, survived, steps])

    return tell


@pytest.fixture
def figure(record_property):
    """Tell the summary something that was measured."""
    return lambda text: record_property("figure", text)
