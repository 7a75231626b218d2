"""The penalty on synaptic operations: its value, its gradient, and what it does to a network."""

import copy
import io

import pytest
import torch
from networks import conv_net
from refusal import refused
from torch import nn
from torch.utils.checkpoint import checkpoint

import spikewire
from spikewire import SynOpsPenalty, measure
from spikewire.config import Config, resolve
from spikewire.distributed import ALONE
from spikewire.nn import LIF
from spikewire.train.cuda_graph import why_not
from spikewire.train.loop import fit

torch.set_num_threads(1)


def pruned_(model, fraction=0.7):
    """Set a fraction of all weights to 0."""
    torch.manual_seed(3)
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            module.weight.data.mul_(torch.rand_like(module.weight) > fraction)
    return model


def operations_and_synapses(model, images):
    """Return operations per image and time step, and synapses, of all layers that see spikes.

    Counted apart from the penalty: spikes from outputs of neurons, synapses one output at a time.
    """
    operations, synapses, inputs = 0.0, 0.0, {}
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            module.register_forward_pre_hook(lambda m, args: inputs.update({m: args[0]}))
    with torch.no_grad():
        model(images)
    for module, x in [*inputs.items()][1:]:  # the first one sees the image
        features = x.dim() - (1 if isinstance(module, nn.Linear) else 3)
        frames = x.flatten(0, features - 1)
        ones, twin = torch.ones_like(frames[:1]), copy.deepcopy(module)
        twin.weight.data = (module.weight.data != 0).float()
        twin.bias = None
        with torch.no_grad():
            operations += float(twin(frames).double().sum()) / len(frames)
            synapses += float(twin(ones).double().sum())
    return operations, synapses


def test_the_term_is_the_mean_number_of_spikes_that_a_synapse_gets():
    model = pruned_(conv_net()).train()
    images = torch.rand(6, *model.input_shape)
    penalty = SynOpsPenalty(model)
    model(images)
    found = penalty.take()
    penalty.remove()
    for module in model.modules():  # the statistics of a batch, which have moved
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.0
    operations, synapses = operations_and_synapses(model, images)
    assert 0 < operations < synapses
    assert found.item() == pytest.approx(operations / synapses, rel=1e-5)


def test_it_agrees_with_what_is_measured():
    model = pruned_(spikewire.nn.build("digits-mlp", time_steps=4)).train()
    images = torch.rand(30, 1, 8, 8)
    penalty = SynOpsPenalty(model)
    model(images)
    rate = penalty.take().item()
    penalty.remove()
    second = int((model.fc2.weight != 0).sum())  # the first layer sees the image
    assert rate * 4 * second == pytest.approx(measure(model, [images]).synops, rel=1e-5)


def test_its_gradient_is_the_number_of_synapses_that_a_spike_reaches():
    layer = nn.Linear(3, 4, bias=False)
    layer.weight.data = torch.tensor([[1.0, 0, 2], [0, 0, 3], [-1, 0, 0], [5, 0, 1]])
    spikes = torch.tensor([[[1.0, 0, 1]], [[0, 1, 1]]], requires_grad=True)  # two frames
    penalty = SynOpsPenalty(layer)
    layer(spikes)
    term = penalty.take()
    term.backward()
    reached, synapses, frames = torch.tensor([3.0, 0, 3]), 6, 2
    assert term.item() == pytest.approx((3 + 3 + 3) / (synapses * frames))
    torch.testing.assert_close(spikes.grad, (reached / synapses / frames).expand(2, 1, 3))
    assert layer.weight.grad is None


def test_the_calls_of_a_loop_over_time_are_averaged():
    layer = nn.Linear(2, 3, bias=False)
    penalty, found = SynOpsPenalty(layer), []
    frames = torch.tensor([[1.0, 0], [1, 1], [0, 0]], requires_grad=True)
    for frame in frames:
        layer(frame[None])
    found.append(penalty.take().item())
    layer(frames)
    found.append(penalty.take().item())
    assert found == pytest.approx([0.5, 0.5])


def test_what_makes_no_operations_or_no_gradient_is_not_seen():
    model = nn.Sequential(nn.Linear(4, 5), LIF(), nn.Linear(5, 2))
    images = torch.rand(3, 7, 4)
    penalty = SynOpsPenalty(model)

    def nothing():
        with pytest.warns(UserWarning, match=r"no layer has received spikes since the last take"):
            return penalty.take() == 0.0

    nn.Sequential(model[0])(images)  # an image
    assert nothing()
    with torch.no_grad():
        model(images)
    assert nothing()
    model.eval()(images)
    assert nothing()
    model.train()(images)
    assert penalty.take().item() >= 0.0
    assert nothing()
    twin, idle = copy.deepcopy((model, penalty))
    torch.save(model, io.BytesIO())
    twin(images)
    assert nothing(), "a copy is not looked at"
    idle.remove()
    penalty.remove()
    model(images)
    assert nothing()
    refused(lambda: SynOpsPenalty(nn.ReLU()), "no linear or convolutional layers")


def hidden(width=8):
    torch.manual_seed(1)
    blocks = [nn.Sequential(nn.Linear(width, width), LIF(surrogate="sigmoid")) for _ in range(3)]
    return nn.Sequential(*blocks, nn.Linear(width, 2))


