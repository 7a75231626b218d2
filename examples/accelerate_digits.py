"""Prune a spiking network in an Accelerate loop: attach as usual, before or after `prepare`.

Run: pip install . accelerate; python examples/accelerate_digits.py
"""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import spikewire
from spikewire.data import load

EPOCHS, BATCH = 30, 64


@torch.no_grad()
def accuracy() -> float:
    """Return the fraction of test images that are classified correctly."""
    predicted = net.eval()(data.test_images / 255).mean(0).argmax(1)
    return (predicted == data.test_labels).float().mean().item()


torch.manual_seed(0)
torch.set_num_threads(1)  # more threads do not help with tensors this small
data = load("digits")
samples = TensorDataset(data.train_images / 255, data.train_labels)
net = spikewire.build("digits-mlp", time_steps=8)
spikewire.scale_to_fire_(net, samples.tensors[0][:256])
optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
loader = DataLoader(samples, batch_size=BATCH, shuffle=True)

accelerator = Accelerator(cpu=True)
model, optimizer, loader = accelerator.prepare(net, optimizer, loader)
steps = EPOCHS * len(loader)
pruner = spikewire.Budget(connectivity=0.1).attach(model, optimizer, total_steps=steps)
for _ in range(EPOCHS):
    net.train()
    for images, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(10 * model(images).mean(0), labels)
        accelerator.backward(loss)
        optimizer.step()
pruner.finish()  # exact zeros in place, no hooks left, a plain network
print(f"pruned: accuracy {accuracy():.1%}, connectivity {pruner.connectivity():.1%}")
print(pruner.summary())
