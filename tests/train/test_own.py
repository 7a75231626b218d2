"""Networks and data of the user's own: train, resume, evaluate, report, frontier and export."""

import json
import subprocess
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from refusal import refused

import spikewire
from spikewire.config import Config, resolve
from spikewire.frontier import plan, prepare
from spikewire.report import load as load_report
from spikewire.runs.rundir import RunDir
from spikewire.train.evaluate import evaluate_run
from spikewire.train.loop import Interrupted, fit

LOAD = """
import torch

def load():
    x = torch.rand(60, 5, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0.5).long()
    return (x[:40], y[:40]), (x[40:], y[40:])

def load_temporal(time_steps):
    x = torch.rand(60, time_steps, 5, generator=torch.Generator().manual_seed(0)).round()
    y = (x[:, :, 0].sum(1) > time_steps / 2).long()
    return (x[:40], y[:40]), (x[40:], y[40:])

class Squares(torch.utils.data.Dataset):
    classes = ["low", "high"]
    def __init__(self, first, count):
        self.first, self.count = first, count
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        if not 0 <= index < self.count:
            raise IndexError(index)
        generator = torch.Generator().manual_seed(self.first + index)
        x = torch.rand(5, generator=generator)
        return x, int(x[0] > 0.5)

def stream():
    return Squares(0, 40), Squares(40, 20)

def loaders():
    return tuple(torch.utils.data.DataLoader(d, num_workers=1) for d in stream())
"""
SNNTORCH = """
import snntorch, torch
from torch import nn

class Net(nn.Module):
    def __init__(self, inputs, classes, time_steps):
        super().__init__()
        self.fc1, self.lif1 = nn.Linear(inputs, 20), snntorch.Leaky(beta=0.9, init_hidden=True)
        self.fc2 = nn.Linear(20, classes)
        self.lif2 = snntorch.Leaky(beta=0.9, init_hidden=True, output=True)
        self.steps = time_steps
    def forward(self, x):
        spikes = []
        for _ in range(self.steps):
            s, _ = self.lif2(self.fc2(self.lif1(self.fc1(4 * x.flatten(1)))))
            spikes.append(s)
        return torch.stack(spikes)

def build(input_shape, classes, time_steps):
    return Net(torch.Size(input_shape).numel(), classes, time_steps)
"""
SPIKINGJELLY = """
from spikingjelly.activation_based import layer, neuron, functional
from torch import nn

def build():
    net = nn.Sequential(
        layer.Linear(5, 20), neuron.LIFNode(), layer.Linear(20, 2), neuron.LIFNode()
    )
    functional.set_step_mode(net, "m")
    return net
"""
NORSE = """
import norse.torch as norse

def build(input_shape, classes):
    from torch import nn
    return norse.SequentialState(
        nn.Linear(5, 20), norse.LIF(), nn.Linear(20, classes), norse.LIF()
    )
"""


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A working directory with one Python file per library."""
    monkeypatch.chdir(tmp_path)
    sources = {"own_data": LOAD, "snn": SNNTORCH, "jelly": SPIKINGJELLY, "norse_net": NORSE}
    for name, text in sources.items():
        Path(f"{name}.py").write_text(textwrap.dedent(text))
    return tmp_path


def config(**flags):
    short = {"epochs": "2", "batch_size": "8", "time_steps": "3", "threads": "1", "lr": "0.01"}
    return resolve(flags=short | {"method": "budget", "connectivity": "0.5"} | flags)


@pytest.mark.parametrize(
    ("dataset", "model"),
    [
        ("own_data.py:load", "auto"),
        ("own_data.py:load", "snn.py:build"),
        ("own_data.py:load_temporal", "auto"),
        ("own_data.py:load_temporal", "jelly.py:build"),
        ("own_data.py:load_temporal", "norse_net.py:build"),
        ("own_data.py:stream", "snn.py:build"),
        ("own_data.py:loaders", "mlp"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_own_data_and_networks_train_and_are_evaluated_to_the_same_figures(files, dataset, model):
    result = fit(config(dataset=dataset, model=model), "run")
    assert result.connectivity == pytest.approx(0.5, abs=0.02)
    score = evaluate_run("run", {"dataset": dataset, "model": model})
    assert score.accuracy == result.accuracy
    measured = result.history[-1]["measured"]
    assert measured["synops"] + measured["macs"] > 0
    assert load_report("run").state == "finished"


def test_a_run_records_the_files_and_resumes_bit_identically_only_with_the_same_ones(files):
    own = {"dataset": "own_data.py:stream", "model": "snn.py:build", "epochs": "3"}
    whole = fit(config(**own), "whole").model.state_dict()
    with pytest.raises(Interrupted):
        fit(config(**own), "part", progress=lambda event: getattr(event, "step", 0) == 7)
    recorded = json.loads(Path("part/env.json").read_text())["files"]
    assert recorded["model"]["path"] == "snn.py"
    assert len(recorded["dataset"]["sha256"]) == 64
    again = {"dataset": own["dataset"], "model": own["model"]}
    source = Path("snn.py").read_text()
    Path("snn.py").write_text(source + "\n# changed\n")
    changed = "model: snn.py has changed since the run started"
    refused(lambda: fit(RunDir("part").config(again), "part", resume=True), changed)
    with pytest.warns(UserWarning, match=changed), pytest.raises(spikewire.SpikewireError):
        evaluate_run("part", again)  # it has not finished
    Path("snn.py").write_text(source)
    resumed = fit(RunDir("part").config(again), "part", resume=True).model.state_dict()
    assert all(torch.equal(whole[key], resumed[key]) for key in whole)


def test_a_run_directory_does_not_make_any_command_execute_a_file(files, call):
    Path("spy.py").write_text(
        "from pathlib import Path\nPath('executed').touch()\nfrom own_data import load\n"
        "from snn import build\n"
    )
    both = ("--dataset", "spy.py:load", "--model", "spy.py:build")
    words = ("--method", "dense", "--epochs", "1", "--batch-size", "8", "--threads", "1")
    assert call("train", *both, *words, "--out", "run")[0] == 0
    assert Path("executed").exists()
    Path("executed").unlink()
    from spikewire.data import reference

    reference._modules.clear()
    for command in (
        ("eval", "run"),
        ("export", "run"),
        ("train", "--resume", "run"),
        ("train", "--config", "run/config.toml", "--out", "new"),
        ("eval", "run", "--model", "spy.py:build"),
        ("train", "--teacher", "run", "--out", "new", "--epochs", "1"),
    ):
        code, _, errors = call(*command)
        assert code == 2, command
        assert "executed only if you name it too" in errors or "finished" in errors, command
        assert len(errors.strip().splitlines()) == 1
        assert not Path("executed").exists(), command
    assert call("report", "run", "-o", "page.html")[0] == 0
    assert not Path("executed").exists()
    assert call("eval", "run", *both)[0] == 0
    assert Path("executed").exists()


def test_a_stopped_run_is_resumed_on_the_command_line_by_naming_the_file_again(files, call):
    own = {"dataset": "own_data.py:load", "model": "snn.py:build"}
    with pytest.raises(Interrupted):
        fit(config(**own), "run", progress=lambda event: getattr(event, "step", 0) == 3)
    words = ("train", "--resume", "run", "--dataset", "own_data.py:load")
    code, _, errors = call(*words)
    assert (code, "--model snn.py:build" in errors) == (2, True)
    assert call(*words, "--model", "own_data.py:load")[0] == 2  # another one than the run's
    assert call(*words, "--model", "snn.py:build")[0] == 0
    assert RunDir("run").finished


def test_a_job_of_a_frontier_names_the_files_again_when_it_resumes(files):
    flags = {"model": "snn.py:build", "method": "budget", "epochs": "2", "batch_size": "8"}
    (job,) = plan(["own_data.py:load"], ["budget"], [0.5], seeds=1)
    assert job.name == "own_data-budget-0.5-seed0"
    (task,) = prepare([job], Path("front"), flags=flags).values()
    assert task.command()[:2] == ["train", "--out"]
    with pytest.raises(Interrupted):
        fit(resolve(flags=task.flags), task.run, progress=lambda event: True)
    own = {"--dataset", "own_data.py:load", "--model", "snn.py:build"}
    assert {*task.command()} == {"train", "--resume", str(task.run)} | own


@pytest.mark.slow
def test_a_frontier_of_own_data_and_network(files, call):
    words = ("--dataset", "own_data.py:load", "--model", "snn.py:build", "--connectivity", "0.5")
    short = ("--epochs", "1", "--batch-size", "8", "--threads", "1", "--out", "front")
    code, output, errors = call("frontier", *words, *short, "--methods", "budget", "--seeds", "2")
    assert code == 0, errors
    assert RunDir("front/own_data-budget-0.5-seed1").finished
    assert "own_data.py:load" in output


def test_a_packed_file_of_own_data(files, call):
    x = np.random.default_rng(0).integers(0, 256, (60, 1, 6, 6), dtype=np.uint8)
    np.savez("own.npz", train_x=x[:40], train_y=x[:40, 0, 0, 0] // 128, test_x=x[40:],
             test_y=x[40:, 0, 0, 0] // 128, classes=["dark", "light"])  # fmt: skip
    words = ("--dataset", "npz:own.npz", "--method", "budget", "--connectivity", "0.5")
    assert call("train", *words, "--epochs", "2", "--batch-size", "8", "--out", "run")[0] == 0
    assert call("eval", "run")[0] == 0  # an npz file is data: nothing to confirm
    code, output, _ = call("export", "run", "--check", "20")
    assert code == 0
    assert "20 test images" in output
    network = spikewire.load("run/model.packed.safetensors").network
    assert network.classes == ("dark", "light")


def test_a_packed_file_of_an_own_network(files):
    own = {"dataset": "own_data.py:load", "model": "snn.py:build"}
    fit(config(**own, epochs="4"), "run")
    exported = spikewire.deploy.export_run("run", values="fp32", **own)
    assert exported.checked_images == 20
    assert exported.accuracy_after == exported.accuracy_before
    assert exported.connectivity == pytest.approx(0.5, abs=0.02)


def test_a_packed_file_of_data_over_time(files):
    own = {"dataset": "own_data.py:load_temporal"}
    fit(config(**own, model="mlp", epochs="4"), "run")
    exported = spikewire.deploy.export_run("run", values="fp32", **own)
    assert exported.accuracy_after == exported.accuracy_before


def test_a_recurrent_network_is_exported_with_the_same_accuracy(files):
    own = {"dataset": "own_data.py:load_temporal"}
    fit(config(**own, epochs="1"), "run")
    done = spikewire.deploy.export_run("run", values="fp32", **own)
    assert done.checked_images > 0
    assert done.accuracy_after == done.accuracy_before


@pytest.mark.parametrize("data", ["load", "loaders", "load_temporal"])
def test_a_c_file_of_own_data_has_one_sample_as_test_vector(files, need, data):
    need("gcc")
    own = {"dataset": f"own_data.py:{data}"}
    fit(config(**own, epochs="1"), "run")
    done = spikewire.deploy.export_run("run", format="c", values="fp32", **own)
    assert done.accuracy_after == done.accuracy_before
    source = done.path.read_text()
    assert "const float TEST_INPUTS[" in source
    assert ("found = spikewire_step(TEST" in source) == (data == "load_temporal")
    subprocess.run(["gcc", "-std=c99", "-DSPIKEWIRE_TEST", done.path, "-o", "test"], check=True)
    assert subprocess.run(["./test"], check=False).returncode == 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"model": "absent.py:build"}, ("model: absent.py", "cannot be read")),
        ({"model": "snn.py:bild"}, ("function of snn.py", "'bild'", "did you mean 'build'?")),
        ({"model": "wrong.py:build"}, ("model: wrong.py:2: ZeroDivisionError",)),
        ({"model": "own_data.py:load"}, ("what own_data.py:load returns", "tuple")),
        ({"model": "wrong.py"}, ("model: unknown 'wrong.py'", "did you mean 'wrong.py:FUNCTION'?")),
        ({"model": "wrong.py:empty"}, ("model: what wrong.py:empty returns", "with parameters")),
        ({"model": "wrong.py:narrow"}, ("model: wrong.py:12: RuntimeError: mat1 and mat2",)),
        ({"model": "wrong.py:wide"}, ("model: shape of its output: (1, 2, 9)", "[time, 2, 2]")),
        ({"model": "wrong.py:flat"}, ("model: shape of its output: (2,)", "[batch, classes]")),
        ({"dataset": "snn.py:Net"}, ("dataset: snn.py", "TypeError")),
        ({"dataset": "wrong.py:none"}, ("the function returned NoneType",)),
        ({"dataset": "x.npz"}, ("unknown 'x.npz'", "did you mean 'npz:x.npz'?")),
        ({"dataset": "csv:x"}, ("unknown 'csv:x'", "npz:FILE", "FILE.py:FUNCTION")),
        ({"model": "npz:x"}, ("model: unknown 'npz:x'",)),
        ({"model": "snn.py:build", "init": "firing"}, ("init: 'firing'",)),
        ({"model": "snn.py:build", "early_time_steps": "2"}, ("early_time_steps: (2,)", "Spiking")),
        ({"dataset": "own_data.py:load", "augment": "flip"}, ("augment", "no images")),
        ({"dataset": "own_data.py:load", "centre": "0.1"}, ("centre: 0.1",)),
        (
            {"dataset": "wrong.py:seven", "time_steps": "3"},
            ("time_steps: 3", "7, the time steps of the data"),
        ),
        (
            {"dataset": "own_data.py:load_temporal", "early_time_steps": "2"},
            ("early_time_steps",),
        ),
    ],
)
def test_a_mistake_is_one_line(files, flags, words):
    Path("wrong.py").write_text(
        "def build():\n    1 / 0\ndef none():\n    pass\ndef seven():\n    import torch\n"
        "    x, y = torch.rand(9, 7, 2), torch.arange(9) % 2\n    return (x, y), (x, y)\n"
        "from torch import nn\n"
        "def empty(): return nn.Flatten()\n"
        "class Net(nn.Linear):\n    def forward(self, x): return super().forward(x)\n"
        "def narrow(): return Net(4, 2)\n"
        "def wide(): return nn.Linear(5, 9)\n"
        "def flat(): return nn.Sequential(nn.Linear(5, 1), nn.Flatten(0))\n"
    )
    refused(lambda: fit(config(**({"dataset": "own_data.py:load"} | flags))), *words)


FAILS_LATER = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.calls, self.membrane = nn.Linear(5, 2), 0, torch.zeros(())
    def forward(self, x):
        self.calls += 1
        {code}
        return self.fc(x)

def build():
    return Net()
"""


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "self.membrane = self.membrane + self.fc(x).sum(); return self.fc(x) + self.membrane",
            "model: later.py: RuntimeError: Trying to backward through the graph a second time",
        ),
        ("self.calls > 2 and {}['a']", "model: later.py:11: KeyError: 'a'"),
        ("self.training or self.calls < 5 or {}['b']", "model: later.py:11: KeyError: 'b'"),
        ("self.calls > 2 and exit(3)", "model: later.py:11: SystemExit: 3"),
        ("exit(3)", "model: later.py:11: SystemExit: 3"),
    ],
)
def test_an_own_network_that_fails_after_its_first_call_is_one_line(files, code, message):
    Path("later.py").write_text(FAILS_LATER.replace("{code}", code))
    refused(lambda: fit(config(dataset="own_data.py:load", model="later.py:build")), message)


