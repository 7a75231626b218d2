"""Prune a recurrent Norse network with Grad R: three lines around an unchanged loop.

Run: pip install . norse; python examples/norse_digits.py
"""

import norse.torch as norse
import torch
from torch import Tensor, nn

import spikewire
from spikewire.data import load

TIME_STEPS, EPOCHS, BATCH = 8, 10, 64


class Network(nn.Module):
    """A feed-forward and a recurrent population, read out together."""

    def __init__(self):
        super().__init__()
        self.encoder, self.cell = nn.Linear(64, 100), norse.LIFBoxCell(dt=0.005)
        self.recurrent = norse.LIFRecurrentCell(100, 100, dt=0.005)
        self.readout = nn.Linear(200, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return a readout of the firing rates."""
        current = 4 * self.encoder(images.flatten(1))
        state, inner, rate = None, None, torch.zeros(())
        for _ in range(TIME_STEPS):
            spikes, state = self.cell(current, state)
            recurrent_spikes, inner = self.recurrent(spikes, inner)
            rate = rate + torch.cat([spikes, recurrent_spikes], dim=1) / TIME_STEPS
        return self.readout(rate)


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
optimizer = torch.optim.Adam(net.parameters(), lr=2e-2)
train()
print(f"dense:  accuracy {accuracy():.1%}, connectivity 100.0%")
# The raw matrices of a recurrent cell are pruned only if named; see pruner.skipped.
targets = ["encoder", "readout", "recurrent.input_weights", "recurrent.recurrent_weights"]
steps = EPOCHS * -(-len(images) // BATCH)
pruner = spikewire.GradR(connectivity=0.2).attach(
    net, optimizer, total_steps=steps, targets=targets
)
train()
pruner.finish()  # exact zeros in place, no hooks left, a plain network
print(f"pruned: accuracy {accuracy():.1%}, connectivity {pruner.connectivity():.1%}")
for row in pruner.summary():
    print(f"  {row['name']}: {row['present']} of {row['total']} synapses")
