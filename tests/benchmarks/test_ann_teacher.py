"""benchmarks/ann_teacher.py: a small teacher of a few images, on a CPU."""

import sys
from pathlib import Path

import ann_teacher
import pytest
import torch

from spikewire.errors import SpikewireError


@pytest.fixture
def trained(monkeypatch, tmp_path, cifar10):
    """Train a narrow network of 40 images into a directory of its own."""
    monkeypatch.setattr(ann_teacher, "RUNS", tmp_path)
    words = "cifar10 --epochs 1 --limit 40 --batch-size 20 --channels 2"
    monkeypatch.setattr(sys, "argv", ["ann_teacher.py", *words.split()])
    ann_teacher.main()
    return tmp_path


def test_a_teacher_is_written_with_its_time_and_accuracy_and_read_again(trained):
    assert ann_teacher.recorded("cifar10", "seconds") > 0
    accuracy = ann_teacher.recorded("cifar10", "accuracy")
    assert accuracy == pytest.approx(round(40 * accuracy) / 40, abs=1e-4)
    images = torch.rand(3, 3, 32, 32)
    first, again = ann_teacher.cifar10().eval(), ann_teacher.load("cifar10").eval()
    assert first(images).shape == (3, 10)
    assert torch.equal(first(images), again(images))
    assert not first.graphs, "no graph on a CPU"


def test_a_missing_teacher_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(ann_teacher, "RUNS", tmp_path / "none")
    with pytest.raises(SpikewireError, match="has no seconds; train it again"):
        ann_teacher.recorded("cifar100", "seconds")


def test_weights_have_the_names_of_the_network_alone(trained):
    """A file from before the graph is read by the same function."""
    from safetensors.torch import load_file

    names = load_file(Path(trained) / "ann-cifar10.safetensors")
    assert set(names) == set(ann_teacher.resnet18(10, 2).state_dict())
