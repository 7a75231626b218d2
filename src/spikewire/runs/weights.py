"""The trained network as safetensors: weights, masks and a checksum."""

import zlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from spikewire.files import atomic_write, damaged, io_errors

MASK = "spikewire.mask."  # prefix of a mask's name


def save_weights(path: Path, weights: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> None:
    """Write weights and masks atomically; equal networks give equal files.

    Args:
        path: The safetensors file.
        weights: The `state_dict` of the network.
        masks: One bool tensor per pruned weight, by the name of that weight.

    Raises:
        SpikewireError: If the file cannot be written.
    """
    named_masks = {MASK + name: mask for name, mask in masks.items()}
    both = {**weights, **named_masks}
    tensors = {name: x.detach().cpu().contiguous() for name, x in both.items()}
    with io_errors(path.parent), atomic_write(path) as file:
        # one metadata key only: safetensors writes several in any order
        file.write(save(tensors, metadata={"crc32": _checksum(tensors)}))


def load_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Read weights and masks from a safetensors file.

    Args:
        path: The file; without a checksum it is read as it is.

    Returns:
        The weights and the masks, both by the names of the weights.

    Raises:
        SpikewireError: If the file is damaged.
    """
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            expected = (file.metadata() or {}).get("crc32")
        if expected not in (None, _checksum(tensors)):
            raise ValueError("wrong checksum")
    except (SafetensorError, OSError, ValueError) as error:
        raise damaged(path, error) from None
    masks = {k.removeprefix(MASK): v.bool() for k, v in tensors.items() if k.startswith(MASK)}
    return {k: v for k, v in tensors.items() if not k.startswith(MASK)}, masks


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    """Return the CRC-32 of names and bits; safetensors has no checksum of its own."""
    total = 0
    for name, x in sorted(tensors.items()):
        total = zlib.crc32(name.encode(), total)
        total = zlib.crc32(x.reshape(-1).view(torch.uint8).numpy().data, total)
    return f"{total:08x}"
