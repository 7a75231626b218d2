"""The list of jobs of a frontier: data sets x methods x connectivities x seeds."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from spikewire.config import method_fields, settings
from spikewire.data.reference import short_name
from spikewire.errors import SpikewireError, check, unknown
from spikewire.methods import METHODS


@dataclass(frozen=True)
class Job:
    """One run of a frontier.

    Args:
        dataset: Name of the data set.
        method: Name of the pruning method.
        connectivity: Target connectivity; None for the dense baseline.
        seed: Seed of the run.
    """

    dataset: str
    method: str
    connectivity: float | None
    seed: int

    @property
    def name(self) -> str:
        """Name of the run directory, unique within a frontier."""
        target = "" if self.connectivity is None else f"-{self.connectivity:g}"
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
        if self.connectivity is not None:
            flags["connectivity"] = f"{self.connectivity:g}"
        return flags


def plan(
    datasets: Iterable[str], methods: Iterable[str], connectivities: Sequence[float], seeds: int
) -> list[Job]:
    """Return the jobs of a frontier.

    All jobs of the first seed come before those of the second, so that a frontier that is stopped
    early has compared everything once. A job that is listed twice runs once.

    Args:
        datasets: Names of data sets.
        methods: Names of methods; ``dense`` runs once per data set and seed.
        connectivities: Target connectivities in (0, 1].
        seeds: Number of seeds, from 0.

    Returns:
        The jobs in the order in which they start.

    Raises:
        SpikewireError: If a method is unknown or takes no connectivity, or a number is invalid.

    Example:
        >>> [job.name for job in plan(["digits"], ["deepr", "dense"], [0.1], 1)]
        ['digits-deepr-0.1-seed0', 'digits-dense-seed0']
    """
    check(1 <= seeds <= 10_000, "seeds", seeds, "1 to 10,000")
    for connectivity in connectivities:
        check(0 < connectivity <= 1, "connectivity", connectivity, "in (0, 1]")
    targets = [float(f"{connectivity:g}") for connectivity in connectivities]  # as in a job's name
    jobs: list[Job] = []
    for seed, dataset, method in product(range(seeds), datasets, methods):
        jobs += [Job(dataset, method, target, seed) for target in _targets(method, targets)]
    return list(dict.fromkeys(jobs))


def _targets(method: str, targets: Sequence[float]) -> Sequence[float | None]:
    """Return the connectivities a method is run with."""
    if method not in METHODS:
        raise unknown("methods", method, METHODS)
    if method == "dense":
        return [None]
    if "connectivity" not in method_fields(method):
        raise SpikewireError(f"methods: {method} takes no connectivity, so it has no frontier")
    return targets