@pytest.mark.parametrize("reentrant", [None, False, True])
def test_activation_checkpoints_do_not_count_a_forward_pass_twice(reentrant):
    model, images = hidden(), 4 * torch.rand(3, 6, 8)
    penalty, terms = SynOpsPenalty(model), []
    for _ in range(2):
        x = images.clone().requires_grad_(reentrant is True)
        for block in model:
            x = block(x) if reentrant is None else checkpoint(block, x, use_reentrant=reentrant)
        if reentrant:  # runs without gradients: not seen
            with pytest.warns(UserWarning, match="no layer has received spikes"):
                terms.append(penalty.take())
        else:
            terms.append(penalty.take())
        (x.sum() + terms[-1]).backward()
    grads = [parameter.grad for parameter in model.parameters()]
    if reentrant:
        assert terms == [0.0, 0.0]
        return
    assert terms[0].item() == terms[1].item() > 0
    twin = hidden()
    plain = SynOpsPenalty(twin)
    for _ in range(2):
        output = twin(images)
        (output.sum() + plain.take()).backward()
    for grad, same in zip(grads, (x.grad for x in twin.parameters()), strict=True):
        torch.testing.assert_close(grad, same)


def test_a_step_without_take_is_named_and_keeps_no_graph():
    model = hidden()
    penalty = SynOpsPenalty(model)
    for _ in range(3):
        with pytest.warns(UserWarning, match="differentiated without the penalty; add take"):
            model(torch.rand(3, 6, 8)).sum().backward()
        assert not penalty._seen
    loss = model(torch.rand(3, 6, 8)).sum()
    (loss + penalty.take()).backward()


def test_inputs_that_are_not_spikes_do_not_lower_it_below_0():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), LIF(), nn.Linear(8, 4), nn.Linear(4, 2))
    penalty = SynOpsPenalty(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(60):
        optimizer.zero_grad()
        model(3 * torch.rand(4, 5, 6))
        term = penalty.take()
        term.backward()
        optimizer.step()
        assert term.item() >= 0


def test_a_compiled_model_is_looked_at_if_it_was_compiled_afterwards():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 9), nn.ReLU(), nn.Linear(9, 2))
    penalty = SynOpsPenalty(model)
    compiled = torch.compile(model, backend="eager")
    images = torch.rand(6, 8)
    output = compiled(images)
    term = penalty.take()
    (output.sum() + term).backward()
    model(images)
    assert term.item() == penalty.take().item() > 0


@pytest.mark.parametrize("step_mode", ["m", "s"])
def test_a_network_of_spikingjelly(step_mode):
    from spikingjelly.activation_based import functional, layer, neuron

    torch.manual_seed(0)
    net = nn.Sequential(
        layer.Conv2d(1, 4, 3, padding=1), neuron.IFNode(), layer.Flatten(), layer.Linear(256, 10)
    )
    functional.set_step_mode(net, step_mode)
    images = 3 * torch.rand(4, 5, 1, 8, 8)
    penalty = SynOpsPenalty(net)
    if step_mode == "m":
        net(images)
    else:
        for frame in images:
            net(frame)
    term = penalty.take()
    term.backward()
    functional.reset_net(net)
    functional.set_step_mode(net, "m")
    spikes = net[:2](images)
    assert term.item() == pytest.approx(spikes.mean().item())  # all synapses are present
    assert net[0].weight.grad.abs().sum() > 0


def short(**flags):
    flags = {"epochs": "10", "connectivity": "0.1", "threads": "1", "test_every": "10"} | flags
    return resolve("digits", flags={"method": "budget"} | flags)


def test_training_with_it_makes_fewer_operations_with_as_many_synapses():
    plain, penalised = (fit(short(synops_penalty=weight)) for weight in ("0", "2"))
    synops = [result.history[-1]["measured"]["synops"] for result in (plain, penalised)]
    assert synops[1] < 0.8 * synops[0]
    assert plain.connectivity == penalised.connectivity
    assert penalised.accuracy > plain.accuracy - 0.03
    hooks = [module._forward_pre_hooks for module in penalised.model.modules()]
    assert not any(hooks), "finish() leaves a plain model"


def test_a_run_that_was_stopped_ends_with_the_same_bits(tmp_path):
    config = short(synops_penalty="1", epochs="3")
    whole = fit(config, tmp_path / "a")
    with pytest.raises(spikewire.Interrupted):
        fit(config, tmp_path / "b", progress=lambda event: getattr(event, "step", 0) == 30)
    resumed = fit(config, tmp_path / "b", resume=True)
    for name, value in whole.model.state_dict().items():
        assert value.equal(resumed.model.state_dict()[name])


def test_it_can_be_part_of_a_cuda_graph_but_not_of_a_compiled_or_a_plastic_network():
    model = conv_net()
    SynOpsPenalty(model)
    assert why_not(model, "budget", ALONE) == ""
    refused(lambda: Config(synops_penalty=1.0, compile=True), "synops_penalty")
    refused(lambda: Config(synops_penalty=-1.0), "synops_penalty")
    config = resolve("mnist-wta", flags={"dataset": "digits", "synops_penalty": "1"})
    refused(lambda: fit(config), "synops_penalty")
