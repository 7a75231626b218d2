"""Exceptions whose text is one line: what was wrong, what is allowed, the nearest valid word."""

import re
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from os.path import isdir

LONGEST = 200  # characters of a wrong value that a message shows
USUAL = {  # names in other libraries, as `_plain` returns them, and ours
    "learningrate": "lr",
    "bs": "batchsize",
    "batch": "batchsize",
    "wd": "weightdecay",
    "numsteps": "timesteps",
    "density": "connectivity",
    "net": "model",
    "network": "model",
    "arch": "model",
    "data": "dataset",
    "gpu": "device",
    "output": "out",
}


class SpikewireError(Exception):
    """A mistake the user can correct; its text is one line and needs no traceback."""


class AlreadyFinished(SpikewireError):
    """The run to resume is complete; nothing is wrong and nothing is left to do."""


class TrainingFailed(Exception):
    """Training broke down although the settings were valid; its text is one line."""


def unknown(field: str, word: object, allowed: Iterable[str]) -> SpikewireError:
    """Return the error for an unknown word, with the nearest valid one first.

    Args:
        field: the setting or flag the word was given for.
        word: what was given.
        allowed: the valid words.

    Example:
        >>> raise unknown("method", "gradar", ["gradr", "deepr"])
        SpikewireError: method: unknown 'gradar'; did you mean 'gradr'? known: deepr, gradr
    """
    names = sorted(allowed)
    family = [name for name in names if name.startswith(f"{word}-".lower())]  # mnist: mnist-fast
    near = nearest(word, names)
    hint = f" did you mean {near!r}?" if near else ""
    if str(word).endswith(".py") and "FILE.py:FUNCTION" in names:
        hint = f" did you mean '{word}:FUNCTION'?"
    if str(word).endswith(".npz") and "npz:FILE" in names:
        hint = f" did you mean 'npz:{word}'?"
    if "folder:PATH" in names and isdir(str(word)):
        hint = f" did you mean 'folder:{word}'?"
    if len(family) > 1:
        return SpikewireError(
            f"{field}: unknown {_shown(word)}; did you mean one of {', '.join(family)}?"
        )
    return SpikewireError(f"{field}: unknown {_shown(word)};{hint} known: {', '.join(names)}")


def nearest(word: object, allowed: Iterable[str]) -> str | None:
    """Return the valid word that is meant, by its letters and digits in any case; None if none is.

    Args:
        word: what was given.
        allowed: the valid words.

    Example:
        >>> nearest("--learning_rate", ["--lr", "--epochs"]), nearest("Grad-R", ["gradr"])
        ('--lr', 'gradr')
    """
    known = {_plain(name): name for name in allowed}
    plain = USUAL.get(_plain(word), _plain(word))
    found = get_close_matches(plain, known, n=1, cutoff=0.5)
    return known[found[0]] if found else None


def _plain(word: object) -> str:
    """Return the letters and digits of a word, in lower case."""
    return re.sub(r"[\W_]", "", str(word)).lower()


def not_sparsity(field: str, value: object, form: str) -> SpikewireError:
    """Return the error for a sparsity where the connectivity, 1 - sparsity, is meant.

    Args:
        field: where it was given.
        value: what was given, a number or its text.
        form: how a connectivity is written there; ``{}`` stands for the number.

    Example:
        >>> raise not_sparsity("--sparsity", "0.9", "--connectivity {}")
        SpikewireError: --sparsity: unknown; did you mean --connectivity 0.1? it is the fraction ...
    """
    try:
        sparsity = float(str(value))
    except ValueError:
        sparsity = -1.0
    number = f"{1 - sparsity:g}" if 0 <= sparsity < 1 else "X"
    return SpikewireError(
        f"{field}: unknown; did you mean {form.format(number)}? it is the fraction of weights that "
        "exist, 1 - sparsity"
    )


def check(holds: bool, field: str, value: object, allowed: str) -> None:
    """Raise unless `holds`: ``field: value is not allowed; it must be ...``.

    Args:
        holds: whether the value is valid.
        field: the setting or argument the value was given for.
        value: what was given.
        allowed: what would be valid, as the end of the sentence "it must be ...".

    Raises:
        SpikewireError: if `holds` is false.
    """
    if not holds:
        raise SpikewireError(f"{field}: {_shown(value)} is not allowed; it must be {allowed}")


def check_word(field: str, word: object, allowed: Collection[str]) -> None:
    """Raise `unknown` unless `word` is one of the allowed ones."""
    if word not in allowed:
        raise unknown(field, word, allowed)


def _shown(value: object) -> str:
    """Return a value as part of a message; of a very long one the beginning."""
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
