"""Flags that have no effect with the other settings of a run; they are refused."""

from collections.abc import Callable, Iterable
from importlib import import_module

from spikewire.config.config import Config, flag, method_defaults
from spikewire.config.usual import PRESET_OF_RULE
from spikewire.errors import check
from spikewire.fields import defaults

Condition = Callable[[Config], bool]
OF_LOGITS = ("ce-rate", "ce-per-step")  # losses of `rate_scale` times the rate

NEEDS: dict[str, tuple[Condition, str]] = {  # what a setting needs to have an effect
    "early": (lambda c: any(c.early_time_steps), "--early-time-steps"),
    "momentum": (lambda c: c.optimizer in ("sgd", "rmsprop"), "--optimizer sgd or rmsprop"),
    "rate_scale": (
        lambda c: c.loss in OF_LOGITS or bool(c.teacher),
        f"--loss {' or '.join(OF_LOGITS)}",
    ),
    "tau": (lambda c: c.neuron != "if" or c.readout == "leaky", "--neuron lif or plif"),
    "price": (lambda c: c.unit not in ("", "connectivity"), "a target in another unit"),
    "ramp": (lambda c: c.method != "gradr" or bool(c.unit), "a target"),
    "every": (lambda c: c.method != "gradr" or bool(c.unit), "a target"),
}

OF_NETWORKS = (  # of spikewire's networks; one of the user's own has constants of its own
    *("neuron", "tau", "threshold", "reset", "surrogate", "dropout"),
    *("hidden", "width", "readout", "batchnorm"),
)


def refuse_without_effect(config: Config, given: Iterable[str]) -> None:
    """Raise for the first setting that was given, is not the default, and has no effect.

    Args:
        config: the settings of the run.
        given: the names of those that the user has given as flags.
    """
    if config.model in PRESET_OF_RULE:  # refuses all that a learning rule of its own ignores
        return
    usual = defaults(Config) | method_defaults(config.method)
    values = vars(config) | config.options
    own = import_module("spikewire.data.reference").is_python(config.model)
    for key in (key for key in given if values[key] != usual[key]):
        allowed = "left out for a network of your own; set it in your file"
        check(not (own and key in OF_NETWORKS), flag(key), values[key], allowed)
        if key in NEEDS:
            has_effect, need = NEEDS[key]
            check(has_effect(config), flag(key), values[key], f"left out without {need}")
