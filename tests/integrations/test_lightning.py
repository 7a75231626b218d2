"""Lightning's own Trainer: automatic and manual optimization, attached early or by the callback."""

import csv
import warnings

import foreign_wheels  # noqa: F401
import pytest
import torch
from plain_loop import BATCH, STEPS, data, net, new_optimizer, plain_run
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from spikewire import METHODS, Budget, Dense, Lottery, SpikewireError
from spikewire.fields import defaults

with warnings.catch_warnings():  # what it does when imported is not ours to fix
    warnings.simplefilter("ignore")
    import lightning.pytorch as pl

from spikewire.integrations.lightning import PrunerCallback

pytestmark = [
    # about workers, the logger and the length of an epoch; and torch's own, in Lightning's code
    pytest.mark.filterwarnings("ignore::UserWarning:lightning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


class Automatic(pl.LightningModule):
    """The network of the plain loop, trained by closures."""

    def __init__(self):
        super().__init__()
        self.net = net()

    def training_step(self, batch, index):
        images, labels = batch
        return functional.cross_entropy(self.net(images), labels)

    def configure_optimizers(self):
        return new_optimizer(self)


class Manual(Automatic):
    """The same, with backward() and step() called by hand."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, index):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, index))
        optimizer.step()


class Early(Automatic):
    """Attached by hand in `configure_optimizers`, before the strategy sets the optimizer up."""

    def configure_optimizers(self):
        optimizer = new_optimizer(self)
        steps = int(self.trainer.estimated_stepping_batches)
        self.pruner = self.method.attach(self, optimizer, total_steps=steps)
        return optimizer


def loader():
    return DataLoader(TensorDataset(*data()), batch_size=BATCH)


def trainer(folder, *callbacks, epochs=1, **options):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    options = {"enable_checkpointing": False, **quiet, **options}
    return pl.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        callbacks=list(callbacks),
        default_root_dir=folder,
        **options,
    )


def build(name, connectivity=0.3):
    wanted = {"connectivity": connectivity, "every": 2}
    return METHODS[name](**{k: v for k, v in wanted.items() if k in defaults(METHODS[name])})


def same(first, second):
    return all(map(torch.equal, first.parameters(), second.parameters()))


def same_masks(found, expected):
    assert list(found) == [f"net.{name}" for name in expected]
    return all(map(torch.equal, found.values(), expected.values()))


CASES = [(name, Automatic) for name in METHODS] + [(name, Manual) for name in ("budget", "rigl")]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_run_by_the_callback_equals_a_plain_loop_bit_for_bit(name, kind, tmp_path):
    expected, masks = plain_run(build(name))
    module, callback = kind(), PrunerCallback(build(name))
    trainer(tmp_path, callback).fit(module, loader())
    assert callback.pruner.step == STEPS
    assert same(expected, module.net)
    assert same_masks(callback.pruner.masks(), masks)


@pytest.mark.parametrize("name", ["budget", "gradr", "set"])
def test_a_pruner_attached_in_configure_optimizers_equals_a_plain_loop(name, tmp_path):
    expected, masks = plain_run(build(name))
    module = Early()
    module.method = build(name)
    trainer(tmp_path).fit(module, loader())
    found = module.pruner.finish()
    assert same(expected, module.net)
    assert same_masks(found, masks)


@pytest.mark.parametrize("name", ["budget", "deepr", "upr", "lottery"])
def test_a_resumed_fit_ends_as_one_that_never_stopped(name, tmp_path):
    whole, callback = Automatic(), PrunerCallback(build(name))
    trainer(tmp_path, callback, epochs=3).fit(whole, loader())

    stopped = Automatic()
    saver = pl.callbacks.ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    first = trainer(
        tmp_path, PrunerCallback(build(name)), saver, epochs=3, enable_checkpointing=True
    )
    first.fit(stopped, loader())

    resumed, restored = Automatic(), PrunerCallback(build(name))
    second = trainer(tmp_path, restored, epochs=3)
    second.fit(resumed, loader(), ckpt_path=tmp_path / "epoch=0.ckpt")
    assert restored.pruner.step == 3 * STEPS
    assert same(whole.net, resumed.net)
    assert all(map(torch.equal, callback.pruner.masks().values(), restored.pruner.masks().values()))


def test_statistics_are_logged_once_per_epoch(tmp_path):
    logger = pl.loggers.CSVLogger(tmp_path)
    callback = PrunerCallback(Budget(connectivity=0.25, every=1, ramp=0.5))
    trainer(tmp_path, callback, epochs=3, logger=logger).fit(Automatic(), loader())
    with open(f"{logger.log_dir}/metrics.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["pruner/connectivity"]]
    values = [float(row["pruner/connectivity"]) for row in rows]
    assert len(values) == 3
    assert values[0] > values[1] == values[2] == pytest.approx(0.25)
    assert sum(float(row["pruner/pruned"]) for row in rows) >= 0.75 * 144


def test_the_end_is_a_plain_module_that_another_fit_may_prune_again(tmp_path):
    module = Automatic()
    for connectivity in (0.5, 0.25):
        callback = PrunerCallback(Budget(connectivity=connectivity, every=1))
        trainer(tmp_path, callback).fit(module, loader())
        assert callback.pruner.connectivity() == pytest.approx(connectivity)
    present = sum(int(module.get_parameter(n).count_nonzero()) for n in callback.pruner.masks())
    assert present == 36


class Failing(Automatic):
    """It fails in the middle of the epoch."""

    def training_step(self, batch, index):
        if index == 5:
            raise MemoryError
        return super().training_step(batch, index)


def test_an_exception_in_a_fit_leaves_no_hook(tmp_path):
    module, callback = Failing(), PrunerCallback(build("budget"))
    with pytest.raises(MemoryError):
        trainer(tmp_path, callback).fit(module, loader())
    Dense().attach(module, new_optimizer(module), total_steps=1).detach()


def test_a_run_without_an_end_needs_a_number_of_steps(tmp_path):
    endless = trainer(tmp_path, PrunerCallback(Budget()), epochs=-1)
    with pytest.raises(SpikewireError, match=r"total_steps: the trainer has no last step"):
        endless.fit(Automatic(), loader())


def test_a_checkpoint_saved_after_the_end_is_refused_in_one_line(tmp_path):
    module, callback = Automatic(), PrunerCallback(Budget(connectivity=0.3))
    done = trainer(tmp_path, callback)
    done.fit(module, loader())
    done.save_checkpoint(tmp_path / "end.ckpt")
    again = trainer(tmp_path, PrunerCallback(Budget(connectivity=0.3)), epochs=2)
    with pytest.raises(SpikewireError, match=r"ckpt_path: .*after the pruner finished"):
        again.fit(Automatic(), loader(), ckpt_path=tmp_path / "end.ckpt")


class Lbfgs(Automatic):
    """An optimizer that evaluates the closure many times."""

    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters())


def test_a_callback_of_no_method_is_refused_at_once():
    for wrong in (Budget, "budget"):
        with pytest.raises(SpikewireError, match="^method: .* it must be one such as spikewire"):
            PrunerCallback(wrong)


@pytest.mark.parametrize("steps", [0, 1.5, "10"])
def test_a_wrong_number_of_steps_is_refused_and_not_replaced(steps, tmp_path):
    with pytest.raises(SpikewireError, match="^total_steps: "):
        trainer(tmp_path, PrunerCallback(Budget(), total_steps=steps)).fit(Automatic(), loader())


def test_lbfgs_is_refused(tmp_path):
    with pytest.raises(SpikewireError, match="budget: LBFGS evaluates its closure several times"):
        trainer(tmp_path, PrunerCallback(Budget())).fit(Lbfgs(), loader())


def test_a_method_that_cannot_attach_says_so(tmp_path):
    callback = PrunerCallback(Lottery(rounds=3), total_steps=2)
    with pytest.raises(SpikewireError, match="rounds: 3 do not fit in 2 steps"):
        trainer(tmp_path, callback).fit(Automatic(), loader())


class Two(Automatic):
    """Two optimizers, stepped by hand one after the other."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, index):
        loss = super().training_step(batch, index)
        for optimizer in self.optimizers():
            optimizer.zero_grad()
        self.manual_backward(loss)
        for optimizer in self.optimizers():
            optimizer.step()

    def configure_optimizers(self):
        return [new_optimizer(self.net[:2]), new_optimizer(self.net[2:])]


def test_two_optimizers_in_manual_optimization_equal_one(tmp_path):
    expected, _ = plain_run(build("budget"))
    module, callback = Two(), PrunerCallback(build("budget"))
    trainer(tmp_path, callback).fit(module, loader())
    assert callback.pruner.step == STEPS
    assert same(expected, module.net)
