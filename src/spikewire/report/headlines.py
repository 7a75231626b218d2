"""The headlines: best accuracy, lowest connectivity near it, and what that costs."""

from collections.abc import Sequence

from spikewire.data import title_of
from spikewire.report.choice import dense_twins
from spikewire.report.groups import (
    Group,
    final_accuracy,
    final_connectivity,
    finished_if_any,
    group_by,
    repetitions,
    setting,
)
from spikewire.report.runs import Run
from spikewire.text import percent, size

Card = tuple[str, str, str]  # what, figure, detail
NEAR = 0.02  # accuracy that the sparsest setting may be below the best


def cards(runs: Sequence[Run]) -> list[Card]:
    """Return the headlines of means over seeds; with several data sets, those of each.

    Finished runs only, where there are any. Of equal settings, the one of higher accuracy is shown,
    and of equal accuracies the sparser one.
    """
    good = [run for run in runs if run.usable]
    if not good:
        return [("runs", str(len(runs)), "none has finished an epoch")]
    datasets = group_by(good, setting("dataset"))
    if len(datasets) > 1:  # accuracies on different data sets cannot be compared
        return [
            card
            for name, members in datasets.items()
            for card in _accuracy_cards(
                repetitions(finished_if_any(members)), f"{title_of(name)}: "
            )
        ]
    shown = finished_if_any(good)
    groups = repetitions(shown)
    return _accuracy_cards(groups) + _cost_cards(sparsest(groups), shown)


def best(groups: Sequence[Group]) -> Group:
    """Return the group of highest mean accuracy; of equal ones, the sparsest."""
    return max(groups, key=lambda group: (_accuracy(group), -_connectivity(group)))


def sparsest(groups: Sequence[Group]) -> Group:
    """Return the group of lowest connectivity near the best; of equal ones, the most accurate."""
    level = _accuracy(best(groups)) - NEAR
    near = [group for group in groups if _accuracy(group) >= level]
    return min(near, key=lambda group: (_connectivity(group), -_accuracy(group)))


def _accuracy(group: Group) -> float:
    return group.mean(final_accuracy) or 0.0


def _connectivity(group: Group) -> float:
    return group.mean(final_connectivity) or 0.0


def _accuracy_cards(groups: Sequence[Group], prefix: str = "") -> list[Card]:
    top, sparse = best(groups), sparsest(groups)
    detail = f"{_source(sparse)}, accuracy {_shown_accuracy(sparse)}"
    return [
        (f"{prefix}best accuracy", _shown_accuracy(top), _source(top)),
        (
            f"{prefix}lowest connectivity within {100 * NEAR:g} points of the best",
            percent(_connectivity(sparse)),
            detail,
        ),
    ]


def _shown_accuracy(group: Group) -> str:
    deviation = group.deviation(final_accuracy)
    spread = "" if deviation is None else f" ± {100 * deviation:.2f}"
    return percent(_accuracy(group)) + spread


def _source(group: Group) -> str:
    """Return what a headline is about: a run, or a setting and its number of seeds."""
    state = "" if all(run.finished for run in group.runs) else ", unfinished"
    if len(group.runs) == 1:
        return group.first.name + state
    return f"{group.label}, mean of {len(group.runs)} seeds{state}"


def _cost_cards(group: Group, runs: Sequence[Run]) -> list[Card]:
    """Return the headlines of a setting's operations and size, next to those of a dense run."""
    if not all(run.measured for run in group.runs):
        return []

    def mean(of: Group, *keys: str) -> float:
        return of.mean(lambda run: sum(run.measured[key] for key in keys)) or 0.0

    packed = size(round(group.mean(lambda run: run.in_unit("bytes")) or 0.0))
    unpacked = f"{size(round(mean(group, 'bytes_dense')))} of unpacked parameters, with all weights"
    file = (f"packed file of {group.label}", packed, unpacked)
    if not all("synops" in run.measured for run in group.runs):
        return [file]
    counted = [run for run in dense_twins(group.first, runs) if "synops" in run.measured]
    dense = repetitions(counted)
    twins = tuple(run for found in dense for run in found.runs)
    compared = (
        f"{mean(Group(twins), 'synops', 'macs'):,.0f} in the dense network"
        if twins
        else f"{mean(group, 'dense'):,.0f} with all weights and all inputs active"
    )
    used = f"{mean(group, 'synops', 'macs'):,.0f}"
    return [(f"operations per image of {group.label}", used, compared), file]
