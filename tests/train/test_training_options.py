"""What a recipe adds to the plain loop: smoothing, averaging, a teacher, fewer time steps early."""

import math
from dataclasses import replace

import pytest
import torch
from refusal import refused
from spikingjelly.activation_based import functional
from torch import nn

from spikewire import data as datasets
from spikewire.cli import main
from spikewire.config import Config, resolve
from spikewire.deploy import export_run
from spikewire.formats import packed
from spikewire.nn.losses import LOSSES, ce_rate
from spikewire.nn.models import MODELS, Model
from spikewire.pruning.masks import connectivity
from spikewire.runs.rundir import RunDir
from spikewire.runtime.model import Runtime
from spikewire.train.averaging import WeightAverage
from spikewire.train.distillation import distillation_loss
from spikewire.train.evaluate import evaluate_run
from spikewire.train.loop import Step, end_epoch, fit, prepare
from spikewire.train.telemetry import Telemetry

torch.set_num_threads(1)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def data():
    """Every eighth digit: 5 steps per epoch at the batch size used here."""
    whole = datasets.load("digits")
    return replace(
        whole,
        train_images=whole.train_images[::8],
        train_labels=whole.train_labels[::8],
        test_images=whole.test_images[::8],
        test_labels=whole.test_labels[::8],
    )


def tiny(method="deepr", **changes):
    options = {"connectivity": 0.2} if method != "dense" else {}
    values = {"epochs": 3, "batch_size": 32, "time_steps": 4, "threads": 1, "init": "firing"}
    return Config(method=method, **{"options": options, **values, **changes})


def stop_at(step):
    def progress(event):
        return isinstance(event, Step) and event.step == step

    return progress


def resumes_bit_equal(config, data, folder, *stops):
    """Compare a run stopped after each of `stops` with one never stopped."""
    fit(config, folder / "whole", data=data)
    for number, step in enumerate(stops):
        with pytest.raises(KeyboardInterrupt):
            fit(config, folder / "cut", data=data, resume=number > 0, progress=stop_at(step))
    fit(config, folder / "cut", data=data, resume=True)
    one, two = ((folder / run / "model.safetensors").read_bytes() for run in ("whole", "cut"))
    assert one == two


# ---------------------------------------------------------------------- label smoothing


