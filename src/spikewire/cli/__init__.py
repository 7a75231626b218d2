"""The command line: the only package that prints, parses flags and sets exit codes.

Exit codes: 0 done, 1 training failed, 2 bad input, 3 the run to resume has already finished,
129 SIGHUP, 130 Ctrl-C, 143 SIGTERM. Heavy modules are imported when a command runs, so that help
is quick.
"""

import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from io import TextIOWrapper

from spikewire import __version__
from spikewire.cli import data, export, frontier, methods, predict, presets, report, train, zoo
from spikewire.cli.show import complain, first_line, silence
from spikewire.errors import AlreadyFinished, SpikewireError, TrainingFailed, unknown

HELP = """\
spikewire: spiking neural networks that learn their own sparse connectivity

usage: spikewire COMMAND [flags]          spikewire COMMAND --help lists the flags

{commands}

examples:
  spikewire train                                      digits, Grad R's rule, under a minute
  spikewire train --method deepr --connectivity 0.05   another method; its fields are flags
  spikewire train --preset mnist-fast --out runs/mine  first: spikewire data get mnist
  spikewire train --resume runs/mine                   resume it after a stop"""

COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    "train": train.train,
    "eval": train.evaluate,
    "frontier": frontier.frontier,
    "methods": methods.methods,
    "presets": presets.presets,
    "data": data.data,
    "export": export.export,
    "predict": predict.predict,
    "zoo": zoo.zoo,
    "report": report.report,
    "figures": report.figures,
}


HEAVY = {  # what a command imports besides itself
    "train": ("spikewire.train.loop", "rich.progress", "rich.table"),
    "eval": ("spikewire.train", "rich.table"),
    "frontier": ("spikewire.frontier", "spikewire.report", "rich.table", "rich.live"),
    "data": ("spikewire.data", "rich.progress", "rich.table"),
    "export": ("spikewire.deploy", "rich.table"),
    "predict": ("spikewire.runtime", "spikewire.data"),
    "zoo": ("rich.table",),
    "report": ("spikewire.report",),
    "figures": ("spikewire.report", "spikewire.train.loop"),
}


def main(arguments: Sequence[str] | None = None, ready: Callable[[], None] = lambda: None) -> int:
    """Run one command; return the exit code.

    Args:
        arguments: The command and its flags; None takes those of the process.
        ready: Called once the heavy imports are done, before the command runs.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    command = arguments[0] if arguments else "--help"
    for name in ("stdout", "stderr"):  # None where it was closed before the start
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):  # a path may hold bytes that are no text
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if logging.lastResort:  # what a library logs where the process has no handlers
        logging.lastResort.setFormatter(logging.Formatter("spikewire: warning: %(message)s"))
    os.environ.pop("MPLBACKEND", None)  # figures need no backend, and a wrong one is an error
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: complain(f"warning: {message}")
        return guarded(command, arguments[1:], ready)


def dispatch(command: str, arguments: Sequence[str], ready: Callable[[], None]) -> None:
    """Run a command, or list the commands."""
    if not {"-h", "--help"} & {*arguments}:
        for module in HEAVY.get(command, ()):
            import_module(module)
    ready()
    if command in ("-h", "--help", "help"):
        rows = (f"  {name:10}{first_line(run.__doc__)}" for name, run in COMMANDS.items())
        print(HELP.format(commands="\n".join(rows)))
    elif command == "--version":
        print(f"spikewire {__version__}")
    elif command in COMMANDS:
        COMMANDS[command](arguments)
    else:
        raise unknown("command", command, [*COMMANDS, "--help", "--version"])


def guarded(command: str, arguments: Sequence[str], ready: Callable[[], None]) -> int:
    """Run a command; turn what stops it into one line and an exit code."""
    try:
        try:
            dispatch(command, arguments, ready)
        finally:  # here, not at exit, where no one would catch a closed pipe
            sys.stdout.flush()
        return 0
    except AlreadyFinished as error:
        complain(str(error))
        return 3
    except SpikewireError as error:
        complain(str(error))
        return 2
    except KeyboardInterrupt as stopped:
        return 128 + getattr(stopped, "number", signal.SIGINT)
    except BrokenPipeError:  # `| head` has read enough
        silence(sys.stdout)
        return 141
    except TrainingFailed as error:
        complain(str(error))
        return 1
    except OSError as error:
        complain(f"{error.filename or 'output'}: {error.strerror or error}")
        if error.filename is None:
            silence(sys.stdout)
        return 2
    except RuntimeError as error:
        if "allocate" not in str(error):  # torch's word where memory ends, on any device
            raise
        complain("out of memory; try a smaller batch_size or fewer time_steps")
        return 1
