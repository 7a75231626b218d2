"""Trainings forked from a worker can use the GPU: its imports have not touched CUDA."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.gpu


def test_a_frontier_trains_on_the_gpu(tmp_path):
    words = ["frontier", "--methods=dense,budget", "--connectivity=0.1", "--seeds=2", "--epochs=2"]
    words += ["--device=cuda", "--jobs=2", f"--out={tmp_path}"]
    done = subprocess.run(
        [sys.executable, "-m", "spikewire", *words], capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, "")
    runs = json.loads((tmp_path / "frontier.json").read_text())["runs"]
    assert [row["error"] for row in runs] == [None] * 4
    assert all(row["accuracy"] > 0.5 for row in runs)
