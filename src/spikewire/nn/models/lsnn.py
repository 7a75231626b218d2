"""The LSNN of Bellec et al. (NeurIPS 2018) for sequential MNIST."""

import torch
from torch import nn

from spikewire.errors import check
from spikewire.nn.adaptive import AdaptiveRecurrent, Dynamics
from spikewire.nn.balance import balance_
from spikewire.nn.crossings import Crossings
from spikewire.nn.layers import Layers
from spikewire.nn.penalty import RatePenalty
from spikewire.nn.recurrent import LastSteps, LeakyIntegrator

ADAPTIVE = 100 / 220  # of the neurons
INHIBITORY = 54 / 220  # of the inputs and neurons, those without adaptation first; 19 of 80
READ = 1 / 30  # of the time steps, at the end: 28 of 840


def make_layers(
    levels: int,
    tau_adaptation: float,
    inputs: int,
    hidden: int,
    neuron: object,
    dropout: float,
    classes: int,
    dale: bool = False,
) -> Layers:
    """Return encoder, recurrent layer and a leaky readout.

    Args:
        levels: thresholds of the encoder; published are 40.
        tau_adaptation: time constant of the adaptation in time steps; published are 700, for
            sequences of 840.
        inputs: 2: the pixel and the cue.
        hidden: number of recurrent neurons; published are 220.
        neuron: not used: the neurons and their other constants are those of the paper.
        dropout: not used.
        classes: number of classes.
        dale: whether all first weights of an input or neuron have one sign, in balance, as
            published with Deep R; without it signs are random.

    Raises:
        SpikewireError: there is another number of inputs.
    """
    check(inputs == 2, "model", "lsnn", "another one for data that are not pixel and cue over time")
    encode, dynamics = Crossings(levels), Dynamics(tau_adaptation=tau_adaptation)
    adaptive = round(ADAPTIVE * hidden)
    readout = nn.Linear(hidden, classes)
    if dale:
        balance_(readout.weight, torch.arange(int(INHIBITORY * hidden)))
    nn.init.zeros_(readout.bias)
    inhibitory = INHIBITORY if dale else None
    return {
        "encode": encode,
        "rec1": AdaptiveRecurrent(
            encode.outputs, hidden, adaptive=adaptive, inhibitory=inhibitory, dynamics=dynamics
        ),
        "rates": RatePenalty(0.1, 0.01),
        "fc2": readout,
        "leaky": LeakyIntegrator(1 / (1 - dynamics.decay)),
        "last": LastSteps(READ),
    }
