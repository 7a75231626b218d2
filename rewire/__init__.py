"""Spiking neural networks that grow their own sparse wiring.

Names are loaded when they are first used, so that ``rewire --help`` need not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rewire.config import Config
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
    from rewire.metrics import measure
    from rewire.models import build, excite_
    from rewire.neurons import IF, LIF
    from rewire.runtime import from_nir, load
    from rewire.targets import Layer, prunable
    from rewire.train import fit
    from rewire.wiring import apply_masks

__version__ = "0.1.0"

_HOME = {
    "config": ["Config"],
    "errors": ["RewireError"],
    "method": ["Latent", "Masked", "Method"],
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
    "metrics": ["measure"],
    "models": ["build", "excite_"],
    "neurons": ["IF", "LIF"],
    "runtime": ["from_nir", "load"],
    "targets": ["Layer", "prunable"],
    "train": ["fit"],
    "wiring": ["apply_masks"],
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
    "RewireError",
    "RigL",
    "Set",
    "SoftDeepR",
    "Stds",
    "Upr",
    "apply_masks",
    "build",
    "excite_",
    "fit",
    "from_nir",
    "load",
    "measure",
    "prunable",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'rewire' has no attribute {name!r}")
    return getattr(import_module(f"rewire.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
