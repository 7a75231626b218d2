"""Prune a spiking network with Hugging Face's Trainer: one callback beside an unchanged trainer.

Run: pip install . transformers accelerate; python examples/transformers_digits.py
"""

import tempfile

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

import spikewire
from spikewire.data import load
from spikewire.integrations.transformers import PrunerCallback

EPOCHS, BATCH = 30, 64


class Digits(nn.Module):
    """A spiking network with the interface that the Trainer expects."""

    def __init__(self):
        super().__init__()
        self.net = spikewire.build("digits-mlp", time_steps=8)

    def forward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return loss and logits: ten times the mean spikes."""
        logits = 10 * self.net(images).mean(0)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


torch.manual_seed(0)
torch.set_num_threads(1)  # more threads do not help with tensors this small
data = load("digits")
images = data.train_images / 255
samples = [
    {"images": image, "labels": label}
    for image, label in zip(images, data.train_labels, strict=True)
]
model = Digits()
spikewire.scale_to_fire_(model.net, images[:256])
callback = PrunerCallback(spikewire.Budget(connectivity=0.1))
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH,
        learning_rate=5e-3,
        use_cpu=True,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    Trainer(model, arguments, train_dataset=samples, callbacks=[callback]).train()  # pyright: ignore

assert callback.pruner is not None
with torch.no_grad():
    predicted = model.net.eval()(data.test_images / 255).mean(0).argmax(1)
accuracy = (predicted == data.test_labels).float().mean().item()
print(f"pruned: accuracy {accuracy:.1%}, connectivity {callback.pruner.connectivity():.1%}")
print(callback.pruner.summary())
