"""What `measure` cannot count is one line."""

import pytest
import torch
from refusal import refused

import spikewire


@pytest.mark.parametrize(
    ("masks", "words"),
    [
        ({"module.fc1.weight": torch.zeros(256, 64)}, ["module.fc1.weight", "fc1.weight"]),
        ({"fc1": torch.zeros(256, 64)}, ["masks: unknown 'fc1'", "fc1.weight"]),
        ([1], ["masks: 'list'"]),
    ],
)
def test_masks_of_other_names_are_refused(masks, words):
    """They would be counted as weights that exist."""
    model = spikewire.build("digits-mlp")
    images = torch.rand(2, 1, 8, 8)
    refused(lambda: spikewire.measure(model, images, masks), *words)
    empty = {"fc1.weight": torch.zeros(256, 64), "fc2.weight": torch.zeros(10, 256)}
    assert spikewire.measure(model, images, empty).connectivity == 0


def test_a_runtime_names_its_own_count():
    runtime, images = spikewire.load("zoo:digits-5"), torch.rand(2, 1, 8, 8)
    refused(lambda: spikewire.measure(runtime, images), "model: 'Runtime'", "count_operations")


def test_an_empty_batch_is_named():
    model = spikewire.build("digits-mlp")
    refused(lambda: spikewire.measure(model, torch.zeros(0, 1, 8, 8)), "batch: (0, 1, 8, 8)")
