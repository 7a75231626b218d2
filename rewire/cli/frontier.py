"""`rewire frontier`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rewire.cli.flags import Parser, add_settings, number, whole
from rewire.cli.show import percent, print_table
from rewire.config import resolve
from rewire.errors import check

if TYPE_CHECKING:
    from rewire.frontier import Outcome, Point


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

    shares = [number("--connectivity", x) for x in listed("--connectivity", own["connectivity"])]
    jobs = front.plan(
        listed("--dataset", sets or resolve(preset, file).dataset),
        listed("--methods", own["methods"]),
        shares,
        whole("--seeds", own["seeds"]),
    )
    out, workers = Path(own["out"]), whole("--jobs", own["jobs"])
    outcomes = front.run(
        jobs, out, preset=preset, file=file, flags=given, workers=workers, told=print_outcome
    )
    print_points(front.points(outcomes))
    files = [out / front.FRONTIER, *front.draw(outcomes, out)]
    print(f"frontier: {', '.join(map(str, files))}")
    if failed := [outcome for outcome in outcomes if outcome.error]:
        first = failed[0]
        raise ArithmeticError(
            f"{len(failed)} of {len(jobs)} runs failed; {first.job.name}: {first.error}"
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
