"""Diehl & Cook's network: neurons against a loop, labels by hand; training, pruning, resume."""

import json
import math
import warnings
from dataclasses import replace

import pytest
import torch
from refusal import refused

from spikewire import METHODS, Budget, SpikewireError, export, plasticity
from spikewire.config import resolve
from spikewire.data import load
from spikewire.deploy import export_run
from spikewire.fields import defaults
from spikewire.plasticity import DiehlCook, LocalRule
from spikewire.plasticity.diehl_cook import Excitatory
from spikewire.plasticity.labels import Labels
from spikewire.runs.rundir import RunDir
from spikewire.train.evaluate import evaluate_run
from spikewire.train.loop import Interrupted, Step, fit
from spikewire.train.step import prepare

Constants = DiehlCook.Constants
FLAGS = {"dataset": "digits", "hidden": "40", "epochs": "3", "lr": "0.3", "time_steps": "30"}
FLAGS |= {"plasticity": "adaptation:2"}


def small(**constants):
    network = plasticity.build(
        "diehl-cook", input_shape=(1, 4, 4), classes=3, hidden=5, time_steps=12
    )
    network.constants = network.excitatory.constants = Constants(**constants)
    return network


def slow(current, theta, c):
    """The neurons one by one; who spikes is decided once per step."""
    time, batch, size = current.shape
    spikes = torch.zeros_like(current)
    for b in range(batch):
        u, blind = [0.0] * size, [0] * size
        for t in range(time):
            m = [
                math.exp(-c.dt / c.tau) * u[j] + (0.0 if blind[j] else float(current[t, b, j]))
                for j in range(size)
            ]
            over = [m[j] - c.base - theta[j] for j in range(size)]
            winner = max(range(size), key=lambda j: over[j])
            blind = [max(0, n - 1) for n in blind]
            if over[winner] >= 0:
                spikes[t, b, winner] = 1
                m = [c.reset if j == winner else m[j] - c.inhibition for j in range(size)]
                blind[winner] = round(c.refractory / c.dt)
            u = m
    return spikes


def test_a_latent_weight_of_the_power_law_gets_the_update_of_its_own_size():
    torch.manual_seed(3)
    pruned, dense = small(rule="power"), small(rule="power")
    pruned.fc1.weight.data.uniform_(0.1, 0.9)
    dense.load_state_dict(pruned.state_dict())
    optimizer, free = pruned.optimizer(lr=0.01), dense.optimizer(lr=0.01)
    pruner = Budget(connectivity=0.5, first=0.5).attach(pruned, optimizer, total_steps=10)
    assert (pruned.fc1.weight == 0).sum() == 40  # the law has no update at a weight of 0
    pre, post = (torch.rand(12, 2, 16) < 0.4).float(), (torch.rand(12, 2, 5) < 0.2).float()
    for network, steps in ((pruned, optimizer), (dense, free)):
        network.update_(pre, post)
        steps.step()
    torch.testing.assert_close(pruner.layers[0].state["latent"], dense.fc1.weight.data)


@pytest.mark.parametrize("refractory", [0.0, 5.0, 9.0])
@pytest.mark.parametrize("inhibition", [0.0, 4.0, 120.0])
def test_neurons_are_those_of_the_equations(refractory, inhibition):
    c = Constants(refractory=refractory, inhibition=inhibition)
    neurons = Excitatory(6, c).double()
    neurons.theta.data.copy_(torch.rand(6, dtype=torch.float64) * 8)
    current = 8 * torch.rand(40, 3, 6, dtype=torch.float64)
    expected = slow(current, neurons.theta.tolist(), c)
    assert expected.sum() > 10
    assert torch.equal(neurons(current.clone()), expected)


def test_thresholds_rise_with_every_spike_of_the_batch():
    network = small(adaptation=4.0)
    optimizer = network.optimizer(lr=0.25)
    network.excitatory.adapt_(torch.tensor([[[1.0, 0, 0, 0, 0], [1, 0, 0, 0, 0]]]))
    optimizer.step()
    assert network.excitatory.theta.tolist() == [2.0, 0, 0, 0, 0]


