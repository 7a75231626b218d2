"""Pooling layers and functions of torch as `Pool`."""

from typing import Any, NamedTuple

import numpy as np

from spikewire.errors import SpikewireError
from spikewire.formats.stage import Pool

ARGUMENTS = {
    "max_pool2d": ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices"),
    "avg_pool2d": (
        "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override",
    ),
    "adaptive_avg_pool2d": ("output_size",),
    "adaptive_max_pool2d": ("output_size", "return_indices"),
}  # fmt: skip
MODULES = {
    "MaxPool2d": "max_pool2d",
    "AvgPool2d": "avg_pool2d",
    "AdaptiveAvgPool2d": "adaptive_avg_pool2d",
    "AdaptiveMaxPool2d": "adaptive_max_pool2d",
}


class Pooling(NamedTuple):
    """A pooling, and whether it averages: then the record holds a sum and a factor."""

    pool: Pool | None
    average: bool


def read_pooling(name: str, function: str, options: dict[str, Any], map_shape: Any) -> Pooling:
    """Return the pooling of a torch function.

    Args:
        name: Name of the module, for the message of a refusal.
        function: A key of `ARGUMENTS`.
        options: Its arguments by name.
        map_shape: Height and width of the map.

    Returns:
        The pooling; None instead of a `Pool` where a window is a single cell.

    Raises:
        SpikewireError: If a window is not square, or an option is not supported.
    """
    average = "avg" in function
    if function.startswith("adaptive"):
        return Pooling(_read_adaptive(name, options, map_shape, average), average)
    size = _read_number(name, "kernel_size", options["kernel_size"])
    stride = options.get("stride")
    stride = (
        size if stride is None or np.size(stride) == 0 else _read_number(name, "stride", stride)
    )
    padding = _read_number(name, "padding", options.get("padding", 0))
    supported = {
        "dilation": _read_number(name, "dilation", options.get("dilation", 1)) == 1,
        "ceil_mode": not options.get("ceil_mode") or _fits(map_shape, size, stride, padding),
        "count_include_pad": options.get("count_include_pad", True) or padding == 0,
        "divisor_override": options.get("divisor_override") is None,
        "return_indices": not options.get("return_indices"),
    }
    for option, fine in supported.items():
        if not fine:
            raise SpikewireError(
                f"{name}: pooling with {option}={options[option]} is not supported"
            )
    if size == stride == 1:
        return Pooling(None, average)
    kind = "sum" if average else "max"
    return Pooling(Pool(kind, size, 0 if stride == size else stride, padding), average)


def _read_adaptive(
    name: str, options: dict[str, Any], map_shape: Any, average: bool
) -> Pool | None:
    wanted = np.broadcast_to(np.array(options["output_size"], object), 2)
    sizes = {
        (side // int(side if goal is None else goal), side % int(side if goal is None else goal))
        for side, goal in zip(map_shape, wanted, strict=True)
    }
    size, rest = min(sizes)
    if len(sizes) > 1 or rest:
        raise SpikewireError(
            f"{name}: adaptive pooling of {tuple(map_shape)} to {options['output_size']} is not "
            "supported; windows must be square and of one size"
        )
    return None if size == 1 else Pool("sum" if average else "max", size)


def _read_number(name: str, field: str, value: Any) -> int:
    numbers = {int(n) for n in np.ravel(value)}
    if len(numbers) != 1:
        raise SpikewireError(
            f"{name}: pooling with {field}={value} is not supported; it must be square"
        )
    return numbers.pop()


def _fits(map_shape: Any, size: int, stride: int, padding: int) -> bool:
    """Whether windows end with the map, so that rounding up changes nothing."""
    return all((side + 2 * padding - size) % stride == 0 for side in map_shape)
