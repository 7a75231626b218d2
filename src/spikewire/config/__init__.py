"""`Config`, the settings of a run, and `resolve`, which reads them from presets, TOML and flags."""

from spikewire.config.config import (
    MODEL_OF,
    Config,
    collisions,
    flag,
    method_defaults,
    method_fields,
    settings,
    words_of,
)
from spikewire.config.sources import presets, resolve

__all__ = [
    "MODEL_OF",
    "Config",
    "collisions",
    "flag",
    "method_defaults",
    "method_fields",
    "presets",
    "resolve",
    "settings",
    "words_of",
]
