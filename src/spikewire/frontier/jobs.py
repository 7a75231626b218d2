"""The list of jobs of a frontier: data sets x methods x targets x seeds."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf

from spikewire.config import method_fields, settings
from spikewire.data.reference import short_name
from spikewire.errors import SpikewireError, check, check_word, unknown
from spikewire.fields import percentage
from spikewire.methods import METHODS
from spikewire.pruning import UNITS


@dataclass(frozen=True)
class Job:
    """One run of a frontier.

    Args:
        dataset: Name of the data set.
        method: Name of the pruning method.
        target: The target; None for the dense baseline.
        seed: Seed of the run.
        unit: Unit of the target, one of `UNITS`.
    """

    dataset: str
    method: str
    target: float | None
    seed: int
    unit: str = "connectivity"

    @property
    def name(self) -> str:
        """Name of the run directory, unique within a frontier."""
        unit = "" if self.unit == "connectivity" else self.unit
        target = "" if self.target is None else f"-{unit}{self.target:g}"
        return f"{short_name(self.dataset)}-{self.method}{target}-seed{self.seed}"

    def settings(self, shared: Mapping[str, str]) -> dict[str, str]:
        """Return the flags of this job.

        Args:
            shared: Flags of the frontier, as texts by field name.

        Returns:
            The shared flags that the method accepts, then those of the job itself.
        """
        accepted = {*settings(), *method_fields(self.method)}
        flags = {key: value for key, value in shared.items() if key in accepted}
        flags |= {"dataset": self.dataset, "method": self.method, "seed": str(self.seed)}
        if self.target is not None:
            flags[self.unit] = f"{self.target:g}"
        return flags


def plan(
    datasets: Iterable[str],
    methods: Iterable[str],
    targets: Sequence[float],
    seeds: int,
    unit: str = "connectivity",
) -> list[Job]:
    """Return the jobs of a frontier.

    All jobs of the first seed come before those of the second, so that a frontier that is stopped
    early has compared everything once. A job that is listed twice runs once.

    Args:
        datasets: Names of data sets.
        methods: Names of methods; ``dense`` runs once per data set and seed.
        targets: Targets in their unit: fractions in (0, 1], operations per image or bytes.
        seeds: Number of seeds, from 0.
        unit: Unit of the targets: ``"connectivity"``, ``"synapses"``, ``"synops"`` or ``"bytes"``.

    Returns:
        The jobs in the order in which they start.

    Raises:
        SpikewireError: If a method is unknown or takes no target in this unit, or a number is
            invalid.

    Example:
        >>> [job.name for job in plan(["digits"], ["deepr", "dense"], [0.1], 1)]
        ['digits-deepr-0.1-seed0', 'digits-dense-seed0']
    """
    check(1 <= seeds <= 10_000, "seeds", seeds, "1 to 10,000")
    check_word("unit", unit, UNITS)
    check_targets("targets", targets, unit)
    rounded = [float(f"{target:g}") for target in targets]  # as in a job's name
    jobs: list[Job] = []
    for seed, dataset, method in product(range(seeds), datasets, methods):
        own = _targets(method, rounded, unit)
        jobs += [Job(dataset, method, target, seed, unit) for target in own]
    return list(dict.fromkeys(jobs))


def check_targets(name: str, targets: Iterable[float], unit: str) -> None:
    """Raise if a target is not possible in its unit.

    Args:
        name: What the error calls the targets.
        targets: The targets.
        unit: Their unit.

    Raises:
        SpikewireError: For a fraction that is not in (0, 1], or a number that is not positive.
    """
    most = 1.0 if unit in ("connectivity", "synapses") else inf
    for target in targets:
        allowed = f"in (0, 1]{percentage(target)}" if most == 1 else "above 0"
        check(0 < target <= most, name, target, allowed)


def _targets(method: str, targets: Sequence[float], unit: str) -> Sequence[float | None]:
    """Return the targets a method is run with."""
    if method not in METHODS:
        raise unknown("methods", method, METHODS)
    if method == "dense":
        return [None]
    if unit not in method_fields(method):
        others = ", ".join(name for name in METHODS if unit in method_fields(name))
        raise SpikewireError(f"methods: {method} takes no {unit}; methods that do: {others}")
    return targets
