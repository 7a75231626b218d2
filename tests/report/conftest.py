"""Four short runs on the digits, trained once."""

import shutil

import pytest
from short_runs import short_config

from spikewire.report import write
from spikewire.train.loop import fit


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Four real runs on the digits."""
    root = tmp_path_factory.mktemp("runs")
    fit(short_config(method="dense"), root / "dense")
    fit(short_config(alpha="0.5"), root / "gradr-a")
    fit(short_config(alpha="1"), root / "gradr-b")
    fit(short_config(method="deepr", connectivity="0.3", allocation="uniform"), root / "deepr")
    return root


@pytest.fixture(scope="session")
def trained_page(trained, tmp_path_factory):
    """The page of the four runs, for tests that only read it."""
    path = tmp_path_factory.mktemp("page") / "report.html"
    write([trained], path)
    return path


@pytest.fixture
def runs(trained, tmp_path):
    """A copy that a test may modify."""
    return shutil.copytree(trained, tmp_path / "runs", ignore=shutil.ignore_patterns("*.pt"))
