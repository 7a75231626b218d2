import pytest
from networks import conv_net
from refusal import refused
from torch import nn

from spikewire.formats.trace import trace_model
from spikewire.nn.layers import Spiking
from spikewire.nn.neurons import LIF


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([nn.AvgPool2d(2), LIF()], "a neuron after a pool"),
        ([nn.MaxPool2d(2), nn.BatchNorm2d(4), LIF()], "a norm after a pool"),
        ([LIF(), nn.BatchNorm2d(4)], "a norm after a neuron"),
        ([LIF(), LIF()], "a neuron after a neuron"),
        ([nn.BatchNorm2d(4), nn.BatchNorm2d(4), LIF()], "a norm after a norm"),
        ([LIF(), nn.AvgPool2d(2, divisor_override=1)], "divisor_override"),
        ([LIF(), nn.MaxPool2d(2, dilation=2)], "dilation"),
        ([nn.Tanh(), LIF()], "Tanh is not supported"),
    ],
)
def test_layers_or_orders_that_are_not_supported_are_refused(layers, message):
    parts = {"conv": nn.Conv2d(1, 4, 3, padding=1)} | {str(i): x for i, x in enumerate(layers)}
    model = Spiking(parts | {"flat": nn.Flatten(), "fc": nn.Linear(64, 2)}, input_shape=(1, 8, 8))
    refused(lambda: trace_model(model), message)


def test_connectivity_counts_the_weights_that_are_not_zero():
    model = conv_net(connectivity=0.3)
    network = trace_model(model)
    weights = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    total = sum(weight.numel() for weight in weights)
    nonzero = sum(int(weight.count_nonzero()) for weight in weights)
    assert network.size == total
    assert network.connectivity == nonzero / total
    for stage, weight in zip(network.stages, weights, strict=True):
        assert stage.connectivity == int(weight.count_nonzero()) / weight.numel()
