"""An attached model is stepped, saved, loaded, copied, written, replaced and finished at random.

After every operation: nothing but a one-line error is raised, a tampered weight is noticed before
it is used, absent synapses are 0, and the connectivity reported is that of the model's own weights.
"""

import copy
import io
import random

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim import SGD, Adam

from spikewire import METHODS, SpikewireError, TrainingFailed, apply_masks
from spikewire.fields import defaults

TOTAL, LENGTH = 12, 18
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:test_life_cycle")


def build(name):
    wanted = {"connectivity": 0.4, "every": 2, "rounds": 2}
    return METHODS[name](**{k: v for k, v in wanted.items() if k in defaults(METHODS[name])})


def net(seed):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(48, 4),
    )


class Life:
    """A model, its optimizer and its pruner, and what is known about them.

    `tampered` says what was done to a pruned weight from outside: "" nothing, "written" or
    "replaced".
    """

    def __init__(self, name, seed):
        self.random = random.Random(seed)
        self.name, self.seed, self.tampered = name, seed, ""
        self.model = net(seed)
        self.keys = list(self.model.state_dict())
        self.taken, self.snapshots, self.done = 0, [], []
        self.new_optimizer()
        self.attach()

    def new_optimizer(self):
        kind = self.random.choice(
            [lambda p: SGD(p, lr=0.05, momentum=0.9), lambda p: Adam(p, lr=0.01)]
        )
        self.optimizer = kind(self.model.parameters())

    @property
    def attached(self):
        return self.pruner.model is not None

    def layer(self):
        return self.model[self.random.choice([0, 4])]

    def backward(self):
        generator = torch.Generator().manual_seed(self.taken)
        images = torch.randn(6, 1, 4, 4, generator=generator)
        labels = torch.randint(4, (6,), generator=generator)
        self.optimizer.zero_grad(set_to_none=self.random.random() < 0.5)
        functional.cross_entropy(self.model(images), labels).backward()

    def refused(self, call, *arguments):
        """Call; return whether it was refused, in one line."""
        try:
            call(*arguments)
        except (SpikewireError, TrainingFailed) as error:
            text = str(error)
        else:
            return False
        assert "\n" not in text
        return True

    # ------------------------------------------------------------------ operations

    def attach(self):
        self.pruner = build(self.name).attach(
            self.model, self.optimizer, total_steps=TOTAL, seed=self.seed
        )
        self.snapshots = []

    def do_step(self):
        before = self.pruner.step
        if self.random.random() < 0.4:
            refused = self.refused(self.optimizer.step, self.backward)
        else:
            self.backward()
            refused = self.refused(self.optimizer.step)
        self.taken += 1
        if self.attached:
            assert refused == bool(self.tampered), self.done
            assert self.pruner.step == before + (not refused)
        else:
            assert not refused
            self.finished_masks = None  # a plain model: it may have filled its zeros

    do_step_again = do_step_and_again = do_one_more_step = do_step  # most operations are steps

    def do_cut_step(self):
        """An exception between pre-hook and post-hook."""
        self.backward()

        def fail(*_):
            raise MemoryError

        handle = self.optimizer.register_step_pre_hook(fail)
        with pytest.raises((MemoryError, SpikewireError)):
            self.optimizer.step()
        handle.remove()
        if self.attached:
            self.refused(self.pruner.state_dict)  # shows the network its weights again

    def do_save(self):
        if not self.attached:
            return
        refused = self.refused(self.pruner.state_dict)
        assert refused == bool(self.tampered), self.done
        if not refused:
            parts = (self.model, self.optimizer, self.pruner)
            torch.save([part.state_dict() for part in parts], file := io.BytesIO())
            self.snapshots.append(file.getvalue())

    def do_load(self):
        if not (self.attached and self.snapshots) or self.tampered == "replaced":
            return
        saved = torch.load(io.BytesIO(self.random.choice(self.snapshots)), weights_only=True)
        for part, state in zip((self.model, self.optimizer, self.pruner), saved, strict=True):
            part.load_state_dict(state)
        self.tampered = ""

    def do_load_the_model_only(self):
        if self.attached and self.snapshots and not self.tampered:
            saved = torch.load(io.BytesIO(self.snapshots[-1]), weights_only=True)
            self.model.load_state_dict(saved[0])
            self.tampered = "written"

    def do_load_a_foreign_state(self):
        if self.attached:
            other = build("dense" if self.name != "dense" else "budget")
            model = net(1)
            state = other.attach(model, SGD(model.parameters(), lr=0.1), total_steps=3).state_dict()
            assert self.refused(self.pruner.load_state_dict, state)

    def do_write(self):
        if self.attached and not self.tampered:
            weight = self.layer().weight
            if self.random.random() < 0.5:
                weight.data.add_(0.01)
            else:
                with torch.no_grad():
                    weight.mul_(1.01)
            self.tampered = "written"

    def do_replace(self):
        if self.tampered or not self.attached:
            return
        layer = self.layer()
        index = 0 if layer is self.model[0] else 4
        if self.random.random() < 0.5:
            self.model[index] = copy.deepcopy(layer)
        else:
            layer.weight = nn.Parameter(layer.weight.detach().clone())
        self.tampered = "replaced"

    def do_swap_out_and_back(self):
        index = self.random.choice([0, 4])
        layer = self.model[index]
        self.model[index] = copy.deepcopy(layer)
        self.model[index] = layer

    def do_edit(self):
        if not self.attached:
            return
        try:
            with self.pruner.editing(), torch.no_grad():
                for parameter in self.model.parameters():
                    parameter.clamp_(-0.5, 0.5)
        except SpikewireError:
            assert self.tampered
        else:
            assert not self.tampered

    def do_copy(self):
        """A copy is free: it may be trained and pruned, and the original does not notice."""
        twin = copy.deepcopy(self.model)
        optimizer = SGD(twin.parameters(), lr=0.1)
        pruner = build("magnitude").attach(twin, optimizer, total_steps=1)
        twin(torch.ones(2, 1, 4, 4)).sum().backward()
        optimizer.step()
        pruner.finish()

    def do_pickle(self):
        torch.save(self.model, file := io.BytesIO())
        file.seek(0)
        torch.load(file, weights_only=False)(torch.ones(2, 1, 4, 4))

    def do_read(self):
        if self.attached:
            repr(self.pruner), str(self.pruner.summary())
            assert self.pruner.stats()["connectivity"] == self.pruner.connectivity()

    def do_finish(self):
        if not self.attached:
            return
        keep = self.random.random() < 0.5
        refused = self.refused(self.pruner.finish, keep)
        if self.tampered:
            assert refused, self.done
        if refused:
            assert self.attached, "a refused finish leaves the pruner as it was"
            return
        self.finished_masks = self.pruner.masks()
        assert list(self.model.state_dict()) == self.keys

    def do_detach(self):
        self.pruner.detach()
        self.tampered, self.finished_masks = "", None

    def do_start_again(self):
        """As after an error: give up, take a new optimizer, attach again."""
        self.do_detach()
        self.new_optimizer()
        self.attach()

    # ------------------------------------------------------------------ what must hold

    def check(self):
        if self.attached:
            masks = self.pruner.masks()
            total = sum(mask.numel() for mask in masks.values())
            present = sum(int(mask.sum()) for mask in masks.values())
            assert self.pruner.connectivity() == present / total
            assert list(masks) == ["0.weight", "4.weight"]
        elif (masks := getattr(self, "finished_masks", None)) is None:
            return
        if not self.tampered:
            for name, mask in masks.items():
                weight = self.model.get_parameter(name)
                assert not weight[~mask].any(), (name, self.done)

    def live(self):
        operations = [name for name in dir(self) if name.startswith("do_")]
        for _ in range(LENGTH):
            operation = self.random.choice(operations)
            self.done.append(operation)
            getattr(self, operation)()
            self.check()
        if self.tampered:
            self.do_start_again()
        if self.attached:
            self.refused(self.pruner.finish)
        self.pruner.detach()
        assert not self.optimizer._optimizer_step_pre_hooks
        assert not self.optimizer._optimizer_step_post_hooks
        apply_masks(self.model, {"4.weight": torch.ones(4, 48, dtype=torch.bool)})


def lives(name, seeds, faults):
    for seed in seeds:
        life = Life(name, seed)
        try:
            life.live()
        except BaseException as error:
            error.add_note(f"{name}, seed {seed}: {', '.join(life.done)}")
            raise
    faults("attached life cycle", len(seeds), len(seeds))


@pytest.mark.parametrize("name", METHODS)
def test_a_short_life(name, faults):
    lives(name, range(1, 4), faults)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_many_lives(name, faults):
    lives(name, range(100, 150), faults)
