"""Tables, lines and progress bars: live on a terminal, plain elsewhere."""

import os
import sys
from collections.abc import Sequence
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any

from spikewire.config import Config
from spikewire.text import percent, printable

if TYPE_CHECKING:
    from spikewire.train.loop import Epoch, Step


def complain(text: str) -> None:
    """Print one line on stderr, as far as there is one: a terminal may have hung up."""
    with suppress(OSError):
        print(f"spikewire: {printable(' '.join(text.split()))}", file=sys.stderr, flush=True)


def first_line(text: str | None) -> str:
    """Return the first line of a docstring, which `python -OO` removes."""
    return (text or "").partition("\n")[0]


def print_line(text: object, flush: bool = True) -> None:
    """Print one line on stdout; text of files and servers is printed here or as a table."""
    print(printable(str(text)), flush=flush)


def is_terminal() -> bool:
    """Return whether stdout is a terminal."""
    return sys.stdout.isatty()


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print aligned columns; where a terminal is too narrow, all but the first are wrapped."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if is_terminal() else 200, highlight=False)
    table = Table(box=box.SIMPLE_HEAD, show_header=any(head), pad_edge=False)
    for number, title in enumerate(head):
        table.add_column(title, overflow="fold", no_wrap=number == 0)
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))  # as text: "[0, 1)" is no markup
    console.print(table)


def print_values(values: dict[str, str]) -> None:
    """Print a table of two columns."""
    print_table(("", ""), list(values.items()))


def print_layers(layers: list[dict[str, Any]]) -> None:
    """Print one row per layer: shape, synapses by mask, weights that are not zero."""
    rows = [
        (
            layer["name"],
            "x".join(map(str, layer["shape"])),
            f"{layer['present']:,} of {layer['total']:,}",
            f"{layer['nonzero']:,}",
            percent(layer["connectivity"]),
        )
        for layer in layers
    ]
    print_table(("layer", "shape", "present", "non-zero", "connectivity"), rows)


@contextmanager
def progress_display(config: Config):
    """Yield a callback: a live bar on a terminal, one line per epoch elsewhere."""
    if not is_terminal():
        yield print_epoch
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from spikewire.train.loop import Step

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeRemainingColumn())
    with Progress(*columns) as bar:
        task = bar.add_task(f"epoch 0/{config.epochs}", total=None)

        def show(event: "Step | Epoch") -> None:
            if isinstance(event, Step):
                bar.update(task, completed=event.step, total=event.total_steps)
            else:
                bar.update(task, description=epoch_line(event))

        yield show


def print_epoch(event: "Step | Epoch") -> None:
    """Print one plain line after each epoch."""
    from spikewire.train.loop import Epoch

    if isinstance(event, Epoch):
        print(epoch_line(event), f"{event.row['seconds']:.1f} s", sep="  ", flush=True)


def epoch_line(event: "Epoch") -> str:
    """Return the results of an epoch as one line."""
    row = event.row
    tested = "" if row["accuracy"] is None else f"accuracy {percent(row['accuracy'])}  "
    return (
        f"epoch {row['epoch']}/{event.epochs}  loss {row['loss']:.4f}  {tested}"
        f"connectivity {percent(row['connectivity'])}"
    )


@contextmanager
def download_display():
    """Yield a callback that shows bytes on a terminal, and nothing elsewhere."""
    if not is_terminal():
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(*columns) as bar:
        tasks: dict[str, Any] = {}

        def show(file: str, done: int, total: int) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file, total=total)
            bar.update(tasks[file], completed=done)

        yield show


def silence(stream: IO[str]) -> None:
    """Discard all further output of a stream, also what is not flushed yet."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
