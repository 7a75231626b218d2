"""Warnings that point at the user's own line."""

import sys
import warnings

_OURS = ("spikewire", "torch", "contextlib")


def warn_caller(message: str) -> None:
    """Warn as the first caller outside spikewire and torch, however deep the call is.

    Args:
        message: one line.
    """
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in _OURS:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)
