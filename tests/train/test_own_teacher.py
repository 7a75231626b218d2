"""A teacher of the user's own, ``--teacher FILE.py:FUNCTION``: any trained module."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from refusal import refused
from torch import nn

from spikewire import data as datasets
from spikewire.config import Config, resolve
from spikewire.data import reference
from spikewire.deploy import export_run
from spikewire.nn.losses import ce_rate
from spikewire.runs.rundir import RunDir
from spikewire.train.build import forward_of
from spikewire.train.distillation import distillation_loss
from spikewire.train.evaluate import evaluate_run
from spikewire.train.loop import Interrupted, fit
from spikewire.train.step import prepare

torch.set_num_threads(1)
TEACHER = "teacher.py:trained"
SOURCE = """
from pathlib import Path
import torch
from torch import nn

Path("executed").touch()

def trained(input_shape, classes):
    generator = torch.Generator().manual_seed(0)
    linear = nn.Linear(torch.Size(input_shape).numel(), classes)
    with torch.no_grad():
        linear.weight.copy_(torch.randn(linear.weight.shape, generator=generator))
        linear.bias.zero_()
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), linear)

def convolution():
    return nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten())

def over_time():
    class Steps(nn.Module):
        def forward(self, images):
            constant = images.flatten(1)[:, :10]
            return torch.stack([constant, 3 * constant]), "state"
    return Steps()

def raises():
    1 / 0

def no_module():
    return torch.zeros

def wide():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 11))

def flat():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 1), nn.Flatten(0))

def narrow():
    return nn.Sequential(nn.Flatten(), nn.Linear(63, 10))

