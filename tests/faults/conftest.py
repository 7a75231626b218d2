import pytest
from faults.trainer import config

from spikewire.train.loop import Step, fit


@pytest.fixture
def figure(record_property):
    """Record a measured result for the summary."""
    return lambda text: record_property("figure", text)


@pytest.fixture(scope="session")
def intact(tmp_path_factory):
    """A folder with a run that was stopped, and the same run finished."""
    folder = tmp_path_factory.mktemp("intact")

    def stop(event):
        return isinstance(event, Step) and event.step == 12

    with pytest.raises(KeyboardInterrupt):
        fit(config(), folder / "stopped", progress=stop)
    fit(config(), folder / "finished")
    return folder
