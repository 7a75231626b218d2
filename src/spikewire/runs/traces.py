"""Traces: distributions over training that a run directory keeps for the report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

BINS, RATE_BINS = 60, 50


@dataclass
class Traces:
    """Distributions over traced epochs: theta and weights per layer, rates of its neurons."""

    layers: list[str] = field(default_factory=list)
    neurons: list[str] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    theta: list[np.ndarray] = field(default_factory=list)  # each [layer, BINS]
    theta_range: list[np.ndarray] = field(default_factory=list)  # each [layer, 2]
    weight: list[np.ndarray] = field(default_factory=list)
    weight_range: list[np.ndarray] = field(default_factory=list)
    rates: list[np.ndarray] = field(default_factory=list)  # each [neurons, RATE_BINS]

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all of it as plain arrays, the epoch first."""
        return {key: np.array(value) for key, value in vars(self).items()}

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> "Traces":
        """Return traces from `arrays`."""
        names = {key: [str(name) for name in arrays[key]] for key in ("layers", "neurons")}
        rest = {key: list(arrays[key]) for key in vars(cls()) if key not in names}
        return cls(**names, **{**rest, "epochs": [int(epoch) for epoch in arrays["epochs"]]})

    def truncate(self, epochs: int) -> None:
        """Drop epochs beyond `epochs`; a resumed run will trace them again."""
        keep = sum(epoch <= epochs for epoch in self.epochs)
        for value in list(vars(self).values())[2:]:
            del value[keep:]


def rate_edges() -> Sequence[float]:
    """Return the edges of the bins of `Traces.rates`."""
    return np.linspace(0, 1, RATE_BINS + 1).tolist()