class Later(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
    def forward(self, images):
        self.calls += 1
        if self.calls > 3:
            raise ValueError("enough")
        return images.flatten(1)[:, :10]
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A working directory with the teacher's file."""
    monkeypatch.chdir(tmp_path)
    Path("teacher.py").write_text(SOURCE)
    return tmp_path


@pytest.fixture(scope="module")
def data():
    """Every fourth digit."""
    whole = datasets.load("digits")
    parts = ("train_images", "train_labels", "test_images", "test_labels")
    return replace(whole, **{part: getattr(whole, part)[::4] for part in parts})


def tiny(**changes):
    short = {"epochs": 2, "batch_size": 32, "time_steps": 4, "threads": 1, "init": "firing"}
    return Config(method="dense", **{**short, "teacher": TEACHER, **changes})


def line_of(words):
    """Return the number of the line of the teacher's file that has these words."""
    return next(i for i, line in enumerate(SOURCE.splitlines(), 1) if words in line)


def module(function="trained"):
    offered = {"input_shape": (1, 8, 8), "classes": 10}
    return reference.call_function("teacher", f"teacher.py:{function}", **offered).eval()


def test_a_student_learns_the_labels_of_the_teacher_rather_than_its_own(data):
    """The teacher is a random linear classifier, which knows nothing of digits."""
    changes = {"epochs": 20, "lr": 1e-2}
    agreement = {}
    for weight in (0.0, 0.99):
        training_of = tiny(teacher_weight=weight, **changes)
        result = fit(training_of, data=data)
        images, labels = next(prepare(training_of, data).test.epoch(0))
        with torch.no_grad():
            found = forward_of(result.model.eval())(images).mean(0).argmax(1)
            taught = module()(images).argmax(1)
        agreement[weight] = [float((found == x).float().mean()) for x in (labels, taught)]
    assert agreement[0.0][0] > 0.8 > 0.4 > agreement[0.0][1]
    assert agreement[0.99][1] > 0.6 > 0.4 > agreement[0.99][0]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_its_output_are_logits_under_the_precision_of_the_run(data, precision):
    """In evaluation mode, without the rate scale of the student, on the student's images."""
    config = tiny(teacher_weight=0.75, rate_scale=3.0, precision=precision, centre=0.25)
    training = prepare(config, data)
    images, labels = next(training.train.epoch(0))
    half = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")
    with torch.no_grad(), half:
        output, taught = training.model(images), module()(images)
    assert taught.dtype == (torch.bfloat16 if precision == "bf16" else torch.float32)
    assert torch.equal(training.teach(images), taught.float())
    wanted = 0.25 * ce_rate(output, labels, 3.0)
    wanted += 0.75 * distillation_loss(3.0 * output.float().mean(0), taught.float())
    assert training.step(images, labels).item() == pytest.approx(wanted.item(), rel=1e-5)


def test_outputs_over_time_are_averaged_and_of_a_tuple_the_first_is_taken(data):
    training = prepare(tiny(teacher="teacher.py:over_time"), data)
    images, _ = next(training.train.epoch(0))
    torch.testing.assert_close(training.teach(images), 2 * images.flatten(1)[:, :10])


def test_data_over_time_are_shown_to_it_with_their_time_steps():
    Path("linear.py").write_text(
        "from torch import nn\n"
        "def build(input_shape, classes): return nn.Linear(input_shape[0], classes)\n"
    )
    flags = {"teacher": "linear.py:build", "epochs": "1", "method": "dense", "threads": "1"}
    training = prepare(resolve("braille", flags=flags))
    images, _ = next(training.train.epoch(0))
    taught = training.teach(images)
    assert images.ndim == 3
    assert taught.shape == (images.shape[1], len(datasets.load("braille").classes))


def test_convolutions_have_the_memory_layout_of_the_run(data):
    training = prepare(tiny(teacher="teacher.py:convolution", channels_last=True), data)
    images, labels = next(training.train.epoch(0))
    assert torch.isfinite(training.step(images, labels))


def test_every_step_calls_it_once_outside_of_what_a_graph_captures(data):
    """With another number of time steps of the student, the graph is captured a second time."""
    training = prepare(tiny(early_time_steps=(2,), early=(0.5,), dropout=0.0), data)
    calls, batches, seen = [], [], []
    teacher, compute = training.teacher, training.compute
    training.teacher = lambda images: calls.append(len(batches)) or teacher(images)

    def captured(*batch):
        batches.append(batch)
        seen.append(training.model.time_steps)
        return compute(*batch)

    training.compute = captured
    for training.position.epoch in range(2):
        training.position.batch = 0
        for images, labels in training.train.epoch(training.position.epoch):
            training.step(images, labels)
    assert calls == list(range(training.total_steps))  # before the batch is computed
    assert seen == [2] * (training.total_steps // 2) + [4] * (training.total_steps // 2)
    images, _, expected = batches[-1]
    torch.testing.assert_close(expected, module()(images))


def test_a_resumed_run_ends_bit_identically(data):
    config = tiny(dropout=0.2)
    whole = fit(config, "whole", data=data).model.state_dict()
    with pytest.raises(Interrupted):
        fit(config, "part", data=data, progress=lambda event: getattr(event, "step", 0) == 5)
    again = RunDir("part").config({"teacher": TEACHER})
    resumed = fit(again, "part", data=data, resume=True).model.state_dict()
    assert all(torch.equal(whole[key], resumed[key]) for key in whole)


# ---------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("train", ("function of teacher.py", "'train'", "did you mean 'trained'?")),
        (
            "raises",
            (f"teacher.py:{line_of('1 / 0')}: ZeroDivisionError: division by zero",),
        ),
        ("no_module", ("what teacher.py:no_module returns: 'builtin_function", "a module")),
        ("wide", ("teacher: shape of its output: (1, 2, 11)", "[2, 10] for 2 samples")),
        ("flat", ("teacher: ", "shape of its output: (2,)", "[batch, classes]")),
        ("narrow", ("teacher: teacher.py: RuntimeError: mat1 and mat2",)),
    ],
)
def test_a_mistake_is_one_line(data, function, words):
    message = refused(lambda: prepare(tiny(teacher=f"teacher.py:{function}"), data), *words)
    assert message.startswith("teacher: ")


