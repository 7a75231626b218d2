"""Spiking neural networks that grow their own sparse wiring.

Names are loaded when they are first used, so that ``spikewire --help`` need not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spikewire.config import Config
    from spikewire.errors import SpikewireError
    from spikewire.methods import (
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
    from spikewire.metrics.counting import measure
    from spikewire.nn.models import build, scale_to_fire_
    from spikewire.nn.neurons import IF, LIF
    from spikewire.pruning.layers import Layer, prunable
    from spikewire.pruning.masks import apply_masks
    from spikewire.pruning.method import Latent, Masked, Method
    from spikewire.runtime import from_nir, load
    from spikewire.train.loop import fit

__version__ = "0.1.0"

_HOME = {
    "config": ["Config"],
    "errors": ["SpikewireError"],
    "pruning.method": ["Latent", "Masked", "Method"],
    "methods": [
        "METHODS",
        "Admm",
        "Budget",
        "DeepR",
        "Dense",
        "GradR",
        "Lottery",
        "Magnitude",
        "RigL",
        "Set",
        "SoftDeepR",
        "Stds",
        "Upr",
    ],
    "metrics.counting": ["measure"],
    "nn.models": ["build", "scale_to_fire_"],
    "nn.neurons": ["IF", "LIF"],
    "runtime": ["from_nir", "load"],
    "pruning.layers": ["Layer", "prunable"],
    "train.loop": ["fit"],
    "pruning.masks": ["apply_masks"],
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "IF",
    "LIF",
    "METHODS",
    "Admm",
    "Budget",
    "Config",
    "DeepR",
    "Dense",
    "GradR",
    "Latent",
    "Layer",
    "Lottery",
    "Magnitude",
    "Masked",
    "Method",
    "SpikewireError",
    "RigL",
    "Set",
    "SoftDeepR",
    "Stds",
    "Upr",
    "apply_masks",
    "build",
    "scale_to_fire_",
    "fit",
    "from_nir",
    "load",
    "measure",
    "prunable",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'spikewire' has no attribute {name!r}")
    return getattr(import_module(f"spikewire.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
