import json
import math
import os
import signal
import threading

import pytest
import torch
from torch.nn import functional

from spikewire import data as datasets
from spikewire.config import Config, method_fields, resolve
from spikewire.errors import SpikewireError
from spikewire.methods import METHODS
from spikewire.nn.losses import LOSSES, ce_per_step, ce_rate, count_correct, mse_rate
from spikewire.runs.rundir import RunDir
from spikewire.schedules import RATES, constant, cosine, cubic, stairs
from spikewire.train.build import build_optimizer
from spikewire.train.build import test_batches as eval_batches
from spikewire.train.evaluate import evaluate, evaluate_run
from spikewire.train.finite import Diverged
from spikewire.train.loop import Epoch, Step, fit, prepare, threads
from spikewire.train.signals import Interrupted, deferred_signals


def test_settings_that_are_no_config_are_refused_in_one_line():
    for wrong in ("digits", {"epochs": 3}):
        with pytest.raises(SpikewireError, match=r"^config: .* it must be a Config, such as"):
            fit(wrong)


@pytest.fixture(scope="module")
def data():
    """Every eighth digit: 5 steps per epoch at the batch size used here."""
    whole = datasets.load("digits")
    return type(whole)(
        name="digits",
        train_images=whole.train_images[::8],
        train_labels=whole.train_labels[::8],
        test_images=whole.test_images[::8],
        test_labels=whole.test_labels[::8],
        classes=whole.classes,
        mean=whole.mean,
        std=whole.std,
    )


def tiny(method="gradr", **changes):
    given = {"connectivity": 0.2} if "connectivity" in method_fields(method) else {}
    values = {"epochs": 3, "batch_size": 32, "time_steps": 4, "threads": 1, "dropout": 0.2}
    settings = {"init": "firing", "augment": ("shift:1",), "warmup": 0.1, **values, **changes}
    return Config(method=method, **{"options": given, **settings})


def stop_at(step):
    def progress(event):
        return isinstance(event, Step) and event.step == step

    return progress


FIGURES = ("epoch", "step", "accuracy", "connectivity", "loss", "test_loss", "lr")


