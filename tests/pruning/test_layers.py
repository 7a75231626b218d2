"""Which weights are pruned: predicates, globs, mappings, refusals."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.optim import SGD

from spikewire import METHODS, Dense, Magnitude, SpikewireError, prunable
from spikewire.fields import defaults


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


@pytest.fixture(autouse=True)
def _ignore_the_list_of_dense_weights():
    """Most tests here are about what is pruned; those about the warning catch it themselves."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*left dense")
        yield


def attach(model, **options):
    return Dense().attach(model, SGD(model.parameters(), lr=0.1), total_steps=1, **options)


def chosen(targets, model=None):
    return list(attach(model or Zoo(), targets=targets).masks())


DEFAULT = ["conv1.weight", "grouped.weight", "up.weight", "head.fc1.weight", "head.fc2.weight"]


def test_the_rule_takes_conv_and_linear_only():
    assert list(attach(Zoo()).masks()) == DEFAULT


def empty_layer():
    layer = nn.Linear(4, 1)
    layer.weight = nn.Parameter(torch.empty(0, 4))
    return layer


class Everything(nn.Module):
    """Weights of every kind that is not pruned by default, beside one that is."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.lstm = nn.LSTM(4, 3, num_layers=2)
        self.step = nn.GRUCell(4, 3)
        self.attention = nn.MultiheadAttention(4, 2)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 5))
        self.pruned = prune.l1_unstructured(nn.Linear(4, 5), "weight", amount=2)
        self.depthwise = nn.Conv2d(4, 4, 3, groups=4)
        self.embed = nn.Embedding(5, 4)
        self.bag = nn.EmbeddingBag(6, 4)
        self.cell = Cell()
        self.frozen = nn.Linear(4, 2).requires_grad_(False)
        self.empty = empty_layer()
        self.norm = nn.LayerNorm((2, 3))  # a matrix of scales: not a weight of synapses
        self.position = nn.Parameter(torch.zeros(1, 7))


def test_weights_left_dense_are_listed_with_counts_and_reasons():
    with pytest.warns(UserWarning, match="left dense") as caught:
        pruner = attach(Everything())
    assert {(x.name, x.weights, x.reason) for x in pruner.skipped} == {
        ("lstm.weight_ih_l0", 48, "recurrent (LSTM)"),
        ("lstm.weight_hh_l0", 36, "recurrent (LSTM)"),
        ("lstm.weight_ih_l1", 36, "recurrent (LSTM)"),
        ("lstm.weight_hh_l1", 36, "recurrent (LSTM)"),
        ("step.weight_ih", 36, "recurrent (GRUCell)"),
        ("step.weight_hh", 27, "recurrent (GRUCell)"),
        ("attention.in_proj_weight", 48, "attention"),
        ("normed.parametrizations.weight.original0", 5, "reparametrized"),
        ("normed.parametrizations.weight.original1", 20, "reparametrized"),
        ("pruned.weight_orig", 20, "reparametrized"),
        ("depthwise.weight", 36, "depthwise convolution"),
        ("embed.weight", 20, "embedding"),
        ("bag.weight", 24, "embedding"),
        ("cell.input_weights", 12, "matrix of Cell"),
        ("frozen.weight", 8, "frozen"),
        ("empty.weight", 0, "empty"),
        ("position", 7, "matrix of Everything"),
    }
    (warning,) = caught
    text = str(warning.message)
    assert "recurrent (LSTM): lstm.weight_ih_l0 and 3 more, 156 weights;" in text
    assert "embedding: embed.weight and 1 more, 44 weights;" in text
    assert "frozen: frozen.weight, 8 weights;" in text
    assert "\n" not in text
    assert warning.filename == __file__, "it points at the line of attach()"


def test_the_connectivity_and_the_summary_say_over_what():
    pruner = attach(Everything())
    assert pruner.connectivity() == 1.0
    lines = str(pruner.summary()).splitlines()
    assert lines[0].split() == ["layer", "shape", "present", "of", "connectivity"]
    assert lines[1].split() == ["fc.weight", "4", "x", "4", "16", "16", "100.00%"]
    assert lines[-2].split()[:5] == ["all", "2", "pruned", "layers", "32"]
    assert lines[-1].startswith("left dense: 419 weights in position (matrix of Everything), lstm.")
    assert "frozen.weight (frozen)" in lines[-1]


def test_a_single_layer_is_not_counted_in_the_plural():
    pruner = attach(nn.Sequential(nn.Linear(3, 3)))
    assert str(pruner.summary()).splitlines()[-1].startswith("the only pruned layer ")
    assert repr(pruner).endswith("connectivity 1 over 1 layer)")


def test_a_model_without_such_weights_is_silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pruner = attach(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Conv2d(2, 4, 3)))
    assert pruner.skipped == ()
    assert "left dense" not in str(pruner.summary())


@pytest.mark.parametrize("targets", [["head.*"], "conv1", lambda name, module: name == "conv1"])
def test_what_the_user_leaves_out_is_listed_without_a_warning(targets):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pruner = attach(Zoo(), targets=targets)
    assert {x.reason for x in pruner.skipped} == {"not in targets"}
    assert {"embed.weight", "grouped.weight"} <= {x.name for x in pruner.skipped}


def test_a_glob_that_covers_a_weight_it_does_not_prune_says_why():
    with pytest.warns(UserWarning, match="depthwise convolution: depthwise.weight, 36 weights"):
        attach(Zoo(), targets="*")


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
    skipped = attach(Zoo(), targets=["cell.input_weights"]).skipped
    assert "cell.input_weights" not in {x.name for x in skipped}


def counts_at_the_end(method, targets, model=None):
    model = model or Zoo()
    optimizer = SGD(model.parameters(), lr=0.1)
    pruner = method.attach(model, optimizer, total_steps=4, targets=targets)
    for _ in range(4):
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
    pruner.finish()
    return {row["name"]: (row["present"], row["total"]) for row in pruner.summary()}


def test_a_mapping_gives_each_glob_its_connectivity_and_the_later_wins():
    found = counts_at_the_end(
        Magnitude(connectivity=0.6), {"head.*": 0.5, "*fc2": 0.25, "conv1": 1.0}
    )
    assert found["head.fc1.weight"] == (12, 24)
    assert found["head.fc2.weight"] == (3, 12)
    assert found["conv1.weight"] == (72, 72)
    assert list(found) == DEFAULT, "the other layers are pruned too"


MAPPED = ("budget", "magnitude", "gradr", "stds", "upr", "admm", "lottery", "deepr", "set", "rigl")


@pytest.mark.parametrize("name", MAPPED)
def test_a_mapping_leaves_the_rest_of_the_budget_to_all_other_layers(name):
    """Of 148 weights 59 are the budget; conv1 takes 36, so 23 are left for the other 76."""
    torch.manual_seed(0)
    options = {"every": 1} if "every" in defaults(METHODS[name]) else {}
    found = counts_at_the_end(METHODS[name](connectivity=0.4, **options), {"conv1": 0.5})
    assert found["conv1.weight"] == (36, 72)
    assert list(found) == DEFAULT
    rest = sum(present for layer, (present, _) in found.items() if layer != "conv1.weight")
    even = name in ("deepr",)  # rounds in each layer
    assert abs(rest - 23) <= (2 if even else 0)
    assert all(present >= 1 for present, _ in found.values())


def test_a_mapping_may_add_a_matrix_that_is_not_pruned_by_default():
    found = counts_at_the_end(Magnitude(connectivity=0.5), {"cell.input_weights": 0.25})
    assert found["cell.input_weights"] == (3, 12)
    assert sum(present for present, _ in found.values()) == round(0.5 * (148 + 12))


@pytest.mark.parametrize(
    ("connectivity", "targets", "rest"),
    [(0.1, {"conv1": 1.0}, "cannot keep -57 of 76"), (0.9, {"conv1": 0.1}, "keep 126 of 76")],
)
def test_a_mapping_that_leaves_no_room_for_the_rest_is_refused(connectivity, targets, rest):
    method = Magnitude(connectivity=connectivity)
    with pytest.raises(SpikewireError, match=f"^targets: .* {rest}; change connectivity or"):
        counts_at_the_end(method, targets)


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
    assert [x.name for x in method.skipped] == [
        f"0.parametrizations.weight.original{i}" for i in (0, 1)
    ]


def freeze(model):
    model.conv1.weight.requires_grad_(False)


def half_owned(model):
    return [p for name, p in model.named_parameters() if name != "conv1.weight"]


@pytest.mark.parametrize("targets", [prunable, ["conv1", "head.*"], {"conv1": 0.5}])
def test_a_frozen_target_is_skipped_and_listed(targets):
    model = Zoo()
    freeze(model)
    method = Magnitude(connectivity=0.5)
    optimizer = SGD(model.parameters(), lr=0.1)
    with pytest.warns(UserWarning, match=r"frozen: conv1\.weight, 72 weights;"):
        pruner = method.attach(model, optimizer, total_steps=1, targets=targets)
    assert "conv1.weight" not in pruner.masks()
    assert [x.weights for x in pruner.skipped if x.reason == "frozen"] == [72]


def test_a_model_that_is_frozen_as_a_whole_is_refused():
    model = nn.Sequential(nn.Linear(2, 2), empty_layer()).requires_grad_(False)
    with pytest.raises(SpikewireError, match=r"nothing to prune; frozen or empty: 0\.weight, 1\."):
        attach(model)


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
    optimizer = SGD(model.parameters(), lr=0.1)
    method = Dense()
    with pytest.raises(SpikewireError):
        method.attach(model, optimizer, total_steps=1, targets="conv7")
    assert not optimizer._optimizer_step_pre_hooks
    assert list(method.attach(model, optimizer, total_steps=1).masks()) == DEFAULT


def test_a_module_is_no_target():
    """It is callable, and would be taken for a rule."""
    model = nn.Sequential(nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(SpikewireError, match="^targets: 'Linear' is not allowed"):
        Magnitude().attach(model, optimizer, total_steps=2, targets=model[0])
