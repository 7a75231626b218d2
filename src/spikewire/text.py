"""Numbers, names and tables as text, the same on the terminal and in the report."""

from collections.abc import Sequence


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


def printable(text: str) -> str:
    r"""Return a text without characters that control a terminal.

    Names in files and the reasons of servers may hold escape sequences, which can overwrite lines,
    change the title of a window or hide text.

    Args:
        text: Any text.

    Returns:
        The text with each character that is not printable as an escape, such as ``\x1b``.

    Example:
        >>> printable("cat\x1b[2J")
        'cat\\x1b[2J'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


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


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows as text in columns: the first to the left, the others to the right.

    Args:
        header: Titles of the columns.
        rows: One word per column each.

    Example:
        >>> print(table(("layer", "present"), [("fc1.weight", "12"), ("fc2.weight", "3")]))
        layer       present
        fc1.weight       12
        fc2.weight        3
    """
    lines = [list(header), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            word.rjust(width) if i else word.ljust(width)
            for i, (word, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def amount(unit: str, value: float) -> str:
    """Return a target or what was met of it, in its unit.

    Args:
        unit: ``"connectivity"`` or ``"synapses"``, which are fractions; ``"synops"`` or
            ``"bytes"``.
        value: The number to show.

    Returns:
        The number as text, such as ``"1.16%"``, ``"16,500,000"`` or ``"1.00 MB"``.

    Example:
        >>> amount("synapses", 0.0116), amount("synops", 16.5e6), amount("bytes", 1e6)
        ('1.16%', '16,500,000', '1.00 MB')
    """
    if unit == "bytes":
        return size(round(value))
    return f"{value:,.0f}" if unit == "synops" else percent(value)
