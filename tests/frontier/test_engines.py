"""Engines: the same jobs on Ray and in a Slurm script give the results of the local engine."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from refusal import refused

from spikewire.cli import main
from spikewire.config import resolve
from spikewire.frontier import Job, plan
from spikewire.frontier.engines.ray import RETRIES, import_ray
from spikewire.runs.rundir import RunDir
from spikewire.train.loop import fit, threads

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

WORDS = ["frontier", "--methods", "deepr,magnitude", "--connectivity", "0.2", "--seeds", "2"]
SHORT = ["--epochs", "3", "--time-steps", "2", "--checkpoint-every", "1"]
LONG = ["--methods", "deepr", "--seeds", "1", "--epochs", "30", *SHORT[2:]]
FIRST = "digits-deepr-0.2-seed0"


@pytest.fixture(scope="module")
def address():
    """A cluster of two cores that was not started by spikewire."""
    import_ray()
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    yield cluster.address
    cluster.shutdown()


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """The frontier of the local engine; its runs are trained in this process."""
    folder = tmp_path_factory.mktemp("local")
    for job in plan(["digits"], ["deepr", "magnitude"], [0.2], 2):
        trained(job, folder, 3)
    assert main([*WORDS, *SHORT, "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def never_killed(tmp_path_factory):
    """The network of the long run."""
    run = trained(Job("digits", "deepr", 0.2, 0), tmp_path_factory.mktemp("long"), 30)
    return (run / "model.safetensors").read_bytes()


def trained(job: Job, folder: Path, epochs: int) -> Path:
    flags = {"epochs": str(epochs), "time_steps": "2", "checkpoint_every": "1", "threads": "1"}
    fit(resolve(flags=job.settings(flags)), folder / job.name)
    return folder / job.name


def on_ray(address: str) -> list[str]:
    return ["--engine", "ray", "--address", address]


def started(folder: Path, *words: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "spikewire", *WORDS, *words, "--out", str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def untimed(folder: Path) -> dict:
    content = json.loads((folder / "frontier.json").read_text())
    for row in (*content["runs"], *content["points"]):
        del row["seconds"]
    return content


def training(folder: Path) -> tuple[int, int] | None:
    """Return the process that trains in `folder` and its parent."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            parent = (path / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:  # it has just ended
            continue
        if b"spikewire.cli.worker" in words and str(folder).encode() in words:
            return int(path.name), int(parent)
    return None


def halfway(run: Path, process: subprocess.Popen) -> tuple[int, int]:
    """Wait until the run has a checkpoint and freeze it there; return `training` of it.

    The training takes turns with this process, so that on a busy machine it does not end unseen.
    """
    metrics = run / "metrics.jsonl"
    while process.poll() is None:
        if pids := training(run):
            os.kill(pids[0], signal.SIGSTOP)
            if metrics.exists() and metrics.read_bytes().count(b"\n") >= 2:
                assert not (run / "model.safetensors").exists()
                return pids
            os.kill(pids[0], signal.SIGCONT)
        time.sleep(0.01)
    pytest.fail(f"never halfway: {process.communicate()}")


