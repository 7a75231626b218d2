"""`spikewire frontier`."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spikewire.cli.flags import Parser, add_settings, number, whole
from spikewire.cli.show import percent, print_table
from spikewire.config import flag, resolve, words_of
from spikewire.errors import SpikewireError, TrainingFailed, check, check_word

if TYPE_CHECKING:
    from spikewire.frontier.engines.local import Local
    from spikewire.frontier.engines.ray import Ray
    from spikewire.frontier.engines.slurm import Slurm
    from spikewire.frontier.sweep import Outcome, Point


ENGINES = {"local": ("jobs",), "ray": ("address", "cores", "gpus"), "slurm": ("cores", "gpus")}
ENGINE_FLAGS = {
    "jobs": "[local] runs at a time; they share the cores (1)",
    "address": "[ray] cluster to join (that of this machine, or a new one)",
    "cores": "[ray, slurm] cores of a run; its threads, where the settings name none (1)",
    "gpus": "[ray, slurm] GPUs of a run; on ray also a share of one (0)",
}


def frontier(arguments: Sequence[str]) -> None:
    """Train methods x connectivities x seeds; the same command again does only what is missing."""
    given = frontier_parser().read(arguments)
    dry = given.pop("dry_run")
    engine = build_engine(given.pop("engine"), {key: given.pop(key) for key in ENGINE_FLAGS}, dry)
    again = words_of({key: value for key, value in given.items() if value is not None})
    own = {key: given.pop(key) for key in ("methods", "connectivity", "seeds", "out")}
    preset, file, sets = (given.pop(key) for key in ("preset", "config", "dataset"))
    from spikewire.frontier import sweep as front
    from spikewire.frontier.engines.slurm import Slurm

    shares = [number("--connectivity", x) for x in listed("--connectivity", own["connectivity"])]
    jobs = front.plan(
        listed("--dataset", sets or resolve(preset, file).dataset),
        listed("--methods", own["methods"]),
        shares,
        whole("--seeds", own["seeds"]),
    )
    out = Path(own["out"])
    tasks = front.prepare(jobs, out, preset=preset, file=file, flags=given, threads=engine.threads)
    if isinstance(engine, Slurm):
        again = shlex.join(["spikewire", "frontier", *again])
        print(engine.script(front.missing(tasks.values()), again), end="")
    elif dry:
        for task in front.missing(tasks.values()):
            print(shlex.join(["spikewire", *task.words()]))
    else:
        print_result(front.run(tasks, out, engine, on_outcome=print_outcome), out)


def frontier_parser() -> Parser:
    """Return the parser: the list, the engine, and the settings all runs share."""
    parser = Parser("frontier", frontier.__doc__ or "")
    parser.add_argument("--methods", default="gradr,deepr,budget", help="comma list")
    parser.add_argument("--connectivity", default="0.25,0.05,0.01", help="comma list of shares")
    parser.add_argument("--seeds", default="3", help="seeds 0 to N-1")
    parser.add_argument("--out", metavar="DIR", default="runs/frontier", help="(runs/frontier)")
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would run; train nothing"
    )
    about = f"where they run; one of {', '.join(ENGINES)} (local)"
    parser.add_argument("--engine", metavar="X", default="local", help=about)
    for key, about in ENGINE_FLAGS.items():
        parser.add_argument(flag(key), metavar="X", help=about)
    add_settings(parser, but=("method", "connectivity", "seed", "dataset"))
    parser.add_argument("--dataset", help="comma list (that of the preset)")
    return parser


def build_engine(name: str, given: dict[str, Any], dry: bool) -> "Local | Ray | Slurm":
    """Return the engine with its flags; refuse those of another."""
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


def print_result(outcomes: "Sequence[Outcome]", out: Path) -> None:
    """Print the table and where it lies; raise if some have failed."""
    from spikewire.frontier import sweep as front

    print_points(front.points(outcomes))
    files = [out / front.FRONTIER, *front.draw(outcomes, out)]
    print(f"frontier: {', '.join(map(str, files))}")
    if failed := [outcome for outcome in outcomes if outcome.error]:
        first = failed[0]
        raise TrainingFailed(
            f"{len(failed)} of {len(outcomes)} runs failed; {first.job.name}: {first.error}"
        )


def listed(name: str, text: str) -> list[str]:
    """Return the words of a comma list."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    check(bool(words), name, text, "a comma list")
    return words


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
