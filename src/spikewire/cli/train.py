"""`spikewire train` and `spikewire eval`."""

import ctypes
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spikewire.cli.flags import Parser, add_settings
from spikewire.cli.show import (
    complain,
    percent,
    print_figures,
    print_layers,
    progress_display,
    silence,
)
from spikewire.config import Config, flag, resolve, settings
from spikewire.errors import SpikewireError, check

if TYPE_CHECKING:
    from spikewire.distributed import Ranks
    from spikewire.train.loop import Result

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


def train(arguments: Sequence[str]) -> None:
    """Train a network; every setting and every field of a method is a flag."""
    from spikewire.distributed import joined

    keep_memory()
    with joined() as ranks, one_voice(ranks):
        given = train_parser().read(arguments)
        config, out, resume = ranks.broadcast(lambda: plan(given))
        from spikewire.train.loop import fit

        print(config.to_toml())
        try:
            with progress_display(config) as show:
                result = fit(config, out, resume=resume, progress=show)
        except KeyboardInterrupt:
            if ranks.first:
                many = f"with {ranks.world} ranks: torchrun ..."
                complain(
                    f"stopped; go on {'with: spikewire train' if ranks.alone else many} "
                    f"--resume {out}"
                )
            raise
        print_result(result)
        print(f"run directory: {out}")


def keep_memory() -> None:
    """Let glibc keep freed blocks: new pages at every step cost a sixth of a CPU's training."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if hasattr(libc, "mallopt"):  # musl has none
        libc.mallopt(M_TRIM_THRESHOLD, 1 << 30)
        libc.mallopt(M_MMAP_THRESHOLD, 32 << 20)  # the most it allows


def plan(given: dict[str, Any]) -> tuple[Config, str | Path, bool]:
    """Return what to train, where to keep it, and whether to go on with what is there."""
    from spikewire import distributed as ranks
    from spikewire.runs.rundir import RunDir, free_name

    preset, file, out, resume = (
        given.pop(key, None) for key in ("preset", "config", "out", "resume")
    )
    for key, value in (("resume", resume), ("out", out)):
        check(value != "", flag(key), value, "a name")
    if resume:
        refuse_with_resume({"preset": preset, "config": file, "out": out, **given})
        return resume_config(resume, given), resume, True
    config = resolve(preset, file, given)
    if out:
        return config, out, ranks.restarts() > 0 and RunDir(out).started
    check(ranks.most_restarts() == 0, "--out", out, "given, so that a restart finds its checkpoint")
    return config, free_name("runs", f"{config.dataset}-{config.method}"), False


@contextmanager
def one_voice(ranks: "Ranks") -> Iterator[None]:
    """Let only the first rank print, and of those that fail only the first to do so."""
    if not ranks.first:
        sys.stdout.flush()
        silence(sys.stdout)
        warnings.simplefilter("ignore")
    try:
        yield
    except Exception:
        if not ranks.first_to_fail():
            sys.stderr.flush()
            silence(sys.stderr)
        raise


def train_parser() -> Parser:
    """Return the parser with a flag for each setting and each method's field."""
    parser = Parser("train", train.__doc__ or "")
    parser.add_argument("--out", metavar="DIR", help="run directory (runs/<dataset>-<method>-<n>)")
    parser.add_argument("--resume", metavar="RUN", help="go on with a run that was stopped")
    add_settings(parser)
    return parser


def refuse_with_resume(given: dict[str, Any]) -> None:
    """Raise for a flag that would make it another run."""
    free = [key for key, rule in settings().items() if rule.metadata.get("free")]
    for key, value in given.items():
        if value is not None and key not in free:
            flags = ", ".join(flag(key) for key in free if key != "threads")  # must be the same
            raise SpikewireError(
                f"{flag(key)}: not together with --resume, which takes only {flags}"
            )


def resume_config(run: str, given: dict[str, str]) -> Config:
    """Return the run's own settings with the free ones that are given now."""
    from spikewire.runs.rundir import RunDir

    return RunDir.open(run).config(given)


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


def evaluate(arguments: Sequence[str]) -> None:
    """Test the network of a finished run on the test set."""
    parser = Parser("eval", evaluate.__doc__ or "")
    parser.add_argument("run", help="run directory")
    parser.add_argument("--data-dir", help="where data sets lie")
    parser.add_argument("--device", help="auto, cpu or cuda")
    given = parser.read(arguments)
    run = given.pop("run")
    from spikewire.train.evaluate import score

    figures = score(run, {key: value for key, value in given.items() if value is not None})
    print_figures(
        {
            "accuracy": percent(figures.accuracy),
            "connectivity by mask": percent(figures.connectivity),
            "connectivity by non-zero weights": percent(figures.nonzero),
        }
    )
    print_layers(figures.layers)
