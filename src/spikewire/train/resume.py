"""Run directories of a training: a new one, or the state to resume from."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from spikewire.config import Config
from spikewire.data.reference import EXECUTABLE
from spikewire.errors import AlreadyFinished, SpikewireError, check
from spikewire.runs.environment import changed_files
from spikewire.runs.lock import locked
from spikewire.runs.names import ENV
from spikewire.runs.rows import check_rows
from spikewire.runs.rundir import RunDir
from spikewire.runs.snapshots import Snapshots
from spikewire.runs.traces import Traces
from spikewire.train.finite import require_finite
from spikewire.train.step import Training
from spikewire.train.verify import verified_state


@contextmanager
def open_run(training: Training, run: str | Path | None, resume: bool) -> Iterator[RunDir | None]:
    """Create the run directory, or load into `training` the state saved in it.

    No other process trains in it meanwhile. Only the first rank has it; the others get its state.

    Args:
        training: a training at step 0.
        run: the run directory; None keeps nothing.
        resume: whether to continue from its checkpoint.

    Raises:
        SpikewireError: if the directory cannot be used.
    """
    if run is None:
        check(not resume, "resume", resume, "given together with a run directory")
        yield None
        return
    config, ranks = training.config, training.ranks
    require_finite(training)
    fresh = None if resume else training.state_dict()  # all ranks contribute to it
    with ExitStack() as stack:

        def begin() -> dict[str, Any] | None:
            folder = RunDir.open(run) if resume else RunDir.make_directory(run, config)
            stack.enter_context(locked(folder.path, "training"))
            if resume:
                return saved_state(folder, config)
            RunDir.create(run, config, training.device, fresh)
            return None

        saved = ranks.broadcast(begin)
        folder = RunDir(run) if ranks.first else None
        if saved is not None:
            load_state_(training, saved, folder or RunDir(run))
            if folder:
                folder.truncate(training.position.epoch)
        yield folder


def saved_state(folder: RunDir, config: Config) -> dict[str, Any]:
    """Return the state to resume from."""
    folder.require_plain_files()
    folder.remove_temporary_files()
    if folder.finished:
        raise AlreadyFinished(
            f"{folder.path}: has already finished; there is nothing to resume; to train it "
            f"further, start a new run with --start {folder.path}"
        )
    for change in changed_files(folder.path / ENV, config, EXECUTABLE):
        raise SpikewireError(f"{change}; restore it, or begin a new run")
    return folder.load_checkpoint(config)


def load_state_(training: Training, saved: dict[str, Any], folder: RunDir) -> None:
    """Load a state that such a run has saved."""
    try:
        training.load_state_dict(verified_state(training, saved))
    except SpikewireError as error:
        raise SpikewireError(f"{folder.path}: its checkpoint cannot be loaded: {error}") from None
    except Exception as error:  # what is left of a foreign state fails anywhere inside torch
        reason = "its checkpoint is of another kind of run"
        raise SpikewireError(f"{folder.path}: {reason}") from error


def load_history(folder: RunDir | None) -> list[dict[str, Any]]:
    """Return the metrics of the epochs before, all of them in order."""
    rows = folder.history() if folder else []
    check_rows(rows)
    return rows


def load_traces(training: Training, folder: RunDir | None) -> tuple[Traces, Snapshots]:
    """Return traces and snapshots of a run that is resumed, up to where it continues."""
    if folder is None:
        return Traces(), Snapshots()
    arrays, pictures = folder.load_traces(), folder.load_snapshots()
    try:
        traces = Traces() if arrays is None else Traces.of(arrays)
        snapshots = Snapshots() if pictures is None else Snapshots.of(pictures)
    except ValueError as error:
        reason = f"its traces or snapshots are damaged ({error}); remove them"
        raise SpikewireError(f"{folder.path}: {reason}") from None
    traces.truncate(training.position.epoch)
    snapshots.truncate(training.position.epoch)
    return traces, snapshots