def same(first, second):
    """Compare two runs by the network and the figures they leave behind."""
    assert (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()
    one, two = (
        [[row[key] for key in FIGURES] for row in RunDir(run).history()] for run in (first, second)
    )
    assert one == two


# ---------------------------------------------------------------------- resume


@pytest.mark.parametrize("method", METHODS)
def test_a_resumed_run_ends_like_one_never_stopped(tmp_path, data, method):
    config = tiny(method)
    steps = prepare(config, data).total_steps
    fit(config, tmp_path / "whole", data=data)
    stops = [2, steps // 2, steps]  # in the first epoch, in the middle, after the last step
    for number, step in enumerate(stops):
        with pytest.raises(KeyboardInterrupt):
            fit(config, tmp_path / "cut", data=data, resume=number > 0, progress=stop_at(step))
    torch.rand(7)  # whatever happens to torch's own generator between the runs does not matter
    fit(RunDir(tmp_path / "cut").config(), tmp_path / "cut", data=data, resume=True)
    same(tmp_path / "whole", tmp_path / "cut")


def test_a_stop_between_two_epochs_resumes_too(tmp_path, data):
    def after_epoch(event):
        return isinstance(event, Epoch) and event.row["epoch"] == 2

    config = tiny(checkpoint_every=3, optimizer="sgd", schedule="constant", lr=0.1)
    fit(config, tmp_path / "whole", data=data)
    with pytest.raises(KeyboardInterrupt):
        fit(config, tmp_path / "cut", data=data, progress=after_epoch)
    fit(config, tmp_path / "cut", data=data, resume=True)
    same(tmp_path / "whole", tmp_path / "cut")


def test_a_crash_resumes_from_the_last_checkpoint(tmp_path, data):
    def crash(event):
        if isinstance(event, Step) and event.step == 8:
            raise ZeroDivisionError

    config = tiny(optimizer="rmsprop")
    fit(config, tmp_path / "whole", data=data)
    with pytest.raises(ZeroDivisionError):
        fit(config, tmp_path / "cut", data=data, progress=crash)
    RunDir(tmp_path / "cut").append({"epoch": 2, "accuracy": 0.0})
    fit(config, tmp_path / "cut", data=data, resume=True)
    same(tmp_path / "whole", tmp_path / "cut")


def test_a_signal_waits_for_the_end_of_the_step(tmp_path, data):
    seen = []

    def progress(event):
        seen.append(event)
        if len(seen) == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    config = tiny()
    with pytest.raises(Interrupted) as caught:
        fit(config, tmp_path / "run", data=data, progress=progress)
    assert caught.value.number == signal.SIGTERM
    assert seen[-1].step == 3
    assert RunDir(tmp_path / "run").load_checkpoint(config)["position"]["batch"] == 3
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_ctrl_c_is_not_deferred():
    with deferred_signals() as received:
        assert received.first is None
        os.kill(os.getpid(), signal.SIGINT)
        assert received.first == signal.SIGINT
        with pytest.raises(Interrupted):
            os.kill(os.getpid(), signal.SIGINT)


def test_sigterm_may_come_twice_as_it_does_when_a_parent_dies():
    with deferred_signals() as received:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert received.first == signal.SIGTERM


def test_fit_runs_outside_the_main_thread(data):
    results = []
    thread = threading.Thread(target=lambda: results.append(fit(tiny(epochs=1), data=data)))
    thread.start()
    thread.join()
    assert len(results) == 1


def test_a_finished_run_and_a_missing_run_are_refused(tmp_path, data):
    config = tiny(epochs=1)
    fit(config, tmp_path / "run", data=data)
    with pytest.raises(SpikewireError, match="has already finished; there is nothing to resume"):
        fit(config, tmp_path / "run", data=data, resume=True)
    with pytest.raises(SpikewireError, match="nothing: does not exist"):
        fit(config, tmp_path / "nothing", data=data, resume=True)
    with pytest.raises(SpikewireError, match="resume"):
        fit(config, data=data, resume=True)


# ---------------------------------------------------------------------- results of a run


def test_what_a_run_leaves_behind(tmp_path, data):
    events = []
    config = tiny("deepr", tensorboard=True)
    result = fit(config, tmp_path / "run", data=data, progress=events.append)
    rows = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    for row in rows:
        assert {*FIGURES, "seconds", "stats"} <= row.keys()
        assert 0 <= row["accuracy"] <= 1
        assert row["connectivity"] == pytest.approx(0.2, abs=1e-3)
        assert row["seconds"] > 0
        assert row["loss"] > 0
    assert result.history == rows
    assert result.accuracy == rows[-1]["accuracy"]
    assert result.connectivity == rows[-1]["connectivity"]
    assert result.target == 0.2
    assert result.seconds == pytest.approx(sum(row["seconds"] for row in rows))
    assert [event.step for event in events if isinstance(event, Step)] == list(range(1, 16))
    assert [event.row for event in events if isinstance(event, Epoch)] == rows
    (board,) = (tmp_path / "run" / "tensorboard").iterdir()
    assert b"accuracy" in board.read_bytes()


def test_the_saved_network_is_the_one_reported(tmp_path, data):
    config = tiny("deepr")
    result = fit(config, tmp_path / "run", data=data)
    weights, masks = RunDir(tmp_path / "run").load_model()
    for row in result.layers:
        mask, weight = masks[row["name"]], weights[row["name"]]
        assert row["shape"] == tuple(mask.shape)
        assert (row["present"], row["total"]) == (int(mask.sum()), mask.numel())
        assert row["nonzero"] == int((weight != 0).sum()) <= row["present"]
        assert not weight[~mask].any()
    result.model.eval()
    accuracy, loss = evaluate(
        result.model, eval_batches(config, data, torch.device("cpu")), ce_rate
    )
    assert (accuracy, loss) == (result.accuracy, result.history[-1]["test_loss"])


def test_evaluate_run_reads_the_run_alone(tmp_path):
    config = tiny(epochs=2)
    result = fit(config, tmp_path / "run")
    found = evaluate_run(tmp_path / "run")
    assert found.accuracy == result.accuracy
    assert found.loss == result.history[-1]["test_loss"]
    assert found.connectivity == result.connectivity
    assert found.layers == result.layers
    nonzero = sum(int(x.count_nonzero()) for x in result.model.parameters())
    assert found.nonzero == nonzero / sum(x.numel() for x in result.model.parameters())


def test_training_images_are_those_that_the_run_was_trained_on(tmp_path, digits):
    """`hold_out` chooses the same images every time, so its own are taken out first."""
    config = tiny("dense", epochs=3, hold_out=200)
    result = fit(config, tmp_path / "run")
    trained = digits.hold_out(200).hold_out(150)
    model = result.model.eval()
    batches = eval_batches(config, trained, torch.device("cpu"))
    accuracy, _ = evaluate(model, batches, ce_rate)
    assert evaluate_run(tmp_path / "run", train_images=150).accuracy == accuracy
    held, _ = evaluate(
        model, eval_batches(config, digits.hold_out(150), torch.device("cpu")), ce_rate
    )
    assert accuracy != held


def test_it_learns_and_the_seed_decides(data):
    easy = {"epochs": 12, "lr": 1e-2, "augment": (), "dropout": 0.0}
    first, again, other = (fit(tiny("dense", seed=x, **easy), data=data) for x in (0, 0, 1))
    assert first.history[-1]["loss"] < first.history[0]["loss"] / 2
    assert first.accuracy > 0.7
    states = [result.model.state_dict()["fc1.weight"] for result in (first, again, other)]
    assert states[0].equal(states[1])
    assert not states[0].equal(states[2])


def test_fit_leaves_the_thread_count_alone(data):
    before = torch.get_num_threads()
    with threads(before + 1):
        assert torch.get_num_threads() == before + 1
        fit(tiny(epochs=1, threads=1), data=data)
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_hold_out_tests_on_training_images():
    training = prepare(tiny(hold_out=100))
    assert len(training.test.labels) == 100
    assert len(training.train.labels) == 1337


@pytest.mark.parametrize("method", ["deepr", "gradr"])
def test_a_firing_start_is_no_silent_one(data, method):
    rates = {}
    for init in ("default", "firing"):
        training = prepare(tiny(method, init=init), data)
        with torch.no_grad():
            rates[init] = float(training.model(next(training.train.epoch(0))[0]).mean())
        assert training.pruner.connectivity() == pytest.approx(0.2, abs=1e-3) or method == "gradr"
    assert rates["default"] < 0.01 < rates["firing"]


@pytest.mark.parametrize(
    "changes", [{"precision": "bf16"}, {"channels_last": True, "readout": "current"}]
)
def test_options_of_the_arithmetic_train_too(data, changes):
    result = fit(tiny("dense", epochs=4, lr=1e-2, **changes), data=data)
    assert result.history[-1]["loss"] < result.history[0]["loss"]


def test_a_network_that_does_not_fit_is_refused(tmp_path):
    with pytest.raises(SpikewireError, match="model: 'mnist-mlp'"):
        fit(tiny(model="mnist-mlp"), tmp_path / "run")
    with pytest.raises(SpikewireError, match="augment: 40"):
        fit(tiny(augment=("shift:40",)), tmp_path / "run")
    with pytest.raises(SpikewireError, match="batch_size: 9999"):
        fit(tiny(batch_size=9999), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(SpikewireError, match="device: 'cuda'"):
        prepare(tiny(device="cuda"))


# ---------------------------------------------------------------------- divergence


def test_a_loss_that_is_not_finite_keeps_the_last_good_checkpoint(tmp_path, data):
    config = tiny("dense", readout="current", loss="mse-rate", lr=1e30, warmup=0.0)
    with pytest.raises(Diverged, match="loss is not finite at step 2 of 15; try a lower lr"):
        fit(config, tmp_path / "run", data=data)
    state = RunDir(tmp_path / "run").load_checkpoint(config)
    assert state["position"] == {"epoch": 0, "batch": 0, "loss_sum": 0.0, "seconds": 0.0}
    assert all(value.isfinite().all() for value in state["model"].values())


def test_weights_that_are_not_finite_do_not_hide_behind_bounded_spikes(tmp_path, data):
    config = tiny("dense", optimizer="sgd", lr=1e30, weight_decay=1.0, warmup=0.0)
    with pytest.raises(Diverged, match=r"fc\d.weight is not finite"):
        fit(config, tmp_path / "run", data=data)
    assert RunDir(tmp_path / "run").load_checkpoint(config)["position"]["epoch"] == 0
    assert RunDir(tmp_path / "run").history() == []


# ---------------------------------------------------------------------- losses, rates, optimizers


@pytest.fixture
def output():
    generator = torch.Generator().manual_seed(0)
    return torch.rand(5, 7, 3, generator=generator).round(), torch.arange(7) % 3


def test_losses_equal_their_formulas(output):
    spikes, labels = output
    rate = spikes.sum(0) / 5
    square = sum(
        (rate[n, k].item() - float(k == labels[n])) ** 2 for n in range(7) for k in range(3)
    )
    assert mse_rate(spikes, labels).item() == pytest.approx(square / 21, rel=1e-6)

    def entropy(logits, n):
        exponentials = [math.exp(4 * x) for x in logits[n].tolist()]
        return -math.log(exponentials[labels[n]] / sum(exponentials))

    mean = sum(entropy(rate, n) for n in range(7)) / 7
    assert ce_rate(spikes, labels, 4.0).item() == pytest.approx(mean, rel=1e-6)
    steps = sum(entropy(spikes[t], n) for t in range(5) for n in range(7)) / 35
    assert ce_per_step(spikes, labels, 4.0).item() == pytest.approx(steps, rel=1e-6)
    assert count_correct(spikes, labels) == (rate.argmax(1) == labels).sum()


@pytest.mark.parametrize("name", LOSSES)
def test_losses_compute_in_fp32_and_are_0_at_best(output, name):
    _, labels = output
    perfect = functional.one_hot(labels, 3).expand(5, 7, 3).to(torch.bfloat16)
    loss = LOSSES[name](perfect, labels, 50.0)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(0, abs=1e-6)


def test_rates_are_functions_of_progress():
    assert [constant(x) for x in (0, 0.5, 1)] == [1, 1, 1]
    assert [constant(x, 0.5) for x in (0, 0.25, 0.5, 1)] == [0, 0.5, 1, 1]
    assert [cosine(x) for x in (0, 0.5, 1)] == pytest.approx([1, 0.5, 0])
    assert [cosine(x, 0.2) for x in (0, 0.1, 0.2, 0.6, 1)] == pytest.approx([0, 0.5, 1, 0.5, 0])
    assert [cubic(x, 1.0, 0.2) for x in (-1, 0, 0.5, 1, 2)] == pytest.approx([1, 1, 0.3, 0.2, 0.2])
    steps = [stairs(step / 36_000) for step in (0, 2_499, 2_500, 5_001, 35_999)]
    assert steps == pytest.approx([1, 1, 0.8, 0.64, 0.8**14])
    assert RATES.keys() == {"constant", "cosine", "stairs"}


def test_the_rate_follows_the_step_and_starts_again_with_each_cycle(data):
    training = prepare(tiny("lottery", epochs=4, warmup=0.0, options={"rounds": 4}), data)
    rates = []
    for step in range(training.total_steps):
        training.position.epoch, training.position.batch = divmod(step, len(training.train))
        rates.append(training.learning_rate() / training.config.lr)
    assert rates == pytest.approx([cosine(i / 5) for _ in range(4) for i in range(5)])


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd", "rmsprop"])
def test_optimizers_are_built_as_configured(name):
    config = Config(optimizer=name, lr=0.125, momentum=0.75, weight_decay=0.25)
    optimizer = build_optimizer(config, torch.nn.Linear(2, 2))
    assert type(optimizer).__name__.lower() == name
    group = optimizer.param_groups[0]
    assert (group["lr"], group["weight_decay"]) == (0.125, 0.25)
    assert group.get("momentum", 0.75) == 0.75


@pytest.mark.slow
def test_the_digits_preset_is_as_good_as_it_says():
    flags = {"hold_out": "300", "seed": "1"}
    sparse = fit(resolve("digits", flags=flags))
    dense = fit(resolve("digits", flags={**flags, "method": "dense"}))
    assert sparse.connectivity <= 0.1
    assert sparse.accuracy >= dense.accuracy - 0.02
