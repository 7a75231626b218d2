"""What `spikewire train` prints: text, one JSON record per line, or only the run directory."""

from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spikewire.cli.show import (
    complain,
    print_layers,
    print_line,
    print_values,
    progress_display,
)
from spikewire.config import Config
from spikewire.errors import SpikewireError
from spikewire.text import amount, percent

if TYPE_CHECKING:
    from spikewire.train.loop import Epoch, Progress, Result, Step

FIGURES = ("accuracy", "connectivity", "target", "unit", "seconds", "layers")  # of a `Result`


@dataclass(frozen=True)
class Output:
    """How much is printed, and in which form.

    Args:
        verbose: all settings instead of those that differ from the preset.
        json: one JSON record per line instead of text.
        quiet: only the last line.
    """

    verbose: bool = False
    json: bool = False
    quiet: bool = False

    def __post_init__(self) -> None:
        for name in ("json", "quiet"):
            if self.verbose and getattr(self, name):
                raise SpikewireError(f"--{name}: not together with --verbose")

    @contextmanager
    def progress(self, config: Config, settings: str) -> "Iterator[Progress]":
        """Yield the callback of the training; the settings come first, once it has begun.

        What is wrong with data, device or directory has been reported by then.
        """
        if self.quiet:
            yield lambda event: None
        elif self.json:
            yield print_epoch_record
        else:
            with progress_display(config) as show:
                yield after(lambda: print_lines(settings), show)

    def result(self, result: "Result", out: str | Path) -> None:
        """Print what the training has led to; a network whose output is silent is named."""
        if name := silent_output(result.history[-1].get("measured", {})):
            complain(
                f"{name}: these neurons, the last ones, have not spiked on the test images, so the "
                "network cannot distinguish them; try another lr, more epochs or, if the network "
                "takes them and they are not set, --init firing or --readout current"
            )
        if self.json:
            figures = {key: getattr(result, key) for key in FIGURES}
            print_record("result", {"run": str(out), **figures})
        elif self.quiet:
            print_line(out)
        else:
            print_result(result)
            print_line(f"run directory: {out}")


def add_output_flags(parser: ArgumentParser, each: str, last: str) -> None:
    """Add --json and --quiet; `each` and `last` say what is printed."""
    about = f"print one JSON record per {each}, and a last one for the result"
    parser.add_argument("--json", action="store_true", help=about)
    about = f"print only {last}; with --json: only the last record"
    parser.add_argument("--quiet", action="store_true", help=about)


def after(first: Callable[[], None], show: "Progress") -> "Progress":
    """Return a callback that calls `first` before its first event."""
    todo = [first]

    def both(event: "Step | Epoch") -> bool | None:
        while todo:
            todo.pop()()
        return show(event)

    return both


def print_lines(text: str) -> None:
    """Print lines, then an empty one."""
    for line in text.splitlines():
        print_line(line, flush=False)
    print(flush=True)


def print_epoch_record(event: "Step | Epoch") -> None:
    """Print the epoch's line of ``metrics.jsonl``."""
    from spikewire.train.loop import Epoch

    if isinstance(event, Epoch):
        print_record("epoch", {"epochs": event.epochs, **event.row})


def print_record(event: str, values: dict[str, Any]) -> None:
    """Print one line of JSON; numbers that are not finite become null."""
    from spikewire.runs.history import json_line

    print(json_line({"event": event, **values}), end="", flush=True)


def print_result(result: "Result") -> None:
    """Print the target and what was met of it, accuracy and time, then one row per layer."""
    from spikewire.runs.rows import in_unit

    unit, last, lines = result.unit, result.history[-1], {}
    if result.target is not None:
        lines[f"target {unit}"] = amount(unit, result.target)
        if (actual := in_unit(last, unit)) is not None:
            lines[f"actual {unit}"] = amount(unit, actual)
    print_values(
        lines
        | {
            "actual connectivity": percent(result.connectivity),
            **synapse_lines(last.get("measured", {})),
            "accuracy": percent(result.accuracy),
            "time": f"{result.seconds:.1f} s",
        }
    )
    print_layers(result.layers)


def silent_output(measured: dict[str, Any]) -> str:
    """Return the name of the last layer of neurons if none of them has spiked, else ""."""
    name, firing = next(reversed(measured.get("firing", {}).items()), ("", {}))
    return name if firing.get("rate") == 0 else ""


def synapse_lines(measured: dict[str, Any]) -> dict[str, str]:
    """Return the fractions of synapses of the dense network, where they were counted."""
    names = {
        "synapses": "synapses present",
        "synapses_reached": "synapses reached from the input",
        "synapses_alive": "synapses on a path to the output",
    }
    found = {name: measured.get(key) for key, name in names.items()}
    return {name: percent(value) for name, value in found.items() if value is not None}
