"""Groups of runs, and the colours they have in every figure."""

from collections.abc import Callable, Sequence

from spikewire.methods import METHODS
from spikewire.report.runs import Run

MAX_COLOURS = 7  # runs that colours can distinguish; more are coloured by method


def group_by(runs: Sequence[Run], key: Callable[[Run], str]) -> dict[str, list[Run]]:
    """Return the runs per value of `key`, in their order."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(key(run), []).append(run)
    return found


def setting(name: str) -> Callable[[Run], str]:
    """Return a function that returns a run's setting of that name."""
    return lambda run: getattr(run.config, name, run.name)


def colour_groups(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return the groups that get their own colour: each label if there are few, else methods."""
    found = group_by(runs, lambda run: run.label)
    return found if len(found) <= MAX_COLOURS else group_by(runs, setting("method"))


def palette_index(method: str) -> int:
    """Return the position of a method in the palette, the same in every figure."""
    names = list(dict.fromkeys(("gradr", "deepr", "budget", *sorted(METHODS))))
    return names.index(method) if method in names else len(names)


def final_metrics(run: Run) -> dict[str, str | float | None]:
    """Return what identifies a run, and the metrics of its last epoch: a row of figure data."""
    assert run.config
    metrics = {key: run.last.get(key) for key in ("epoch", "accuracy", "connectivity")}
    identity = {"run": run.name, "dataset": run.config.dataset, "method": run.config.method}
    return {**identity, "setting": run.setting, **metrics}
