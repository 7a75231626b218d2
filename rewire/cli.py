"""The command line: the only file that prints, parses flags and sets exit codes.

Exit codes: 0 done, 1 training failed, 2 bad input, 130 Ctrl-C, 143 SIGTERM. What is heavy is
imported where it is used, so that help is quick.
"""

import argparse
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import MISSING
from typing import TYPE_CHECKING, Any, NoReturn

from rewire import __version__
from rewire.config import (
    Config,
    flag,
    method_defaults,
    method_fields,
    presets,
    resolve,
    settings,
)
from rewire.errors import RewireError, check, unknown

if TYPE_CHECKING:
    from rewire.frontier import Outcome, Point
    from rewire.train import Epoch, Result, Step

HELP = """\
rewire: spiking neural networks that grow their own sparse wiring

usage: rewire COMMAND [flags]          rewire COMMAND --help tells them

{commands}

examples:
  rewire train                                      embedded digits, Grad R, under a minute
  rewire train --method deepr --connectivity 0.05   another method; its fields are flags
  rewire train --preset mnist-fast --out runs/mine  first: rewire data get mnist
  rewire train --resume runs/mine                   go on where it stopped"""


class Parser(argparse.ArgumentParser):
    """A parser whose complaints are one-line `RewireError`s, with the nearest right flag."""

    def __init__(self, command: str, about: str) -> None:
        super().__init__(f"rewire {command}", description=about, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage."""
        raise RewireError(message)

    def read(self, arguments: Sequence[str]) -> dict[str, Any]:
        """Return the values given, by name."""
        found, rest = self.parse_known_args(arguments)
        for word in rest:
            if word.startswith("-"):
                raise unknown("flag", word.partition("=")[0], self._option_string_actions)
            raise RewireError(f"{word}: not expected here; see {self.prog} --help")
        return vars(found)


# ---------------------------------------------------------------------- train


def train(arguments: Sequence[str]) -> None:
    """Train a network; every setting and every field of a method is a flag."""
    given = train_parser().read(arguments)
    preset, file, out, resume = (
        given.pop(key, None) for key in ("preset", "config", "out", "resume")
    )
    from rewire.rundir import free_name

    if resume:
        refuse_with_resume({"preset": preset, "config": file, "out": out, **given})
        config, out = resume_config(resume, given), resume
    else:
        config = resolve(preset, file, given)
        out = out or free_name("runs", f"{config.dataset}-{config.method}")
    from rewire.train import fit

    print(config.to_toml())
    try:
        with progress_display(config) as show:
            result = fit(config, out, resume=bool(resume), progress=show)
    except KeyboardInterrupt:
        complain(f"stopped; go on with: rewire train --resume {out}")
        raise
    print_result(result)
    print(f"run directory: {out}")


def train_parser() -> Parser:
    """Return the parser with a flag for each setting and each method's field."""
    parser = Parser("train", train.__doc__ or "")
    parser.add_argument("--out", metavar="DIR", help="run directory (runs/<dataset>-<method>-<n>)")
    parser.add_argument("--resume", metavar="RUN", help="go on with a run that was stopped")
    add_settings(parser)
    return parser


def add_settings(parser: Parser, but: Sequence[str] = ()) -> None:
    """Add a flag for each setting and each method's field, except those in `but`."""
    from rewire.methods import METHODS

    parser.add_argument("--preset", help=f"start from {', '.join(sorted(presets()))} (digits)")
    parser.add_argument("--config", metavar="FILE", help="TOML file of settings")
    group = parser.add_argument_group("settings")
    for key, rule in settings().items():
        if key not in but:
            about = f"{rule.metadata['help']} ({shown(rule.default)})"
            add_flag(group, key, about, rule.type is bool)
    group = parser.add_argument_group("fields of the method")
    owners: dict[str, list[str]] = {}
    for method in METHODS:
        for key in method_fields(method).keys() - set(but):
            owners.setdefault(key, []).append(method)
    for key, methods in sorted(owners.items()):
        rules = [method_fields(method)[key] for method in methods]
        about = f"{', '.join(methods)}: {rules[0].metadata.get('help', '')}"
        add_flag(group, key, about, all(rule.type is bool for rule in rules))


def add_flag(group: Any, key: str, about: str, switch: bool) -> None:
    """Add ``--some-key VALUE``; a switch may leave out ``true``. The text goes to `config`."""
    extra = {"nargs": "?", "const": "true"} if switch else {}
    about, name = about.replace("%", "%%"), flag(key)
    group.add_argument(name, dest=key, metavar="X", default=argparse.SUPPRESS, help=about, **extra)


def refuse_with_resume(given: dict[str, Any]) -> None:
    """Raise for a flag that would make it another run."""
    free = [key for key, rule in settings().items() if rule.metadata.get("free")]
    for key, value in given.items():
        if value is not None and key not in free:
            flags = ", ".join(map(flag, free))
            raise RewireError(f"{flag(key)}: not together with --resume, which takes only {flags}")


def resume_config(run: str, given: dict[str, str]) -> Config:
    """Return the run's own settings with the free ones that are given now."""
    from rewire.rundir import RunDir

    return RunDir.open(run).config(given)


# ---------------------------------------------------------------------- what train shows


@contextmanager
def progress_display(config: Config):
    """Yield a callback: a live bar on a terminal, a line an epoch elsewhere."""
    if not sys.stdout.isatty():
        yield print_epoch
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from rewire.train import Step

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
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
    from rewire.train import Epoch

    if isinstance(event, Epoch):
        print(epoch_line(event), f"{event.row['seconds']:.1f} s", sep="  ", flush=True)


def epoch_line(event: "Epoch") -> str:
    """Return the figures of an epoch."""
    row = event.row
    return (
        f"epoch {row['epoch']}/{event.epochs}  loss {row['loss']:.4f}  "
        f"accuracy {percent(row['accuracy'])}  connectivity {percent(row['connectivity'])}"
    )


def print_result(result: "Result") -> None:
    """Print what was asked and what was reached, then each layer."""
    asked = {"asked connectivity": percent(result.asked)} if result.asked is not None else {}
    print_figures(
        asked
        | {
            "reached connectivity": percent(result.connectivity),
            "accuracy": percent(result.accuracy),
            "time": f"{result.seconds:.1f} s",
        }
    )
    print_layers(result.layers)


def print_figures(figures: dict[str, str]) -> None:
    """Print a table of two columns."""
    print_table(("", ""), list(figures.items()))


def print_layers(layers: list[dict[str, Any]]) -> None:
    """Print one row a layer: shape, synapses by mask, weights that are not zero."""
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


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print aligned columns; a wide one is not cut when the output is no terminal."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
    table = Table(*head, box=box.SIMPLE_HEAD, show_header=any(head))
    for row in rows:
        table.add_row(*row)
    console.print(table)


def percent(share: float) -> str:
    """Return a share as a percentage, with more digits where there is little."""
    return f"{share:.2%}" if share >= 0.01 or share == 0 else f"{share:.3%}"


def shown(value: Any) -> str:
    """Return a default as one would type it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value or "none")


# ---------------------------------------------------------------------- frontier


def frontier(arguments: Sequence[str]) -> None:
    """Train methods x connectivities x seeds; the same command again does only what is missing."""
    parser = Parser("frontier", frontier.__doc__ or "")
    parser.add_argument("--methods", default="gradr,deepr,budget", help="comma list")
    parser.add_argument("--connectivity", default="0.25,0.05,0.01", help="comma list of shares")
    parser.add_argument("--seeds", default="3", help="seeds 0 to N-1")
    parser.add_argument("--jobs", default="1", help="runs at a time; they share the cores")
    parser.add_argument("--out", metavar="DIR", default="runs/frontier", help="(runs/frontier)")
    add_settings(parser, but=("method", "connectivity", "seed", "dataset"))
    parser.add_argument("--dataset", help="comma list (that of the preset)")
    given = parser.read(arguments)
    own = {key: given.pop(key) for key in ("methods", "connectivity", "seeds", "jobs", "out")}
    preset, file, sets = (given.pop(key) for key in ("preset", "config", "dataset"))
    from rewire import frontier as front

    base = resolve(preset, file, {})
    shares = [number("connectivity", text) for text in own["connectivity"].split(",")]
    jobs = front.plan(
        (sets or base.dataset).split(","),
        own["methods"].split(","),
        shares,
        whole("seeds", own["seeds"]),
    )
    out = front.Path(own["out"])
    outcomes = front.run(
        jobs,
        out,
        preset=preset,
        file=file,
        flags=given,
        workers=whole("jobs", own["jobs"]),
        told=print_outcome,
    )
    points = front.points(outcomes)
    print_points(points)
    print(f"frontier: {out / front.FRONTIER}, {', '.join(map(str, front.draw_all(points, out)))}")
    if failed := [outcome for outcome in outcomes if outcome.error]:
        first = failed[0]
        raise ArithmeticError(
            f"{len(failed)} of {len(jobs)} runs failed; {first.job.name}: {first.error}"
        )


def print_outcome(outcome: "Outcome") -> None:
    """Print a line when a run of the list has ended."""
    if outcome.error:
        print(f"{outcome.job.name}  failed: {outcome.error}", flush=True)
        return
    accuracy, reached = percent(outcome.accuracy or 0.0), percent(outcome.reached or 0.0)
    print(
        f"{outcome.job.name}  accuracy {accuracy}  connectivity {reached}  {outcome.seconds:.1f} s",
        flush=True,
    )


def print_points(points: "Sequence[Point]") -> None:
    """Print mean and deviation over seeds, asked and reached."""
    rows = [
        (
            point.dataset,
            point.method,
            "" if point.asked is None else percent(point.asked),
            percent(point.reached),
            f"{100 * point.accuracy:.2f} ± {100 * point.deviation:.2f}",
            f"{point.n}" + (f" ({point.failed} failed)" if point.failed else ""),
            f"{point.seconds:.0f} s",
        )
        for point in points
    ]
    print_table(("data set", "method", "asked", "reached", "accuracy %", "n", "time"), rows)


# ---------------------------------------------------------------------- the other commands


def evaluate(arguments: Sequence[str]) -> None:
    """Test the network of a finished run on the test set."""
    parser = Parser("eval", evaluate.__doc__ or "")
    parser.add_argument("run", help="run directory")
    parser.add_argument("--data-dir", help="where data sets lie")
    parser.add_argument("--device", help="auto, cpu or cuda")
    given = parser.read(arguments)
    run = given.pop("run")
    from rewire.evaluate import score

    figures = score(run, {key: value for key, value in given.items() if value is not None})
    print_figures(
        {
            "accuracy": percent(figures.accuracy),
            "connectivity by mask": percent(figures.connectivity),
            "connectivity by non-zero weights": percent(figures.nonzero),
        }
    )
    print_layers(figures.layers)


def methods(arguments: Sequence[str]) -> None:
    """List the methods, and the fields of each with their defaults."""
    Parser("methods", methods.__doc__ or "").read(arguments)
    from rewire.methods import METHODS

    rows = []
    for name, method in METHODS.items():
        rows.append((name, (method.__doc__ or "").splitlines()[0], ""))
        defaults = method_defaults(name)
        for key, rule in method_fields(name).items():
            default = "needed" if defaults[key] is MISSING else shown(defaults[key])
            rows.append(("", f"{flag(key)}: {rule.metadata.get('help', '')}", default))
    print_table(("method", "what it does", "default"), rows)


def data(arguments: Sequence[str]) -> None:
    """List the data sets; `rewire data get NAME` downloads one."""
    parser = Parser("data", data.__doc__ or "")
    parser.add_argument("words", nargs="*", metavar="get NAME", help="what to download")
    parser.add_argument("--data-dir", help="where data sets lie ($REWIRE_DATA, ~/.cache/rewire)")
    given = parser.read(arguments)
    from rewire import data as datasets

    if not given["words"]:
        root = datasets.data_dir(given["data_dir"])
        rows = []
        for name, source in datasets.DATASETS.items():
            here = all((root / file.path).is_file() for file in source.files)
            rows.append((name, source.summary, "present" if here else "absent"))
        print_table(("data set", "what it is", str(root)), rows)
    elif given["words"][0] != "get":
        raise unknown("data", given["words"][0], ["get"])
    elif len(given["words"]) != 2:
        raise RewireError("data get: takes one name, as in `rewire data get mnist`")
    else:
        name = given["words"][1]
        with download_display() as show:
            root = datasets.get(name, given["data_dir"], progress=show)
        print(f"{name}: in {root}")


@contextmanager
def download_display():
    """Yield a callback that shows bytes on a terminal, and nothing elsewhere."""
    if not sys.stdout.isatty():
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
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


# ---------------------------------------------------------------------- report, figures


def report(arguments: Sequence[str]) -> None:
    """Write one page about runs: table, figures, settings, commands."""
    parser = Parser("report", report.__doc__ or "")
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="run directories, or folders of them"
    )
    parser.add_argument("-o", "--out", metavar="FILE", help="where to write it (report.html)")
    parser.add_argument("--format", default="html", metavar="X", help="html or md (html)")
    parser.add_argument("--title", default="Runs", help="headline of the page")
    parser.add_argument(
        "--watch", nargs="?", const="10", metavar="S", help="write it again every S seconds (10)"
    )
    given = parser.read(arguments)
    from rewire.report import FORMATS, write

    if given["format"] not in FORMATS:
        raise unknown("--format", given["format"], FORMATS)
    out = given["out"] or f"report.{given['format']}"
    seconds = whole("--watch", given["watch"]) if given["watch"] else 0

    def write_once() -> int:
        form, title = given["format"], given["title"]
        return len(write(given["runs"], out, form=form, title=title, refresh=seconds))

    print(f"report of {write_once()} runs: {out}", flush=True)
    while seconds:
        time.sleep(seconds)
        write_once()


def whole(name: str, text: str) -> int:
    """Return the text as a whole number of at least 1."""
    check(text.isdecimal() and int(text) >= 1, name, text, "a whole number, 1 or more")
    return int(text)


def figures(arguments: Sequence[str]) -> None:
    """Draw figures from runs as SVG and PNG; --paper: the seven of the Grad R paper."""
    parser = Parser("figures", figures.__doc__ or "")
    parser.add_argument(
        "runs", nargs="*", metavar="RUN", help="run directories, or folders of them"
    )
    parser.add_argument(
        "--out", default="figures", metavar="DIR", help="where to put them (figures)"
    )
    parser.add_argument(
        "--paper",
        action="store_true",
        help="the paper's; without RUN, small runs are trained first",
    )
    given = parser.read(arguments)
    runs, out = given["runs"], given["out"]
    if not runs and not given["paper"]:
        raise RewireError("RUN: is missing; name run directories, or use --paper to train some")
    from rewire.report import draw_all, find, save_figures
    from rewire.report.paper import draw_paper

    found = find(runs or [train_for_paper(f"{out}/runs")])
    plots = draw_paper(found) if given["paper"] else draw_all(found)
    for path in save_figures(plots, out):
        print(path)


def train_for_paper(folder: str) -> str:
    """Train what the paper's figures need on digits, where it is not there yet; return `folder`."""
    from rewire.report.paper import EPOCHS, RECIPE
    from rewire.rundir import RunDir
    from rewire.train import fit

    for flags in RECIPE:
        name = "-".join(flags.values())
        path = f"{folder}/{name}"
        if RunDir(path).finished:
            continue
        result = fit(resolve("digits", flags={**flags, "epochs": EPOCHS}), path)
        print(f"{name}: {percent(result.accuracy)} at {percent(result.connectivity)}", flush=True)
    return folder


def export(arguments: Sequence[str]) -> None:
    """Write the network of a finished run as a packed file, NIR or connection lists."""
    from rewire.export.nir import POOLINGS
    from rewire.export.packed import VALUES
    from rewire.export.run import FORMATS
    from rewire.export.run import export as write

    parser = Parser("export", export.__doc__ or "")
    parser.add_argument("run", help="run directory")
    parser.add_argument("--format", default="packed", help=f"{', '.join(FORMATS)} (packed)")
    parser.add_argument("--out", metavar="PATH", help="where to (into the run directory)")
    parser.add_argument("--values", default="fp16", help=f"packed: {', '.join(VALUES)} (fp16)")
    parser.add_argument("--pooling", default="conv", help=f"nir: {', '.join(POOLINGS)} (conv)")
    parser.add_argument("--check", default="256", help="test images to compare on, or 0 (256)")
    parser.add_argument("--licence", default="", help="a word on the licence, kept in the file")
    parser.add_argument("--data-dir", help="where data sets lie")
    given = parser.read(arguments)
    text = given.pop("check")
    given["check_images"] = 0 if text == "0" else whole("--check", text)
    done = write(given.pop("run"), **given)
    rows = {
        "file": str(done.path),
        "size": f"{done.size / 1e6:.3f} MB; dense fp32 {done.dense_size / 1e6:.3f} MB",
        "connectivity by non-zero weights": percent(done.connectivity),
    }
    if done.checked:
        rows["accuracy before, after"] = f"{percent(done.before)}, {percent(done.after)}"
        rows["accuracy change"] = f"{100 * (done.after - done.before):+.2f} points"
        rows["on"] = f"{done.checked} test images"
    print_figures(rows)


def predict(arguments: Sequence[str]) -> None:
    """Run a packed network on images.npy, a .png or the test part of a data set."""
    parser = Parser("predict", predict.__doc__ or "")
    parser.add_argument("model", help="packed file")
    parser.add_argument("--input", required=True, help=".npy, .png or the name of a data set")
    parser.add_argument("--threads", default="1", help="threads (1)")
    parser.add_argument("--batch", default="32", help="images at once (32)")
    parser.add_argument("--early-exit", metavar="X", help="stop an image that leads by X a step")
    parser.add_argument("--kernels", help="avx512, avx2, portable or torch (the quickest)")
    parser.add_argument("--data-dir", help="where data sets lie")
    given = parser.read(arguments)
    from rewire.runtime import load
    from rewire.runtime.inputs import read_images

    threads, kernels = whole("--threads", given["threads"]), given["kernels"]
    model = load(given["model"], threads=threads, kernels=kernels)
    batch, margin = whole("--batch", given["batch"]), given["early_exit"]
    images, labels = read_images(given["input"], model, given["data_dir"])
    lead = float("inf") if margin is None else number("--early-exit", margin)
    begin, right, steps = time.perf_counter(), 0, 0
    for first in range(0, len(images), batch):
        here = slice(first, first + batch)
        if margin is None:
            found = model.predict(images[here])
            steps += model.network.time_steps * len(found)
        else:
            found, taken = model.decide(images[here], lead)
            steps += int(taken.sum())
        if labels is None:
            rows = enumerate(found.tolist(), first)
            print("\n".join(f"{i} {model.network.classes[label]}" for i, label in rows))
        else:
            right += int((found == labels[here]).sum())
    if labels is not None:
        seconds = time.perf_counter() - begin
        print_figures(
            {
                "accuracy": percent(right / len(images)),
                "images": f"{len(images)}; {len(images) / seconds:.0f} a second ({model.kernels})",
                "time steps": f"{steps / len(images):.2f} on average",
            }
        )


def number(name: str, text: str) -> float:
    """Return the number a flag was given."""
    try:
        return float(text)
    except ValueError:
        raise RewireError(f"{name}: {text!r} is not allowed; it must be a number") from None


# ---------------------------------------------------------------------- entry

COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    "train": train,
    "eval": evaluate,
    "frontier": frontier,
    "methods": methods,
    "data": data,
    "export": export,
    "predict": predict,
    "report": report,
    "figures": figures,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    command = arguments[0] if arguments else "--help"
    if command in ("-h", "--help", "help"):
        rows = [
            f"  {name:10}{(run.__doc__ or '').splitlines()[0]}" for name, run in COMMANDS.items()
        ]
        print(HELP.format(commands="\n".join(rows)))
        return 0
    if command == "--version":
        print(f"rewire {__version__}")
        return 0
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: complain(f"warning: {message}")
        return guarded(command, arguments[1:])


def guarded(command: str, arguments: Sequence[str]) -> int:
    """Run a command; turn what stops it into one line and an exit code."""
    try:
        if command not in COMMANDS:
            raise unknown("command", command, COMMANDS)
        COMMANDS[command](arguments)
        sys.stdout.flush()
        return 0
    except RewireError as error:
        complain(str(error))
        return 2
    except KeyboardInterrupt as stopped:
        return 128 + getattr(stopped, "number", signal.SIGINT)
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except ArithmeticError as error:  # train.Diverged
        complain(str(error))
        return 1


def complain(text: str) -> None:
    """Print one line on stderr."""
    print(f"rewire: {' '.join(text.split())}", file=sys.stderr, flush=True)
