"""Hugging Face's own Trainer, on a small BERT and on a plain torch model."""

import warnings

import foreign_wheels  # noqa: F401
import pytest
import torch
from plain_loop import BATCH, STEPS, data, net, new_optimizer, plain_run
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from spikewire import METHODS, Budget, SpikewireError
from spikewire.fields import defaults

with warnings.catch_warnings():  # what it does when imported is not ours to fix
    warnings.simplefilter("ignore")
    import transformers
    from transformers import Trainer, TrainingArguments

from spikewire.integrations.transformers import PrunerCallback

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*"),
]


class Samples(Dataset):
    """The samples of the plain loop, in its order."""

    def __init__(self):
        self.images, self.labels = data()

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return {"images": self.images[i], "labels": self.labels[i]}


class Classifier(nn.Module):
    """The network of the plain loop, with the interface that the Trainer expects."""

    def __init__(self):
        super().__init__()
        self.net = net()

    def forward(self, images, labels):
        logits = self.net(images)
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


class InOrder(Trainer):
    """A Trainer that does not shuffle."""

    def _get_train_sampler(self, *arguments, **options):
        return None


def trainer(folder, model, *callbacks, epochs=1, **options):
    arguments = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=epochs,
        per_device_train_batch_size=BATCH,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        use_cpu=True,
        disable_tqdm=True,
        report_to=[],
        logging_strategy="no",
        save_strategy=options.pop("save_strategy", "no"),
        dataloader_pin_memory=False,
        **options,
    )
    optimizers = (new_optimizer(model), None) if isinstance(model, Classifier) else (None, None)
    return InOrder(
        model,
        arguments,
        train_dataset=Samples(),
        eval_dataset=Samples(),
        optimizers=optimizers,
        callbacks=list(callbacks),
    )


def build(name):
    wanted = {"connectivity": 0.3, "every": 2}
    return METHODS[name](**{k: v for k, v in wanted.items() if k in defaults(METHODS[name])})


def same(first, second):
    return all(map(torch.equal, first.parameters(), second.parameters()))


@pytest.mark.parametrize("name", ["budget", "gradr", "deepr", "upr"])
def test_a_run_equals_a_plain_loop_bit_for_bit(name, tmp_path):
    expected, masks = plain_run(build(name))
    model, callback = Classifier(), PrunerCallback(build(name))
    run = trainer(tmp_path, model, callback)
    run.train()
    assert callback.pruner.step == STEPS
    assert same(expected, model.net)
    found = callback.pruner.masks()
    assert list(found) == [f"net.{key}" for key in masks]
    assert all(map(torch.equal, found.values(), masks.values()))
    (row,) = [row for row in run.state.log_history if "pruner/connectivity" in row]
    assert row["step"] == STEPS


@pytest.mark.parametrize("name", ["budget", "deepr"])
def test_a_resumed_run_ends_as_one_that_never_stopped(name, tmp_path):
    whole, callback = Classifier(), PrunerCallback(build(name))
    trainer(tmp_path, whole, callback, epochs=3, save_strategy="epoch").train()
    resumed, restored = Classifier(), PrunerCallback(build(name))
    folder = tmp_path / f"checkpoint-{STEPS}"
    assert (folder / "pruner.pt").is_file()
    trainer(tmp_path, resumed, restored, epochs=3).train(resume_from_checkpoint=str(folder))
    assert restored.pruner.step == 3 * STEPS
    assert same(whole, resumed)
    assert all(map(torch.equal, callback.pruner.masks().values(), restored.pruner.masks().values()))


def test_a_callback_of_no_method_is_refused_at_once():
    for wrong in (Budget, "budget"):
        with pytest.raises(SpikewireError, match="^method: .* it must be one such as spikewire"):
            PrunerCallback(wrong)


def test_a_checkpoint_without_the_callback_is_refused_in_one_line(tmp_path):
    trainer(tmp_path, Classifier(), epochs=2, save_strategy="epoch").train()
    run = trainer(tmp_path, Classifier(), PrunerCallback(build("budget")), epochs=2)
    with pytest.raises(SpikewireError, match=r"pruner\.pt: no such file; .*resume_from"):
        run.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{STEPS}"))


def test_the_best_model_is_finished_with_its_own_masks(tmp_path):
    model, callback = Classifier(), PrunerCallback(Budget(connectivity=0.3, every=1, ramp=1.0))
    run = trainer(
        tmp_path,
        model,
        callback,
        epochs=3,
        save_strategy="epoch",
        eval_strategy="epoch",
        load_best_model_at_end=True,
        metric_for_best_model="eval_runtime",  # any: the masks must be those of the one chosen
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "budget: finished at step")
        run.train()
    best = torch.load(f"{run.state.best_model_checkpoint}/pruner.pt", weights_only=True)
    for name, mask in callback.pruner.masks().items():
        assert torch.equal(mask, best["layers"][name]["mask"])
        assert (model.get_parameter(name)[~mask] == 0).all()


def test_a_small_bert_is_pruned_and_its_embeddings_are_listed(tmp_path):
    config = transformers.BertConfig(
        vocab_size=30,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        num_labels=2,
    )
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config)
    callback = PrunerCallback(Budget(connectivity=0.2, every=1))
    words = torch.randint(30, (32, 8))
    samples = [{"input_ids": row, "labels": row[0] % 2} for row in words]
    run = trainer(tmp_path, model, callback, learning_rate=1e-3)
    run.train_dataset = samples
    with pytest.warns(UserWarning, match=r"embedding: bert\.embeddings\.word_embeddings\.weight"):
        run.train()
    assert callback.pruner.connectivity() == pytest.approx(0.2, abs=1e-3)
    assert any("attention" in name for name in callback.pruner.masks())
    assert {x.reason for x in callback.pruner.skipped} == {"embedding"}
