"""The command line as a user meets it."""

import logging
import os
import signal
import subprocess
import sys
import time
import warnings
from io import StringIO

import pytest

import spikewire
from spikewire.cli import COMMANDS, main
from spikewire.config import resolve
from spikewire.runs.rundir import RunDir
from spikewire.train.loop import fit

TINY = ["--epochs", "2", "--time-steps", "2", "--threads", "1", "--batch-size", "256"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Runs land in an empty directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def refused(call, tmp_path):
    """Run a command that must fail in one line with exit 2 and leave nothing behind."""

    def run(*words):
        before = sorted(tmp_path.rglob("*"))
        code, _, err = call(*words)
        assert code == 2
        assert err.startswith("spikewire: ")
        assert err.count("\n") == 1
        assert err.endswith("\n")
        assert sorted(tmp_path.rglob("*")) == before
        return err

    return run


def stop_early(event):
    return getattr(event, "step", 0) == 3


@pytest.fixture
def stopped(tmp_path):
    """A run that was stopped after three steps."""
    words = {"epochs": "2", "time_steps": "2", "threads": "1", "batch_size": "256"}
    with pytest.raises(KeyboardInterrupt):
        fit(resolve(flags=words), tmp_path / "run", progress=stop_early)


def network(run):
    return (run / "model.safetensors").read_bytes()


# ---------------------------------------------------------------------- help


def test_help_and_version(call):
    code, out, err = call("--help")
    assert (code, err) == (0, "")
    assert all(f"  {name}" in out for name in COMMANDS)
    assert call() == (0, out, "")
    assert call("--version") == (0, f"spikewire {spikewire.__version__}\n", "")


def test_train_help_has_a_flag_for_every_field(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["train", "--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert all(flag in out for flag in ("--batch-size", "--alpha", "--connectivity", "--resume"))
    text = " ".join(out.split())
    assert (
        f"training images; [1, 1e9] (default {resolve().epochs})" in text
    )  # as a plain run has it
    assert "seed of every random choice; [0, inf) (default 0)" in text
    assert "optimizer; one of adam, adamw, sgd, rmsprop (default adam)" in text


def test_data_lists_what_is_present(call, tmp_path):
    code, out, _ = call("data", "--data-dir", tmp_path)
    rows = {line.split()[0]: line.split()[-1] for line in out.splitlines() if line.split()}
    assert code == 0
    assert rows["digits"] == "present"
    assert rows["mnist"] == rows["cifar10"] == "absent"


def test_data_get_of_what_is_embedded_needs_no_network(call, tmp_path):
    code, out, _ = call("data", "get", "digits", "--data-dir", tmp_path)
    assert (code, out) == (0, "digits: part of the package\n")


# ---------------------------------------------------------------------- train and eval


def test_train_then_eval(call, tmp_path):
    code, out, err = call("train", "--method", "deepr", "--connectivity", "0.25", *TINY)
    assert (code, err) == (0, "")
    assert out.index('method = "deepr"') < out.index("epoch 1/2") < out.index("target connectivity")
    assert "run directory: runs/digits-deepr-1" in out
    row = RunDir(tmp_path / "runs/digits-deepr-1").history()[-1]
    assert row["connectivity"] == pytest.approx(0.25, abs=1e-3)
    assert f"{row['accuracy']:.2%}" in out
    code, shown, _ = call("eval", "runs/digits-deepr-1")
    assert code == 0
    assert f"{row['accuracy']:.2%}" in shown
    assert "25.00%" in shown
    assert "fc1.weight" in shown
    call("train", "--method", "deepr", *TINY)
    assert (tmp_path / "runs/digits-deepr-2/model.safetensors").exists()


def test_the_config_left_behind_repeats_the_run(call, tmp_path):
    call("train", "--out", "a", "--alpha", "0.01", "--tensorboard", *TINY)
    call("train", "--out", "b", "--config", "a/config.toml")
    assert (tmp_path / "a/config.toml").read_text() == (tmp_path / "b/config.toml").read_text()
    assert network(tmp_path / "a") == network(tmp_path / "b")
    assert list((tmp_path / "a/tensorboard").iterdir())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_a_resume_ends_the_same(call, tmp_path, number, code):
    flags = ["--epochs", "12", "--time-steps", "2", "--threads", "1", "--batch-size", "64"]
    flags += ["--method", "deepr"]  # gradr would warn that so short a run leaves many weights
    command = [sys.executable, "-W", "error", "-m", "spikewire", "train", "--out", "cut", *flags]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    metrics = tmp_path / "cut/metrics.jsonl"
    until = time.monotonic() + 60
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < until:
        time.sleep(0.01)
    os.kill(process.pid, number)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (
        code,
        "spikewire: stopped; resume with spikewire train --resume cut\n",
    )
    run = RunDir(tmp_path / "cut")
    position = run.load_checkpoint(run.config())["position"]
    assert 1 <= position["epoch"] < 12
    assert not list(run.path.glob(".*.*")), "temporary files are removed"
    assert call("train", "--resume", "cut")[0] == call("train", "--out", "whole", *flags)[0] == 0
    assert network(tmp_path / "cut") == network(tmp_path / "whole")


def test_a_stopped_run_resumes_by_its_own_config(call, tmp_path):
    assert call("train", "--out", "whole", *TINY)[0] == 0
    config = RunDir(tmp_path / "whole").config()
    with pytest.raises(KeyboardInterrupt):
        fit(config, tmp_path / "cut", progress=stop_early)
    assert resolve(file=tmp_path / "cut/config.toml") == config
    code, out, err = call("train", "--resume", "cut", "--checkpoint-every", "5")
    assert (code, err) == (0, "")
    assert "epoch 2/2" in out
    assert network(tmp_path / "whole") == network(tmp_path / "cut")


def test_divergence_exits_1_and_keeps_the_last_good_checkpoint(call, tmp_path):
    flags = ["--method", "dense", "--readout", "current", "--loss", "mse-rate", "--lr", "1e30"]
    code, _, err = call("train", "--out", "run", *flags, *TINY)
    assert code == 1
    assert err.startswith("spikewire: loss is not finite at step ")
    assert err.count("\n") == 1
    run = RunDir(tmp_path / "run")
    state = run.load_checkpoint(run.config())
    assert all(value.isfinite().all() for value in state["model"].values())


def test_a_warning_is_one_line(call):
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        code, _, err = call("train", "--weight-decay", "0.01", *TINY)
    assert code == 0
    assert err.startswith("spikewire: warning: gradr: weight decay is on")
    assert all(line.startswith("spikewire: warning: ") for line in err.splitlines())


def test_an_alpha_too_small_for_the_run_is_said_once(call):
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        code, _, err = call("train", "--alpha", "1e-3", "--init", "firing", *TINY)
    assert code == 0
    assert err.startswith("spikewire: warning: gradr: alpha 0.001 moves theta by only")
    assert err.count("\n") == 1


@pytest.mark.parametrize("words", ["methods | head -n 1", "--help | true", "train --help | true"])
def test_a_reader_that_stops_reading_is_no_error(tmp_path, words):
    command = f"{sys.executable} -m spikewire {words}"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert done.stderr == ""


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["trian"], ["command: unknown 'trian'", "did you mean 'train'"]),
        (["train", "--method", "gradx"], ["--method: unknown 'gradx'", "did you mean 'gradr'"]),
        (["train", "--dataset", "mnits"], ["--dataset: unknown", "did you mean 'mnist'"]),
        (["train", "--preset", "digit"], ["--preset: unknown", "did you mean 'digits'"]),
        (["train", "--alhpa", "1"], ["flag: unknown '--alhpa'", "did you mean '--alpha'? see"]),
        (["train", "--method", "Grad-R"], ["did you mean 'gradr'"]),
        (["train", "--dataset", "MNIST"], ["did you mean 'mnist'"]),
        (["train", "--preset", "MNIST"], ["did you mean one of mnist-admm"]),
        (["train", "--dataset", ".."], ["did you mean 'folder:..'"]),
        (["train", "--learning-rate", "1"], ["did you mean '--lr'?"]),
        (["train", "--bs=8"], ["did you mean '--batch-size'?"]),
        (["train", "--connectivity", "5"], ["in (0, 1]: 0.05 for 5%"]),
        (["train", "--connectivity", "0,05"], ["a number: 0.05 for 0,05"]),
        (["train", "--resume", "/etc/hostname"], ["hostname: is a file, not a run directory"]),
        (["frontier", "--connectivity", "5%"], ["a number: 0.05 for 5%"]),
        (["frontier", "--connectivity", "25"], ["in (0, 1]: 0.25 for 25%"]),
        (["frontier", "--methods", "budget,", "deepr"], ["deepr: not expected", "no spaces"]),
        (["frontier", "--resume", "x"], ["the same command again resumes"]),
        (["frontier", "--out", "/etc/hostname"], ["hostname: is a file, not a folder"]),
        (["export", "zoo:digits-2", "--check", "-1"], ["--check: '-1'", "0 or more"]),
        (["data", "mnist"], ["did you mean `data get mnist`?"]),
        (["train", "--epochs=many"], ["--epochs: 'many'", "a whole number"]),
        (["train", "--epochs"], ["--epochs: expected one argument", "spikewire train --help"]),
        (["train", "--alpha", "-1"], ["--alpha: -1.0 is not allowed"]),
        (["train", "--method", "deepr", "--connectivity", "2"], ["--connectivity: 2.0"]),
        (["train", "--connectivity", "0"], ["--connectivity: 0.0"]),
        (["train", "--p", "0.4"], ["--p: 0.4", "0.5"]),
        (["train", "--sparsity", "0.9"], ["--sparsity", "did you mean --connectivity 0.1?"]),
        (["train", "--sparsity=0.95"], ["--sparsity", "did you mean --connectivity 0.05?"]),
        (["train", "--sparsity"], ["--sparsity", "did you mean --connectivity X?"]),
        (["train", "--model", "mnist-mlp"], ["--model: 'mnist-mlp'"]),
        (["train", "--augment", "shift:9"], ["--augment: 9"]),
        (["train", "--json", "-v"], ["--json: not together with --verbose"]),
        (["presets", "digit"], ["preset: unknown 'digit'", "did you mean 'digits'"]),
        (["methods", "gradar"], ["method: unknown 'gradar'", "did you mean 'gradr'"]),
        (["frontier", "--methods", "gradar"], ["--methods: unknown 'gradar'"]),
        (["frontier", "--connectivity", "2"], ["--connectivity: 2.0"]),
        (["frontier", "--connectivity", ""], ["--connectivity: ''", "a comma list"]),
        (["frontier", "--targets", ""], ["--targets: ''", "a comma list"]),
        (["frontier", "--synapses", "0.1"], ["did you mean --unit synapses --targets 0.1?"]),
        (["frontier", "--bytes=9000"], ["did you mean --unit bytes --targets 9000?"]),
        (["train", "--config", "none.toml"], ["none.toml", "cannot be read"]),
        (["train", "--resume", "none"], ["none: does not exist"]),
        (["train", "--out", "/proc/none/run"], ["/proc/none/run", "cannot be written"]),
        (["train", "--out", "/etc/hostname"], ["hostname: is a file; --out must be a directory"]),
        (["train", "surplus"], ["surplus: not expected"]),
        (["train", "--device", "tpu"], ["--device: unknown 'tpu'"]),
        (
            ["train", "--dataset", "mnist", "--data-dir", "none"],
            ["mnist", "spikewire data get mnist"],
        ),
        (["train", "--resume", ""], ["--resume: '' is not allowed; it must be a name"]),
        (["train", "--preset", ""], ["--preset: '' is not allowed"]),
        (["eval"], ["run: is missing; see spikewire eval --help"]),
        (["eval", "none"], ["none: does not exist"]),
        (["eval", "."], [".: is not a run directory"]),
        (["methods", "--all"], ["flag: unknown '--all'"]),
        (["data", "got", "mnist"], ["data: unknown 'got'", "did you mean 'get'"]),
        (["data", "get"], ["takes one name"]),
        (["data", "get", "mnits"], ["dataset: unknown 'mnits'", "did you mean 'mnist'"]),
    ],
)
def test_bad_input_is_one_line_and_exit_2(refused, words, parts):
    said = refused(*words)
    assert all(part in said for part in parts), said


