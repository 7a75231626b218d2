"""The contract: one set of tests over all registered methods."""

import copy
import io
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adam, AdamW, RMSprop

from spikewire import METHODS, SpikewireError, TrainingFailed
from spikewire.fields import defaults
from spikewire.pruning.selection import target_count
from spikewire.pruning.steps import is_checksum_step

TOTAL = 24
OPTIMIZERS = {
    "sgd": lambda p: SGD(p, lr=0.05),
    "momentum": lambda p: SGD(p, lr=0.05, momentum=0.9),
    "adam": lambda p: Adam(p, lr=0.01),
    "adamw": lambda p: AdamW(p, lr=0.01, weight_decay=0.0),
    "rmsprop": lambda p: RMSprop(p, lr=0.003),
}
EVERY = pytest.mark.parametrize("name", METHODS)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Use one thread: on tensors this small, several only wait for one another."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@dataclass(frozen=True)
class Case:
    width: int = 3
    connectivity: float = 0.3
    seed: int = 0
    optimizer: str = "adam"


cases = st.builds(
    Case,
    width=st.integers(2, 5),
    connectivity=st.floats(0.1, 1.0),
    seed=st.integers(0, 2**32 - 1),
    optimizer=st.sampled_from(sorted(OPTIMIZERS)),
)


def few(examples):
    return settings(max_examples=examples, deadline=None, derandomize=True, database=None)


def build(name, connectivity):
    """Return the method with this target, changing masks often enough for a short run."""
    known = defaults(METHODS[name])
    wanted = {"connectivity": connectivity, "every": 2}
    return METHODS[name](**{key: value for key, value in wanted.items() if key in known})


def net(case):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(case.seed)
        return nn.Sequential(
            nn.Conv2d(2, case.width, 3, padding=1),
            nn.BatchNorm2d(case.width),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16 * case.width, 5),
        )


TARGETS = ["0.weight", "4.weight"]


class Run:
    """A model, its optimizer and a pruner on batches that follow from seed and step alone."""

    def __init__(self, name, case=Case(), total_steps=TOTAL, wrap=lambda model: model):  # noqa: B008
        self.case, self.taken = case, 0
        self.model = net(case)
        self.forward = wrap(self.model)
        self.optimizer = OPTIMIZERS[case.optimizer](self.model.parameters())
        method = build(name, case.connectivity)
        self.pruner = method.attach(self.model, self.optimizer, total_steps=total_steps, seed=7)

    @property
    def weights(self):
        return {name: self.model.get_parameter(name) for name in TARGETS}

    def backward(self):
        generator = torch.Generator().manual_seed(self.case.seed + self.taken)
        images = torch.randn(8, 2, 4, 4, generator=generator)
        labels = torch.randint(5, (8,), generator=generator)
        self.optimizer.zero_grad()
        functional.cross_entropy(self.forward(images), labels).backward()

    def step(self, times=1):
        for _ in range(times):
            self.backward()
            self.optimizer.step()
            self.taken += 1
        return self

    def save(self):
        file = io.BytesIO()
        parts = (self.model, self.optimizer, self.pruner)
        torch.save([self.taken, *(part.state_dict() for part in parts)], file)
        return file.getvalue()

    def load(self, saved):
        self.taken, model, optimizer, pruner = torch.load(io.BytesIO(saved), weights_only=True)
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)
        self.pruner.load_state_dict(pruner)
        return self


def absent_are_zero(run, masks):
    return all(bool((run.weights[name][~mask] == 0).all()) for name, mask in masks.items())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", ["budget", "magnitude", "rigl", "set", "stds"])
def test_everything_kept_is_dense_training_bit_for_bit(name, optimizer):
    """Other methods pull, divide or rewind even where nothing is pruned."""
    case = Case(connectivity=1.0, optimizer=optimizer)
    kept, dense = (Run(each, case).step(TOTAL) for each in (name, "dense"))
    assert all(map(torch.equal, kept.model.parameters(), dense.model.parameters()))


