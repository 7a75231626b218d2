"""benchmarks/imagenet_cost.py: hours and bytes from a real measurement of a narrow network."""

import json
import os
import subprocess
import sys
from pathlib import Path

import imagenet_cost
import pytest

from spikewire.errors import SpikewireError

FOLDER = Path(__file__).parents[2] / "benchmarks"


def test_hours_and_bytes():
    # 1,281,167 images x 320 epochs at 1,000 images/s; torchvision's resnet18 has 11,689,512
    # parameters, of them 1,000 biases of the last layer, which ours does not have
    assert imagenet_cost.hours(1000.0) == pytest.approx(113.88, abs=0.01)
    assert imagenet_cost.gradient_bytes() == 4 * (11_689_512 - 1000)


def test_a_file_without_imagenet_is_refused():
    with pytest.raises(SpikewireError, match="no rows of imagenet"):
        imagenet_cost.text({"networks": {"vgg16": {"rows": []}}})


def test_the_page_shows_the_measurement_in_results():
    root = FOLDER.parent
    found = json.loads((root / "results" / "gpu_imagenet.json").read_text())
    assert imagenet_cost.text(found) in (root / "docs" / "scaling.md").read_text()


@pytest.mark.slow
def test_a_measurement_enters_the_page(tmp_path):
    measured, page = tmp_path / "found.json", tmp_path / "page.md"
    command = [sys.executable, FOLDER / "gpu_networks.py", "--cpu", "--networks", "imagenet"]
    subprocess.run(
        [*command, "--sections", "eager", "--out", measured],
        check=True,
        env={**os.environ, "TRITON_INTERPRET": "1"},
    )
    page.write_text("before\n<!-- imagenet -->\nold\n<!-- end of imagenet -->\nafter\n")
    command = [sys.executable, FOLDER / "imagenet_cost.py", measured, "--docs", page]
    subprocess.run(command, check=True)
    (row,) = json.loads(measured.read_text())["networks"]["imagenet"]["rows"]
    text = page.read_text()
    assert "old" not in text
    assert f"| spikewire eager | {row['batch']} |" in text
    assert f"| {imagenet_cost.hours(row['samples_per_s']):.0f} |\n" in text
    assert text.endswith("<!-- end of imagenet -->\nafter\n")
