"""Which run and which layer the figures of the inside of a network show."""

from collections.abc import Callable, Sequence

from spikewire.report.groups import repetitions, setting
from spikewire.report.runs import Run, spread, usable

MAX_SHOWN = 6  # runs of which a page holds the inside: each adds about 100 kB


def shown_run(runs: Sequence[Run]) -> Run | None:
    """Return the run whose internals are shown: of median connectivity, with Grad R if any."""
    traced = [r for r in usable(runs) if r.traces and r.config and r.config.method != "dense"]
    candidates = [run for run in traced if run.config and run.config.method == "gradr"] or traced
    return candidates[len(candidates) // 2] if candidates else None


def shown_run_with(runs: Sequence[Run], has: Callable[[Run], bool]) -> Run | None:
    """Return the run to show among those that have something; a dense one only if no other has."""
    having = [run for run in usable(runs) if has(run)]
    return shown_run(having) or next(iter(having), None)


def shown_layer(run: Run) -> str:
    """Return the layer whose internals are shown: the second convolution, else the largest."""
    sizes = {name: counts["total"] for name, counts in run.last["layers"].items()}
    convolutions = [name for name in sizes if "conv" in name]
    return convolutions[1] if len(convolutions) > 1 else max(sizes, key=lambda name: sizes[name])


def shown_runs(runs: Sequence[Run]) -> list[Run]:
    """Return the runs that can be chosen: the first seed of each setting, the default one first."""
    firsts = [group.first for group in repetitions(usable(runs))]
    default = shown_run(firsts)
    if default is None:
        return spread(firsts, MAX_SHOWN)
    others = [run for run in firsts if run.recipe != default.recipe]
    return [default, *spread(others, MAX_SHOWN - 1)]


def is_dense(run: Run) -> bool:
    """Return whether a run trains the dense network."""
    return setting("method")(run) == "dense"


def dense_twins(run: Run, runs: Sequence[Run]) -> list[Run]:
    """Return the other runs that train the same network without pruning, same seed first."""
    alike = [setting(name) for name in ("dataset", "model")]
    found = [
        other
        for other in usable(runs)
        if is_dense(other) and other is not run and all(of(other) == of(run) for of in alike)
    ]
    return sorted(found, key=lambda other: other.seed != run.seed)
