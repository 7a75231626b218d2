"""benchmarks/leaderboard.py: its points, and one run of a few images on a CPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from spikewire.config import resolve

FOLDER = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(FOLDER))
import leaderboard  # noqa: E402


def test_every_board_is_a_preset_whose_method_takes_the_targets():
    for preset, points in leaderboard.BOARD.items():
        for point in points:
            config = resolve(preset, flags={point.unit: f"{point.target:g}"})
            assert (config.unit, config.target) == (point.unit, point.target)


def test_points_are_chosen_by_their_targets():
    assert leaderboard.selected("cifar10-vgg16", "0.05", False)[0].published == 0.9131
    assert leaderboard.selected("cifar10-vgg16", "0.03", False)[0].published is None
    assert len(leaderboard.selected("cifar10-vgg16", "", False)) == 4


@pytest.mark.slow
def test_a_run_of_few_images_is_recorded(cifar100, tmp_path):
    flags = "--limit 40 --points 0.036 --epochs 1 --width 0.02 --batch-size 10 --device cpu"
    words = ["cifar100-sew18", *flags.split(), "--precision", "fp32"]
    words += ["--out", str(tmp_path / "out"), "--runs", str(tmp_path / "runs")]
    subprocess.run([sys.executable, FOLDER / "leaderboard.py", *words], check=True)
    (file,) = (tmp_path / "out").glob("*.json")
    row = json.loads(file.read_text())
    assert row["command"].startswith("spikewire train --preset cifar100-sew18 --method budget")
    assert row["limit"] == 40
    assert 0 < row["measured"]["synapses_reached"] <= 0.0361
    assert len(row["curve"]["loss"]) == 1
