"""Local learning rules: networks that learn without a gradient, pruned like any other network.

A network with a rule of its own is a `Plastic` module. It enters training at one place: where
another network computes ``loss.backward()``, it computes ``model.learn(images, labels)``, which
leaves **minus its update in ``.grad``** of each weight::

    loss.backward()    or    model.learn(images, labels)      both fill weight.grad
    optimizer.step()         [pre-hook: before_step - LocalRule: w <- w - lr grad, bounds, sums -
                              post-hook: after_step]

`LocalRule` is a ``torch.optim.Optimizer`` whose ``step()`` applies what the rule accumulated over
the batch. Pruning methods attach to its step as they do to Adam's: masks act on the update, latent
weights follow it, and checkpoint, resume, frontier and report know nothing of it.

Weights are constant within a batch, so that the currents of all images at all time steps are one
matrix product, and the sum of a rule over all of them is another; only the neurons run step by
step.
"""

from typing import Any, get_type_hints

from spikewire.errors import SpikewireError, check, check_word
from spikewire.fields import declared, parse
from spikewire.plasticity.diehl_cook import DiehlCook
from spikewire.plasticity.ecd import ECD
from spikewire.plasticity.local_rule import LocalRule
from spikewire.plasticity.network import Plastic, Sizes
from spikewire.plasticity.rbm import RBM
from spikewire.plasticity.stdp import RULES
from spikewire.plasticity.tempotron import Tempotron
from spikewire.plasticity.wta import WTA

__all__ = [
    "ECD",
    "NETWORKS",
    "RBM",
    "RULES",
    "WTA",
    "DiehlCook",
    "LocalRule",
    "Plastic",
    "Tempotron",
    "build",
]

NETWORKS: dict[str, type[Plastic]] = {
    "diehl-cook": DiehlCook,
    "wta": WTA,
    "rbm": RBM,
    "ecd": ECD,
    "tempotron": Tempotron,
}


def build(
    name: str,
    *,
    input_shape: tuple[int, ...],
    classes: int,
    hidden: int = 0,
    time_steps: int = 50,
    constants: tuple[str, ...] = (),
) -> Plastic:
    """Return a network with a local learning rule by name.

    Args:
        name: one of `NETWORKS`.
        input_shape: shape of an image.
        classes: number of classes.
        hidden: number of neurons that learn; 0: the network's own number.
        time_steps: how many time steps an image is shown.
        constants: constants of the network that differ from its defaults, ``"NAME:VALUE"``.

    Returns:
        The network.

    Raises:
        SpikewireError: a name is unknown or a value is out of its range.

    Example:
        >>> build("diehl-cook", input_shape=(1, 28, 28), classes=10, constants=("rule:triplet",))
    """
    check_word("model", name, NETWORKS)
    kind = NETWORKS[name]
    given = dict(_constant(kind, spec) for spec in constants)
    sizes = Sizes(tuple(input_shape), classes, hidden or kind.default_hidden, time_steps)
    return kind(kind.Constants(**given), sizes)


def _constant(kind: type[Plastic], spec: str) -> tuple[str, Any]:
    """Return name and value of ``"NAME:VALUE"``."""
    key, colon, text = spec.partition(":")
    check(bool(colon), "plasticity", spec, "NAME:VALUE")
    check_word("plasticity", key, declared(kind.Constants))
    value = parse(text, get_type_hints(kind.Constants)[key])
    try:
        kind.Constants(**{key: value})
    except SpikewireError as error:
        raise SpikewireError(f"plasticity: {error}") from None
    return key, value
