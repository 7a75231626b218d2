"""A user's mistake is one line that names the field, the value and what is allowed."""

from collections.abc import Collection, Iterable
from difflib import get_close_matches


class SpikewireError(Exception):
    """A mistake the user can mend; its text is one line and needs no traceback."""


class TrainingFailed(Exception):
    """Training broke down though nothing was wrong with what was asked; its text is one line."""


def unknown(what: str, word: object, allowed: Iterable[str]) -> SpikewireError:
    """Return the error for a wrong word, with the nearest right one first."""
    names = sorted(allowed)
    near = get_close_matches(str(word), names, n=1, cutoff=0.5)
    hint = f" did you mean {near[0]!r}?" if near else ""
    return SpikewireError(f"{what}: unknown {word!r};{hint} known: {', '.join(names)}")


def check(holds: bool, field: str, value: object, allowed: str) -> None:
    """Raise unless `holds`: ``alpha: -1 is not allowed; it must be ...``."""
    if not holds:
        raise SpikewireError(f"{field}: {value!r} is not allowed; it must be {allowed}")


def check_word(field: str, word: object, allowed: Collection[str]) -> None:
    """Raise unless the word is one of the allowed ones, with the nearest of them."""
    if word not in allowed:
        raise unknown(field, word, allowed)
