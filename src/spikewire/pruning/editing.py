"""Writes to pruned weights from outside, inside `Pruner.editing`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from spikewire.pruning.layers import Layer

if TYPE_CHECKING:
    from spikewire.pruning.method import Method


@contextmanager
def keep_edits(method: "Method", layers: Sequence[Layer]) -> Iterator[None]:
    """Let the method keep what the block writes to the weights; if it raises, put them back."""
    before = [layer.weight.detach().clone() for layer in layers]
    try:
        yield
        with torch.no_grad():
            for layer, weight in zip(layers, before, strict=True):
                if not torch.equal(layer.weight, weight):
                    method.accept_edit_(layer, weight)
    except BaseException:
        with torch.no_grad():
            for layer, weight in zip(layers, before, strict=True):
                layer.weight.copy_(weight)
        raise
