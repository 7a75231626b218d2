"""Traces: distributions over training that a run directory keeps for the report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

BINS, RATE_BINS = 60, 50
LARGEST, LARGEST_COUNT = 1e30, 1e12  # edge of a bin; count or epoch
NAME_LENGTH = 200


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
        """Return traces from `arrays`.

        Raises:
            ValueError: If an array is missing, or has a shape or values that no run writes.
        """
        _check(arrays)
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


def _check(arrays: Mapping[str, np.ndarray]) -> None:
    """Raise unless all arrays have the shapes, types and ranges of a run's traces."""
    for key in vars(Traces()):
        if key not in arrays:
            raise ValueError(f"no {key}")
    names = [*arrays["layers"].ravel().tolist(), *arrays["neurons"].ravel().tolist()]
    if not all(isinstance(x, str) and x.isprintable() and len(x) <= NAME_LENGTH for x in names):
        raise ValueError("a name is not printable")
    epochs, layers, neurons = (arrays[key].size for key in ("epochs", "layers", "neurons"))
    shapes: dict[str, tuple[int, ...]] = {
        "layers": (layers,),
        "neurons": (neurons,),
        "epochs": (epochs,),
    }
    for key in ("theta", "weight"):
        shapes |= {key: (epochs, layers, BINS), f"{key}_range": (epochs, layers, 2)}
    shapes["rates"] = (epochs, neurons, RATE_BINS)
    for key, shape in shapes.items():
        if arrays[key].shape != shape:
            raise ValueError(f"{key} has shape {arrays[key].shape}, not {shape}")
    for key in shapes.keys() - {"layers", "neurons"}:
        _check_numbers(key, arrays[key], at_least=-LARGEST if key.endswith("range") else 0)
    if (np.diff(arrays["epochs"].astype(np.int64)) <= 0).any():
        raise ValueError("epochs do not increase")
    if any((np.diff(arrays[key]) < 0).any() for key in ("theta_range", "weight_range")):
        raise ValueError("a range ends before it begins")


def _check_numbers(key: str, values: np.ndarray, at_least: float) -> None:
    kinds = "f" if key.endswith("range") else "iu"
    if values.dtype.kind not in kinds or not values.dtype.isnative:
        raise ValueError(f"{key} has dtype {values.dtype}")
    largest = LARGEST if key.endswith("range") else LARGEST_COUNT
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)
    if not at_least <= low <= high <= largest:
        raise ValueError(f"{key} is not in its range")