@EVERY
@few(8)
@given(case=cases)
def test_each_step_keeps_zeros_and_storage_and_leaves_other_parameters_alone(name, case):
    run, twin = Run(name, case), net(case)
    plain = OPTIMIZERS[case.optimizer](twin.parameters())
    pointers = [p.data_ptr() for p in run.model.parameters()]
    first_round = (
        TOTAL // run.pruner.method.cycles
    )  # a method of many cycles rewinds everything after it
    while run.taken < 12:
        run.backward()
        for mine, theirs in zip(twin.parameters(), run.model.parameters(), strict=True):
            mine.grad = theirs.grad.clone()
        run.optimizer.step()
        plain.step()
        run.taken += 1
        masks = run.pruner.masks()
        assert list(masks) == TARGETS
        assert absent_are_zero(run, masks)
        assert [p.data_ptr() for p in run.model.parameters()] == pointers
        if run.taken < first_round:
            for key, value in twin.named_parameters():
                assert key in TARGETS or torch.equal(value, run.model.get_parameter(key)), key


@EVERY
@few(6)
@given(case=cases, stop=st.integers(0, TOTAL - 1))
def test_a_resumed_run_ends_bit_equal_to_one_that_never_stopped(name, case, stop):
    whole = Run(name, case).step(TOTAL)
    part = Run(name, case).step(stop)
    resumed = Run(name, Case(case.width, case.connectivity, case.seed + 1, case.optimizer))
    resumed.case = case
    resumed.load(part.save()).step(TOTAL - stop)
    expected, found = whole.pruner.masks(), resumed.pruner.masks()
    assert all(torch.equal(expected[key], found[key]) for key in TARGETS)
    for key, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[key]), key
    assert whole.pruner.step == resumed.pruner.step == TOTAL


@EVERY
def test_model_and_optimizer_may_be_loaded_before_attach(name):
    """Lightning and Hugging Face restore them first; the first masks must not cut the weights."""
    whole = Run(name).step(TOTAL)
    part = Run(name).step(9)
    saved = torch.load(io.BytesIO(part.save()), weights_only=True)
    resumed = Run.__new__(Run)
    resumed.case, resumed.taken = part.case, saved[0]
    resumed.model = resumed.forward = net(Case(seed=1))
    resumed.optimizer = OPTIMIZERS[part.case.optimizer](resumed.model.parameters())
    resumed.model.load_state_dict(saved[1])
    resumed.optimizer.load_state_dict(saved[2])
    method = build(name, part.case.connectivity)
    resumed.pruner = method.attach(resumed.model, resumed.optimizer, total_steps=TOTAL, seed=3)
    resumed.pruner.state_dict()  # reading it changes nothing
    resumed.pruner.load_state_dict(saved[3])
    resumed.step(TOTAL - 9)
    assert all(map(torch.equal, whole.model.parameters(), resumed.model.parameters()))
    expected, found = whole.pruner.masks(), resumed.pruner.masks()
    assert all(torch.equal(expected[key], found[key]) for key in TARGETS)


@EVERY
@few(6)
@given(case=cases)
def test_the_end_is_a_plain_model_with_the_target_connectivity(name, case):
    run = Run(name, case)
    keys = list(net(case).state_dict())
    masks = run.step(TOTAL).pruner.finish()
    assert absent_are_zero(run, masks)
    assert all(mask.any() for mask in masks.values()), "a layer ended empty"
    total = sum(mask.numel() for mask in masks.values())
    present = sum(int(mask.sum()) for mask in masks.values())
    if (target := run.pruner.method.target) is not None:
        assert abs(present - target * total) <= 1
    assert run.pruner.connectivity() == present / total
    assert list(run.model.state_dict()) == keys
    assert all(type(value) is nn.Parameter for value in run.model.parameters())
    assert not any(vars(value) for value in run.model.parameters())
    assert no_hooks(run)
    before = {key: value.clone() for key, value in run.model.state_dict().items()}
    again = run.pruner.finish()
    assert all(torch.equal(masks[key], again[key]) for key in TARGETS)
    assert all(torch.equal(value, run.model.state_dict()[key]) for key, value in before.items())


def no_hooks(run):
    """Return whether no hook is left on the optimizer and in the model."""
    optimizer = run.optimizer
    modules = list(run.model.modules())
    return not (
        optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or any(module._forward_hooks or module._forward_pre_hooks for module in modules)
    )


@EVERY
@pytest.mark.parametrize("taken", [0, 3])
def test_detach_leaves_no_hook_and_a_model_free_for_another_method(name, taken):
    run = Run(name).step(taken)
    run.pruner.detach()
    assert no_hooks(run)
    METHODS["dense"]().attach(run.model, run.optimizer, total_steps=1).finish()


