"""Numbers as text: percentages and sizes, the same on the terminal and in the report."""


def percent(fraction: float) -> str:
    """Return a fraction as a percentage.

    Two digits after the point; three below 1 %, where sparse networks differ.

    Args:
        fraction: The number to show; 1.0 is 100 %.

    Returns:
        The percentage, such as ``"12.34%"`` or ``"0.734%"``.

    Example:
        >>> percent(0.1234), percent(0.00734), percent(0.0)
        ('12.34%', '0.734%', '0.00%')
    """
    return f"{fraction:.2%}" if fraction >= 0.01 or fraction == 0 else f"{fraction:.3%}"


def size(count: int) -> str:
    """Return a number of bytes in kB, or in MB from one million on.

    Args:
        count: The number of bytes.

    Returns:
        The size in powers of 1000, such as ``"12.3 kB"`` or ``"4.56 MB"``.

    Example:
        >>> size(12_345), size(4_560_000)
        ('12.3 kB', '4.56 MB')
    """
    return f"{count / 1e6:.2f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"
