"""Prune a convolutional SpikingJelly network with Grad R: three lines around an unchanged loop.

Run: pip install . spikingjelly; python examples/spikingjelly_digits.py
"""

import torch
from spikingjelly.activation_based import functional, layer, neuron, surrogate
from torch import Tensor, nn

import spikewire
from spikewire.data import load

TIME_STEPS, EPOCHS, BATCH = 4, 10, 64


class Network(nn.Module):
    """Conv-BN-LIF-pool twice, then a linear readout, in multi-step mode."""

    def __init__(self):
        super().__init__()
        stages = []
        for channels in (1, 32):
            stages += [
                layer.Conv2d(channels, 32, 3, padding=1, bias=False),
                layer.BatchNorm2d(32),
                neuron.LIFNode(surrogate_function=surrogate.ATan(), detach_reset=True),
                layer.MaxPool2d(2),
            ]
        self.layers = nn.Sequential(*stages, layer.Flatten(), layer.Linear(128, 10, bias=False))
        functional.set_step_mode(self, "m")

    def forward(self, images: Tensor) -> Tensor:
        """Return the mean output current."""
        functional.reset_net(self)
        return self.layers(images.expand(TIME_STEPS, *images.shape)).mean(0)


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

steps = EPOCHS * -(-len(images) // BATCH)
pruner = spikewire.GradR(connectivity=0.2).attach(net, optimizer, total_steps=steps)
train()
pruner.finish()  # exact zeros in place, no hooks left, a plain network
print(f"pruned: accuracy {accuracy():.1%}, connectivity {pruner.connectivity():.1%}")
for row in pruner.summary():
    print(f"  {row['name']}: {row['present']} of {row['total']} synapses")

# The zeros are left out of the file, which runs on the CPU without SpikingJelly.
exported = spikewire.export(net, images[:64], "spikingjelly_digits.packed.safetensors")
print(f"file:   {exported.size:,} of {exported.dense_size:,} bytes, {exported.path}")
runtime = spikewire.load(exported.path)
found = runtime(data.test_images / 255).mean(0).argmax(1)
print(f"        accuracy {(found == data.test_labels).float().mean().item():.1%}")
