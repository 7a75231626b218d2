"""`spikewire train` and `spikewire eval`."""

import ctypes
import shlex
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spikewire.cli.flags import Parser, add_settings, errors_name_flags, whole
from spikewire.cli.output import Output, add_output_flags
from spikewire.cli.predict import TRAIN_IMAGES, evaluate_packed, is_packed
from spikewire.cli.presets import changed_settings
from spikewire.cli.show import complain, print_layers, print_values, silence
from spikewire.config import RUN_FLAGS, Config, flag, resolve, settings, words_of
from spikewire.errors import SpikewireError, check
from spikewire.text import percent

if TYPE_CHECKING:
    from spikewire.distributed import Ranks

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


def train(arguments: Sequence[str]) -> None:
    """Train a network; every setting and every field of a method is a flag."""
    from spikewire.distributed import process_group

    keep_memory()
    with process_group() as ranks, one_output(ranks), ExitStack() as stack:
        given = train_parser(arguments).read(arguments)
        output = Output(*(given.pop(key) for key in ("verbose", "json", "quiet")))
        named = dict(given)
        config, out, resume = ranks.broadcast(lambda: plan(given, stack))
        from spikewire.runs.rundir import RunDir
        from spikewire.train.loop import fit

        text = config.to_toml() if output.verbose else changed_settings(config, named)
        try:
            with errors_name_flags(named), output.progress(config, text) as show:
                result = fit(config, out, resume=resume, progress=show)
        except KeyboardInterrupt:
            if ranks.first:
                many = f"{ranks.world_size} ranks: torchrun ..."
                command = "spikewire train" if ranks.alone else many
                begun = RunDir(out).started
                hint = f"resume with {command} --resume {out}" if begun else "nothing was saved yet"
                complain(f"stopped; {hint}")
            raise
        output.result(result, out)


def keep_memory() -> None:
    """Let glibc keep freed memory: new pages at every step cost a sixth of the time on a CPU."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if hasattr(libc, "mallopt"):  # musl has none
        libc.mallopt(M_TRIM_THRESHOLD, 1 << 30)
        libc.mallopt(M_MMAP_THRESHOLD, 32 << 20)  # the largest it allows


def plan(given: dict[str, Any], stack: ExitStack) -> tuple[Config, str | Path, bool]:
    """Return what to train, where to keep it, and whether to resume the run there.

    A directory that was named here is removed again by `stack` if no run was started in it.
    """
    from spikewire import distributed as ranks
    from spikewire.runs import RunDir, claim_run

    preset, file, out, resume = (
        given.pop(key, None) for key in ("preset", "config", "out", "resume")
    )
    for key, value in (("resume", resume), ("out", out)):
        check(value != "", flag(key), value, "a name")
    if resume:
        refuse_with_resume(resume, {"preset": preset, "config": file, "out": out, **given})
        return resume_config(resume, given), resume, True
    config = resolve(preset, file, given)
    if out:
        return config, out, ranks.restart_count() > 0 and RunDir(out).started
    check(ranks.max_restarts() == 0, "--out", out, "given, so that a restart finds its checkpoint")
    new = not Path("runs").exists()
    claimed = claim_run("runs", f"{config.dataset_name}-{config.method}")
    stack.callback(remove_unused, claimed, *[claimed.parent] * new)
    return config, claimed, False


def remove_unused(*folders: Path) -> None:
    """Remove directories in which nothing was written."""
    with suppress(OSError):  # it is not empty
        for folder in folders:
            folder.rmdir()


@contextmanager
def one_output(ranks: "Ranks") -> Iterator[None]:
    """Let only the first rank print, and of those that fail only the first one."""
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


def train_parser(arguments: Sequence[str]) -> Parser:
    """Return the parser with a flag for each setting and each method's field."""
    parser = Parser("train", train.__doc__ or "")
    parser.add_argument("--out", metavar="DIR", help="run directory (runs/<dataset>-<method>-<n>)")
    parser.add_argument("--resume", metavar="RUN", help="resume a run that was stopped")
    parser.add_argument("-v", "--verbose", action="store_true", help="print all settings")
    add_output_flags(parser, "epoch", "the run directory, at the end")
    add_settings(parser, arguments)
    return parser


def add_own_files(parser: Parser) -> None:
    """Add the flags that name the Python files of a run again: only then are they executed."""
    for key, what in (("model", "network"), ("dataset", "data")):
        about = f"FILE.py:FUNCTION of the run's {what}, if it was your own"
        parser.add_argument(flag(key), metavar="X", help=about)


def refuse_with_resume(run: str, given: dict[str, Any]) -> None:
    """Raise for a flag that a resumed run cannot change, with the way to change it."""
    from spikewire.data.reference import EXECUTABLE, is_python
    from spikewire.runs.rundir import RunDir

    free = [key for key, rule in settings().items() if rule.metadata["free"]]
    for key, value in given.items():
        again = key in EXECUTABLE and is_python(value or "")  # must be the run's own
        if value is not None and key not in free and not again:
            flags = ", ".join(flag(key) for key in free if key != "threads")  # must stay the same
            hint = ""
            if key not in RUN_FLAGS and RunDir(run).finished:  # others cannot be a start
                words = shlex.join(words_of({"start": run, key: value}))
                hint = f"; to train its network further in a new run: {words}"
            raise SpikewireError(
                f"{flag(key)}: not together with --resume, which takes only {flags}, and a Python "
                f"file that the run was started with{hint}"
            )


def resume_config(run: str, given: dict[str, str]) -> Config:
    """Return the run's own settings, with the free ones given now."""
    from spikewire.runs.rundir import RunDir

    return RunDir.open(run).config(given)


def evaluate(arguments: Sequence[str]) -> None:
    """Evaluate the network of a finished run, or a packed file, on the test set."""
    parser = Parser("eval", evaluate.__doc__ or "")
    parser.add_argument("--train-images", metavar="N", help=TRAIN_IMAGES)
    parser.add_argument("run", help="run directory, packed file or zoo:NAME")
    parser.add_argument("--data-dir", help="directory of the data sets")
    parser.add_argument("--device", help="auto, cpu or cuda")
    add_own_files(parser)
    given = parser.read(arguments)
    run, few = given.pop("run"), given.pop("train_images")
    if is_packed(run):
        for key in ("model", "dataset", "device"):
            check(given[key] is None, flag(key), given[key], "given for a run, not a packed file")
        evaluate_packed(run, given["data_dir"], few)
        return
    from spikewire.train import evaluate_run

    with errors_name_flags(given | {"train_images": few}):
        figures = evaluate_run(
            run,
            {key: value for key, value in given.items() if value is not None},
            train_images=0 if few is None else whole("--train-images", few),
        )
    print_values(
        {
            "accuracy": percent(figures.accuracy),
            "connectivity by mask": percent(figures.connectivity),
            "connectivity by non-zero weights": percent(figures.nonzero),
        }
    )
    print_layers(figures.layers)