def test_thresholds_keep_their_differences_where_their_mean_is_limited():
    neurons = Excitatory(3, Constants(ceiling=5.0))
    neurons.theta.data.copy_(torch.tensor([0.5, 10.0, 7.5]))
    neurons.limit_()
    assert neurons.theta.tolist() == [0.0, 9.0, 6.5]  # their mean was 6


def test_the_optimizer_applies_bounds_and_sums():
    weight = torch.nn.Parameter(torch.tensor([[1.0, 3.0, 0.0], [0.0, 0.0, 0.0]]))
    weight.grad = torch.tensor([[4.0, -2.0, 0.0], [0.0, 0.0, 0.0]])
    LocalRule([weight], lr=0.5, low=0.0, total=8.0).step()
    # 1 - 2 is below 0; 3 + 1 is scaled to the sum of 8; no input stays no input
    assert weight.tolist() == [[0.0, 8.0, 0.0], [0.0, 0.0, 0.0]]


def test_labels_and_votes_by_hand():
    counts = torch.tensor([[4.0, 0, 1], [0, 2, 1], [2, 0, 1]])
    label, proportion = (Labels(2, 3, window=100, vote=x) for x in ("label", "proportion"))
    for labels in (label, proportion):
        labels.update_(counts, torch.tensor([0, 1, 0]))
    # mean response of class 0: 3, 0, 1; of class 1: 0, 2, 1 (the last neuron: the first class)
    assert label.weights().tolist() == [[0.5, 0, 0.5], [0, 1, 0]]
    assert proportion.weights().tolist() == [[1, 0, 0.5], [0, 1, 0.5]]
    scores = proportion(torch.tensor([[1.0, 2, 2], [0, 0, 0]]))
    torch.testing.assert_close(scores, torch.tensor([[0.4, 0.6], [0, 0]]))


def test_old_images_fade_from_the_labels():
    labels = Labels(2, 1, window=2, vote="label")
    labels.update_(torch.tensor([[8.0]]), torch.tensor([0]))
    labels.update_(torch.tensor([[4.0]]), torch.tensor([0]))
    assert float(labels.responses[0]) == 8.0  # half of the 8, and 4
    assert float(labels.shown[0]) == 1.5


def test_learning_leaves_minus_the_update_and_evaluation_changes_nothing():
    network, images = small(), torch.rand(7, 1, 4, 4)
    state = {key: value.clone() for key, value in network.state_dict().items()}
    network.eval()
    first, second = network(images), network(images)
    assert torch.equal(first, second), "the spike trains of a test are fixed"
    assert all(torch.equal(value, state[key]) for key, value in network.state_dict().items())
    network.train()
    torch.manual_seed(3)
    output = network.learn(images, torch.tensor([0, 1, 2, 0, 1, 2, 0]))
    torch.manual_seed(3)
    pre, post = network.show(images)
    update = plasticity.RULES["pair"](pre, post, network.fc1.weight, network.constants)
    assert post.sum() > 0
    assert torch.equal(network.fc1.weight.grad, -update)
    assert output.shape == (1, 7, 3)


