"""One word, two readings: a method is given a connectivity and, when called, tells the one it has.

::

    method = DeepR(connectivity=0.05)     # asked: method.asked == 0.05
    method.connectivity()                 # reached, by the masks
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spikewire.errors import check

if TYPE_CHECKING:
    from spikewire.pruning.method import Method

HELP = "asked share of synapses, in (0, 1]"


@dataclass(frozen=True, repr=False)
class Connectivity:
    """What ``method.connectivity`` is: prints as the asked share; called, it measures."""

    asked: float | None
    method: "Method" = field(compare=False)

    def __call__(self) -> float:
        """Return the share of synapses that exist."""
        return self.method.reached()

    def __repr__(self) -> str:
        return repr(self.asked)


class _Asked:
    """Descriptor behind the dataclass field: setting asks, getting gives the `Connectivity`."""

    def __init__(self, default: float | None):
        self.default = default

    def __get__(self, method: "Method | None", owner: type) -> Any:
        return self.default if method is None else Connectivity(method.asked, method)

    def __set__(self, method: "Method", value: Any) -> None:
        value = value.asked if isinstance(value, Connectivity) else value  # dataclasses.replace
        value = self.default if value is self else value
        free = value is None and self.default is None
        check(free or (value is not None and 0 < value <= 1), "connectivity", value, "in (0, 1]")
        method.asked = value  # pyright: ignore


def asked(default: float | None, text: str = HELP) -> Any:
    """Return the dataclass field `connectivity` of a method that takes a target."""
    return field(default=_Asked(default), metadata={"help": text})
