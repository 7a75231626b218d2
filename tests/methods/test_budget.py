"""Budget against a loop in plain Python: dense feedback, exact counts, a floor for every layer."""

import copy
import io

import pytest
import torch
from reference import Task, Twin, close, compete, path, pull, row, top_k_mask
from refusal import refused
from torch import nn

from spikewire import METHODS
from spikewire.errors import TrainingFailed
from spikewire.pruning import UNITS

Budget = METHODS["budget"]
KINDS = {torch.optim.SGD: 3.0, torch.optim.Adam: 0.02}


def sizes_of(u, scales):
    return [[abs(x) / scale for x in layer] for layer, scale in zip(u, scales, strict=True)]


def shrunk(u, masks, taken):
    """Bring every present u nearer to 0 by what is taken in its layer, but not past 0."""
    return [
        [max(abs(x) - t, 0.0) * (1 if x > 0 else -1) * m for x, m in zip(layer, mask, strict=True)]
        for layer, mask, t in zip(u, masks, taken, strict=True)
    ]


@pytest.mark.parametrize("shrink", [0.0, 0.6])
@pytest.mark.parametrize("balance", [0.0, 0.5])
@pytest.mark.parametrize(("scope", "fixed"), [("global", 1.0), ("layer", 0.8)])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_its_twin(kind, scope, fixed, balance, shrink):
    task, steps, ramp, every, fraction = Task(6, 5, 3), 40, 0.5, 3, 0.2
    twin, optimizer = Twin(task, kind, KINDS[kind]), kind(task.weights, lr=KINDS[kind])
    options = {"fixed": fixed, "scope": scope, "floor": 0.5, "balance": balance, "shrink": shrink}
    pruner = Budget(connectivity=fraction, ramp=ramp, every=every, **options).attach(
        task.model, optimizer, total_steps=steps
    )
    u, back = twin.read(), 0
    scales, taken = [len(layer) ** balance for layer in u], [0.0 for _ in u]
    for step in range(1, steps + 1):
        task.backward(step)
        optimizer.step()
        twin.write(shrunk(u, twin.masks, taken))
        g = twin.gradient(step)  # at the sparse weights, for every synapse
        twin.write(u)
        twin.move(g)
        u = twin.read()
        if (step % every == 0 and step <= fixed * steps) or step == ramp * steps:
            now, sizes = path(step / steps / ramp, fraction), sizes_of(u, scales)
            before = twin.masks
            if scope == "global":
                twin.masks = compete(sizes, now, floor=0.5)
            else:
                twin.masks = [top_k_mask(s, max(1, round(now * len(s)))) for s in sizes]
            pairs = zip(sum(before, []), sum(twin.masks, []), strict=True)
            back += sum(after and not past for past, after in pairs)
            absent = [
                [abs(x) for x, m in zip(*pair, strict=True) if not m]
                for pair in zip(u, twin.masks, strict=True)
            ]
            taken = [shrink * max(sizes, default=0.0) for sizes in absent]
        assert [m.flatten().tolist() for m in pruner.masks().values()] == twin.masks
        assert close(task.flat(), sum(shrunk(u, twin.masks, taken), []), 1e-12)
    assert sum(map(sum, twin.masks)) == 9
    assert back > 0  # some came back


def test_a_sparse_start_begins_with_the_strongest_and_ends_exactly():
    layer = row(0.5, -0.3, 0.2, 0.1, 0.4, 0.0, 0.0, 0.0)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    pruner = Budget(connectivity=0.25, first=0.5, ramp=1.0, every=1).attach(
        layer, optimizer, total_steps=4
    )
    counts = [int(pruner.masks()["weight"].sum())]
    assert pruner.masks()["weight"].tolist() == [[True, True, True, False, True] + 3 * [False]]
    for _ in range(4):
        pull(layer, optimizer, *8 * [0.0])
        counts.append(int(pruner.masks()["weight"].sum()))
    assert counts == [round(8 * path(i / 4, 0.25, 0.5)) for i in range(5)] == [4, 3, 2, 2, 2]


