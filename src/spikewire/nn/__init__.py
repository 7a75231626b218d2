"""Spiking networks: neurons, layers, models and losses."""

from spikewire.nn.adaptive import AdaptiveRecurrent, Dynamics
from spikewire.nn.batchnorm import BATCHNORMS, BatchNormPerStep
from spikewire.nn.crossings import Crossings, Encoder
from spikewire.nn.delays import DelayedLinear
from spikewire.nn.fused_modules import fuse, unfuse
from spikewire.nn.initialisation import scale_to_fire_
from spikewire.nn.layers import Dropout, Spiking
from spikewire.nn.losses import LOSSES, ce_per_step, ce_rate, count_correct, mse_rate
from spikewire.nn.models import MODELS, READOUTS, Model, build
from spikewire.nn.neurons import (
    IF,
    LIF,
    NEURONS,
    PLIF,
    RESETS,
    Neuron,
    NeuronConstants,
    integrate_and_fire,
    lif,
    step,
)
from spikewire.nn.penalty import RatePenalty, rate_penalty
from spikewire.nn.recurrent import Cell, LastSteps, LeakyIntegrator, Recurrent
from spikewire.nn.surrogates import SURROGATES, Surrogate
from spikewire.nn.synapses import is_spiking, synaptic_layers

__all__ = [
    "BATCHNORMS",
    "IF",
    "LIF",
    "LOSSES",
    "MODELS",
    "NEURONS",
    "PLIF",
    "READOUTS",
    "RESETS",
    "SURROGATES",
    "AdaptiveRecurrent",
    "BatchNormPerStep",
    "Cell",
    "Crossings",
    "DelayedLinear",
    "Dropout",
    "Dynamics",
    "Encoder",
    "LastSteps",
    "LeakyIntegrator",
    "Model",
    "Neuron",
    "NeuronConstants",
    "RatePenalty",
    "Recurrent",
    "Spiking",
    "Surrogate",
    "build",
    "ce_per_step",
    "ce_rate",
    "count_correct",
    "fuse",
    "integrate_and_fire",
    "is_spiking",
    "lif",
    "mse_rate",
    "rate_penalty",
    "scale_to_fire_",
    "step",
    "synaptic_layers",
    "unfuse",
]
