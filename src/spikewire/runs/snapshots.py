"""Snapshots: pictures of a network that a run directory keeps for the report.

A few times in training, the input layer: how many synapses leave each pixel, and the weights of
some of its neurons. At the end, the confusion matrix of the test set, and the spikes and membrane
potentials of some neurons of each layer while the network sees the first test image.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import numpy as np

MOST = 6  # snapshots of the input layer per run
FIELDS = 12  # neurons of the input layer whose weights are kept, evenly spaced
SHOWN = 48  # neurons of a spiking layer that are kept, evenly spaced
MAX_PIXELS = 4096  # of an input of which maps are kept
MAX_CLASSES = 100
LARGEST = 1e30
NAME_LENGTH = 200


def _none(*shape: int, dtype: type = np.int64) -> np.ndarray:
    return field(default_factory=lambda: np.zeros(shape, dtype))


@dataclass
class Snapshots:
    """What a run keeps of its network; arrays of size 0 where there is nothing to keep.

    Args:
        epochs: Epochs of the snapshots of the input layer.
        layer: Name of the input layer, one word.
        fan_out: ``[epoch, height, width]``: synapses that leave each pixel; of height 0 where the
            input layer is a convolution, whose weights are the same at every pixel.
        fields: ``[epoch, neuron, height, width]``: weights from each pixel, or kernels, summed over
            the channels of the input; 0 where there is no synapse.
        confusion: ``[label, predicted]``: test images.
        image: ``[height, width, channels]``: the first test image, from 0 to 255.
        label: Its label, one number.
        neurons: Names of the spiking layers.
        sizes: Neurons of each.
        thresholds: Threshold of each.
        spikes: ``[layer, time step, neuron]``: 1 where one of the kept neurons fires.
        membrane: The same for the membrane potential before the reset.
    """

    epochs: np.ndarray = _none(0)
    layer: np.ndarray = _none(0, dtype=str)
    fan_out: np.ndarray = _none(0, 0, 0)
    fields: np.ndarray = _none(0, 0, 0, 0, dtype=np.float16)
    confusion: np.ndarray = _none(0, 0)
    image: np.ndarray = _none(0, 0, 0, dtype=np.uint8)
    label: np.ndarray = _none(0)
    neurons: np.ndarray = _none(0, dtype=str)
    sizes: np.ndarray = _none(0)
    thresholds: np.ndarray = _none(0, dtype=np.float32)
    spikes: np.ndarray = _none(0, 0, 0, dtype=np.uint8)
    membrane: np.ndarray = _none(0, 0, 0, dtype=np.float32)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all of it as plain arrays."""
        return dict(vars(self))

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> "Snapshots":
        """Return snapshots from `arrays`.

        Raises:
            ValueError: If an array is missing, or has a shape or values that no run writes.
        """
        for key in KINDS:
            if key not in arrays:
                raise ValueError(f"no {key}")
            _check_array(key, arrays[key])
        found = cls(**{key: arrays[key] for key in KINDS})
        found.check()
        return found

    def check(self) -> None:
        """Raise a ValueError unless the shapes fit together."""
        epochs, layers = len(self.epochs), len(self.neurons)
        classes = self.confusion.shape[0]
        shown = min(SHOWN, int(self.sizes.max())) if self.sizes.size else 0
        fits = (
            len(self.fan_out) in (0, epochs)
            and len(self.fields) == epochs
            and len(self.layer) == (epochs > 0)
            and max(self.fan_out[0].size if epochs and self.fan_out.size else 0, 1) <= MAX_PIXELS
            and self.confusion.shape == (classes, classes)
            and classes <= MAX_CLASSES
            and self.image.shape[2] in (0, 1, 3)
            and len(self.label) == (layers > 0)
            and self.sizes.shape == self.thresholds.shape == (layers,)
            and self.spikes.shape == self.membrane.shape
            and self.spikes.shape[::2] == (layers, shown)
        )
        if not fits or (np.diff(self.epochs) <= 0).any():
            raise ValueError("the shapes of its arrays do not fit together")

    def add_input_layer(
        self, epoch: int, layer: str, fan_out: np.ndarray, fields: np.ndarray
    ) -> None:
        """Append a snapshot of the input layer."""
        self.layer = np.array([layer])
        first = not self.epochs.size
        self.epochs = np.append(self.epochs, epoch)
        self.fan_out = fan_out[None] if first else np.concatenate([self.fan_out, fan_out[None]])
        self.fields = fields[None] if first else np.concatenate([self.fields, fields[None]])

    def truncate(self, epochs: int) -> None:
        """Drop what is of epochs beyond `epochs`; a resumed run will keep it again."""
        keep = int((self.epochs <= epochs).sum())
        cut = Snapshots()
        if keep:
            cut.layer, cut.epochs = self.layer, self.epochs[:keep]
            cut.fan_out, cut.fields = self.fan_out[:keep], self.fields[:keep]
        vars(self).update(vars(cut))


def even_indices(size: int, count: int) -> np.ndarray:
    """Return at most `count` evenly spaced indices below `size`, the first and the last included.

    Example:
        >>> even_indices(9, 3)
        array([0, 4, 8])
    """
    return np.linspace(0, size - 1, min(size, count)).round().astype(np.int64)


# number of dimensions, kinds of dtype, range of values
KINDS: dict[str, tuple[int, str, float, float]] = {
    "epochs": (1, "iu", 1, 1e12),
    "layer": (1, "U", 0, 0),
    "fan_out": (3, "iu", 0, 1e12),
    "fields": (4, "f", -LARGEST, LARGEST),
    "confusion": (2, "iu", 0, 1e12),
    "image": (3, "u", 0, 255),
    "label": (1, "iu", 0, 1e6),
    "neurons": (1, "U", 0, 0),
    "sizes": (1, "iu", 1, 1e12),
    "thresholds": (1, "f", -LARGEST, LARGEST),
    "spikes": (3, "u", 0, 1),
    "membrane": (3, "f", -LARGEST, LARGEST),
}
assert list(KINDS) == [x.name for x in fields(Snapshots)]


def _check_array(key: str, values: np.ndarray) -> None:
    """Raise unless an array has the dimensions, type and range of a run's snapshots."""
    dims, kinds, low, high = KINDS[key]
    if values.ndim != dims or values.dtype.kind not in kinds or not values.dtype.isnative:
        raise ValueError(f"{key} has dtype {values.dtype} and shape {values.shape}")
    if kinds == "U":
        if not all(x.isprintable() and len(x) <= NAME_LENGTH for x in values.tolist()):
            raise ValueError("a name is not printable")
    elif values.size and not low <= float(values.min()) <= float(values.max()) <= high:
        raise ValueError(f"{key} is not in its range")