def go_on(pid: int) -> None:
    """Let a frozen training continue, if it is still there."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def started_once(folder: Path) -> bool:
    return (folder / f"logs/{FIRST}.txt").read_text().count("epoch 1/30 ") == 1


# ---------------------------------------------------------------------- Ray


@pytest.mark.slow
def test_ray_gives_the_results_of_the_local_engine(local, address, call, tmp_path):
    code, out, err = call(*WORDS, *SHORT, *on_ray(address), "--out", tmp_path)
    assert (code, err) == (0, "")
    assert untimed(tmp_path) == untimed(local)
    for row in untimed(local)["runs"]:
        env, model = (f"{row['name']}/{file}" for file in ("env.json", "model.safetensors"))
        assert json.loads((tmp_path / env).read_text())["threads"] == 1
        assert (tmp_path / model).read_bytes() == (local / model).read_bytes()
        assert "epoch 3/3 " in (tmp_path / f"logs/{row['name']}.txt").read_text()
    assert "raylet" not in out


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["training", "worker"])
def test_a_killed_training_is_retried_from_its_checkpoint(address, tmp_path, never_killed, victim):
    with started(tmp_path, *LONG, *on_ray(address)) as process:
        pid, parent = halfway(tmp_path / FIRST, process)
        os.kill(pid if victim == "training" else parent, signal.SIGKILL)
        go_on(pid)
        out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert "raylet" not in out
    assert started_once(tmp_path)
    assert (tmp_path / FIRST / "model.safetensors").read_bytes() == never_killed


@pytest.mark.slow
def test_a_training_that_is_killed_each_time_fails(address, tmp_path):
    killed = set()
    with started(tmp_path, *LONG, *on_ray(address)) as process:
        while process.poll() is None:
            if pids := training(tmp_path / FIRST):
                killed.add(pids[0])
                os.kill(pids[0], signal.SIGKILL)
            time.sleep(0.05)
        _, err = process.communicate()
    assert (process.returncode, len(killed)) == (1, RETRIES + 1)
    assert err.endswith(f"{FIRST}: killed by SIGKILL, and so were {RETRIES} retries\n")


@pytest.mark.slow
def test_a_run_that_fails_is_recorded_and_not_retried(local, address, call, tmp_path):
    folder = shutil.copytree(local, tmp_path / "failing")
    run = folder / FIRST
    (run / "model.safetensors").unlink()
    (run / "checkpoint.pt").write_bytes(b"nothing")
    code, out, err = call(*WORDS, *SHORT, *on_ray(address), "--out", folder)
    assert (code, err.count("\n")) == (1, 1)
    assert f"1 of 4 runs failed; {FIRST}: {run}/checkpoint.pt: is damaged" in err
    assert "is damaged" in untimed(folder)["runs"][0]["error"]
    assert (folder / f"logs/{FIRST}.txt").read_text().count("is damaged") == 1


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_driver_leaves_no_orphan(address, tmp_path, never_killed, number):
    with started(tmp_path, *LONG, *on_ray(address)) as process:
        pid, _ = halfway(tmp_path / FIRST, process)
        process.send_signal(number)
        go_on(pid)
        _, err = process.communicate()
    said = f"stopped; 0 of 1 runs are finished in {tmp_path}; resume with the same command"
    expected = (130, f"spikewire: {said}\n") if number == signal.SIGINT else (-number, "")
    assert (process.returncode, err) == expected
    while training(tmp_path / FIRST):  # an orphan would train to the end
        time.sleep(0.1)
    assert not (tmp_path / FIRST / "model.safetensors").exists(), "an orphan"
    if number == signal.SIGINT:
        assert "stopped; resume with" in (tmp_path / f"logs/{FIRST}.txt").read_text()
    assert main([*WORDS, *LONG, "--out", str(tmp_path)]) == 0
    assert started_once(tmp_path)
    assert (tmp_path / FIRST / "model.safetensors").read_bytes() == never_killed


def test_a_missing_ray_is_reported_in_one_line(call, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    code, out, err = call("frontier", "--engine", "ray", "--out", tmp_path / "x")
    assert (code, out) == (2, "")
    assert err == "spikewire: --engine ray: not installed; run `pip install 'spikewire[ray]'`\n"
    assert os.listdir(tmp_path) == []
    assert call("frontier", "--dry-run")[0] == 0


def test_more_resources_than_any_machine_has_are_refused(address, call, tmp_path):
    code, _, err = call("frontier", *on_ray(address), "--gpus", "0.5", "--out", tmp_path)
    assert (code, err) == (2, "spikewire: no machine of the cluster has 1 cores and 0.5 GPUs\n")


# ---------------------------------------------------------------------- Slurm


def array_task(script: str, number: int) -> subprocess.CompletedProcess:
    environment = {**os.environ, "SLURM_ARRAY_TASK_ID": str(number)}
    return subprocess.run(["bash"], input=script, env=environment, text=True, capture_output=True)


def test_an_array_task_starts_resumes_and_ends(local, call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = Path("it's a sweep; $HOME")
    words = [*WORDS, *SHORT, "--out", folder]
    code, script, err = call(
        *words, "--engine", "slurm", "--cores", "1", "--gpus", "2", "--dry-run"
    )
    assert (code, err, os.listdir(tmp_path)) == (0, "", [])
    head = [line for line in script.splitlines() if line.startswith("#SBATCH")]
    assert head[1:] == [
        "#SBATCH --array=0-3",
        "#SBATCH --cpus-per-task=1",
        "#SBATCH --gpus=2",
        "#SBATCH --requeue",
    ]
    name = "digits-magnitude-0.2-seed0"
    model, log = folder / name / "model.safetensors", folder / f"logs/{name}.txt"
    for first, last in ((1, 1), (1, 2), (1, 2)):  # new, resumed, nothing to do
        done = array_task(script, 1)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert model.read_bytes() == (local / name / model.name).read_bytes()
        output = log.read_text()
        assert (output.count("epoch 1/3 "), output.count("epoch 3/3 ")) == (first, last)
        if last == 1:
            model.unlink()
    assert array_task(script, 4).returncode == 2
    (collect,) = (x for x in script.splitlines() if x.startswith("#   spikewire frontier "))
    code, listed, _ = call(*shlex.split(collect)[2:], "--dry-run")
    assert (code, len(listed.splitlines())) == (0, 3), "all but the one that has ended"


# ---------------------------------------------------------------------- flags and threads


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--engine", "raj"], "--engine: unknown 'raj'; did you mean 'ray'?"),
        (["--engine", "ray", "--jobs", "2"], "--jobs: belongs to --engine local, not to 'ray'"),
        (["--cores", "2"], "--cores: belongs to --engine ray, slurm, not to 'local'"),
        (["--engine", "slurm", "--address", "x:1"], "--address: belongs to --engine ray, not to"),
        (
            ["--engine", "slurm"],
            "--engine: 'slurm' is not allowed; it must be given with --dry-run",
        ),
        (["--engine", "slurm", "--dry-run", "--gpus", "0.5"], "gpus: 0.5 is not allowed"),
        (["--engine", "ray", "--gpus", "1.5"], "gpus: 1.5 is not allowed"),
        (["--engine", "ray", "--cores", "none"], "--cores: 'none' is not allowed"),
        (["--engine", "ray", "--address", "here"], "--address: 'here' is not allowed"),
        (["--engine", "ray", "--address", "127.0.0.1:1"], "--address: no answer from 127.0.0.1:1"),
    ],
)
def test_flags_that_do_not_fit_the_engine_are_refused(call, tmp_path, words, message):
    code, out, err = call("frontier", *words, "--out", tmp_path / "x")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"spikewire: {message}")


def test_a_dry_run_lists_the_commands_of_what_is_missing(local, call, tmp_path):
    folder = shutil.copytree(local, tmp_path / "two of four")
    stopped, absent = (folder / f"digits-{name}-0.2-seed0" for name in ("deepr", "magnitude"))
    (stopped / "model.safetensors").unlink()
    shutil.rmtree(absent)
    words = [*WORDS, *SHORT, "--threads", "1", "--out", folder, "--dry-run"]
    code, out, err = call(*words)
    first, second = (shlex.split(line) for line in out.splitlines())
    assert (code, err) == (0, "")
    assert first == ["spikewire", "train", "--resume", str(stopped)]
    assert second[:4] == ["spikewire", "train", "--out", str(absent)]
    assert not absent.exists()
    assert call(*first[1:])[0] == call(*second[1:])[0] == 0
    assert call(*words) == (0, "", f"spikewire: all 4 runs are finished in {folder}\n")
    for run in (stopped, absent):
        model = run / "model.safetensors"
        assert model.read_bytes() == (local / run.name / model.name).read_bytes()


def test_a_negative_value_is_passed_to_the_training(call, tmp_path):
    words = ["--methods", "dense", "--seeds", "1", "--centre=-1e-1", "--out", tmp_path]
    line = call("frontier", *words, *SHORT, "--dry-run")[1]
    assert "--centre=-1e-1" in line
    assert call(*shlex.split(line)[1:])[0] == 0


def test_the_threads_are_the_cores_if_the_settings_name_none(call, tmp_path):
    def threads_of(*words):
        line = call("frontier", "--methods", "dense", "--seeds", "1", *words, "--dry-run")[1]
        return line.partition("--threads ")[2].split()[:1]

    on_three = ["--engine", "ray", "--cores", "3", "--out", tmp_path]
    assert threads_of(*on_three, "--dataset", "mnist") == ["3"]
    assert threads_of(*on_three, "--dataset", "mnist", "--threads", "2") == ["2"]
    assert threads_of(*on_three) == [], "the preset of digits sets 1"


def test_a_resumed_run_keeps_its_thread_count(tmp_path):
    def stop(event):
        return True

    config = resolve(flags={"epochs": "1", "time_steps": "2", "threads": "0"})
    seen = set()
    with threads(2), pytest.raises(KeyboardInterrupt):
        fit(config, tmp_path, progress=stop)
    other = RunDir(tmp_path).config({"threads": "1"})
    refused(lambda: fit(other, tmp_path, resume=True), "--threads: 1", "was started with 2")
    with threads(1):
        fit(config, tmp_path, resume=True, progress=lambda _: seen.add(torch.get_num_threads()))
    assert seen == {2}