def test_a_teacher_that_fails_in_a_later_step_is_one_line(data):
    wrong = tiny(teacher="teacher.py:Later")
    place = f"teacher.py:{line_of('enough')}"
    refused(lambda: fit(wrong, data=data), f"teacher: {place}: ValueError: enough")


def test_its_time_steps_are_its_own_and_it_is_not_executed_to_say_so(data):
    wrong = tiny(teacher_time_steps=2)
    refused(lambda: prepare(wrong, data), "teacher_time_steps: 2", "a network of your own")
    assert not Path("executed").exists()


# ---------------------------------------------------------------------- what is executed

WORDS = ("--dataset", "digits", "--method", "dense", "--epochs", "2", "--batch-size", "256")


def forget():
    """Forget that the file was executed, as a new process does."""
    Path("executed").unlink()
    reference._modules.clear()


def test_only_a_flag_makes_a_command_execute_it(call):
    Path("mine.toml").write_text(f'teacher = "{TEACHER}"\n')
    named = resolve("digits", flags={"teacher": TEACHER, "method": "dense", "threads": "1"})
    with pytest.raises(Interrupted):
        fit(named, "run", progress=lambda event: True)
    forget()
    for command in (
        ("train", "--config", "mine.toml", *WORDS, "--out", "new"),
        ("train", "--config", "run/config.toml", "--out", "new"),
        ("train", "--resume", "run"),
    ):
        code, _, errors = call(*command)
        assert code == 2, command
        (line,) = errors.strip().splitlines()
        assert line.endswith(f"is executed only if you name it too; add --teacher {TEACHER}")
        assert not Path("executed").exists(), command
        assert not Path("new").exists()
    named = ("--teacher", TEACHER, "--threads", "1")
    assert call("train", "--config", "mine.toml", *WORDS, *named, "--out", "new")[0] == 0
    assert Path("executed").exists()


def test_a_run_is_resumed_only_with_the_same_file_named_again(call):
    own = {"teacher": TEACHER, "method": "dense", "epochs": "2", "batch_size": "256"}
    named = resolve("digits", flags=own | {"threads": "1"})
    with pytest.raises(Interrupted):
        fit(named, "run", progress=lambda event: getattr(event, "step", 0) == 3)
    assert json.loads(Path("run/env.json").read_text())["files"]["teacher"]["path"] == "teacher.py"
    resume = ("train", "--resume", "run", "--teacher")
    assert "teacher" in call(*resume, "teacher.py:convolution")[2]  # another one than the run's
    assert call(*resume, "zoo:digits-5")[0] == 2
    Path("teacher.py").write_text(SOURCE + "\n# changed\n")
    code, _, errors = call(*resume, TEACHER)
    assert (code, "teacher: teacher.py has changed since the run started" in errors) == (2, True)
    Path("teacher.py").write_text(SOURCE)
    assert call(*resume, TEACHER)[0] == 0
    assert RunDir("run").finished


def test_a_trained_student_needs_no_teacher(call):
    assert call("train", *WORDS, "--threads", "1", "--teacher", TEACHER, "--out", "run")[0] == 0
    forget()
    Path("teacher.py").unlink()
    assert call("eval", "run")[0] == 0
    assert call("export", "run")[0] == 0
    assert call("report", "run", "-o", "page.html")[0] == 0
    whole = export_run("run", check_images=1000).accuracy_before  # all 360
    assert whole == pytest.approx(evaluate_run("run").accuracy)
    more = ("--epochs", "1", "--batch-size", "256", "--threads", "1")
    assert call("train", "--teacher", "run", "--method", "dense", *more, "--out", "b")[0] == 0
    assert call("train", "--start", "run", "--method", "dense", *more, "--out", "c")[0] == 0
    assert not Path("executed").exists()


def test_a_config_made_in_python_is_the_users_own_word(data):
    assert isinstance(module(), nn.Module)
    assert prepare(tiny(), data).own_teacher
