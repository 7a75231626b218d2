"""Ctrl-C and SIGTERM wait for the end of a step."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Interrupted(KeyboardInterrupt):
    """A signal asked to stop; the step was finished and saved."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextmanager
def interrupts() -> Iterator[Callable[[], None]]:
    """Hold back SIGINT and SIGTERM; the callable raises what has come.

    A second SIGINT raises at once; Linux sends SIGTERM more than once when a parent with threads
    dies. Outside the main thread nothing is held back.
    """
    came: list[int] = []

    def hold(number: int, frame: object) -> None:
        came.append(number)
        if came.count(signal.SIGINT) > 1:
            raise Interrupted(number)

    def stop() -> None:
        if came:
            raise Interrupted(came[0])

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, hold) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
