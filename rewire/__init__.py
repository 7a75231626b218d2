"""Spiking neural networks that grow their own sparse wiring."""

from rewire.errors import RewireError
from rewire.method import Latent, Masked, Method
from rewire.methods import METHODS, DeepR, Dense, GradR, SoftDeepR
from rewire.targets import Layer, prunable
from rewire.wiring import apply_masks

__version__ = "0.1.0"

__all__ = [
    "METHODS",
    "DeepR",
    "Dense",
    "GradR",
    "Latent",
    "Layer",
    "Masked",
    "Method",
    "RewireError",
    "SoftDeepR",
    "apply_masks",
    "prunable",
]
