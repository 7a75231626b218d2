"""Torch functions between modules, as operations on the values of a traced forward pass."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from spikewire.formats.values import Unknown, Value, add

SAME = {
    "flatten", "view", "reshape", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as",
    "contiguous", "clone", "detach", "float", "to", "type", "type_as", "cpu", "alias", "dropout",
}  # fmt: skip
JOIN = {"stack", "cat", "concat", "concatenate"}
PART = {"__getitem__", "select", "unbind", "split", "chunk"}
EXPAND = {"expand", "expand_as", "repeat", "repeat_interleave", "tile", "broadcast_to"}
TRANSPOSE = {"transpose", "permute", "movedim", "moveaxis", "swapaxes", "swapdims"}
MOVE = SAME | JOIN | PART | EXPAND | TRANSPOSE  # numbers stay as they are
ADD = {"add", "add_", "__add__", "__radd__", "__iadd__"}
SCALE = {"mul", "mul_", "__mul__", "__rmul__", "multiply", "div", "div_", "__truediv__", "divide",
         "true_divide", "__imul__", "__itruediv__", "__idiv__"}  # fmt: skip
REDUCE = {"mean", "sum"}


def tensors_in(*nested: Any) -> Iterator[Tensor]:
    """Yield all tensors in nested lists, tuples and dictionaries."""
    for item in nested:
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, list | tuple):
            yield from tensors_in(*item)
        elif isinstance(item, dict):
            yield from tensors_in(*item.values())


def merge(name: str, values: list[Value]) -> Value:
    """Return the one value of several tensors, which differ at most in their time step."""
    first = values[0]
    for value in values:
        if isinstance(value, Unknown):
            return value
        if isinstance(first, Unknown) or value.key != first.key:
            return Unknown(f"{name} of the outputs of different layers")
    return first


def join(name: str, values: list[Value]) -> Value:
    """Return the value of several tensors as one, which has the time steps of all."""
    first = merge(name, values)
    if isinstance(first, Unknown):
        return first
    return replace(first, steps=sum(x.steps for x in values if not isinstance(x, Unknown)))


def cut(value: Value, before: Tensor, after: Tensor) -> Value:
    """Return the value of a part of a tensor."""
    if isinstance(value, Unknown) or after.numel() == before.numel():
        return value
    return replace(value, steps=value.steps * after.numel() / before.numel(), part=True)


def keeps_order(before: Tensor, after: Tensor) -> bool:
    """Whether a transposition only exchanges the first two dimensions: time and batch."""
    stride = before.stride()
    return after.stride() in (stride, (*stride[1::-1], *stride[2:]))


def add_values(name: str, pairs: list[tuple[Any, Value | None]]) -> Value:
    """Return the sum of two arguments, each with its value; a constant must be 0."""
    (left, first), (right, second) = pairs[:2]
    if first is not None and second is not None:
        if left.shape != right.shape:
            return Unknown(
                f"an addition in {name} of shapes {(*left.shape,)} and {(*right.shape,)}"
            )
        return add(name, first, second, tuple(left.shape[-3 if left.ndim > 3 else -1 :]))
    constant, value = (left, second) if first is None else (right, first)
    assert value is not None
    zero = not (bool(constant.any()) if isinstance(constant, Tensor) else constant)
    return value if zero else Unknown(f"an addition of a constant in {name}")


def scale_value(name: str, function: str, pairs: list[tuple[Any, Value | None]]) -> Value:
    """Return a value times or divided by a constant."""
    (left, first), (right, second) = pairs[:2]
    if first is not None and second is not None:
        return Unknown(f"a product of two layers in {name}")
    constant, value = (left, second) if first is None else (right, first)
    if value is None or isinstance(value, Unknown):
        return value or Unknown(function)
    single = not isinstance(constant, Tensor) or constant.numel() == 1
    divides = "div" in function
    if not single or (divides and first is None) or not float(constant):
        return Unknown(f"{function} in {name}")
    factor = 1 / float(constant) if divides else float(constant)
    if hasattr(value, "weight"):
        return value.scale_by(factor, 0.0, name)  # pyright: ignore
    return replace(value, scale=value.scale * factor)


def find_map_dims(x: Tensor, dims: Any) -> bool:
    """Whether a reduction is over height and width."""
    numbers = {int(n) % x.ndim for n in np.ravel(dims)} if dims is not None else set()
    return x.ndim >= 4 and numbers == {x.ndim - 2, x.ndim - 1}
