"""Prune a spiking network in PyTorch Lightning: one callback beside an unchanged module.

Run: pip install . lightning; python examples/lightning_digits.py
"""

import logging
import warnings

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import spikewire
from spikewire.data import load
from spikewire.integrations.lightning import PrunerCallback

EPOCHS, BATCH = 30, 64


class Digits(pl.LightningModule):
    """An ordinary module, which does not mention pruning."""

    def __init__(self):
        super().__init__()
        self.net = spikewire.build("digits-mlp", time_steps=8)

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        """Return the loss of a batch: ten times the mean spikes are the logits."""
        images, labels = batch
        return nn.functional.cross_entropy(10 * self.net(images).mean(0), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters(), lr=5e-3)

    @torch.no_grad()
    def accuracy(self, images: Tensor, labels: Tensor) -> float:
        """Return the fraction of images that are classified correctly."""
        predicted = self.net.eval()(images).mean(0).argmax(1)
        return (predicted == labels).float().mean().item()


def fit(module: Digits, *callbacks: pl.Callback) -> None:
    """Train a module, silently."""
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=EPOCHS,
        callbacks=list(callbacks),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module.train(), loader)


logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
warnings.filterwarnings("ignore", module="lightning")  # about the number of loading processes
torch.manual_seed(0)
torch.set_num_threads(1)  # more threads do not help with tensors this small
data = load("digits")
samples = TensorDataset(data.train_images / 255, data.train_labels)
test = data.test_images / 255, data.test_labels
loader = DataLoader(samples, batch_size=BATCH, shuffle=True)

dense = Digits()
spikewire.scale_to_fire_(dense.net, samples.tensors[0][:256])
fit(dense)
print(f"dense:  accuracy {dense.accuracy(*test):.1%}, connectivity 100.0%")

pruned = Digits()
spikewire.scale_to_fire_(pruned.net, samples.tensors[0][:256])
callback = PrunerCallback(spikewire.Budget(connectivity=0.1))
fit(pruned, callback)
assert callback.pruner is not None
connectivity = callback.pruner.connectivity()
print(f"pruned: accuracy {pruned.accuracy(*test):.1%}, connectivity {connectivity:.1%}")
print(callback.pruner.summary())