def test_a_neuron_with_few_synapses_gets_as_much_input():
    network = small()
    with torch.no_grad():
        network.fc1.weight[0, 2:] = 0.0
    currents = []
    network.excitatory.register_forward_pre_hook(lambda _, x: currents.append(x[0].clone()))
    network(torch.ones(40, 1, 4, 4))
    mean = currents[0].mean((0, 1))
    c = network.constants
    expected = c.drive * c.rate * c.dt / 1000
    torch.testing.assert_close(mean, torch.full((5,), expected), rtol=0.2, atol=0.0)


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"gradr", "sampling"}))
def test_every_method_attaches_to_a_local_rule(name):
    network = small()
    known = defaults(METHODS[name])
    wanted = {"connectivity": 0.3, "every": 2}
    method = METHODS[name](**{key: value for key, value in wanted.items() if key in known})
    optimizer = network.optimizer(0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pruner = method.attach(network, optimizer, total_steps=12)
        for _ in range(12):
            optimizer.zero_grad()
            network.learn(torch.rand(8, 1, 4, 4), torch.arange(8) % 3)
            optimizer.step()
        masks = pruner.finish()
    weight = network.fc1.weight
    assert bool((weight[~masks["fc1.weight"]] == 0).all())
    assert bool((weight >= 0).all())
    if method.unit == "connectivity" and name != "upr":
        assert int(masks["fc1.weight"].sum()) == round(0.3 * 80)


def test_gradr_says_why_it_does_not():
    network = small()
    with pytest.raises(
        SpikewireError, match="gradr: LocalRule moves mirrored gradients.*or another method"
    ):
        METHODS["gradr"]().attach(network, network.optimizer(0.1), total_steps=3)


def test_it_learns_digits_sparse_and_resumes_to_the_same_bits(tmp_path):
    flags = FLAGS | {"method": "magnitude", "connectivity": "0.5"}
    config = resolve("mnist-diehl", flags=flags)
    whole = fit(config, tmp_path / "whole")
    assert whole.accuracy > 0.75
    assert whole.connectivity == 0.5
    assert whole.history[0]["loss"] > whole.history[-1]["loss"]
    with pytest.raises(Interrupted):
        fit(config, tmp_path / "cut", progress=lambda e: isinstance(e, Step) and e.step == 60)
    fit(config, tmp_path / "cut", resume=True)
    one, two = (RunDir.open(tmp_path / x).load_model()[0] for x in ("whole", "cut"))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert evaluate_run(tmp_path / "cut").accuracy == whole.accuracy
    row = json.loads((tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()[-1])
    assert row["measured"]["synops"] > 0
    refused(lambda: export_run(tmp_path / "whole"), "model: 'DiehlCook'", "learns by a gradient")


@pytest.mark.parametrize("name", plasticity.NETWORKS)
def test_pixels_stay_in_0_to_1_where_the_data_set_has_a_mean_and_a_deviation(name):
    # as CIFAR-10 has: normalised pixels would be clipped, and half of the image lost
    digits = load("digits")
    data = replace(digits, mean=(0.5,), std=(0.25,))
    config = resolve(flags={"model": name, "dataset": "digits", "batch_size": "1437"})
    images, _ = next(prepare(config, data).train.epoch(0))
    expected = digits.train_images.float() / 255
    assert torch.allclose(images.mean((0, 1)), expected.mean((0, 1)), atol=1e-6)


@pytest.mark.parametrize("name", plasticity.NETWORKS)
def test_no_format_takes_a_network_with_a_local_rule(name, tmp_path):
    network = plasticity.build(name, input_shape=(1, 4, 4), classes=3, hidden=5)
    for kind in ("packed", "nir", "coo", "c"):
        refused(
            lambda: export(network, torch.rand(2, 1, 4, 4), tmp_path / "x", format=kind),  # noqa: B023
            f"model: {type(network).__name__!r} is not allowed",
            "it must be one that learns by a gradient",
        )


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"plasticity": "rul:pair"}, "unknown 'rul'; did you mean 'rule'?"),
        ({"plasticity": "rule:pear"}, "plasticity: rule: unknown 'pear'; did you mean 'pair'?"),
        ({"plasticity": "tau:-1"}, "plasticity: tau: -1.0 is not allowed"),
        ({"plasticity": "tau"}, "NAME:VALUE"),
        ({"average": "0.9"}, "average: 0.9 is not allowed"),
        ({"init": "firing"}, "init: 'firing' is not allowed; it must be 'default', unused"),
        ({"momentum": "0"}, "momentum: 0.0 is not allowed; it must be 0.9, unused: 'diehl-cook'"),
        ({"optimizer": "sgd"}, "optimizer: 'sgd' is not allowed; it must be 'adam', unused"),
        ({"tau": "5"}, "tau: 5.0 is not allowed; it must be 2.0, unused"),
        ({"dropout": "0.1"}, "dropout: 0.1 is not allowed; it must be None, unused"),
        ({"model": "digits-mlp", "plasticity": "tau:5", "hidden": "0"}, "learns by a gradient"),
    ],
)
def test_what_does_not_fit_is_one_line(flags, words):
    with pytest.raises(SpikewireError) as caught:
        fit(resolve("mnist-diehl", flags=FLAGS | flags))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