def test_a_folder_of_runs_is_answered_with_the_runs_in_it(refused, tmp_path):
    for name in ("b", "a"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.toml").write_text("")
    for words in (["eval", "runs"], ["train", "--resume", "runs"]):
        assert (
            "runs: is not a run directory; it has no config.toml; it contains runs/a, runs/b"
            in (refused(*words))
        )
    assert "did you mean runs/a/config.toml?" in refused("train", "--config", "runs/a")


def test_a_run_directory_that_exists_is_refused(refused, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/notes").write_text("mine")
    assert "run: exists and is not empty" in refused("train", "--out", "run", *TINY)


def test_a_place_under_a_file_is_refused(refused, tmp_path):
    (tmp_path / "file").write_text("")
    assert "file: is a file, not a folder" in refused("train", "--out", "file/run", *TINY)


def test_a_config_with_a_wrong_type_is_refused(refused, tmp_path):
    (tmp_path / "x.toml").write_text('epochs = "many"\n')
    assert "x.toml: epochs: 'many'" in refused("train", "--config", "x.toml")


def test_a_corrupt_data_file_is_refused(refused, tmp_path):
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist/train-images-idx3-ubyte").write_bytes(b"\0" * 1000)
    said = refused("train", "--dataset", "mnist", "--data-dir", ".", *TINY)
    assert "train-images-idx3-ubyte" in said
    assert "1000 bytes" in said


def test_a_corrupt_checkpoint_is_refused(stopped, refused, tmp_path):
    path = tmp_path / "run/checkpoint.pt"
    path.write_bytes(path.read_bytes()[:-1000])
    said = refused("train", "--resume", "run")
    assert "run/checkpoint.pt: is damaged" in said
    assert "checkpoint.prev.pt" in said


def test_a_checkpoint_of_another_config_is_refused(stopped, refused, tmp_path):
    path = tmp_path / "run/config.toml"
    path.write_text(path.read_text().replace("epochs = 2", "epochs = 3"))
    said = refused("train", "--resume", "run")
    assert "was written by another config; differs: epochs" in said


def test_a_flag_refused_at_a_resume_is_answered_with_a_start_if_the_run_has_finished(
    tmp_path, monkeypatch, call, refused
):
    monkeypatch.chdir(tmp_path)
    assert call("train", "--out", "run", *TINY)[0] == 0
    said = refused("train", "--resume", "run", "--lr", "1")
    assert said.endswith("in a new run: --start run --lr 1\n")


def test_a_flag_that_makes_it_another_run_is_refused_at_a_resume(stopped, refused):
    said = refused("train", "--resume", "run", "--lr", "1")
    assert "--lr: not together with --resume" in said
    assert "--start" not in said  # which takes only a finished run
    assert "--out: not together with --resume" in refused("train", "--resume", "run", "--out", "x")


def test_a_run_that_is_not_finished_cannot_be_tested(stopped, refused):
    assert "spikewire train --resume run" in refused("eval", "run")


FAULTS = """
import resource, torch
from spikewire.cli.train import keep_memory

def faults():
    step = lambda: [torch.ones(1 << 20) for _ in range(16)]
    step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

keep_memory()
print(faults())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's")
def test_freed_memory_is_kept():
    """Tensors of a step come back in the same pages instead of new ones."""
    words = [sys.executable, "-c", FAULTS]
    faults = int(subprocess.run(words, capture_output=True, check=True).stdout)
    assert faults < 16_000  # ten times as many otherwise


def test_help_and_a_wrong_flag_do_not_import_dynamo():
    """It takes more than a second of CPU, and only training needs it."""
    code = (
        "import sys; from spikewire.cli import main; status = main(['train', '--epoch', '3']);"
        "sys.exit(10 * status + ('torch._dynamo' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 20, done.stderr
    assert "did you mean '--epochs'" in done.stderr


def test_what_a_library_logs_has_the_name_of_the_program(monkeypatch):
    """Where no handler is set, as at a shell: `no compiled kernels: ...`."""
    heard = logging.StreamHandler(StringIO())
    monkeypatch.setattr(logging, "lastResort", heard)
    assert main(["--version"]) == 0
    heard.handle(logging.makeLogRecord({"msg": "no compiled kernels"}))
    assert heard.stream.getvalue() == "spikewire: warning: no compiled kernels\n"
