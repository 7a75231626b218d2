"""Signals: Ctrl-C, SIGTERM and SIGHUP wait for the end of a step."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


class Interrupted(KeyboardInterrupt):
    """Training was stopped by a signal or by the progress callback; its state is saved.

    Attributes:
        number: the signal; SIGINT for the callback.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@dataclass
class Received:
    """The signals that have come so far."""

    numbers: list[int] = field(default_factory=list)

    @property
    def first(self) -> int | None:
        """The first signal, None if none has come."""
        return self.numbers[0] if self.numbers else None

    def add(self, number: int, frame: object) -> None:
        """Handle a signal: record it; a second SIGINT raises at once.

        Linux sends SIGTERM more than once when a parent with threads dies.
        """
        self.numbers.append(number)
        if self.numbers.count(signal.SIGINT) > 1:
            raise Interrupted(number)


@contextmanager
def deferred_signals() -> Iterator[Received]:
    """Record SIGINT, SIGTERM and SIGHUP instead of acting on them.

    Outside the main thread nothing is done. A SIGHUP that `nohup` ignores stays ignored.
    """
    received = Received()
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    numbers = [signal.SIGINT, signal.SIGTERM]
    hangup = getattr(signal, "SIGHUP", None)  # not on Windows
    if hangup is not None and signal.getsignal(hangup) != signal.SIG_IGN:
        numbers.append(hangup)
    before = {number: signal.signal(number, received.add) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
