"""What the scripts of this folder share: a user's mistake is one line, not a traceback."""

import json
import sys
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

from spikewire.errors import SpikewireError, TrainingFailed, check_word
from spikewire.files import read_errors


def run_script(main: Callable[[], None]) -> None:
    """Run a script; what the user can correct ends it with one line and exit code 1."""
    try:
        main()
    except (SpikewireError, TrainingFailed) as error:
        reason = str(error)
    except OSError as error:
        if error.filename is None:
            raise
        reason = f"{error.filename}: {error.strerror or error}"
    else:
        return
    sys.exit(f"{Path(sys.argv[0]).stem}: {reason}")


def read_json(file: Path, keys: Iterable[str] = ()) -> dict[str, Any]:
    """Return the content of a JSON file.

    Raises:
        SpikewireError: if the file is missing or damaged, or has not all of `keys`.
    """
    with read_errors(file):
        content = json.loads(file.read_text("utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it is not a JSON object")
        for key in keys:
            if key not in content:
                raise KeyError(key)
    return content


def require_folder(flag: str, folder: Path) -> None:
    """Raise unless a folder exists."""
    if not folder.is_dir():
        raise SpikewireError(f"{flag}: {folder}: there is no such folder")


def words_of_list(flag: str, text: str, allowed: Collection[str]) -> list[str]:
    """Return the words of a comma list; an unknown one is refused."""
    words = text.split(",")
    for word in words:
        check_word(flag, word, allowed)
    return words
