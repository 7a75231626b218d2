"""Groups of runs: by a setting, and repetitions with another seed, with their mean and spread."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from statistics import fmean, stdev

from spikewire.report.runs import Run
from spikewire.text import percent

PALEST = 0.5  # opacity of the last of a method's groups
Value = Callable[[Run], float | None]


@dataclass(frozen=True)
class Group:
    """Runs that differ by their seed only.

    Args:
        runs: The runs, at least one, and one per seed; all can be drawn.
        repeated: Other runs of these seeds, which are in no mean.
    """

    runs: tuple[Run, ...]
    repeated: tuple[Run, ...] = ()

    @property
    def first(self) -> Run:
        """The first run."""
        return self.runs[0]

    @property
    def method(self) -> str:
        """Name of the method."""
        return setting("method")(self.first)

    @property
    def label(self) -> str:
        """Method and target or penalty."""
        return self.first.label

    @property
    def left_out(self) -> str:
        """Text that says how many repeated runs are not in the means; empty if there are none."""
        count = len(self.repeated)
        return f", without {count} repeated run{'s' * (count > 1)}" if count else ""

    def values(self, value: Value) -> list[float]:
        """Return the values of the runs that have one."""
        found = (value(run) for run in self.runs)
        return [x for x in found if x is not None and isfinite(x)]

    def mean(self, value: Value) -> float | None:
        """Return the mean of a value over the seeds; None where no run has one."""
        found = self.values(value)
        return fmean(found) if found else None

    def deviation(self, value: Value) -> float | None:
        """Return the sample standard deviation of a value; None for fewer than two runs."""
        found = self.values(value)
        return stdev(found) if len(found) > 1 else None

    def describe(self) -> str:
        """Return run and seed, or how many seeds, and the final metrics: the text of a mark."""
        accuracy = self.mean(final_accuracy)
        spread = self.deviation(final_accuracy)
        error = "" if spread is None else f" ± {100 * spread:.2f}"
        connectivity = percent(self.mean(final_connectivity) or 0.0)
        return (
            f"{self.label} · {identify(self.runs)}{self.left_out}\n"
            f"accuracy {percent(accuracy or 0.0)}{error} · connectivity {connectivity}"
        )


def identify(runs: Sequence[Run]) -> str:
    """Return name and seed of a run, or the names of the first of several and their number."""
    if len(runs) == 1:
        return f"{runs[0].name}, seed {runs[0].seed}"
    seeds = ", ".join(str(run.seed) for run in runs[:8]) + ", …" * (len(runs) > 8)
    return f"mean of {len(runs)} runs, seeds {seeds}"


def repetitions(runs: Sequence[Run]) -> list[Group]:
    """Return one group per recipe, in the order of its first run.

    A seed counts once: of several runs of one seed, the latest finished one is in the means.
    """
    found: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        found.setdefault(run.recipe, []).append(run)
    return [_one_per_seed(members) for members in found.values()]


def _one_per_seed(runs: Sequence[Run]) -> Group:
    latest: dict[int | None, Run] = {}
    for run in runs:
        other = latest.setdefault(run.seed, run)
        if _recency(run) > _recency(other):
            latest[run.seed] = run
    others = tuple(run for run in runs if latest[run.seed] is not run)
    return Group(tuple(latest.values()), others)


def _recency(run: Run) -> tuple[bool, float, int]:
    """Return what orders the runs of one seed: the latest finished one, else the longest."""
    return run.complete, run.ended, len(run.history)


def final_repetitions(runs: Sequence[Run]) -> list[Group]:
    """Return one group per recipe, without its unfinished runs where others are finished.

    A mean of last epochs would otherwise mix the end of training with its middle.
    """
    groups = repetitions(runs)
    return [replace(group, runs=tuple(finished_if_any(group.runs))) for group in groups]


def finished_if_any(runs: Sequence[Run]) -> Sequence[Run]:
    """Return the finished runs, or all if none is finished."""
    return [run for run in runs if run.complete] or runs


def opacities(groups: Sequence[Group]) -> list[float]:
    """Return the opacity of each group: of one method's, the later ones are paler."""
    methods = [group.method for group in groups]
    ranks = [methods[:i].count(method) for i, method in enumerate(methods)]
    steps = [max(1, methods.count(method) - 1) for method in methods]
    return [1 - (1 - PALEST) * rank / step for rank, step in zip(ranks, steps, strict=True)]


def group_by(runs: Sequence[Run], key: Callable[[Run], str]) -> dict[str, list[Run]]:
    """Return the runs per value of `key`, in their order."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(key(run), []).append(run)
    return found


def setting(name: str) -> Callable[[Run], str]:
    """Return a function that returns a run's setting of that name."""
    return lambda run: getattr(run.config, name, run.name)


def final_accuracy(run: Run) -> float | None:
    """Return the test accuracy after the last epoch that was tested."""
    return run.last.get("accuracy")


def final_connectivity(run: Run) -> float | None:
    """Return the connectivity after the last epoch."""
    return run.last.get("connectivity")


def final_metrics(run: Run) -> dict[str, str | float | None]:
    """Return what identifies a run, and the metrics of its last epoch: a row of figure data."""
    assert run.config
    metrics = {key: run.last.get(key) for key in ("epoch", "accuracy", "connectivity")}
    identity = {"run": run.name, "dataset": run.config.dataset, "method": run.config.method}
    return {**identity, "setting": run.setting, "seed": run.seed, **metrics}
