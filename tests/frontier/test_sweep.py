"""The frontier: order of the jobs, refusals, results, failures, kills."""

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from contextlib import suppress
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from refusal import refused

from spikewire.cli.frontier import print_points
from spikewire.config import resolve
from spikewire.frontier import Job, Outcome, plan, points
from spikewire.frontier.engines.process import failure_reason
from spikewire.frontier.outcomes import save_outcomes
from spikewire.report import LIGHT, load, plot_frontier
from spikewire.report.published import published_in
from spikewire.runs.lock import locked
from spikewire.runs.rundir import RunDir
from spikewire.train.loop import fit

EPOCHS = 8
FLAGS = ["--epochs", str(EPOCHS), "--time-steps", "2", "--batch-size", "64"]
WORDS = ["frontier", "--methods", "deepr,magnitude", "--connectivity", "0.2,0.1", "--seeds", "2"]
WORDS += ["--jobs", "2", "--checkpoint-every", "1", *FLAGS]
NAMES = [
    f"digits-{method}-{connectivity}-seed{seed}"
    for seed in (0, 1)
    for method in ("deepr", "magnitude")
    for connectivity in (0.2, 0.1)
]


def started(folder: Path) -> subprocess.Popen:
    command = [sys.executable, "-W", "error", "-m", "spikewire", *WORDS, "--out", str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A frontier that was not stopped, and its output; its runs are trained in this process."""
    folder = tmp_path_factory.mktemp("whole")
    shared = {"epochs": str(EPOCHS), "time_steps": "2", "batch_size": "64"}
    for job in plan(["digits"], ["deepr", "magnitude"], [0.2, 0.1], 2):
        fit(resolve(flags=job.settings(shared)), folder / job.name)
    process = started(folder)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (0, "")
    return folder, out


def untimed(folder: Path) -> dict:
    """Return the content of frontier.json without seconds."""
    content = json.loads((folder / "frontier.json").read_text())
    for row in (*content["runs"], *content["points"]):
        del row["seconds"]
    return content


def table(out: str) -> list[list[str]]:
    """Return the table a frontier printed, without its last column, the time."""
    return [line.split()[:-2] for line in out.splitlines() if line.startswith(" digits ")]


def networks(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the finished runs, each with what changes when its network is written again."""
    files = folder.glob("*/model.safetensors")
    return {x.parent.name: (x.stat().st_ino, x.stat().st_mtime_ns) for x in files}


# ---------------------------------------------------------------------- the list


def test_the_first_seed_of_everything_comes_before_the_second():
    jobs = plan(["digits"], ["deepr", "dense", "gradr"], [0.25, 0.05], 2)
    first = [
        "digits-deepr-0.25-seed0",
        "digits-deepr-0.05-seed0",
        "digits-dense-seed0",
        "digits-gradr-0.25-seed0",
        "digits-gradr-0.05-seed0",
    ]
    assert [job.name for job in jobs] == [*first, *(x.replace("seed0", "seed1") for x in first)]
    several = plan(["digits", "mnist"], ["dense"], [0.1], 1)
    assert [job.name for job in several] == ["digits-dense-seed0", "mnist-dense-seed0"]


def test_a_job_that_is_listed_twice_runs_once():
    jobs = plan(["digits"], ["deepr", "deepr"], [0.1, 0.10000001], 1)
    assert jobs == [Job("digits", "deepr", 0.1, 0)]


def test_a_flag_is_passed_to_the_methods_that_accept_it():
    shared = {"epochs": "3", "ramp": "0.5"}
    taken = {}
    for job in plan(["digits"], ["gradr", "deepr", "dense"], [0.1], 2)[3:]:
        config = resolve(flags=job.settings(shared))
        assert (config.method, config.epochs, config.seed) == (job.method, 3, 1)
        assert config.target == job.target
        taken[job.method] = config.options.get("ramp")
    assert taken == {"gradr": 0.5, "deepr": None, "dense": None}


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--methods", "deepr,gradx"], ["methods: unknown 'gradx'", "did you mean 'gradr'"]),
        (["--methods", "softdeepr"], ["methods: softdeepr takes no connectivity"]),
        (["--methods", ","], ["methods: ',' is not allowed"]),
        (["--connectivity", "0.1,0"], ["connectivity: 0.0 is not allowed", "(0, 1]"]),
        (["--connectivity", "1.5"], ["connectivity: 1.5 is not allowed"]),
        (["--connectivity", "few"], ["connectivity: 'few' is not allowed", "a number"]),
        (["--seeds", "0"], ["seeds: '0' is not allowed"]),
        (["--jobs", "none"], ["jobs: 'none' is not allowed"]),
        (["--dataset", "digits,mnits"], ["--dataset: unknown 'mnits'", "'mnist'"]),
        (["--p", "0.9", "--methods", "deepr"], ["--p: none of the methods takes it"]),
        (["--sparsity", "0.9"], ["--sparsity: unknown; did you mean --connectivity 0.1?"]),
        (["--method", "deepr"], ["flag: unknown '--method'", "did you mean '--methods'"]),
        (["--epochs", "0"], ["--epochs: 0 is not allowed"]),
        (["--out", "file/x"], ["file: is a file, not a folder"]),
    ],
)
def test_bad_input_is_one_line_and_exit_2(call, tmp_path, monkeypatch, words, parts):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    code, out, err = call("frontier", *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert all(part in err for part in parts), err
    assert os.listdir(tmp_path) == ["file"]


# ---------------------------------------------------------------------- figures


def test_points_are_means_and_sample_deviations_over_seeds():
    job = [Job("digits", "deepr", 0.1, seed) for seed in range(4)]
    other = Job("digits", "dense", None, 0)
    lost = Job("digits", "deepr", 0.2, 0)
    found = points(
        [
            Outcome(job[0], accuracy=0.90, actual=0.10, seconds=3.0),
            Outcome(job[1], accuracy=0.94, actual=0.12, seconds=4.0),
            Outcome(other, accuracy=0.99, actual=1.0, seconds=1.0),
            Outcome(job[2], accuracy=0.98, actual=0.14, seconds=5.0),
            Outcome(job[3], error="out of memory"),
            Outcome(lost, error="out of memory"),
        ]
    )
    assert [(p.method, p.target, p.n, p.failed) for p in found] == [
        ("deepr", 0.1, 3, 1),
        ("dense", None, 1, 0),
    ]
    sparse, dense = found
    assert sparse.accuracy == pytest.approx(0.94)
    assert sparse.deviation == pytest.approx(0.04)  # sqrt((0.04² + 0 + 0.04²) / 2)
    assert (sparse.actual, sparse.seconds) == pytest.approx((0.12, 4.0))
    assert (dense.accuracy, dense.deviation) == (0.99, None)  # one run has no deviation


def test_a_single_run_is_printed_without_a_deviation(capsys, tmp_path):
    job = Job("digits", "deepr", 0.1, 0)
    outcomes = [Outcome(job, accuracy=0.9, actual=0.1, seconds=3.0)]
    print_points(points(outcomes))
    out = capsys.readouterr().out
    assert "90.00" in out
    assert "±" not in out
    save_outcomes(tmp_path, outcomes)
    assert json.loads((tmp_path / "frontier.json").read_text())["points"][0]["deviation"] is None


def test_the_file_and_the_table_match_the_runs(whole):
    folder, out = whole
    content = json.loads((folder / "frontier.json").read_text())
    assert [row["name"] for row in content["runs"]] == NAMES
    for row in content["runs"]:
        history = RunDir(folder / row["name"]).history()
        config = RunDir(folder / row["name"]).config()
        assert (config.method, config.target) == (row["method"], row["target"])
        assert config.seed == row["seed"]
        assert config.threads == 1
        assert row["accuracy"] == history[-1]["accuracy"]
        assert row["actual"] == history[-1]["connectivity"]
        assert row["seconds"] == pytest.approx(sum(x["seconds"] for x in history), abs=0.06)
        assert row["error"] is None
    rows = []
    for point in content["points"]:
        target = f"{point['target']:g}"
        two = [x for x in content["runs"] if f"{x['method']}-{target}-" in x["name"]]
        values = [100 * x["accuracy"] for x in two if x["method"] == point["method"]]
        mean, deviation = statistics.mean(values), statistics.stdev(values)
        assert 100 * point["accuracy"] == pytest.approx(mean)
        assert 100 * point["deviation"] == pytest.approx(deviation)
        assert point["n"] == len(values) == 2
        rows.append(
            ["digits", point["method"], f"{point['target']:.2%}", f"{point['actual']:.2%}"]
            + [f"{mean:.2f}", "±", f"{deviation:.2f}", "2"]
        )
    assert len(rows) == 4
    assert table(out) == rows


def test_the_figure_has_one_mark_per_point(whole):
    folder, _ = whole
    text = (folder / "frontier.svg").read_text()
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert all(word in text for word in ("deepr", "magnitude", "connectivity", "digits"))
    assert min(imread(folder / "frontier.png").shape[:2]) > 300
    plot = plot_frontier([load(folder / name) for name in NAMES])
    assert plot is not None
    canvas = Figure()
    plot.draw(canvas, LIGHT)
    drawn = sorted(
        xy for bars in canvas.axes[0].containers for xy in bars.lines[0].get_xydata().tolist()
    )
    found = json.loads((folder / "frontier.json").read_text())["points"]
    wanted = sorted([100 * x["actual"], 100 * x["accuracy"]] for x in found)
    assert drawn == [pytest.approx(xy) for xy in wanted]


@pytest.mark.parametrize("unit", ["connectivity", "synapses", "synops"])
@pytest.mark.parametrize("dataset", ["mnist", "cifar10"])
def test_published_points_of_the_unit_are_drawn_with_their_names(whole, dataset, unit):
    run = load(whole[0] / NAMES[0])
    assert run.config
    run.config.dataset = dataset
    plot = plot_frontier([run], unit)
    assert plot is not None
    canvas = Figure()
    plot.draw(canvas, LIGHT)
    lines = {str(line.get_label()): line for line in canvas.axes[0].lines}
    found = published_in(unit, dataset)
    drawn = {name.removesuffix(", published") for name in lines if name.endswith(", published")}
    assert drawn - {"dense"} == found.keys()
    for name, pairs in found.items():
        assert lines[f"{name}, published"].get_xydata().tolist() == [list(xy) for xy in pairs]
    assert ("Hollow grey markers" in plot.caption) == bool(found)


# ---------------------------------------------------------------------- again, and when it fails


def test_the_same_command_again_trains_nothing(whole, call, tmp_path):
    folder = shutil.copytree(whole[0], tmp_path / "again")
    before = networks(folder)
    code, out, _ = call(*WORDS, "--out", folder)
    assert (code, networks(folder)) == (0, before)
    assert table(out) == table(whole[1])
    assert untimed(folder) == untimed(whole[0])


def test_json_is_one_record_per_run_and_one_of_the_points(whole, call, tmp_path):
    folder = shutil.copytree(whole[0], tmp_path / "again")
    code, out, err = call(*WORDS, "--out", folder, "--json")
    *runs, last = map(json.loads, out.splitlines())
    kept = json.loads((folder / "frontier.json").read_text())
    assert (code, err) == (0, "")
    assert runs == [{"event": "run", **row} for row in kept["runs"]]
    assert last["event"] == "frontier"
    assert last["points"] == kept["points"]
    assert call(*WORDS, "--out", folder, "--quiet") == (0, f"{folder / 'frontier.json'}\n", "")


def test_runs_of_other_settings_are_refused(whole, call, tmp_path):
    folder = shutil.copytree(whole[0], tmp_path / "other")
    code, _, err = call(*WORDS, "--out", folder, "--lr", "1", "--loss", "mse-rate")
    assert (code, err.count("\n")) == (2, 1)
    assert f"{folder / NAMES[0]}: was made with other settings: lr, loss" in err
    assert "give another --out, or delete it" in err


def test_a_failed_run_is_recorded_and_the_others_continue(whole, call, tmp_path):
    folder = shutil.copytree(whole[0], tmp_path / "failing")
    damaged, started_only, unread = (folder / name for name in NAMES[:3])
    (damaged / "model.safetensors").unlink()
    (damaged / "checkpoint.pt").write_bytes(b"nothing")
    for path in started_only.iterdir():  # killed before its first checkpoint was complete
        path.unlink()
    (started_only / ".checkpoint.pt.0123456789abcdef").write_bytes(b"incomplete")
    (unread / "metrics.jsonl").write_bytes(b"")
    before = networks(folder)
    code, out, err = call(*WORDS, "--out", folder)
    assert (code, err.count("\n")) == (1, 1)
    assert f"2 of 8 runs failed; {damaged.name}: {damaged}/checkpoint.pt: is damaged" in err
    assert f"{damaged.name}  failed: {damaged}/checkpoint.pt: is damaged" in out
    runs = {row["name"]: row for row in untimed(folder)["runs"]}
    assert "checkpoint.pt: is damaged" in runs[damaged.name]["error"]
    assert "metrics are damaged" in runs[unread.name]["error"]
    wanted = {row["name"]: row for row in untimed(whole[0])["runs"]}
    assert all(runs[name] == wanted[name] for name in NAMES[1:2] + NAMES[3:])
    assert [row["n"] for row in untimed(folder)["points"]] == [1, 2, 1, 2]
    assert "1 (1 failed)" in out
    after = networks(folder)
    assert after.keys() - before.keys() == {started_only.name}
    assert all(after[name] == before[name] for name in before)
    assert not list(started_only.glob(".*.*")), "temporary files are removed"


@pytest.mark.parametrize(
    ("code", "output", "line"),
    [
        (1, "epoch 1/8\nspikewire: loss is not finite\n", "loss is not finite"),
        (1, "Traceback\nRuntimeError: out of memory\n", "RuntimeError: out of memory"),
        (-9, "epoch 3/8  accuracy 90%\n", "killed by SIGKILL"),
        (3, "", "exit code 3"),
    ],
)
def test_the_reason_of_a_failure_is_the_last_line_or_the_signal(code, output, line):
    assert failure_reason(code, output) == line


# ---------------------------------------------------------------------- stopped


def test_one_frontier_at_a_time_in_a_directory(tmp_path):
    def second():
        with locked(tmp_path, "frontier", patience=0.2):
            raise AssertionError("two at the same time")

    with locked(tmp_path, "frontier"):
        refused(second, tmp_path, "another frontier is running")
    with locked(tmp_path, "frontier"):
        pass


def descendants(parent: int) -> list[int]:
    """Return the workers of a frontier and the trainings they have forked."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, rest = int(path.parent.name), path.read_text().rpartition(")")[2]
        except OSError:  # it has just ended
            continue
        if int(rest.split()[1]) == parent:
            found += [pid, *descendants(pid)]
    return found


def halfway(folder: Path) -> set[str]:
    """Return the unfinished runs with two epochs, and so with a checkpoint of the first."""
    found = set()
    for path in folder.glob("*/metrics.jsonl"):
        with suppress(FileNotFoundError):  # a killed start is repeated
            if path.read_bytes().count(b"\n") >= 2:
                found.add(path.parent.name)
    return found - networks(folder).keys()


def saved(folder: Path) -> int:
    """Return how often a worker has saved because of a signal."""
    return sum(path.read_text().count("stopped; resume with") for path in folder.glob("logs/*"))


def interrupted(folder: Path, done: int, stop) -> tuple[int, str, int]:
    """Start it; stop it once `done` runs are finished and another is halfway.

    Return its exit code, its stderr, and how often workers had saved before this stop.
    """
    with started(folder) as process:
        until = time.monotonic() + 120
        while not (len(networks(folder)) >= done and halfway(folder)):
            if time.monotonic() > until or process.poll() is not None:
                process.kill()
                pytest.fail(f"{done} runs did not finish: {process.communicate()}")
            time.sleep(0.005)
        before = saved(folder)
        stop(process)
        _, err = process.communicate(timeout=120)
        return process.returncode, err, before


def kill_all(process):
    """Kill all processes, so that none of them saves."""
    for pid in (process.pid, *descendants(process.pid)):
        with suppress(ProcessLookupError):  # it has ended with its parent
            os.kill(pid, signal.SIGKILL)


def kill_parent(process):
    process.kill()


def control_c(process):
    process.send_signal(signal.SIGINT)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_killed_frontier_repeats_nothing_and_gives_the_same_results(whole, tmp_path):
    finished, resumed, counts = {}, set(), []
    for done, stop, code in ((1, kill_all, -9), (3, kill_parent, -9), (5, control_c, 130)):
        *ended, count = interrupted(tmp_path, done, stop)
        n = len(networks(tmp_path))
        said = f"{n} of {len(NAMES)} runs are finished in {tmp_path}; resume with the same command"
        assert ended == [code, f"spikewire: stopped; {said}\n" if code == 130 else ""]
        counts.append(count)
        finished = {**networks(tmp_path), **finished}
        resumed |= halfway(tmp_path)
    process = started(tmp_path)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (0, "")
    after = networks(tmp_path)
    assert sorted(after) == sorted(NAMES)
    assert len(finished) >= 5
    assert all(after[name] == finished[name] for name in finished), "a finished run was repeated"
    assert resumed
    logs = {name: (tmp_path / f"logs/{name}.txt").read_text() for name in NAMES}
    assert all(logs[name].count(f"epoch 1/{EPOCHS} ") == 1 for name in resumed), "started again"
    assert counts[1] < counts[2] < saved(tmp_path), (
        "not saved when the parent is killed, or at Ctrl-C"
    )
    assert table(out) == table(whole[1])
    assert untimed(tmp_path) == untimed(whole[0])
    for name in NAMES:
        network = (whole[0] / name / "model.safetensors").read_bytes()
        assert (tmp_path / name / "model.safetensors").read_bytes() == network
        assert not list((tmp_path / name).glob(".*.*")), "temporary files are removed"
