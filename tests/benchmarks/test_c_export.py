"""benchmarks/c_export.py: the network that is timed in snnTorch is the one in the packed file."""

import c_export
import pytest
import torch
from networks import conv_net

from spikewire.formats import packed
from spikewire.formats.trace import trace_model
from spikewire.runtime import Runtime


@torch.no_grad()
@pytest.mark.parametrize("pool", ["max", "avg"])
def test_convolutions_in_snntorch_give_the_scores_of_the_runtime(pool):
    network = trace_model(conv_net(pool=pool, kind="half"))
    images = torch.randn(4, *network.input_shape)
    expected = Runtime(network, exact=True)(images).mean(0)
    assert expected.std() > 0, "silent: nothing is compared"
    torch.testing.assert_close(c_export.SnnTorch(network)(images), expected)


def test_every_candidate_gives_the_same_classes(digits, need):
    need("cc")
    network = packed.read("zoo:digits-5")
    images = Runtime(network).normalise(digits.test_images[:60])
    rows = c_export.measure(network, images, "cc", 1)
    assert [row.name for row in rows[2:4]] == ["C, int8", "C, fp32"]
    for row in rows:
        assert row.seconds > 0
        assert torch.equal(row.classes, rows[-1].classes), row.name
