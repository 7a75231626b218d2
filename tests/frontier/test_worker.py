"""A worker imports torch once and runs many trainings, each as in a process of its own."""

import os
import re
import signal
import sys
from pathlib import Path
from threading import Event, Timer

import pytest

from spikewire.frontier.engines.process import run_process
from spikewire.frontier.engines.worker import FORKS, Worker
from spikewire.runs.rundir import RunDir

pytestmark = [
    pytest.mark.skipif(not FORKS, reason="workers fork on Linux only"),
    pytest.mark.xdist_group("worker"),
]

TINY = ["--epochs=2", "--time-steps=2", "--batch-size=128", "--checkpoint-every=1"]
PLAIN = ["--dataset=digits", "--method=deepr", "--connectivity=0.2", "--seed=3", *TINY]
OWN = '''
import os, random, resource, signal, sys, numpy, torch
from spikewire.nn.layers import Spiking, linear
from spikewire.nn.neurons import LIF


def net():
    """A network that leaves all global state of its process changed."""
    print("worker", os.getppid(), "draws", numpy.random.rand(), flush=True)
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(3)
    torch.use_deterministic_algorithms(True)
    torch.set_flush_denormal(True)
    torch.set_float32_matmul_precision("medium")
    torch.set_grad_enabled(False)
    torch.manual_seed(12345), random.seed(1), numpy.random.seed(1)
    numpy.seterr(all="raise")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.environ["SPIKEWIRE_DATA"] = "/nowhere"
    os.chdir("/")
    sys.modules["spikewire.methods.deepr"].DeepR.after_step = None
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    held = torch.ones(5_000_000)
    raise RuntimeError(f"{len(held)} numbers")


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def orphan():
    os.kill(os.getppid(), signal.SIGKILL)
    signal.pause()
'''


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "own.py"
    path.write_text(OWN)
    return path


@pytest.fixture(scope="module")
def worker():
    worker = Worker(Event())
    yield worker
    worker.close()


def run(start, folder: Path, *words: str) -> tuple[int, str]:
    """Run a training in `folder`; return its exit code and output."""
    log = folder.with_suffix(".txt")
    with log.open("ab") as file:
        code = start(["train", f"--out={folder}", *words], file)
    return code, log.read_text()


def memory(pid: str) -> int:
    """Return the resident memory of a process in kB."""
    (line,) = (x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmRSS" in x)
    return int(line.split()[1])


def text(path: Path, name: str) -> str:
    """Return the text of a file in which only the name of the run is its own."""
    return path.read_text().replace(f"/{name}", "/NAME")


def untimed(folder: Path) -> list[dict]:
    return [{**row, "seconds": 0} for row in RunDir(folder).history()]


def test_a_training_is_bit_identical_to_one_in_a_process_of_its_own(worker, own, tmp_path):
    files = ("config.toml", "model.safetensors")
    alone = run(lambda *args: run_process(*args, Event()), tmp_path / "alone", *PLAIN)
    first = run(worker.run, tmp_path / "first", *PLAIN)
    found = [run(worker.run, tmp_path / f"bad{i}", f"--model={own}:net", *PLAIN) for i in range(2)]
    after = run(worker.run, tmp_path / "after", *PLAIN)
    assert [code for code, _ in (alone, first, *found, after)] == [0, 0, 2, 2, 0]
    for name in ("first", "after"):
        for file in files:
            wanted = (tmp_path / "alone" / file).read_bytes()
            assert (tmp_path / name / file).read_bytes() == wanted, (name, file)
        assert untimed(tmp_path / name) == untimed(tmp_path / "alone")
        assert text(tmp_path / name / "env.json", name) == text(
            tmp_path / "alone/env.json", "alone"
        )
    lines = [output.splitlines()[0].split() for _, output in found]
    assert lines[0][1] == lines[1][1], "another worker"
    assert lines[0][3] != lines[1][3], "the same unseeded numbers"
    logs = [text(tmp_path / f"{name}.txt", name) for name in ("alone", "first", "after")]
    assert len({re.sub(r"[0-9.]+ s\b", "TIME", log).replace(" ", "") for log in logs}) == 1


def test_a_worker_does_not_grow(worker, own, tmp_path):
    pid = run(worker.run, tmp_path / "x", f"--model={own}:net", *PLAIN)[1].split()[1]

    def size():
        return memory(pid), sorted(os.listdir(f"/proc/{pid}/fd"))

    before, files = size()
    for _ in range(5):  # each of them holds 40 MB
        assert run(worker.run, tmp_path / "x", f"--model={own}:net", *PLAIN)[0] == 2
    after, files_after = size()
    assert after < before + 2000
    assert files_after == files


def test_a_killed_training_does_not_end_its_worker(worker, own, tmp_path):
    pid = run(worker.run, tmp_path / "a", f"--model={own}:net", *PLAIN)[1].split()[1]
    assert run(worker.run, tmp_path / "b", f"--model={own}:killed", *PLAIN)[0] == -signal.SIGKILL
    assert run(worker.run, tmp_path / "c", f"--model={own}:net", *PLAIN)[1].split()[1] == pid


def test_a_killed_worker_fails_only_its_training(worker, own, tmp_path):
    code, _ = run(worker.run, tmp_path / "a", f"--model={own}:orphan", *PLAIN)
    assert code == -signal.SIGKILL
    pid = run(worker.run, tmp_path / "b", f"--model={own}:net", *PLAIN)[1].split()[1]
    os.kill(int(pid), signal.SIGKILL)  # while it is idle
    code, output = run(worker.run, tmp_path / "c", f"--model={own}:net", *PLAIN)
    assert code == 2
    assert output.split()[1] != pid


@pytest.mark.slow
def test_a_stopped_worker_saves_and_ends(tmp_path):
    stopped = Event()
    worker, folder = Worker(stopped), tmp_path / "a"

    def stop():
        if (folder / "metrics.jsonl").exists() and RunDir(folder).history():
            stopped.set()
        else:
            Timer(0.02, stop).start()

    stop()
    code, output = run(worker.run, folder, *PLAIN, "--epochs=10000")
    assert code == 128 + signal.SIGTERM
    assert f"stopped; resume with spikewire train --resume {folder}" in output
    assert worker.close() == 128 + signal.SIGTERM


def test_imports_that_fail_are_in_the_log_of_the_training(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("raise ImportError('no torch today')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), *sys.path)))
    worker = Worker(Event())
    for _ in range(2):
        code, output = run(worker.run, tmp_path / "a", *PLAIN)
        assert code == 1
        assert output.splitlines()[-1] == "ImportError: no torch today"
    assert output.count("Traceback") == 2
    assert worker.close() == 0
