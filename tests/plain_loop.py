"""A small network, its batches and a plain training loop, to compare other loops with."""

import torch
from torch import nn
from torch.nn import functional
from torch.optim import SGD

STEPS, BATCH = 12, 16


def net():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 4))


def new_optimizer(model):
    return SGD(model.parameters(), lr=0.05, momentum=0.9)


def data(count=STEPS * BATCH):
    generator = torch.Generator().manual_seed(6)
    images = torch.randn(count, 8, generator=generator)
    return images, (images[:, :4] + images[:, 4:]).argmax(1)


def batches():
    images, labels = data()
    return list(zip(images.split(BATCH), labels.split(BATCH), strict=True))


def plain_run(method, epochs=1):
    """Return a model trained in a plain loop, and its final masks."""
    model = net()
    optimizer = new_optimizer(model)
    pruner = method.attach(model, optimizer, total_steps=epochs * STEPS)
    for images, labels in batches() * epochs:
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return model, pruner.finish()
