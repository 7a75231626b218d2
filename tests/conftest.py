"""What all tests share: the command line, data sets and a browser.

A test that needs a data set or a program that is not installed is skipped. With
``SPIKEWIRE_TEST_NO_SKIP=1`` it fails instead, so that a complete machine skips nothing silently.
"""

import os
import shutil
import signal

import pytest
import torch
from faults.summary import pytest_terminal_summary  # noqa: F401

collect_ignore = []
if not torch.cuda.is_available():
    # without a GPU, Triton kernels run in its interpreter; Triton reads this once, on import
    os.environ.setdefault("TRITON_INTERPRET", "1")
    collect_ignore = ["gpu"]

# A process that a shell starts in the background ignores Ctrl-C, and so would its own children.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def skip(reason):
    """Skip this test, or fail where nothing may be skipped."""
    if os.environ.get("SPIKEWIRE_TEST_NO_SKIP") == "1":
        pytest.fail(f"{reason} (SPIKEWIRE_TEST_NO_SKIP=1)", pytrace=False)
    pytest.skip(reason)


def load_or_skip(name):
    from spikewire import data

    root = data.data_dir()
    if not all((root / file.path).is_file() for file in data.DATASETS[name].files):
        skip(f"needs {name}, which is not in {root}: run `spikewire data get {name}`")
    return data.load(name)


@pytest.fixture
def call(capsys):
    """Our command line in this process: words in; exit code, output and errors out."""
    from spikewire.cli import main

    def run(*words):
        code = main([str(word) for word in words])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def faults(record_property):
    """Record for the summary how often a fault was tried and survived, and the steps repeated."""

    def record(fault: str, tried: int, survived: int, steps: int = 0) -> None:
        record_property("fault", [fault, tried, survived, steps])

    return record


@pytest.fixture(scope="session")
def digits():
    return load_or_skip("digits")


@pytest.fixture(scope="session")
def braille():
    return load_or_skip("braille")


@pytest.fixture(scope="session")
def mnist():
    return load_or_skip("mnist")


@pytest.fixture(scope="session")
def fashion_mnist():
    return load_or_skip("fashion-mnist")


@pytest.fixture(scope="session")
def cifar10():
    return load_or_skip("cifar10")


@pytest.fixture(scope="session")
def cifar100():
    return load_or_skip("cifar100")


@pytest.fixture(scope="session")
def need():
    """A function that skips the test unless a program, such as npm, is on the PATH."""

    def check(*programs):
        for program in programs:
            if not shutil.which(program):
                skip(f"needs {program}, which is not on the PATH")

    return check


@pytest.fixture(scope="session")
def browser():
    """A headless Chromium that logs errors and requests."""
    names = ("chromium", "chromium-browser", "google-chrome")
    binary = next(filter(None, map(shutil.which, names)), None)
    driver = shutil.which("chromedriver")
    if not (binary and driver):
        skip("needs a browser: apt-get install -y chromium chromium-driver")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = webdriver.Chrome(options, webdriver.ChromeService(driver))
    yield chrome
    chrome.quit()
