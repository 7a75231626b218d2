"""What `spikewire frontier` shows while it runs: a live table on a terminal, lines elsewhere."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from spikewire.cli.show import print_line
from spikewire.text import amount, percent, printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from spikewire.frontier import Job, Outcome, Progress, Watch
    from spikewire.frontier.engines import Task

REFRESHES = 2  # per second
AROUND = 6  # lines of the table besides its rows, and one for the cursor


@contextmanager
def live_table(tasks: "Mapping[Job, Task]") -> "Iterator[Callable[[Outcome], None]]":
    """Yield the callback for runs that have ended: it prints one line per run.

    On a terminal a table of the running ones stays below these lines until the block ends.
    """
    if not sys.stdout.isatty():
        yield print_outcome
        return
    from rich.console import Console
    from rich.live import Live

    from spikewire.frontier import Watch

    watch, console = Watch(tasks), Console(highlight=False)

    def show(outcome: "Outcome") -> None:
        watch.record(outcome)
        print_outcome(outcome)

    with Live(
        console=console,
        get_renderable=lambda: progress_table(watch, console),
        refresh_per_second=REFRESHES,
        transient=True,
    ):
        yield show


def progress_table(watch: "Watch", console: "Console") -> "RenderableType":
    """Return one row per running run, as many as fit on the terminal, and the counts."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    running = watch.running()
    table = Table("run", box=box.SIMPLE_HEAD, caption_justify="left")
    for title in ("epoch", "accuracy", "connectivity", "time left"):
        table.add_column(title, justify="right", no_wrap=True)
    rows = [progress_row(progress) for progress in running]
    fit = max(1, console.height - AROUND)
    if len(rows) > fit:
        rows[fit - 1 :] = [(f"and {len(rows) - fit + 1} more", "", "", "", "")]
    for row in rows:
        table.add_row(*(Text(printable(cell), overflow="ellipsis") for cell in row))
    table.columns[0].no_wrap = True
    table.caption = Text(counts(watch, running), style="red" if watch.failed else "")
    return table


def progress_row(progress: "Progress") -> tuple[str, str, str, str, str]:
    """Return the cells of one run."""
    accuracy, connectivity = progress.accuracy, progress.connectivity
    return (
        progress.name,
        "starting" if progress.epochs is None else f"{progress.epoch}/{progress.epochs}",
        "" if accuracy is None else percent(accuracy),
        "" if connectivity is None else percent(connectivity),
        "" if progress.seconds_left is None else duration(progress.seconds_left),
    )


def counts(watch: "Watch", running: "Sequence[Progress]") -> str:
    """Return how many runs are done, running, waiting and failed, and the time left."""
    done, failed = len(watch.done), len(watch.failed)
    waiting = max(0, len(watch.tasks) - done - failed - len(running))
    numbers = {"done": done, "running": len(running), "waiting": waiting, "failed": failed}
    text = ", ".join(f"{number} {word}" for word, number in numbers.items())
    left = watch.seconds_left(running)
    return text if left is None else f"{text}; about {duration(left)} left"


def duration(seconds: float) -> str:
    """Return a time as ``h:mm:ss`` or ``m:ss``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def print_outcome(outcome: "Outcome") -> None:
    """Print one line for a run that has ended."""
    if outcome.error:
        print_line(f"{outcome.job.name}  failed: {outcome.error}")
        return
    unit, accuracy = outcome.job.unit, percent(outcome.accuracy or 0.0)
    actual = amount(unit, outcome.actual or 0.0)
    print_line(f"{outcome.job.name}  accuracy {accuracy}  {unit} {actual}  {outcome.seconds:.1f} s")
