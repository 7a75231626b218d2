"""Prune a recurrent Norse network with Grad R: three lines around an unchanged loop.

pip install spikewire norse; python examples/norse_digits.py
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
            echo, inner = self.recurrent(spikes, inner)
            rate = rate + torch.cat([spikes, echo], dim=1) / TIME_STEPS
        return self.readout(rate)


def train() -> None:
    """Run an ordinary loop; it knows nothing of spikewire."""
    net.train()
    for _ in range(EPOCHS):
        for pick in torch.randperm(len(images)).split(BATCH):
            loss = nn.functional.cross_entropy(net(images[pick]), labels[pick])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@torch.no_grad()
def accuracy() -> float:
    """Return the share of test images the network names rightly."""
    return (net.eval()(data.test_images / 255).argmax(1) == data.test_labels).float().mean().item()


torch.manual_seed(0)
torch.set_num_threads(1)  # tensors this small gain nothing from more
data = load("digits")
images, labels = data.train_images / 255, data.train_labels
net = Network()
optimizer = torch.optim.Adam(net.parameters(), lr=2e-2)
train()
print(f"dense:  accuracy {accuracy():.1%}, connectivity 100.0%")
# A recurrent cell holds raw matrices; unless named they are left alone, see method.skipped.
targets = ["encoder", "readout", "recurrent.input_weights", "recurrent.recurrent_weights"]
steps = EPOCHS * -(-len(images) // BATCH)
method = spikewire.GradR(connectivity=0.2).attach(
    net, optimizer, total_steps=steps, targets=targets
)
train()
method.finish()  # exact zeros in place, no hook left, a plain network
print(f"pruned: accuracy {accuracy():.1%}, connectivity {method.connectivity():.1%}")
for row in method.summary():
    print(f"  {row['name']}: {row['present']} of {row['total']} synapses")
