"""Without a GPU, Triton programs run in its interpreter; it looks once, at its import."""

import os
import signal

import pytest
import torch
from faults.summary import pytest_terminal_summary  # noqa: F401

collect_ignore = []
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
    collect_ignore = ["gpu"]

# What a shell starts in the background ignores Ctrl-C, and so would all that the tests start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def call(capsys):
    """Our command line in this process: words in; exit code, output and complaints out."""
    from spikewire.cli import main

    def run(*words):
        code = main([str(word) for word in words])
        return code, *capsys.readouterr()

    return run
