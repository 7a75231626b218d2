"""The record of a network: stages that read the image or earlier stages, with their checks.

Every file format and the runtime read this record. It holds NumPy arrays and plain numbers only.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spikewire.errors import check
from spikewire.formats.neuron import Neuron
from spikewire.formats.stage import (
    IMAGE,
    MAX_NEURONS,
    Geometry,
    Pool,
    Shape,
    Source,
    Stage,
    is_shape,
    is_whole,
)

__all__ = [
    "IMAGE",
    "MAX_NEURONS",
    "Geometry",
    "Network",
    "Neuron",
    "Pool",
    "Source",
    "Stage",
    "is_whole",
]
MAX_TIME_STEPS = 10_000  # as in training
MAX_SOURCES = 256
Sources = tuple[Source, ...]


def check_steps(steps: object, field: str = "steps") -> None:
    """Raise unless `steps` is a number of time steps."""
    fits = is_whole(steps) and 1 <= steps <= MAX_TIME_STEPS
    check(fits, field, steps, f"from 1 to {MAX_TIME_STEPS}")


@dataclass(frozen=True, eq=False, kw_only=True)
class Network:
    """A finished network: its stages in order, and how images come in and classes come out.

    A network is checked when it is created: every shape, index and constant must fit.

    Args:
        stages: The stages in order. The first one reads the image, the others the spikes of earlier
            stages, or their own of the time step before. All but the last one have neurons, or are
            added to a stage that has.
        input_shape: Shape of one image: (features,) or (channels, height, width), or any shape of
            at most four dimensions that the first stage reads as a vector.
        time_steps: Time steps per image.
        classes: Names of the classes, in the order of the outputs.
        vote: Number of outputs that are averaged per class.
        membrane: Whether the outputs are the membrane potentials of the last neurons before their
            reset, instead of spikes.
        mean: Mean per channel of the pixels in [0, 1], subtracted from images; empty for none.
        std: Standard deviation per channel, by which images are divided; empty for none.
        about: Further information that is stored with the network and does not change it.

    Raises:
        SpikewireError: If something does not fit.
    """

    stages: tuple[Stage, ...]
    input_shape: Shape
    time_steps: int
    classes: tuple[str, ...]
    vote: int = 1
    membrane: bool = False
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    geometry: tuple[Geometry, ...] = field(init=False)
    sources: tuple[Sources, ...] = field(init=False)

    def __post_init__(self) -> None:
        check(len(self.stages) > 0, "layers", 0, "at least one layer of synapses")
        check_steps(self.time_steps, "time_steps")
        shape = self.input_shape
        fits = is_shape(shape) and 1 <= len(shape) <= 4 and math.prod(shape) <= MAX_NEURONS
        check(fits, "input_shape", shape, "(features,) or (channels, height, width)")
        sources = _resolve_sources(self.stages)
        object.__setattr__(self, "sources", sources)
        object.__setattr__(self, "geometry", _infer_geometry(self.stages, sources, shape))
        total = self.neuron_count
        check(total <= MAX_NEURONS, "layers", f"{total} neurons", f"at most {MAX_NEURONS} neurons")
        self._check_readout()
        self._check_normalisation()

    @property
    def size(self) -> int:
        """Number of weights, zeros included."""
        return sum(stage.size for stage in self.stages)

    @property
    def connectivity(self) -> float:
        """Fraction of weights that are not zero."""
        return sum(len(stage.index) for stage in self.stages) / self.size

    @property
    def neuron_count(self) -> int:
        """Number of neurons of all stages."""
        return sum(math.prod(geometry.neurons) for geometry in self.geometry)

    def name_of(self, source: Source) -> str:
        """Return the name of a source: that of its stage, or ``"image"``."""
        return "image" if source.stage == IMAGE else self.stages[source.stage].name

    @property
    def recurrent(self) -> tuple[int, ...]:
        """Numbers of the stages that read their own spikes of the time step before."""
        pairs = enumerate(self.sources)
        return tuple(number for number, sources in pairs if Source(number) in sources)

    @property
    def shortcuts(self) -> tuple[int, ...]:
        """Numbers of the stages that do not only read the stage before them, after its pooling."""
        pairs = enumerate(zip(self.stages, self.sources, strict=True))
        return tuple(
            number
            for number, (stage, sources) in pairs
            if stage.adds or sources != _previous(self.stages, number)
        )

    @staticmethod
    def count_outputs(stages: Sequence[Stage], input_shape: Shape) -> int:
        """Return the number of outputs of some stages in order."""
        sources = _resolve_sources(stages)
        return math.prod(_infer_geometry(stages, sources, input_shape)[-1].neurons)

    def _check_readout(self) -> None:
        outputs, expected = math.prod(self.geometry[-1].neurons), self.vote * len(self.classes)
        check(is_whole(self.vote), "vote", self.vote, "a whole number")
        fits = self.membrane is False or (self.membrane is True and self.stages[-1].neuron)
        check(bool(fits), "membrane", self.membrane, "False for a readout of currents")
        fits = not self.membrane or len(self.stages) - 1 not in self.recurrent
        check(fits, "membrane", self.membrane, "False for a recurrent layer")
        check(self.vote > 0 and outputs == expected, "classes", expected, f"{outputs} outputs")

    def _check_normalisation(self) -> None:
        channels = self.input_shape[0]
        for name, numbers in (("mean", self.mean), ("std", self.std)):
            fits = len(numbers) in (0, channels) and all(map(math.isfinite, numbers))
            check(fits, name, numbers, f"{channels} finite numbers, or none")
        check(min(self.std, default=1) > 0, "std", self.std, "positive")
        check(len(self.mean) == len(self.std), "std", self.std, "given together with the mean")


def _resolve_sources(stages: Sequence[Stage]) -> tuple[Sources, ...]:
    """Return what each stage reads, the default filled in."""
    found = []
    for number, stage in enumerate(stages):
        sources, field = stage.inputs or _previous(stages, number), f"{stage.name}: input"
        check(len(sources) <= MAX_SOURCES, field, len(sources), f"at most {MAX_SOURCES}")
        for source in sources:
            fits = isinstance(source, Source) and is_whole(source.stage)
            check(fits, field, source, "a Source")
            fits = source.stage == IMAGE if number == 0 else 0 <= source.stage <= number
            check(fits, field, source.stage, "the image for the first stage, or an earlier stage")
            fits = source.stage != number or tuple(sources) == (Source(number),)
            check(fits, field, source.stage, "the only one where a stage reads itself")
            fits = number == 0 or stages[source.stage].neuron is not None
            check(fits, field, source.stage, "a stage with neurons")
            fits = not source.pooled or (number > 0 and stages[source.stage].pool is not None)
            check(fits, field, source.stage, "a stage with pooling")
        found.append(tuple(sources))
    return tuple(found)


def _infer_geometry(
    stages: Sequence[Stage], sources: Sequence[Sources], input_shape: Shape
) -> tuple[Geometry, ...]:
    """Return the shapes of all stages; refuse those that do not fit together."""
    found: list[Geometry] = []
    added = {number for stage in stages for number in stage.adds}

    def shape_of(source: Source) -> Shape:
        if source.stage == IMAGE:
            return input_shape
        geometry = found[source.stage]
        return geometry.outputs if source.pooled else geometry.neurons

    for number, (stage, own) in enumerate(zip(stages, sources, strict=True)):
        if own == (Source(number),):
            shapes = [stage.shape[:1] if is_shape(stage.shape) else ()]  # as many inputs as outputs
        else:
            shapes = sorted({shape_of(source) for source in own})
        check(len(shapes) == 1, f"{stage.name}: inputs", shapes, "of one shape")
        found.append(stage.infer_geometry(shapes[0]))
        _check_added(stages, stage, found)
        last = stage is stages[-1] or len(found) - 1 in added
        check(last or stage.neuron is not None, stage.name, "no neurons", "followed by neurons")
        pooled = f"{stage.pool.kind} pooling" if last and stage.pool else ""
        check(not pooled, stage.name, pooled, "without pooling at the end")
    return tuple(found)


def _check_added(stages: Sequence[Stage], stage: Stage, found: list[Geometry]) -> None:
    """Refuse additions to a stage, the last of `found`, that do not fit."""
    field = f"{stage.name}: adds"
    check(len(stage.adds) <= MAX_SOURCES, field, len(stage.adds), f"at most {MAX_SOURCES}")
    for number in stage.adds:
        fits = is_whole(number) and 0 <= number < len(found) - 1
        check(fits and stages[number].neuron is None, field, number, "an earlier stage of currents")
        shape = found[number].neurons
        check(shape == found[-1].neurons, field, shape, f"of the shape {found[-1].neurons}")


def _previous(stages: Sequence[Stage], number: int) -> Sources:
    """Return the source of a stage in a chain."""
    if number == 0:
        return (Source(IMAGE),)
    return (Source(number - 1, stages[number - 1].pool is not None),)
