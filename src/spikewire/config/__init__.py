"""`Config`, the settings of a run, and `resolve`, which reads them from presets, TOML and flags."""

from spikewire.config.config import (
    RUN_FLAGS,
    Config,
    collisions,
    flag,
    method_defaults,
    method_fields,
    settings,
    words_of,
)
from spikewire.config.sources import preset_toml, presets, resolve, starting_preset
from spikewire.config.usual import MODEL_OF

__all__ = [
    "MODEL_OF",
    "RUN_FLAGS",
    "Config",
    "collisions",
    "flag",
    "method_defaults",
    "method_fields",
    "preset_toml",
    "presets",
    "resolve",
    "settings",
    "starting_preset",
    "words_of",
]
