"""The pruning contract: what a method author imports, and nothing else.

A method subclasses `Latent` or `Masked` and declares its hyper-parameters with `setting`; a
`Pruner` holds what changes during a run. ``docs/adding-a-method.md`` walks through an example.
"""

from spikewire.errors import SpikewireError, TrainingFailed, check
from spikewire.fields import document, setting
from spikewire.nn.names import named_state
from spikewire.pruning.allocation import ALLOCATIONS, allocate, largest_weights
from spikewire.pruning.costs.uses import UseCounter
from spikewire.pruning.first import INITIAL, first_masks
from spikewire.pruning.layers import Layer, Targets, prunable
from spikewire.pruning.layerwise import begin_layers_, refill_layers
from spikewire.pruning.masks import apply_masks, connectivity
from spikewire.pruning.method import UNITS, Latent, Masked, Method, all_present
from spikewire.pruning.moments import reset_moments_, warn_of_weight_decay
from spikewire.pruning.neurons import Neurons
from spikewire.pruning.owners import owning_modules
from spikewire.pruning.pruner import Pruner
from spikewire.pruning.selection import (
    SCOPES,
    highest_absent,
    random_mask,
    require_finite,
    select_masks,
    target_count,
    top_k_mask,
)
from spikewire.pruning.trains import Correlation, SpikeTrains, correlation
from spikewire.pruning.units import Counted, Priced
from spikewire.pruning.updates import drag_, rectify
from spikewire.pruning.warn import warn_caller
from spikewire.schedules import cubic

__all__ = [
    "ALLOCATIONS",
    "INITIAL",
    "SCOPES",
    "UNITS",
    "Correlation",
    "Counted",
    "Latent",
    "Layer",
    "Masked",
    "Method",
    "Neurons",
    "Priced",
    "Pruner",
    "SpikeTrains",
    "SpikewireError",
    "Targets",
    "TrainingFailed",
    "UseCounter",
    "all_present",
    "allocate",
    "apply_masks",
    "begin_layers_",
    "check",
    "connectivity",
    "correlation",
    "cubic",
    "document",
    "drag_",
    "first_masks",
    "highest_absent",
    "largest_weights",
    "named_state",
    "owning_modules",
    "prunable",
    "random_mask",
    "rectify",
    "refill_layers",
    "require_finite",
    "reset_moments_",
    "select_masks",
    "setting",
    "target_count",
    "top_k_mask",
    "warn_caller",
    "warn_of_weight_decay",
]
