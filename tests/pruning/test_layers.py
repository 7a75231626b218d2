"""Which weights are pruned: predicates, globs, mappings, refusals."""

import pytest
import torch
from torch import nn
from torch.optim import SGD

from spikewire import DeepR, Dense, SpikewireError, prunable


class Cell(nn.Module):
    """A recurrent cell with raw matrices, as in Norse."""

    def __init__(self):
        super().__init__()
        self.input_weights = nn.Parameter(torch.randn(3, 4))
        self.bias = nn.Parameter(torch.zeros(3))


class Zoo(nn.Module):
    """One of everything that has a weight."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.conv1 = nn.Conv2d(2, 4, 3)
        self.depthwise = nn.Conv2d(4, 4, 3, groups=4)
        self.grouped = nn.Conv2d(4, 8, 1, groups=2)
        self.norm = nn.BatchNorm2d(4)
        self.up = nn.ConvTranspose1d(4, 2, 3)
        self.cell = Cell()
        self.head = nn.ModuleDict({"fc1": nn.Linear(4, 6), "fc2": nn.Linear(6, 2)})


def attach(model, **options):
    return Dense().attach(model, SGD(model.parameters(), lr=0.1), total_steps=1, **options)


def chosen(targets, model=None):
    return list(attach(model or Zoo(), targets=targets).masks())


DEFAULT = ["conv1.weight", "grouped.weight", "up.weight", "head.fc1.weight", "head.fc2.weight"]


def test_the_rule_takes_conv_and_linear_only():
    method = attach(Zoo())
    assert list(method.masks()) == DEFAULT
    assert method.skipped == ["cell.input_weights"]


@pytest.mark.parametrize(
    ("targets", "names"),
    [
        ("head.*", DEFAULT[-2:]),
        ("conv1", DEFAULT[:1]),
        ("conv1.weight", DEFAULT[:1]),
        (["up", "*fc2"], ["up.weight", "head.fc2.weight"]),
        ("*", DEFAULT),
        ("embed.weight", ["embed.weight"]),
        ("embed", ["embed.weight"]),
        ("depthwise", ["depthwise.weight"]),
        ("norm.weight", ["norm.weight"]),
        ("cell.input_weights", ["cell.input_weights"]),
        (["*", "cell.input_weights"], [*DEFAULT, "cell.input_weights"]),
        (lambda name, module: name.startswith("head"), DEFAULT[-2:]),
        (lambda name, module: not prunable(name, module), ["embed.weight", "depthwise.weight"]),
    ],
)
def test_globs_names_and_rules(targets, names):
    assert chosen(targets) == names


def test_a_rule_never_takes_a_scale():
    assert "norm.weight" not in chosen(lambda name, module: True)


def test_a_named_raw_matrix_is_not_listed_as_skipped():
    assert attach(Zoo(), targets=["cell.input_weights"]).skipped == []


def test_a_mapping_gives_each_glob_its_connectivity_and_the_later_wins():
    model = Zoo()
    optimizer = SGD(model.parameters(), lr=0.1)
    wanted = {"head.*": 0.5, "*fc2": 0.25, "conv1": 1.0}
    method = DeepR(connectivity=0.1).attach(model, optimizer, total_steps=1, targets=wanted)
    counts = {row["name"]: (row["present"], row["total"]) for row in method.summary()}
    assert counts == {
        "head.fc1.weight": (12, 24),
        "head.fc2.weight": (3, 12),
        "conv1.weight": (72, 72),
    }


@pytest.mark.parametrize("fraction", [0.0, 1.5, -0.1, float("nan")])
def test_a_mapping_refuses_a_fraction_out_of_range(fraction):
    with pytest.raises(
        SpikewireError, match=r"targets\['conv1'\]: .* it must be a connectivity in"
    ):
        attach(Zoo(), targets={"conv1": fraction})


def test_an_unknown_pattern_names_the_nearest_parameter():
    with pytest.raises(SpikewireError, match=r"'conv.weight'; did you mean 'conv1.weight'\?"):
        attach(Zoo(), targets="conv.weight")


@pytest.mark.parametrize("targets", [prunable, [], {}, lambda name, module: False])
def test_no_target_raises_and_lists_candidates(targets):
    model = nn.ModuleDict({"cell": Cell(), "norm": nn.BatchNorm1d(3)})
    with pytest.raises(
        SpikewireError, match=r"no weight to prune; name one of: cell.input_weights$"
    ):
        attach(model, targets=targets)


def test_a_model_of_vectors_only_says_so():
    with pytest.raises(SpikewireError, match="no parameter of two or more dimensions"):
        attach(nn.BatchNorm1d(3))


def test_a_bare_layer_is_a_model_too():
    assert chosen(prunable, nn.Linear(2, 2)) == ["weight"]


def test_a_tied_weight_counts_once():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    method = attach(model)
    assert [row["total"] for row in method.summary()] == [9, 9]
    assert list(method.masks()) == ["0.weight", "2.weight"]


def test_a_parametrized_weight_is_named_as_skipped():
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)), nn.Linear(3, 3))
    method = attach(model)
    assert list(method.masks()) == ["1.weight"]
    assert method.skipped == [f"0.parametrizations.weight.original{i}" for i in (0, 1)]


def freeze(model):
    model.conv1.weight.requires_grad_(False)


def half_owned(model):
    return [p for name, p in model.named_parameters() if name != "conv1.weight"]


def test_a_frozen_target_is_refused_and_may_be_left_out():
    model = Zoo()
    freeze(model)
    with pytest.raises(SpikewireError, match=r"conv1\.weight: is frozen .*leave it out of targets"):
        attach(model)
    assert list(attach(model, targets="head.*").masks()) == DEFAULT[-2:]


def test_a_target_in_no_optimizer_is_refused():
    model = Zoo()
    with pytest.raises(SpikewireError, match=r"conv1\.weight: no optimizer given to attach\(\)"):
        Dense().attach(model, SGD(half_owned(model), lr=0.1), total_steps=1)


def test_a_lazy_target_is_refused_and_a_lazy_bystander_is_not():
    model = nn.Sequential(nn.Linear(3, 4), nn.LazyLinear(2))
    with pytest.raises(SpikewireError, match=r"1\.weight: is lazy; run one forward pass"):
        attach(model)
    assert chosen("0", model) == ["0.weight"]


@pytest.mark.parametrize("mark", ["_is_flat_param", "_sharded_size", "device_mesh"])
def test_a_shard_is_refused(mark):
    model = nn.Linear(3, 3)
    setattr(model.weight, mark, True)
    with pytest.raises(
        SpikewireError, match=r"weight: is an FSDP shard; .*DistributedDataParallel"
    ):
        attach(model)


def test_a_weight_of_whole_numbers_is_refused():
    model = nn.Linear(2, 2)
    model.weight = nn.Parameter(torch.ones(2, 2, dtype=torch.complex64))
    with pytest.raises(SpikewireError, match="must be floating point"):
        attach(model)


def test_a_refused_attach_leaves_no_trace():
    model = Zoo()
    freeze(model)
    optimizer = SGD(model.parameters(), lr=0.1)
    method = Dense()
    with pytest.raises(SpikewireError):
        method.attach(model, optimizer, total_steps=1)
    assert not optimizer._optimizer_step_pre_hooks
    model.conv1.weight.requires_grad_(True)
    assert list(method.attach(model, optimizer, total_steps=1).masks()) == DEFAULT
