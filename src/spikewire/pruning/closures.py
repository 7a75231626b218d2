"""``optimizer.step(closure)``: the closure runs once, before a step hook changes anything.

A step hook may lend latents or mask gradients; a closure that ran inside the step would see the
former and undo the latter. So the pre-hook runs it, and the optimizer receives its result.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import LBFGS, Optimizer

from spikewire.errors import SpikewireError

Arguments = tuple[tuple, dict[str, Any]]


class Evaluated:
    """A closure that has run: it returns the loss once, and refuses to be evaluated again.

    Args:
        loss: what the user's closure returned.
        kind: class name of the optimizer, for the message.
    """

    def __init__(self, loss: Any, kind: str) -> None:
        self.loss, self.kind, self.calls = loss, kind, 0

    def __call__(self) -> Any:
        """Return the loss.

        Raises:
            SpikewireError: at the second call within a step.
        """
        self.calls += 1
        if self.calls > 1:
            raise SpikewireError(
                f"optimizer.step(closure): {self.kind} evaluates the closure more than once, so it "
                "would see weights in mid-step; use an optimizer that evaluates it once"
            )
        return self.loss


def run_closure(optimizer: Optimizer, args: tuple, kwargs: dict[str, Any]) -> Arguments | None:
    """Run the closure among the arguments of ``step``.

    Args:
        optimizer: the optimizer.
        args: positional arguments of its step, itself first, as a pre-hook gets them.
        kwargs: keyword arguments of its step.

    Returns:
        The arguments with the closure replaced by its result, for the pre-hook to return; None
        if there was no closure, or another hook has run it.
    """
    closure: Callable[[], Any] | None = args[1] if args[1:] else kwargs.get("closure")
    if closure is None or isinstance(closure, Evaluated):
        return None
    with torch.enable_grad():
        result = Evaluated(closure(), type(optimizer).__name__)
    if args[1:]:
        return (args[0], result, *args[2:]), kwargs
    return args, {**kwargs, "closure": result}


def refuse_lbfgs(method: str, optimizer: Optimizer) -> None:
    """Raise if the optimizer is known to evaluate its closure several times per step."""
    if isinstance(optimizer, LBFGS):
        raise SpikewireError(
            f"{method}: LBFGS evaluates its closure several times per step, on weights in mid-step;"
            " use SGD, Adam, AdamW or RMSprop"
        )