@pytest.mark.parametrize("name", LOSSES)
def test_smoothing_spreads_a_share_of_the_target_over_all_classes(name):
    time_steps, batch, classes, share, scale = 3, 4, 5, 0.3, 2.0
    output = torch.rand(time_steps, batch, classes, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([0, 4, 2, 2])
    aim = [
        [(1 - share) * (k == label) + share / classes for k in range(classes)]
        for label in labels.tolist()
    ]

    def entropy(logits, n):
        total = math.log(sum(math.exp(scale * x) for x in logits))
        return sum(aim[n][k] * (total - scale * x) for k, x in enumerate(logits))

    rate = output.mean(0).tolist()
    wanted = {
        "mse-rate": sum((rate[n][k] - aim[n][k]) ** 2 for n in range(batch) for k in range(classes))
        / (batch * classes),
        "ce-rate": sum(entropy(rate[n], n) for n in range(batch)) / batch,
        "ce-per-step": sum(
            entropy(output[t, n].tolist(), n) for t in range(time_steps) for n in range(batch)
        )
        / (time_steps * batch),
    }[name]
    assert LOSSES[name](output, labels, scale, share).item() == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("name", LOSSES)
def test_shares_of_classes_are_labels_too(name):
    generator = torch.Generator().manual_seed(0)
    output, labels = torch.rand(3, 4, 5, generator=generator), torch.tensor([0, 4, 2, 2])
    loss, whole = LOSSES[name], nn.functional.one_hot(labels, 5).float()
    for smoothing in (0.0, 0.2):
        one = loss(output, labels, 10.0, smoothing)
        torch.testing.assert_close(loss(output, whole, 10.0, smoothing), one)
    half = loss(output, (whole + whole.roll(1, 1)) / 2, 10.0, 0.0)
    if name != "mse-rate":  # cross entropy is linear in the labels
        other = loss(output, (labels + 1) % 5, 10.0, 0.0)
        torch.testing.assert_close(half, (loss(output, labels, 10.0, 0.0) + other) / 2)


def test_training_is_smoothed_and_the_test_is_not(tmp_path):
    config = tiny("dense", epochs=1, label_smoothing=0.4)
    training = prepare(config)
    images, labels = next(training.train.epoch(0))
    smooth = ce_rate(training.model(images), labels, config.rate_scale, 0.4).item()
    assert training.step(images, labels).item() == pytest.approx(smooth, rel=1e-6)
    result = fit(config, tmp_path / "run")
    assert result.history[-1]["test_loss"] == evaluate_run(tmp_path / "run").loss


# ---------------------------------------------------------------------- averaging


def test_the_mean_follows_its_formula_and_the_masks():
    model = nn.Linear(3, 2)
    average = WeightAverage(model, 0.75)
    values = [p.detach().double().clone() for p in model.parameters()]
    for _ in range(4):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        average.update()
        values = [
            0.75 * a + 0.25 * p.detach() for a, p in zip(values, model.parameters(), strict=True)
        ]
    mask = torch.tensor([[True, False, True], [False, True, True]])
    average.install_({"weight": mask})
    torch.testing.assert_close(model.weight.double(), values[0] * mask, rtol=1e-6, atol=1e-6)
    assert not model.weight[~mask].any()
    torch.testing.assert_close(model.bias.double(), values[1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("method", ["deepr", "gradr", "budget"])
def test_a_run_ends_with_the_mean_of_what_the_network_saw_under_the_last_masks(data, method):
    training = prepare(tiny(method, average=0.8), data)
    means = {name: p.detach().double().clone() for name, p in training.model.named_parameters()}
    for epoch in range(3):
        for images, labels in training.train.epoch(epoch):
            training.step(images, labels)
            for name, parameter in training.model.named_parameters():
                means[name].mul_(0.8).add_(parameter.detach().double(), alpha=0.2)
        training.position.epoch, training.position.batch = epoch + 1, 0
    masks = training.finish()
    weights = dict(training.model.named_parameters())
    assert connectivity(masks) == pytest.approx(0.2, abs=1e-3)
    for name, mask in masks.items():
        wanted = means[name] * mask
        torch.testing.assert_close(weights[name].double(), wanted, rtol=1e-5, atol=1e-6)
        assert not weights[name][~mask].any()


def small_conv(neuron, dropout):
    return {
        "conv1": nn.Conv2d(1, 3, 3, bias=False),
        "bn1": nn.BatchNorm2d(3, momentum=0.2),
        "lif1": neuron(),
        "flatten": nn.Flatten(),
        "fc1": nn.Linear(108, 10, bias=False),
        "lif2": neuron(),
    }


def test_batch_norm_gets_the_plain_mean_over_batches(data, monkeypatch):
    monkeypatch.setitem(MODELS, "digits-mlp", Model(small_conv, (1, 8, 8)))
    model = fit(tiny("dense", epochs=1, average=0.5, augment=()), data=data).model
    images = [images for images, _ in prepare(tiny("dense", augment=()), data).train.epoch(0)]
    with torch.no_grad():
        inputs = [model.conv1(batch).transpose(0, 1).flatten(1) for batch in images]
    mean = sum(x.mean(1) for x in inputs) / len(inputs)
    variance = sum(x.var(1, unbiased=True) for x in inputs) / len(inputs)
    torch.testing.assert_close(model.bn1.running_mean, mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(model.bn1.running_var, variance, rtol=1e-5, atol=1e-6)
    assert model.bn1.momentum == 0.2


STATEFUL = """
from spikingjelly.activation_based import functional, layer, neuron
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.if1 = layer.Linear(64, 20), neuron.IFNode(v_threshold=3.0)
        self.fc2, self.bn, self.if2 = layer.Linear(20, 10), nn.BatchNorm1d(10), neuron.IFNode()
        functional.set_step_mode(self, "m")
    def forward(self, x):
        currents = self.fc2(self.if1(self.fc1(x.flatten(1).expand(3, -1, -1))))
        return self.if2(self.bn(currents.flatten(0, 1)).unflatten(0, (3, -1)))

def build():
    return Net()
"""


def test_batch_norm_of_a_mean_sees_neurons_that_are_reset_before_every_batch(tmp_path, data):
    (tmp_path / "stateful.py").write_text(STATEFUL)
    own = f"{tmp_path / 'stateful.py'}:build"
    config = tiny("dense", epochs=1, average=0.5, augment=(), model=own, init="default")
    model = fit(config, data=data).model
    images = [images for images, _ in prepare(config, data).train.epoch(1)]
    assert not model._forward_pre_hooks
    means = []
    with torch.no_grad():
        for batch in images:
            functional.reset_net(model)
            x = model.if1(model.fc1(batch.flatten(1).expand(3, -1, -1)))
            means.append(model.fc2(x).flatten(0, 1).mean(0))
    torch.testing.assert_close(model.bn.running_mean, sum(means) / len(means))


@pytest.mark.parametrize("method", ["deepr", "gradr"])
def test_a_run_with_a_mean_resumes_bit_equal(tmp_path, data, method):
    config = tiny(method, average=0.9, dropout=0.2)
    resumes_bit_equal(config, data, tmp_path, 2, 8, 15)
    plain = fit(tiny(method, dropout=0.2), data=data).model.state_dict()["fc1.weight"]
    assert not RunDir(tmp_path / "cut").load_model()[0]["fc1.weight"].equal(plain)


# ---------------------------------------------------------------------- a teacher


def test_the_distillation_loss_is_the_scaled_divergence():
    generator = torch.Generator().manual_seed(2)
    student, taught = 6 * torch.rand(2, 4, 5, generator=generator)
    total = 0.0
    for n in range(4):
        p, q = ([math.exp(x / 2.0) for x in logits[n].tolist()] for logits in (taught, student))
        p, q = ([x / sum(values) for x in values] for values in (p, q))
        total += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    assert distillation_loss(student, taught).item() == pytest.approx(4 * total / 4, rel=1e-5)
    assert distillation_loss(taught, taught).item() == pytest.approx(0, abs=1e-6)


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    """A dense network that knows its digits."""
    run = tmp_path_factory.mktemp("teacher") / "run"
    result = fit(tiny("dense", epochs=8, lr=1e-2), run)
    assert result.accuracy > 0.9
    return run


def test_a_step_mixes_labels_and_distillation(taught):
    """Each with time steps, a scale and a centre of its own."""
    config = tiny("dense", teacher=str(taught), teacher_weight=0.75, time_steps=2, rate_scale=3.0)
    config.centre = 0.25
    training = prepare(config)
    images, labels = next(training.train.epoch(0))
    with torch.no_grad():
        output = training.model(images)
        teacher = prepare(RunDir.open(taught).config()).model
        teacher.load_state_dict(RunDir.open(taught).load_model()[0])
        rates = teacher.eval()(images + 0.25)
    assert (len(output), len(rates)) == (2, 4)
    wanted = 0.25 * ce_rate(output, labels, 3.0)
    wanted += 0.75 * distillation_loss(3.0 * output.mean(0), 10.0 * rates.mean(0))
    assert training.step(images, labels).item() == pytest.approx(wanted.item(), rel=1e-5)


@pytest.mark.parametrize("name", ["run", "zoo:digits-5"])
def test_a_teacher_runs_for_fewer_time_steps_than_in_its_tests(taught, name):
    path = str(taught) if name == "run" else name
    images, labels = next(prepare(tiny("dense")).train.epoch(0))
    steps = {"all": 0, "own": 4, "two": 2}
    found = {
        key: prepare(tiny("dense", teacher=path, teacher_time_steps=n)).step(images, labels).item()
        for key, n in steps.items()
    }
    assert found["all"] == found["own"] != found["two"]


def test_time_steps_of_a_teacher_need_a_teacher_and_images():
    refused(lambda: tiny(teacher_time_steps=2), "teacher_time_steps: 2", "0 without a teacher")
    refused(lambda: tiny(teacher_weight=0.9), "teacher_weight: 0.9", "without a teacher")
    flags = {"teacher": "zoo:braille-10", "teacher_time_steps": "2"}
    recurrent = resolve("braille", flags=flags)
    message = refused(lambda: prepare(recurrent), "teacher_time_steps: 2", "data over time")
    assert message.startswith("teacher_time_steps")


def test_a_student_learns_from_its_teacher_alone(taught):
    """The labels are shuffled, so what it knows it has from the teacher."""
    digits = datasets.load("digits")
    order = torch.randperm(len(digits.train_labels), generator=torch.Generator().manual_seed(0))
    digits = replace(digits, train_labels=digits.train_labels[order])
    changes = {"epochs": 6, "lr": 1e-2, "teacher": str(taught)}
    student = fit(tiny(teacher_weight=0.95, **changes), data=digits)
    other = fit(tiny(teacher_weight=0.0, **changes), data=digits)
    assert student.accuracy > 0.7
    assert other.accuracy < 0.4


def test_the_flag_trains_against_a_teacher(taught, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["train", "--epochs", "1", "--batch-size", "256", "--threads", "1"]
    assert main([*words, "--out", "alone"]) == 0
    assert main([*words, "--out", "run", "--teacher", str(taught)]) == 0
    assert RunDir("run").config().teacher == str(taught)
    loss, alone = (RunDir(run).history()[-1]["loss"] for run in ("run", "alone"))
    assert loss != alone
    capsys.readouterr()
    assert main([*words, "--out", "x", "--teacher", "nobody"]) == 2
    error = capsys.readouterr().err
    assert error == "spikewire: --teacher: nobody: does not exist\n"
    assert not (tmp_path / "x").exists()


def test_a_teacher_that_cannot_teach_is_refused_in_one_line(taught, data, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        fit(tiny(), tmp_path / "cut", data=data, progress=stop_at(1))
    refused(lambda: prepare(tiny(teacher=str(tmp_path / "cut"))), "teacher: ", "does not exist")
    other = RunDir.create(tmp_path / "other", tiny(model="lenet5"), CPU)
    other.save_model(*RunDir(taught).load_model())
    refused(lambda: prepare(tiny(teacher=str(other.path))), "teacher: model: 'lenet5'")
    unfit = RunDir.create(tmp_path / "unfit", tiny(), CPU)
    unfit.save_model({"fc1.weight": torch.ones(2, 2)}, {})
    refused(lambda: prepare(tiny(teacher=str(unfit.path))), "teacher: ", "do not fit")


# ---------------------------------------------------------------------- centre


def test_a_centre_is_taken_from_what_the_network_sees(data):
    plain, centred = (prepare(tiny(centre=centre), data) for centre in (0.0, 0.25))
    for one, other in ((plain.train, centred.train), (plain.test, centred.test)):
        (images, _), (lower, _) = next(one.epoch(0)), next(other.epoch(0))
        torch.testing.assert_close(images - 0.25, lower, rtol=0, atol=1e-6)


def test_whoever_opens_a_run_knows_its_centre(tmp_path):
    result = fit(tiny("budget", centre=0.25, reset="soft", neuron="if"), tmp_path)
    assert evaluate_run(tmp_path).accuracy == result.accuracy
    file = export_run(tmp_path).path
    network = packed.read(file)
    assert network.mean == (0.25,)
    assert {stage.neuron.reset for stage in network.stages if stage.neuron} == {"soft"}
    digits = datasets.load("digits")
    runtime = Runtime(network)
    found = runtime(runtime.normalise(digits.test_images)).mean(0).argmax(1)
    assert float((found == digits.test_labels).float().mean()) == pytest.approx(
        result.accuracy, abs=0.02
    )


# ---------------------------------------------------------------------- normalisation


def test_other_constants_replace_those_of_the_data_set(data):
    plain, other = (
        prepare(tiny(**c), data) for c in ({}, {"pixel_mean": (0.5,), "pixel_std": (0.25,)})
    )
    for one, two in ((plain.train, other.train), (plain.test, other.test)):
        (images, _), (seen, _) = next(one.epoch(0)), next(two.epoch(0))
        torch.testing.assert_close((images - 0.5) / 0.25, seen, rtol=0, atol=1e-5)


def test_constants_are_exported_and_must_fit(data, taught, tmp_path):
    fit(tiny("budget", epochs=1, pixel_mean=(0.5,), pixel_std=(0.25,)), tmp_path / "a", data=data)
    network = packed.read(export_run(tmp_path / "a").path)
    assert (network.mean, network.std) == ((0.5,), (0.25,))
    refused(
        lambda: prepare(tiny(pixel_mean=(0.5, 0.5)), data),
        "pixel_mean: (0.5, 0.5)",
        "per channel: 1",
    )
    refused(
        lambda: prepare(tiny(pixel_mean=(0.5,), teacher=str(taught))), "teacher: ", "normalised as"
    )
    refused(lambda: Config(batchnorm="per-step", sync_batchnorm=True), "batchnorm: 'per-step'")


# ---------------------------------------------------------------------- BatchNorm per time step


def test_a_run_with_batchnorm_per_step_updates_once_per_step_and_is_exported(
    data, tmp_path, monkeypatch
):
    monkeypatch.setitem(MODELS, "digits-mlp", Model(small_conv, (1, 8, 8)))
    result = fit(tiny(epochs=1, batchnorm="per-step"), tmp_path, data=data)
    tracked = result.model.bn1.num_batches_tracked
    assert tracked == 4 * 5  # time steps x iterations
    images = data.test_images / 255
    runtime = Runtime(packed.read(export_run(tmp_path).path))
    with torch.no_grad():
        expected = result.model.eval()(images)
    assert (runtime(images) == expected).float().mean() > 0.99


# ---------------------------------------------------------------------- early time steps


def test_a_start_gives_its_weights_and_is_not_needed_again(taught, data, tmp_path):
    folder = RunDir.open(taught)
    weights, _ = folder.load_model()
    config = tiny("budget", start=str(taught), init="firing")
    begun = prepare(config, data).model.state_dict()
    assert all(torch.equal(begun[name], weights[name]) for name in weights)
    gone = tiny(start=str(tmp_path / "gone"))
    refused(lambda: prepare(gone, data), "start: ", "gone: does not exist")
    prepare(gone, data, fresh=False)  # as a resume does


def test_deep_r_from_a_trained_network_starts_with_its_largest_weights(taught, data):
    weights, _ = RunDir.open(taught).load_model()
    kept = prepare(tiny("deepr", start=str(taught)), data).pruner.masks()
    assert all(
        weights[k].abs()[mask].min() >= weights[k].abs()[~mask].max() for k, mask in kept.items()
    )
    drawn = prepare(tiny("deepr"), data).pruner.masks()
    assert not any(torch.equal(drawn[k], mask) for k, mask in kept.items())


def test_epochs_between_tests_have_no_accuracy(data, tmp_path, capsys):
    shown = fit(tiny(epochs=5, test_every=2), tmp_path / "run", data=data).history
    assert [row["accuracy"] is None for row in shown] == [True, False, True, False, False]
    assert [row["test_loss"] is None for row in shown] == [True, False, True, False, False]
    plain = fit(tiny(epochs=5), data=data).history  # a test changes nothing
    assert plain[-1]["accuracy"] == shown[-1]["accuracy"]
    assert [row["loss"] for row in plain] == [row["loss"] for row in shown]


def test_the_early_part_has_fewer_time_steps_and_the_test_has_all(data):
    training = prepare(tiny(early_time_steps=2, early=0.5, time_steps=5), data)
    seen = []
    training.model.register_forward_hook(
        lambda model, _, output: seen.append((model.training, len(output)))
    )
    for epoch in range(3):
        training.model.train()
        for images, labels in training.train.epoch(epoch):
            training.step(images, labels)
        end_epoch(training, Telemetry(100, 100), last=False)
        training.position.epoch, training.position.batch = epoch + 1, 0
    assert [steps for learning, steps in seen if learning] == [2] * 8 + [5] * 7  # 8 of 15: < 7.5
    assert {steps for learning, steps in seen if not learning} == {5}


@pytest.mark.parametrize(
    ("steps", "ends", "expected"),
    [
        ((1, 2), (0.2, 0.6), [1] * 3 + [2] * 6 + [5] * 6),
        ((3, 0), (0.4, 0.8), [3] * 6 + [5] * 9),
        ((2,), (0.0,), [5] * 15),
    ],
)
def test_several_early_parts_follow_each_other(data, steps, ends, expected):
    training = prepare(tiny(early_time_steps=steps, early=ends, time_steps=5), data)
    found = []
    for step in range(15):
        training.position.epoch, training.position.batch = divmod(step, 5)
        found.append(training.time_steps())
    assert found == expected


def test_the_end_is_measured_with_all_time_steps(data):
    """Even where the early part ends with the run, so that no step had them all."""
    config = tiny(early_time_steps=1, early=0.99, time_steps=6, average=0.9)
    training = prepare(config, data)
    training.position.epoch, training.position.batch = 2, 4
    training.step(*next(training.train.epoch(2, start=4)))
    assert training.model.time_steps == 1
    training.finish()
    assert training.model.time_steps == 6


def test_a_stop_on_either_side_of_the_switch_resumes_bit_equal(tmp_path, data):
    config = tiny("gradr", early_time_steps=2, early=0.5, average=0.9)
    resumes_bit_equal(config, data, tmp_path, 7, 8, 9)
