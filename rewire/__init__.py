"""Spiking neural networks that grow their own sparse wiring."""

from rewire.errors import RewireError
from rewire.method import Latent, Masked, Method
from rewire.methods import (
    METHODS,
    Admm,
    Budget,
    DeepR,
    Dense,
    GradR,
    Lottery,
    Magnitude,
    RigL,
    Set,
    SoftDeepR,
    Stds,
    Upr,
)
from rewire.targets import Layer, prunable
from rewire.wiring import apply_masks

__version__ = "0.1.0"

__all__ = [
    "METHODS",
    "Admm",
    "Budget",
    "DeepR",
    "Dense",
    "GradR",
    "Latent",
    "Layer",
    "Lottery",
    "Magnitude",
    "Masked",
    "Method",
    "RewireError",
    "RigL",
    "Set",
    "SoftDeepR",
    "Stds",
    "Upr",
    "apply_masks",
    "prunable",
]