@pytest.mark.parametrize("unit", ["connectivity", "synapses"])
def test_a_start_below_the_target_is_refused(unit):
    line = refused(lambda: Budget(**{unit: 0.25}, first=0.2499))
    assert line == f"first: 0.2499 is not allowed; it must be at least 0.25, the target {unit}"
    assert Budget(**{unit: 0.0116}, first=0.0116).first == 0.0116
    assert Budget(**{unit: 1.0}).first == 1.0
    refused(lambda: Budget(first=0.01), "first", "0.01", "0.05, the target connectivity")


@pytest.mark.parametrize("unit", ["synops", "bytes"])
def test_a_start_is_not_compared_with_a_target_that_is_no_fraction(unit):
    assert Budget(**{unit: 9000.0}, first=0.01).first == 0.01


def test_by_hand():
    layer = row(0.5, -0.3, 0.2, 0.1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    Budget(connectivity=0.5, ramp=0.25, every=1).attach(layer, optimizer, total_steps=4)
    pull(layer, optimizer, 0.0, 0.0, 0.0, 0.0)
    assert layer.weight.tolist()[0] == pytest.approx([0.5, -0.3, 0.0, 0.0])
    pull(layer, optimizer, 0.0, 0.0, 6.0, 0.0)
    # the third falls from .2 to -.4 while absent, and comes back with the other sign
    assert layer.weight.tolist()[0] == pytest.approx([0.5, 0.0, -0.4, 0.0])
    pull(layer, optimizer, 0.0, 2.0, 0.0, 0.0)
    # the second went on from -.3, where it was when it left
    assert layer.weight.tolist()[0] == pytest.approx([0.5, -0.5, 0.0, 0.0])


def test_shrink_by_hand():
    layer = row(0.5, -0.3, 0.2, 0.1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    pruner = Budget(connectivity=0.5, ramp=0.25, every=2, shrink=0.5).attach(
        layer, optimizer, total_steps=4
    )
    assert layer.weight.tolist()[0] == pytest.approx([0.5, -0.3, 0.2, 0.1])
    pull(layer, optimizer, 0.0, 0.0, 0.0, 0.0)
    # the strongest that is left out has .2, so all others lose .1
    assert layer.weight.tolist()[0] == pytest.approx([0.4, -0.2, 0.0, 0.0])
    pull(layer, optimizer, 0.0, 0.0, 2.0, 0.0)
    # the third falls to 0, and the fourth, of .1, is now the strongest outside
    assert layer.weight.tolist()[0] == pytest.approx([0.45, -0.25, 0.0, 0.0])
    pull(layer, optimizer, 0.0, -2.7, 0.0, 0.0)
    # between two rewirings the second falls to -.03, below what is taken: present, but 0
    assert layer.weight.tolist()[0] == pytest.approx([0.45, 0.0, 0.0, 0.0])
    assert pruner.masks()["weight"].tolist() == [[True, True, False, False]]


def test_rescale_by_hand():
    layer = row(0.5, -0.3, 0.2, 0.1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    pruner = Budget(connectivity=0.5, ramp=0.25, every=2, shrink=1.0, rescale=True).attach(
        layer, optimizer, total_steps=4
    )
    assert layer.weight.tolist()[0] == pytest.approx([0.5, -0.3, 0.2, 0.1])
    pull(layer, optimizer, 0.0, 0.0, 0.0, 0.0)
    # .2 is taken from .5 and .3; what is left, .3 and .1, gets the norm of .5 and .3 again
    gain = (0.34 / 0.10) ** 0.5
    assert layer.weight.tolist()[0] == pytest.approx([0.3 * gain, -0.1 * gain, 0.0, 0.0])
    (only,) = pruner.layers
    assert pruner.method.unproject(only).tolist()[0][:2] == pytest.approx([0.5, -0.3])
    pull(layer, optimizer, 1.0, 0.0, 0.0, 0.0)
    # .4, .3 present, .2 absent: .2 and .1 are left
    gain = (0.25 / 0.05) ** 0.5
    assert layer.weight.tolist()[0] == pytest.approx([0.2 * gain, -0.1 * gain, 0.0, 0.0])


def test_rescale_keeps_the_norm_of_every_layer_and_layers_of_equal_weights():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 30, bias=False), nn.Linear(30, 20, bias=False))
    nn.init.constant_(model[1].weight, 0.1)  # nothing is left above the level
    latents = [layer.weight.detach().clone() for layer in model]
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    method = Budget(connectivity=0.05, first=0.05, shrink=1.0, rescale=True, floor=1.0)
    pruner = method.attach(model, optimizer, total_steps=2)
    masks = list(pruner.masks().values())
    kept = [float(x.norm()) for x in (model[0].weight.detach(), latents[0] * masks[0])]
    assert kept[0] == pytest.approx(kept[1])
    assert not model[1].weight.any()
    assert int(masks[1].sum()) >= 30


def test_rescale_without_shrink_is_refused():
    line = refused(lambda: Budget(rescale=True))
    assert line == "rescale: True is not allowed; it must be false where shrink is 0"


def test_a_failed_training_is_not_handed_over_as_an_empty_network():
    layer = row(0.5, -0.3, 0.2, 0.1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    pruner = Budget(connectivity=0.5, ramp=0.5, every=1).attach(layer, optimizer, total_steps=4)
    for gradient in (0.0, float("nan"), 0.0, 0.0):
        pull(layer, optimizer, gradient, 0.0, 0.0, 0.0)
    with pytest.raises(TrainingFailed, match="not finite"):
        pruner.finish()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_weights_compete_as_wide_ones(dtype):
    """In float16 |u| / 627,200 would be 0, and the lower index would win."""
    torch.manual_seed(0)
    model = nn.Linear(784, 800, bias=False, dtype=dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    pruner = Budget(connectivity=0.01, ramp=1.0, every=1, balance=1.0).attach(
        model, optimizer, total_steps=1
    )
    size = model.weight.detach().abs()
    model.weight.grad = torch.zeros_like(model.weight)
    optimizer.step()
    mask = pruner.masks()["weight"]
    assert size[mask].min() >= size[~mask].max()


@pytest.mark.parametrize("unit", UNITS)
def test_a_model_may_be_saved_whole_and_copied_while_it_is_managed(unit):
    """A copy belongs to nobody; what runs through it is not counted."""
    model = nn.Sequential(nn.Conv1d(1, 2, 1), nn.Flatten(), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    target = 2000 if unit == "bytes" else 0.5
    pruner = Budget(**{unit: target}, every=1).attach(model, optimizer, total_steps=4)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    copies = copy.deepcopy(model), torch.load(file, weights_only=False)
    for other in copies:
        other(torch.ones(1, 1, 4))
        its = torch.optim.SGD(other.parameters(), lr=0.1)
        Budget(connectivity=0.5).attach(other, its, total_steps=4).detach()
    if unit == "synapses":
        assert pruner.uses.hooks.handles, "still waits for its own model"
    if unit == "synops":
        assert not pruner.uses.pending.any()
    refused(lambda: Budget().attach(model, optimizer, total_steps=4), "another pruner has it")
    pruner.detach()


def latents(pruner):
    return [layer.state["latent"] for layer in pruner.layers]


def test_the_masks_stays_after_fixed():
    task = Task(6, 5, 3)
    optimizer = torch.optim.SGD(task.weights, lr=1.0)
    pruner = Budget(connectivity=0.3, every=1, ramp=0.2, fixed=0.5).attach(
        task.model, optimizer, total_steps=40
    )
    for step in range(40):
        task.backward(step)
        optimizer.step()
        if step == 19:
            assert pruner.stats()["pruned"] > 0
    assert pruner.stats()["pruned"] == 0


@pytest.mark.parametrize("options", [{"ramp": 1.0}, {"every": 10_000}, {"ramp": 0.01}])
def test_late_rare_and_sudden_budgets_end_exactly(options):
    task = Task(6, 5, 3)
    optimizer = torch.optim.Adam(task.weights, lr=0.02)
    pruner = Budget(connectivity=0.2, **options).attach(task.model, optimizer, total_steps=10)
    for step in range(10):
        task.backward(step)
        optimizer.step()
    assert sum(int(m.sum()) for m in pruner.finish().values()) == 9


def fading(floor):
    """The counts of layers of 2000 and 400 weights at 5 % after the second shrank to dust."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(50, 40, bias=False), nn.Linear(40, 10, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    pruner = Budget(connectivity=0.05, floor=floor, ramp=1.0).attach(
        model, optimizer, total_steps=1
    )
    model[0].weight.grad = torch.zeros_like(model[0].weight)
    model[1].weight.grad = model[1].weight.detach() * (1 - 1e-4)
    optimizer.step()
    return [int(mask.sum()) for mask in pruner.finish().values()]


@pytest.mark.parametrize(("floor", "least"), [(0.5, 10), (0.1, 2), (0.0, 1)])
def test_a_layer_that_fades_keeps_its_floor(floor, least):
    assert fading(floor) == [120 - least, least]


def test_a_layer_that_starts_at_zero_does_not_take_everything():
    model = nn.ModuleDict({"zero": row(*[0.0] * 20), "used": row(*[0.5] * 20)})
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    pruner = Budget(connectivity=0.5, ramp=1.0).attach(model, optimizer, total_steps=1)
    for layer in model.values():
        layer.weight.grad = torch.ones_like(layer.weight)
    optimizer.step()
    assert [int(mask.sum()) for mask in pruner.finish().values()] == [1, 19]


def test_layers_of_zeros_of_one_weight_and_without_gradient():
    model = nn.ModuleDict({"used": row(0.0, 0.0, 0.0, 0.0), "idle": row(1.0, 2.0, 3.0, 4.0)})
    model["one"] = row(0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = Budget(connectivity=0.25, ramp=0.5, scope="layer").attach(
        model, optimizer, total_steps=2
    )
    for _ in range(2):
        pull(model["used"], optimizer, 0.0, 0.0, 0.0, -1.0)
    assert model["idle"].weight.tolist() == [[0.0, 0.0, 0.0, 4.0]]
    assert model["used"].weight.tolist()[0] == pytest.approx([0.0, 0.0, 0.0, 0.2])
    assert [int(m.sum()) for m in pruner.finish().values()] == [1, 1, 1]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("connectivity", 0.0),
        ("ramp", 0.0),
        ("fixed", 0.2),
        ("every", 0),
        ("floor", 2),
        ("shrink", 1.5),
        ("scope", "x"),
    ],
)
def test_a_wrong_value_is_named(field, value):
    refused(lambda: Budget(**{field: value}), field, value)


def test_per_neuron_every_neuron_keeps_about_as_many():
    torch.manual_seed(0)
    model = nn.Linear(12, 7, bias=False)
    with torch.no_grad():
        model.weight[0] *= 100  # by size alone this neuron would keep all its inputs
        model.weight[1] = 0.0
    largest = model.weight.abs().topk(3, dim=1).indices
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    pruner = Budget(connectivity=26 / 84, first=26 / 84, per_neuron=True).attach(
        model, optimizer, total_steps=4
    )
    (mask,) = pruner.masks().values()
    counts = mask.sum(1)
    assert counts.sum() == 26  # 3 or 4 of 12 each, exactly 26 of 84
    assert set(counts.tolist()) == {3, 4}
    rows = [i for i in range(7) if i != 1]
    assert all(mask[i, largest[i]].all() for i in rows)
