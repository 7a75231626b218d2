"""The command `spikewire frontier`."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spikewire.cli.flags import Parser, add_settings, errors_name_flags, number, whole
from spikewire.cli.live import live_table
from spikewire.cli.output import add_output_flags, print_record
from spikewire.cli.show import complain, print_line, print_table
from spikewire.config import flag, resolve, words_of
from spikewire.errors import SpikewireError, TrainingFailed, check, check_word
from spikewire.text import amount

if TYPE_CHECKING:
    from spikewire.frontier import Job, Outcome, Point
    from spikewire.frontier.engines import Task
    from spikewire.frontier.engines.local import Local
    from spikewire.frontier.engines.ray import Ray
    from spikewire.frontier.engines.slurm import Slurm


UNITS = ("connectivity", "synapses", "synops", "bytes")  # those of `spikewire.pruning`
CONNECTIVITIES = "0.25,0.05,0.01"
ENGINES = {"local": ("jobs",), "ray": ("address", "cores", "gpus"), "slurm": ("cores", "gpus")}
ENGINE_FLAGS = {
    "jobs": "[local] runs at the same time; they divide the cores (1)",
    "address": "[ray] HOST:PORT of the cluster (the one on this machine, or a new one)",
    "cores": "[ray, slurm] cores per run; also its threads, if the settings name none (1)",
    "gpus": "[ray, slurm] GPUs per run; on ray also a fraction of one (0)",
}


def frontier(arguments: Sequence[str]) -> None:
    """Train methods x targets x seeds; the same command again runs only what is missing."""
    given = frontier_parser(arguments).read(arguments)
    dry, json, quiet = (given.pop(key) for key in ("dry_run", "json", "quiet"))
    engine = build_engine(given.pop("engine"), {key: given.pop(key) for key in ENGINE_FLAGS}, dry)
    same = words_of({key: value for key, value in given.items() if value is not None})
    own = {key: given.pop(key) for key in ("methods", "seeds", "out")}
    unit, targets = read_targets(*(given.pop(key) for key in ("unit", "targets", "connectivity")))
    preset, file, datasets = (given.pop(key) for key in ("preset", "config", "dataset"))
    from spikewire.frontier import missing, plan, prepare, run
    from spikewire.frontier.engines.slurm import Slurm
    from spikewire.runs.rundir import RunDir

    with errors_name_flags(own):
        jobs = plan(
            listed("--dataset", datasets or resolve(preset, file).dataset),
            listed("--methods", own["methods"]),
            targets,
            whole("--seeds", own["seeds"]),
            unit,
        )
    out = Path(own["out"])
    check(not RunDir(out).started, "--out", str(out), "a folder of runs, not the directory of one")
    tasks = prepare(jobs, out, preset=preset, file=file, flags=given, threads=engine.threads)
    if isinstance(engine, Slurm):
        collect = shlex.join(["spikewire", "frontier", *same])
        print(engine.script(missing(tasks.values()), collect), end="")
    elif dry:
        todo = missing(tasks.values())
        for task in todo:
            print(shlex.join(["spikewire", *task.command()]))
        if not todo:
            complain(f"all {len(tasks)} runs are finished in {out}")
    else:
        with resume_hint(tasks, out):
            if quiet:
                outcomes = run(tasks, out, engine)
            elif json:
                outcomes = run(tasks, out, engine, print_run_record)
            else:
                with live_table(tasks) as show:
                    outcomes = run(tasks, out, engine, show)
        print_result(outcomes, out, json, quiet)


def read_targets(
    unit: str | None, targets: str | None, connectivity: str | None
) -> tuple[str, list[float]]:
    """Return unit and targets; --connectivity LIST is short for both."""
    for name, text in (("--targets", targets), ("--connectivity", connectivity)):
        check(text != "", name, text, "a comma list")
    check(not (connectivity and (unit or targets)), "--connectivity", connectivity,
          "given without --unit and --targets")  # fmt: skip
    unit = unit or "connectivity"
    check_word("--unit", unit, UNITS)
    if unit != "connectivity" and not targets:
        raise SpikewireError(f"--targets: is missing; it must be a comma list of {unit}")
    name = "--targets" if targets else "--connectivity"
    words = listed(name, targets or connectivity or CONNECTIVITIES)
    numbers = [number(name, word) for word in words]
    from spikewire.frontier import check_targets

    check_targets(name, numbers, unit)
    return unit, numbers


@contextmanager
def resume_hint(tasks: "Mapping[Job, Task]", out: Path) -> Iterator[None]:
    """Say at Ctrl-C what has been saved and how to resume."""
    try:
        yield
    except KeyboardInterrupt:
        from spikewire.frontier import missing

        done = len(tasks) - len(missing(tasks.values()))
        counts = f"{done} of {len(tasks)} runs are finished in {out}"
        complain(f"stopped; {counts}; resume with the same command")
        raise


def frontier_parser(arguments: Sequence[str]) -> Parser:
    """Return the parser: the list of runs, the engine, and the settings common to all runs."""
    parser = Parser("frontier", frontier.__doc__ or "")
    parser.add_argument("--methods", default="gradr,deepr,budget", help="comma list (%(default)s)")
    parser.add_argument(
        "--unit", metavar="X", help=f"unit of the targets: {', '.join(UNITS)} (connectivity)"
    )
    parser.add_argument("--targets", metavar="LIST", help="comma list of targets in this unit")
    parser.add_argument(
        "--connectivity",
        metavar="LIST",
        help=f"comma list of targets in connectivity ({CONNECTIVITIES})",
    )
    parser.add_argument("--seeds", metavar="N", default="3", help="seeds 0 to N-1 (%(default)s)")
    parser.add_argument(
        "--out", metavar="DIR", default="runs/frontier", help="folder of the runs (%(default)s)"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the commands; train nothing")
    about = f"where the runs are trained; one of {', '.join(ENGINES)} (local)"
    parser.add_argument("--engine", metavar="X", default="local", help=about)
    for key, about in ENGINE_FLAGS.items():
        parser.add_argument(flag(key), metavar="X", help=about)
    add_output_flags(parser, "run", "the path of frontier.json, at the end")
    add_settings(parser, arguments, but=("method", *UNITS, "seed", "dataset"))
    parser.add_argument("--dataset", help="comma list (the one of the preset)")
    return parser


def build_engine(name: str, given: dict[str, Any], dry: bool) -> "Local | Ray | Slurm":
    """Return the engine with its flags; refuse the flags of another engine."""
    check_word("--engine", name, ENGINES)
    given = {key: value for key, value in given.items() if value is not None}
    for key in given.keys() - set(ENGINES[name]):
        owners = ", ".join(engine for engine, flags in ENGINES.items() if key in flags)
        raise SpikewireError(f"{flag(key)}: belongs to --engine {owners}, not to {name!r}")
    for key in given.keys() & {"jobs", "cores"}:
        given[key] = whole(flag(key), given[key])
    if "gpus" in given:
        given["gpus"] = number("--gpus", given["gpus"])
    if name == "local":
        from spikewire.frontier.engines.local import Local

        return Local(**given)
    if name == "ray":
        from spikewire.frontier.engines.ray import Ray

        return Ray(**given)
    from spikewire.frontier.engines.slurm import Slurm

    check(dry, "--engine", name, "given with --dry-run: it prints a script for sbatch")
    return Slurm(**given)


def print_result(outcomes: "Sequence[Outcome]", out: Path, json: bool, quiet: bool) -> None:
    """Print the points and the files written; raise if some runs have failed."""
    from spikewire.frontier import FRONTIER, points

    files = [str(path) for path in (out / FRONTIER, *save_figure(outcomes, out))]
    if json:
        rows = [asdict(point) for point in points(outcomes)]
        print_record("frontier", {"points": rows, "files": files})
    elif quiet:
        print_line(files[0])
    else:
        print_points(points(outcomes))
        print_line(f"frontier: {', '.join(files)}")
    if failed := [outcome for outcome in outcomes if outcome.error]:
        first = failed[0]
        raise TrainingFailed(
            f"{len(failed)} of {len(outcomes)} runs failed; {first.job.name}: {first.error}"
        )


def save_figure(outcomes: "Sequence[Outcome]", out: Path) -> list[Path]:
    """Draw accuracy over the unit of the runs that did not fail; return the files written."""
    from spikewire.report import load, plot_frontier, save_figures

    runs = [load(out / outcome.job.name) for outcome in outcomes if not outcome.error]
    figure = plot_frontier(runs, outcomes[0].job.unit if outcomes else "connectivity")
    return save_figures([figure], out) if figure else []


def listed(name: str, text: str) -> list[str]:
    """Return the words of a comma list."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    check(bool(words), name, text, "a comma list")
    return words


def print_run_record(outcome: "Outcome") -> None:
    """Print one JSON record for a run that has ended."""
    from spikewire.frontier.outcomes import outcome_row

    print_record("run", outcome_row(outcome))


def print_points(points: "Sequence[Point]") -> None:
    """Print one row per point: target and actual in its unit, mean and standard deviation."""
    rows = [
        (
            point.dataset,
            point.method,
            "" if point.target is None else amount(point.unit, point.target),
            amount(point.unit, point.actual),
            f"{100 * point.accuracy:.2f}"
            + ("" if point.deviation is None else f" ± {100 * point.deviation:.2f}"),
            f"{point.n}" + (f" ({point.failed} failed)" if point.failed else ""),
            f"{point.seconds:.0f} s",
        )
        for point in points
    ]
    print_table(("data set", "method", "target", "actual", "accuracy %", "n", "time"), rows)
