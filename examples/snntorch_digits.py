"""Prune a snnTorch network with Deep R to exactly 10 %: three lines around an unchanged loop.

Run: pip install . snntorch; python examples/snntorch_digits.py
"""

import snntorch
import torch
from torch import Tensor, nn

import spikewire
from spikewire.data import load

TIME_STEPS, EPOCHS, BATCH = 8, 12, 64


class Network(nn.Module):
    """64-200-10 with leaky neurons."""

    def __init__(self):
        super().__init__()
        self.first, self.hidden = nn.Linear(64, 200), snntorch.Leaky(beta=0.8)
        self.second, self.output = nn.Linear(200, 10), snntorch.Leaky(beta=0.8)

    def forward(self, images: Tensor) -> Tensor:
        """Return the mean membrane potential of the output neurons."""
        current = self.first(images.flatten(1))
        first, second = self.hidden.init_leaky(), self.output.init_leaky()
        total = torch.zeros(())
        for _ in range(TIME_STEPS):
            spikes, first = self.hidden(current, first)
            _, second = self.output(self.second(spikes), second)
            total = total + second
        return total / TIME_STEPS


def train() -> None:
    """Run an ordinary training loop, which does not mention spikewire."""
    net.train()
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(images)).split(BATCH):
            loss = nn.functional.cross_entropy(net(images[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@torch.no_grad()
def accuracy() -> float:
    """Return the fraction of test images that are classified correctly."""
    return (net.eval()(data.test_images / 255).argmax(1) == data.test_labels).float().mean().item()


torch.manual_seed(0)
torch.set_num_threads(1)  # more threads do not help with tensors this small
data = load("digits")
images, labels = data.train_images / 255, data.train_labels
net = Network()
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
train()
print(f"dense:  accuracy {accuracy():.1%}, connectivity 100.0%")

steps = EPOCHS * -(-len(images) // BATCH)
pruner = spikewire.DeepR(connectivity=0.1).attach(net, optimizer, total_steps=steps)
train()
pruner.finish()  # exact zeros in place, no hooks left, a plain network
print(f"pruned: accuracy {accuracy():.1%}, connectivity {pruner.connectivity():.1%}")
for row in pruner.summary():
    print(f"  {row['name']}: {row['present']} of {row['total']} synapses")

# The zeros are left out of the file, which runs on the CPU without snnTorch.
exported = spikewire.export(net, images[:64], "snntorch_digits.packed.safetensors")
print(f"file:   {exported.size:,} of {exported.dense_size:,} bytes, {exported.path}")
runtime = spikewire.load(exported.path)
found = runtime(data.test_images / 255).mean(0).argmax(1)
print(f"        accuracy {(found == data.test_labels).float().mean().item():.1%}")
