"""Trainings in separate processes, forked from one that has already imported torch."""

import json
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from spikewire import data as datasets
from spikewire.cli import main
from spikewire.config import Config
from spikewire.runs.rundir import RunDir
from spikewire.train.loop import Epoch, Step, fit
from spikewire.train.signals import Interrupted

EPOCHS, STEPS = 4, 5  # epochs, and steps of each: 1437 digits in batches of 256
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["spikewire.train.loop"])


def config(**changes) -> Config:
    """Return settings of a run that takes 0.1 s, with a checkpoint after each epoch."""
    given = {"epochs": EPOCHS, "batch_size": 256, "time_steps": 2, "threads": 1, "init": "firing"}
    return Config(**{**given, **changes})


def start(target: Callable[..., None], *arguments):
    """Start and return a process that calls `target`."""
    process = FORKS.Process(target=target, args=arguments)
    process.start()
    return process


def code(target: Callable[..., None], *arguments) -> int:
    """Call `target` in a process and return its exit code; -n if signal n has ended it."""
    process = start(target, *arguments)
    process.join(600)
    assert process.exitcode is not None, "it does not end"
    return process.exitcode


def network(run: Path) -> bytes:
    """Return the content of the file with the trained network."""
    return (run / "model.safetensors").read_bytes()


def train(run: Path, taken: Path, trap: Callable[[Path, int], None] | None = None) -> None:
    """Train in `run`, or resume there, to the end; each step appends a byte to `taken`.

    `trap` is called with the run and the number of steps: 0 before the start, then after each step.
    """
    folder, steps = RunDir(run), 0
    if trap:
        trap(run, 0)
    if folder.finished:
        return
    with taken.open("ab", buffering=0) as notes:

        def note(event: object) -> None:
            nonlocal steps
            if isinstance(event, Step):
                notes.write(b".")
                steps += 1
                if trap:
                    trap(run, steps)

        try:
            fit(config(), run, resume=folder.started, progress=note)
        except Interrupted as stopped:
            sys.exit(128 + stopped.number)


def soak(epochs: int, figures: Path) -> None:
    """Train `epochs` short epochs; write memory, open files and seconds of each."""
    digits, found, last = datasets.load("digits"), [], time.perf_counter()
    few = {f"{part}_{what}": getattr(digits, f"{part}_{what}")[:64]
           for part in ("train", "test") for what in ("images", "labels")}  # fmt: skip

    def note(event: object) -> None:
        nonlocal last
        if isinstance(event, Epoch):
            pages, now = int(Path("/proc/self/statm").read_text().split()[1]), time.perf_counter()
            found.append((pages, len(os.listdir("/proc/self/fd")), now - last))
            last = now

    settings = config(epochs=epochs, batch_size=32)
    fit(settings, figures.with_name("run"), data=replace(digits, **few), progress=note)
    figures.write_text(json.dumps(found))


class AtOperation:
    """Kill the process before its n-th operation that changes a file in the run directory."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, run: Path, steps: int) -> None:
        if steps == 0:
            sys.addaudithook(lambda event, arguments: self.audit(str(run), event, arguments))

    def audit(self, run: str, event: str, arguments: tuple) -> None:
        writes = event in ("os.mkdir", "os.rename", "os.remove", "os.truncate")
        if event == "open":
            writes = arguments[1] is None or bool(set("wax+") & set(arguments[1]))
        if writes and str(arguments[0]).startswith(run):
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


class AtByte:
    """End the process when, after some steps, it writes beyond the n-th byte of a file.

    The kernel does it with SIGXFSZ during the write; no Python code runs afterwards.
    """

    def __init__(self, steps: int, number: int, action=signal.SIG_DFL) -> None:
        self.steps, self.number, self.action = steps, number, action

    def __call__(self, run: Path, steps: int) -> None:
        if steps == self.steps:
            signal.signal(signal.SIGXFSZ, self.action)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.number, self.number))


def command(output: Path, limit: int, words: list[str], memory: int = 0) -> None:
    """Run `spikewire`; writing a file beyond `limit` bytes fails with EFBIG.

    With `memory`, only that many bytes can be allocated beyond what is in use.
    """
    sys.stdout = sys.stderr = output.open("w")
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    if memory:
        memory += resource.getpagesize() * int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    sys.exit(main(words))
