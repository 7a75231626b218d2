"""Comparisons of spikes: between kernels, with the training model, and with dense torch."""

import torch
from torch import nn

from spikewire.nn.neurons import Neuron
from spikewire.runtime import Runtime, dense
from spikewire.runtime.library import available_kernels, installed

KERNELS = available_kernels(installed())


def assert_kernels_agree(network, images, threads=1):
    """Every layer must have bit-identical spikes on all kernels."""
    spikes = {
        kernels: Runtime(network, kernels=kernels, threads=threads, exact=True).record_spikes(
            images
        )
        for kernels in KERNELS
    }
    for kernels, found in spikes.items():
        for name, wanted in spikes["torch"].items():
            assert torch.equal(wanted, found[name]), (kernels, name)


@torch.no_grad()
def record_training_spikes(model, images):
    """The spikes of every layer of the training model, named as in `Runtime.record_spikes`."""
    x, name, found = images.unsqueeze(0), "", {}
    for key, layer in model.named_children():
        x = model.advance(layer, x)
        name = key if isinstance(layer, nn.Conv2d | nn.Linear) else name
        if isinstance(layer, Neuron):
            found[name] = x.bool()
    return found


def assert_close(wanted, got, fraction=1e-4):
    """Another order of additions may cross a threshold, rarely."""
    for name, spikes in wanted.items():
        assert 0.005 < spikes.float().mean() < 0.98, name
        assert (spikes != got[name]).float().mean() <= fraction, name


def record_dense_stages(monkeypatch):
    """The set of names of the stages that are computed by dense torch from now on."""
    names, forward = set(), dense.Dense.__call__

    def recorded(self, x):
        names.add(self.stage.name)
        return forward(self, x)

    monkeypatch.setattr(dense.Dense, "__call__", recorded)
    return names
