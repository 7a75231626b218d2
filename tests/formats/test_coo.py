import json

import numpy as np
import torch
from networks import conv_net
from refusal import refused
from torch.nn import functional

from spikewire.formats import coo
from spikewire.formats.trace import trace_model


def test_connection_lists_give_the_currents_of_the_weights(tmp_path):
    network = trace_model(conv_net(pool="avg"))
    total = coo.write(network, tmp_path / "out")
    header = json.loads((tmp_path / "out" / "network.json").read_text())
    assert total == sum(layer["synapses"] for layer in header["layers"])
    for layer, stage, geometry in zip(
        header["layers"], network.stages, network.geometry, strict=True
    ):
        with np.load(tmp_path / "out" / layer["file"]) as archive:
            synapses = {key: archive[key] for key in coo.FIELDS}
        assert len(synapses["pre"]) == layer["synapses"]
        assert not synapses["delay"].any()
        x = np.random.default_rng(0).random(np.prod(geometry.inputs)).astype(np.float32)
        current = np.zeros(np.prod(geometry.neurons))
        pre, post = synapses["pre"].astype(int), synapses["post"].astype(int)
        np.add.at(current, post, synapses["weight"] * x[pre])
        weight, image = torch.from_numpy(stage.to_dense()), torch.from_numpy(x)
        if stage.is_conv:
            wanted = functional.conv2d(image.view(geometry.inputs), weight, padding=stage.padding)
        else:
            wanted = weight @ image
        np.testing.assert_allclose(current, wanted.flatten().numpy(), rtol=1e-4, atol=1e-5)


def test_memory_stays_small():
    network = trace_model(conv_net(64, 64, channels=(1, 16, 16), connectivity=1.0))
    largest = max(
        sum(column.nbytes for column in piece.values())
        for stage, geometry in zip(network.stages, network.geometry, strict=True)
        for piece in coo.iterate_pieces(stage, geometry)
    )
    assert largest <= 14 * coo.PIECE


def test_an_existing_folder_is_refused(tmp_path):
    refused(lambda: coo.write(trace_model(conv_net()), tmp_path), "folder")