@pytest.mark.parametrize("name", ["deepr", "set", "rigl"])
@few(6)
@given(case=cases)
def test_counts_per_layer_are_exact_after_every_step(name, case):
    run = Run(name, case)
    counts = {row["name"]: row["present"] for row in run.pruner.summary()}
    if name == "deepr":
        assert counts == {
            k: target_count(case.connectivity, w.numel()) for k, w in run.weights.items()
        }
    for _ in range(12):
        run.step()
        assert {row["name"]: row["present"] for row in run.pruner.summary()} == counts


@EVERY
def test_keep_masks_keeps_the_zeros_while_training_continues(name):
    run = Run(name, Case(optimizer="momentum")).step(TOTAL)
    masks = run.pruner.finish(keep_masks=True)
    before = {key: value.detach().clone() for key, value in run.weights.items()}
    for _ in range(4):
        run.step()
        assert absent_are_zero(run, masks)
    assert all(not torch.equal(before[key], value) for key, value in run.weights.items())
    run.pruner.detach()
    assert no_hooks(run)


FOREIGN = {
    "values were written": lambda w: w.detach().copy_(w.detach() + 1),
    "through .data": lambda w: w.data.add_(1.0),
    "storage was replaced": lambda w: setattr(w, "data", w.data.clone()),
    "dtype went from": lambda w: setattr(w, "data", w.data.double()),
}


@EVERY
@pytest.mark.parametrize("reason", FOREIGN)
def test_a_foreign_write_raises_at_the_next_step(name, reason):
    run = Run(name)
    run.backward()
    FOREIGN[reason](run.weights["4.weight"])
    with pytest.raises(
        SpikewireError, match=rf"4\.weight: was modified outside spikewire.*{reason}"
    ):
        run.optimizer.step()


@EVERY
@pytest.mark.parametrize("after", [1, 2, 4, 5, 6, 8, 10, 16])
def test_a_write_through_data_after_an_early_step_is_detected_at_the_next(name, after):
    """Lookahead writes after every 5th or 6th step, clamping after every step."""
    run = Run(name, total_steps=100).step(after)
    run.weights["0.weight"].data.mul_(1.001)
    with pytest.raises(SpikewireError, match=r"0\.weight.*through \.data"):
        run.step()


def test_checksums_are_taken_at_powers_of_2_and_every_64_steps():
    taken = [step for step in range(300) if is_checksum_step(step)]
    assert taken == [*range(17), 32, 64, 128, 192, 256]


REPLACED = {
    "a module": lambda model: model.__setitem__(4, nn.Linear(model[4].in_features, 5)),
    "a copied module": lambda model: model.__setitem__(4, copy.deepcopy(model[4])),
    "a parameter": lambda model: setattr(
        model[4], "weight", nn.Parameter(model[4].weight.detach().clone())
    ),
    "a parametrized weight": lambda model: nn.utils.parametrizations.weight_norm(model[4]),
    "nothing left": lambda model: model.__setitem__(4, nn.Identity()),
}


@EVERY
@pytest.mark.parametrize("what", REPLACED)
def test_a_replaced_module_or_parameter_is_noticed_at_the_step_and_at_finish(name, what):
    run = Run(name).step(3)
    REPLACED[what](run.model)
    before = {key: value.clone() for key, value in run.model.state_dict().items()}
    reason = r"4\.weight: (was replaced|is no longer a parameter of the model) after attach\(\)"
    for call in (run.optimizer.step, run.pruner.finish, run.pruner.state_dict):
        with pytest.raises(SpikewireError, match=reason):
            call()
    after = run.model.state_dict()
    assert all(torch.equal(value, after[key]) for key, value in before.items())
    run.pruner.detach()
    assert no_hooks(run)


@EVERY
def test_training_on_after_a_plain_finish_warns_once(name):
    run = Run(name, Case(optimizer="momentum")).step(TOTAL)
    masks = run.pruner.finish()
    if all(mask.all() for mask in masks.values()):
        run.step(2)  # dense: nothing to fill, nothing to warn of
        return
    with pytest.warns(UserWarning, match=r"fills the pruned weights.*keep_masks=True") as caught:
        run.step()
    assert caught[0].filename == __file__, "the warning points at the caller's step()"
    run.step(3)  # warnings are errors here


