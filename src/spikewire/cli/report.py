"""`spikewire report` and `spikewire figures`."""

import time
from collections.abc import Sequence

from spikewire.cli.flags import Parser, whole
from spikewire.cli.show import percent
from spikewire.config import resolve
from spikewire.errors import SpikewireError, unknown


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
    from spikewire.report import FORMATS, write

    if given["format"] not in FORMATS:
        raise unknown("--format", given["format"], FORMATS)
    out = given["out"] or f"report.{given['format']}"
    seconds = whole("--watch", given["watch"]) if given["watch"] else 0

    def write_once() -> int:
        form, title = given["format"], given["title"]
        return len(write(given["runs"], out, form=form, title=title, refresh=seconds))

    count = write_once()
    print(f"report of {count} run{'s' * (count != 1)}: {out}", flush=True)
    while seconds:
        time.sleep(seconds)
        write_once()


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
        raise SpikewireError("RUN: is missing; name run directories, or use --paper to train some")
    from spikewire.report import draw_all, find, save_figures
    from spikewire.report.paper import draw_paper

    found = find(runs or [train_for_paper(f"{out}/runs")])
    plots = draw_paper(found) if given["paper"] else draw_all(found)
    for path in save_figures(plots, out):
        print(path)


def train_for_paper(folder: str) -> str:
    """Train what the paper's figures need on digits, where it is not there yet; return `folder`."""
    from spikewire.report.paper import EPOCHS, RECIPE
    from spikewire.runs.rundir import RunDir
    from spikewire.train.loop import fit

    for flags in RECIPE:
        name = "-".join(flags.values())
        path = f"{folder}/{name}"
        if RunDir(path).finished:
            continue
        config = resolve("digits", flags={**flags, "epochs": EPOCHS})
        result = fit(config, path, resume=RunDir(path).started)
        print(f"{name}: {percent(result.accuracy)} at {percent(result.connectivity)}", flush=True)
    return folder
