"""Four short runs on the digits, trained once."""

import shutil

import pytest
from short_runs import rename_hostile, repeat, short_config

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


def page_of(trained, root, change, **options):
    """Write the page of a copy of the runs after a change; return its path."""
    runs = shutil.copytree(trained, root / "runs", ignore=shutil.ignore_patterns("*.pt"))
    change(runs)
    write([runs], root / "report.html", **options)
    return root / "report.html"


@pytest.fixture(scope="session")
def hostile_page(trained, tmp_path_factory):
    """The page of four runs, with names and a title that a page must escape."""
    root, title = tmp_path_factory.mktemp("hostile"), "</title><script>alert(2)</script>"
    return page_of(trained, root, rename_hostile, title=title)


@pytest.fixture(scope="session")
def seeds_page(trained, tmp_path_factory):
    """The page of five runs, two of which differ by their seed only."""

    def add_seed(runs):
        repeat(runs, "gradr-a", seed=1, accuracy=0.5)

    return page_of(trained, tmp_path_factory.mktemp("seeds"), add_seed)


@pytest.fixture
def runs(trained, tmp_path):
    """A copy that a test may modify."""
    return shutil.copytree(trained, tmp_path / "runs", ignore=shutil.ignore_patterns("*.pt"))
