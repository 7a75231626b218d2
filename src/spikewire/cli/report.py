"""`spikewire report` and `spikewire figures`."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spikewire.cli.flags import Parser, number, whole
from spikewire.cli.show import print_line
from spikewire.config import resolve
from spikewire.errors import SpikewireError, check, check_word
from spikewire.files import io_errors, make_folder
from spikewire.text import percent

if TYPE_CHECKING:
    from spikewire.report import Plot

KINDS = ("svg", "png", "pdf")  # those of `spikewire.report`
RUNS_HELP = "run directories, or folders that contain them"
UNITS = ("connectivity", "synapses", "synops", "bytes")  # those of `spikewire.pruning`
WIDTH_HELP = "width of the figures, such as 3.3 for one column of a paper (5.4)"
UNIT_HELP = f"what accuracy is drawn against: {', '.join(UNITS)} (connectivity)"


def report(arguments: Sequence[str]) -> None:
    """Write one page about runs: table, figures, settings, commands."""
    parser = Parser("report", report.__doc__ or "")
    parser.add_argument("runs", nargs="+", metavar="RUN", help=RUNS_HELP)
    parser.add_argument("-o", "--out", metavar="FILE", help="file to write (report.html)")
    parser.add_argument("--format", metavar="X", help="html or md (that of FILE, else html)")
    parser.add_argument("--title", default="Runs", help="heading of the page")
    parser.add_argument("--unit", default="connectivity", metavar="X", help=UNIT_HELP)
    parser.add_argument(
        "--watch", nargs="?", const="10", metavar="S", help="update the page every S seconds (10)"
    )
    given = parser.read(arguments)
    from spikewire.report import FORMATS, write

    check_word("--unit", given["unit"], UNITS)
    given["format"] = given["format"] or format_of(given["out"])
    check_word("--format", given["format"], FORMATS)
    out = given["out"] or f"report.{given['format']}"
    seconds = whole("--watch", given["watch"]) if given["watch"] else 0

    def write_page() -> int:
        same = {key: given[key] for key in ("format", "title", "unit")}
        return len(write(given["runs"], out, refresh=seconds, **same))

    count = write_page()
    print_line(f"report of {count} run{'s' * (count != 1)}: {out}")
    while seconds:
        time.sleep(seconds)
        write_page()


def format_of(out: str | None) -> str:
    """Return the format that the name of a page stands for; a name without an ending is HTML."""
    ending = Path(out or "").suffix.lower()
    allowed = "a name that ends in .html or .md, or give --format; `spikewire figures` writes PDF"
    check(ending in ("", ".html", ".htm", ".md"), "--out", out, allowed)
    return "md" if ending == ".md" else "html"


def figures(arguments: Sequence[str]) -> None:
    """Draw figures from runs as SVG, PNG and PDF; --paper: those of the Grad R paper."""
    parser = Parser("figures", figures.__doc__ or "")
    parser.add_argument("runs", nargs="*", metavar="RUN", help=RUNS_HELP)
    parser.add_argument("--out", default="figures", metavar="DIR", help="folder (figures)")
    parser.add_argument(
        "--paper",
        action="store_true",
        help="the figures of the paper; without RUN, small runs are trained first",
    )
    parser.add_argument("--results", metavar="DIR", help="draw from JSON files of results instead")
    parser.add_argument("--unit", default="connectivity", metavar="X", help=UNIT_HELP)
    parser.add_argument("--width", metavar="INCHES", help=WIDTH_HELP)
    parser.add_argument("--kinds", metavar="X,Y", help=f"files to write ({','.join(KINDS)})")
    given = parser.read(arguments)
    check_word("--unit", given["unit"], UNITS)
    width = number("--width", given["width"]) if given["width"] else None
    kinds = given["kinds"].split(",") if given["kinds"] is not None else KINDS
    for kind in kinds:
        check_word("--kinds", kind, KINDS)
    from spikewire.report import check_width, save_figures

    check_width(width, "--width")
    for path in save_figures(choose_plots(given), given["out"], width=width, kinds=kinds):
        print_line(path)


def choose_plots(given: dict[str, Any]) -> "list[Plot]":
    """Return the figures that the flags of `spikewire figures` name."""
    from spikewire.report import find, plot_all, plot_paper, plot_results

    runs, paper, results, out = (given[key] for key in ("runs", "paper", "results", "out"))
    if results is not None:
        check(not runs and not paper, "--results", results, "given without RUN and --paper")
        return plot_results(results)
    if not runs and not paper:
        raise SpikewireError(
            "RUN: is missing; name run directories, or use --paper to train some, or --results DIR"
        )
    found = find(runs or [train_paper_runs(f"{out}/runs")])
    plots = plot_paper(found) if paper else plot_all(found, given["unit"])
    if not plots:
        problems = [f"; {run.path}: {run.problem}" for run in found if run.problem][:1]
        raise SpikewireError(f"RUN: no run has anything to draw{''.join(problems)}")
    return plots


def train_paper_runs(folder: str) -> str:
    """Train the runs for the paper's figures on digits, or resume them; return `folder`."""
    from spikewire.report.paper import PAPER_EPOCHS, PAPER_RUNS
    from spikewire.runs.rundir import RunDir
    from spikewire.train.loop import fit

    for path in (Path(folder).parent, Path(folder)):
        with io_errors(path):
            make_folder(path)
    for flags in PAPER_RUNS:
        name = "-".join(flags.values())
        run = RunDir(f"{folder}/{name}")
        if run.finished:
            continue
        config = resolve("digits", flags={**flags, "epochs": PAPER_EPOCHS})
        result = fit(config, run.path, resume=run.started)
        print_line(f"{name}: {percent(result.accuracy)} at {percent(result.connectivity)}")
    return folder