def test_an_own_file_that_exits_is_one_line_and_exit_code_2(files, call):
    Path("leaves.py").write_text("raise SystemExit(3)\n")
    code, _, error = call("train", "--dataset", "own_data.py:load", "--model", "leaves.py:build")
    assert (code, error.strip()) == (2, "spikewire: --model: leaves.py:1: SystemExit: 3")


def test_an_own_network_that_fails_in_eval_is_one_line(files):
    own = {"dataset": "own_data.py:load", "model": "later.py:build"}
    Path("later.py").write_text(FAILS_LATER.replace("{code}", "pass"))
    fit(config(**own), "run")
    Path("later.py").write_text(FAILS_LATER.replace("{code}", "{}['c']"))
    with pytest.warns(UserWarning, match="has changed"):
        refused(lambda: evaluate_run("run", own), "model: later.py:11: KeyError: 'c'")


def test_an_error_outside_an_own_network_keeps_its_type(files):
    def fails(event):
        raise KeyError("mine")

    own = config(dataset="own_data.py:load", model="snn.py:build")
    with pytest.raises(KeyError, match="mine"):
        fit(own, progress=fails)


def test_memory_that_ends_in_an_own_network_is_not_its_mistake(files):
    code = "torch.is_grad_enabled() and torch.empty(2**55)"
    Path("later.py").write_text(FAILS_LATER.replace("{code}", code))
    with pytest.raises(RuntimeError, match="allocate"):
        fit(config(dataset="own_data.py:load", model="later.py:build"))


def test_time_steps_that_divide_those_of_the_data_add_them_up(files):
    Path("six.py").write_text(
        "import torch\ndef load():\n    x = torch.arange(60.).view(5, 6, 2)\n"
        "    y = torch.arange(5) % 2\n    return (x, y), (x, y)\n"
    )
    from spikewire.train.build import load_data

    data = load_data(config(dataset="six.py:load", time_steps="3"))
    assert data.train_images[0].tolist() == [[2, 4], [10, 12], [18, 20]]


def test_a_config_made_in_python_is_the_users_own_word(files):
    from spikewire.train.build import load_data

    data = load_data(Config(dataset="own_data.py:load", method="dense"))
    assert (data.name, data.shape, data.classes) == ("own_data", (5,), ("0", "1"))
