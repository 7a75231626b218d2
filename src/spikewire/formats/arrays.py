"""Arrays that compiled code reads by their address: type, shape and memory layout are checked."""

import numpy as np

from spikewire.errors import check


def check_array(
    field: str,
    array: object,
    dtype: type[np.generic],
    shape: tuple[int | None, ...],
    *,
    writeable: bool = False,
) -> None:
    """Raise unless `array` can be read (and written) as contiguous memory.

    Args:
        field: Name of the array, for the message.
        array: The array to check.
        dtype: Its element type, in the byte order of the machine.
        shape: Its shape; None for a dimension of any size.
        writeable: Whether the array is written to.

    Raises:
        SpikewireError: If `array` is no NumPy array, or has another element type, shape or layout.

    Example:
        >>> check_array("bias", np.zeros(3, np.float16), np.float32, (3,))
        SpikewireError: bias: float16[3] is not allowed; it must be a contiguous array float32[3]
    """
    fits = (
        isinstance(array, np.ndarray)
        and ((array.dtype.type is dtype and array.dtype.isnative) or array.dtype == dtype)
        and len(array.shape) == len(shape)
        and all(map(_is_size, array.shape, shape))
        and (flags := array.flags).c_contiguous
        and flags.aligned
        and (flags.writeable or not writeable)
    )
    if not fits:
        sizes = ", ".join("any" if size is None else str(size) for size in shape)
        kind = "writeable array" if writeable else "array"
        expected = f"a contiguous {kind} {np.dtype(dtype)}[{sizes}]"
        check(False, field, _Described(array), expected)


def _is_size(found: int, expected: int | None) -> bool:
    return expected is None or found == expected


class _Described:
    """An object as it is shown in a message: the type and shape of an array, not its content."""

    def __init__(self, array: object) -> None:
        self.array = array

    def __repr__(self) -> str:
        if not isinstance(self.array, np.ndarray):
            return type(self.array).__name__
        flags, sizes = self.array.flags, ", ".join(map(str, self.array.shape))
        layout = "" if flags.c_contiguous and flags.aligned else ", not contiguous"
        return f"{self.array.dtype}[{sizes}]{layout}" + ("" if flags.writeable else ", read-only")
