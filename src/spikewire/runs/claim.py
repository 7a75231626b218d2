"""A directory of its own for a run that was given none: ``runs/digits-gradr-1``, ``-2``, ..."""

from pathlib import Path

from spikewire.files import io_errors, make_folder


def claim_run(root: str | Path, stem: str) -> Path:
    """Make the directory ``root/stem-n``, where n is one more than the highest number in use.

    Of several processes at the same time each one gets a number of its own.

    Args:
        root: The directory of the runs; it is made if necessary.
        stem: The name of the run without its number.

    Returns:
        The new, empty directory.

    Raises:
        SpikewireError: If the directory cannot be made.

    Example:
        >>> claim_run("runs", "digits-gradr")
        PosixPath('runs/digits-gradr-1')
    """
    root = Path(root)
    with io_errors(root):
        if not root.is_dir():  # it may be a link
            make_folder(root)
        number = _highest(root, f"{stem}-")
        while True:
            number += 1
            try:
                (root / f"{stem}-{number}").mkdir()
            except FileExistsError:
                continue
            return root / f"{stem}-{number}"


def _highest(root: Path, prefix: str) -> int:
    """Return the highest number in use; 0 if there is none."""
    endings = (x.name.removeprefix(prefix) for x in root.iterdir() if x.name.startswith(prefix))
    return max((int(n) for n in endings if n.isdecimal()), default=0)
