"""Parts of Markdown files that commands write: from `<!-- NAME -->` to `<!-- end of NAME -->`."""

from pathlib import Path

from spikewire.errors import SpikewireError
from spikewire.files import atomic_write, read_errors


def replace_marked(file: Path, name: str, text: str) -> None:
    """Replace what is between the marks of `name` in a file.

    Raises:
        SpikewireError: if the file cannot be read or has no such marks.
    """
    marks = f"<!-- {name} -->", f"<!-- end of {name} -->"
    with read_errors(file):
        before, start, rest = file.read_text("utf-8").partition(marks[0])
    _, end, after = rest.partition(marks[1])
    if not (start and end):
        raise SpikewireError(f"{file}: has no lines {marks[0]} and {marks[1]}")
    with atomic_write(file) as out:
        out.write(f"{before}{start}\n\n{text}\n\n{end}{after}".encode())
