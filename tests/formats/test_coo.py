import json

import numpy as np
import pytest
import torch
from networks import conv_net
from refusal import refused
from torch.nn import functional

from spikewire.formats import coo
from spikewire.formats.network import describe


def read(path):
    if path.suffix == ".npz":
        with np.load(path) as archive:
            return {key: archive[key] for key in coo.FIELDS}
    rows = np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2)
    return dict(zip(coo.FIELDS, rows.T, strict=True))


@pytest.mark.parametrize("kind", coo.KINDS)
def test_connection_lists_carry_the_currents(kind, tmp_path):
    model = conv_net(pool="avg")
    network = describe(model)
    total = coo.write(network, tmp_path / "out", kind)
    about = json.loads((tmp_path / "out" / "network.json").read_text())
    assert total == sum(layer["synapses"] for layer in about["layers"])
    for layer, stage, place in zip(about["layers"], network.stages, network.geometry, strict=True):
        wires = read(tmp_path / "out" / layer["file"])
        assert len(wires["pre"]) == layer["synapses"]
        assert not wires["delay"].any()
        x = np.random.default_rng(0).random(np.prod(place.inputs)).astype(np.float32)
        current = np.zeros(np.prod(place.neurons))
        pre, post = wires["pre"].astype(int), wires["post"].astype(int)
        np.add.at(current, post, wires["weight"] * x[pre])
        weight, image = torch.from_numpy(stage.dense()), torch.from_numpy(x)
        if len(stage.shape) == 2:
            wanted = weight @ image
        else:
            wanted = functional.conv2d(image.view(place.inputs), weight, padding=stage.padding)
        np.testing.assert_allclose(current, wanted.flatten().numpy(), rtol=1e-4, atol=1e-5)


def test_memory_stays_small(tmp_path):
    network = describe(conv_net(64, 64, channels=(1, 16, 16), connectivity=1.0))
    largest = max(
        sum(part.nbytes for part in piece.values())
        for stage, place in zip(network.stages, network.geometry, strict=True)
        for piece in coo.pieces(stage, place)
    )
    assert largest <= 14 * coo.PIECE


def test_refusals(tmp_path):
    network = describe(conv_net())
    refused(lambda: coo.write(network, tmp_path), "folder")
    refused(lambda: coo.write(network, tmp_path / "out", "tsv"), "kind: unknown 'tsv'")