@EVERY
def test_a_closure_equals_a_plain_step_bit_for_bit(name):
    for optimizer in ("momentum", "adam"):
        plain = Run(name, Case(optimizer=optimizer)).step(TOTAL)
        closed = Run(name, Case(optimizer=optimizer))
        for i in range(TOTAL):
            closure = closed.backward
            closed.optimizer.step(closure) if i % 2 else closed.optimizer.step(closure=closure)
            closed.taken += 1
        assert closed.pruner.step == TOTAL
        assert all(map(torch.equal, plain.model.parameters(), closed.model.parameters()))
        expected, found = plain.pruner.finish(), closed.pruner.finish()
        assert all(torch.equal(expected[key], found[key]) for key in TARGETS)


@EVERY
@pytest.mark.parametrize("after", [2, 14, 20])
def test_training_that_has_failed_never_ends_in_silence(name, after):
    """NaN gradients: selection by NaN scores keeps nothing, and the zeros would look finite."""
    run = Run(name, Case(optimizer="sgd")).step(after)

    def fail_and_finish():
        for _ in range(TOTAL - after):
            run.backward()
            for weight in run.weights.values():
                weight.grad.fill_(torch.nan)
            run.optimizer.step()
        run.pruner.finish()

    with pytest.raises(TrainingFailed) as caught:
        fail_and_finish()
    assert "\n" not in str(caught.value)


@EVERY
def test_a_layer_of_size_0_is_left_out(name):
    torch.manual_seed(0)
    model = nn.ModuleDict({"full": nn.Linear(6, 4), "empty": nn.Linear(6, 1)})
    model["empty"].weight = nn.Parameter(torch.empty(0, 6))
    optimizer = SGD(model.parameters(), lr=0.1)
    with pytest.warns(UserWarning, match=r"empty: empty\.weight, 0 weights"):
        pruner = build(name, 0.5).attach(model, optimizer, total_steps=4)
    for _ in range(2):
        model["full"](torch.ones(1, 6)).sum().backward()
        optimizer.step()
    pruner.stats()
    assert list(pruner.summary().skipped) == list(pruner.skipped)
    pruner.detach()


@EVERY
def test_a_second_attach_raises(name):
    run = Run(name)
    with pytest.raises(SpikewireError, match=r"0\.weight: another pruner has it"):
        run.pruner.method.attach(run.model, run.optimizer, total_steps=1)
    with pytest.raises(SpikewireError, match=r"0\.weight: another pruner has it"):
        build(name, 0.5).attach(run.model, run.optimizer, total_steps=TOTAL)


@EVERY
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # dynamo's own, where a hook cuts a graph
def test_a_compiled_model_never_recompiles(name):
    torch._dynamo.reset()
    run = Run(name, wrap=lambda model: torch.compile(model, backend="eager"))
    run.step(2)  # a method may count uses by forward hooks in the first pass
    with torch._dynamo.config.patch(error_on_recompile=True):
        run.step(TOTAL - 2)
    assert run.pruner.step == TOTAL


@EVERY
def test_a_small_net_learns_at_the_defaults(name):
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(256) % 2
    images = torch.randn(256, 20, generator=generator) + (2 * labels[:, None] - 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(20, 100), nn.ReLU(), nn.Linear(100, 2))
    optimizer = Adam(model.parameters(), lr=0.01)
    pruner = METHODS[name]().attach(model, optimizer, total_steps=300)
    losses = []
    for _ in range(300):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    pruner.finish()
    accuracy = (model(images).argmax(1) == labels).float().mean().item()
    assert losses[-1] < 0.2 * losses[0], losses[::20]
    assert accuracy > 0.95


def train_on_rank(rank, folder, names):
    """Train every method on this rank's own batches; leave its weights and masks in `folder`."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2
    )
    ends = {}
    for name in names:
        run = Run(name, Case(seed=100 + 50 * rank), total_steps=8, wrap=DistributedDataParallel)
        run.step(8)
        ends[name] = [*run.model.parameters(), *run.pruner.finish().values()]
    torch.save(ends, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_ranks_hold_the_same_masks_and_weights(tmp_path):
    torch.multiprocessing.spawn(train_on_rank, (str(tmp_path), list(METHODS)), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    for name in METHODS:
        assert all(map(torch.equal, first[name], second[name])), name
        alone = Run(name, Case(seed=100), total_steps=8).step(8)
        assert not torch.equal(first[name][0], alone.model[0].weight), "gradients were not shared"


@EVERY
def test_a_sparsity_is_answered_with_the_connectivity(name):
    with pytest.raises(SpikewireError, match=r"^sparsity: unknown; .* connectivity=0\.1\?"):
        METHODS[name](sparsity=0.9)
