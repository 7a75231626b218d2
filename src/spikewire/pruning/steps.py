"""What happens around ``optimizer.step()``: the hooks of a pruner.

::

    pre-hook:   run the closure, if any; check for foreign writes; lend what the optimizer moves
    the user's optimizer
    post-hook:  take it back; after the last optimizer: after_step(), show the network its weights
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor
from torch.optim import Optimizer

from spikewire.errors import SpikewireError
from spikewire.pruning.checks import warn_of_silence
from spikewire.pruning.closures import Arguments, run_closure
from spikewire.pruning.integrity import Guards, require_same_parameters
from spikewire.pruning.layers import Layer

if TYPE_CHECKING:
    from spikewire.pruning.pruner import Pruner

CHECKSUM_EVERY = 64  # steps between checksums of all weights
CHECKSUM_FIRST = 16  # the first steps, at each of which they are taken
SILENT_AT = 16  # the step at which a layer without a gradient is named


class Steps:
    """The steps of one pruner's optimizers.

    Args:
        pruner: the pruner; its method, model, layers and optimizers are set.

    Attributes:
        open: layers lent to an optimizer, or changed since they were shown.
        turn: index of the optimizer in mid-step; None outside a step.
        stepped: optimizers that have taken this step already, and the layers they moved.
        editing: whether the user is inside ``with pruner.editing():``.
        originals: weights that `attach` changed, as they were before; until the first step.
    """

    def __init__(self, pruner: "Pruner") -> None:
        self.pruner, self.method = pruner, pruner.method
        self.guards = Guards(pruner.method.name)
        self.open: list[Layer] = []
        self.turn: int | None = None
        self.stepped: dict[int, list[Layer]] = {}
        self.editing = False
        self.originals: dict[str, Tensor] = {}

    def __reduce__(self) -> NoReturn:
        raise SpikewireError(
            "pruner: cannot be copied or pickled, since it belongs to this model and optimizer; "
            "attach the method to the copies and load pruner.state_dict()"
        )

    def show_first(self) -> None:
        """Let the method begin, and show the network its first weights."""
        layers = self.pruner.layers
        before = {layer.name: layer.weight.detach().clone() for layer in layers}
        self.method.init(self.pruner)
        self.method.show_(layers)
        self.guard(layers)
        changed = [x.name for x in layers if not torch.equal(x.weight, before[x.name])]
        self.originals = {name: before[name] for name in changed}

    def undo_first(self) -> None:
        """Put back weights that `attach` changed, unless they were written since.

        A saved state may be loaded after weights that were there before `attach`: its masks are
        not the first ones.
        """
        for layer in self.pruner.layers:
            unwritten = self.guards.of_layer[layer.name].violation(layer.weight) is None
            if unwritten and layer.name in self.originals:
                layer.weight.copy_(self.originals[layer.name])
        self.originals = {}

    def register(self) -> list[Any]:
        """Register the hooks; return their handles."""
        # decorating the methods would import dynamo with this module
        before: Any = torch.compiler.disable(self._before)
        after: Any = torch.compiler.disable(self._after)
        hooks = []
        for optimizer in self.pruner.optimizers:
            hooks.append(optimizer.register_step_pre_hook(before))
            hooks.append(optimizer.register_step_post_hook(after))
        return hooks

    def _before(self, optimizer: Optimizer, args: tuple, kwargs: dict) -> Arguments | None:
        if self.editing:
            raise SpikewireError("optimizer.step(): not inside `with pruner.editing():`")
        self.restore()
        self.turn = None
        changed = run_closure(optimizer, args, kwargs)
        self._lend(optimizer)
        return changed

    @torch.no_grad()
    def _lend(self, optimizer: Optimizer) -> None:
        if skipped_by_scaler(optimizer):
            return
        owned = [x for x in self.pruner.layers if x.optimizer is optimizer]
        require_same_parameters(self.pruner.attached_model, owned)
        self.guards.follow(self.pruner.layers)
        own = [x for x in owned if x.weight.grad is not None]
        self.guards.check(own)
        self.turn = self.pruner.optimizers.index(optimizer)
        if self.turn in self.stepped:  # another optimizer skipped its turn: the step ends here
            self.settle()
        if self.pruner.step + 1 == SILENT_AT and getattr(optimizer, "follows_gradient", True):
            warn_of_silence(SILENT_AT, own)
        self.open, self.originals = own, {}
        self.method.lend_(self.pruner, own)

    @torch.no_grad()
    def _after(self, optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
        turn, self.turn = self.turn, None
        if turn is None:  # skipped by a GradScaler, or step() of a subclass around its parent's
            return
        self.method.take_back_(self.open)
        self.stepped[turn] = self.open
        if len(self.stepped) == len(self.pruner.optimizers):
            self.settle()
        else:
            self.restore()

    @torch.no_grad()
    def settle(self) -> None:
        """End a step: every optimizer that took part in it has moved its layers."""
        if not self.stepped:
            return
        self.open = [layer for owned in self.stepped.values() for layer in owned]
        self.stepped = {}
        self.pruner.step += 1
        if self.pruner.uses is not None:
            self.pruner.uses.end_step()
        self.method.after_step(self.pruner, self.open)
        self.restore()

    @torch.no_grad()
    def restore(self) -> None:
        """Show the network its weights in open layers, also after a step cut by an exception."""
        self.method.show_(self.open)
        self.guard(self.open)
        self.open = []

    def guard(self, layers: Sequence[Layer]) -> None:
        """Remember the weights as the network sees them now."""
        self.guards.renew(layers, deep=is_checksum_step(self.pruner.step))

    def require_unmodified(self) -> None:
        """Restore open layers; raise if a weight was modified or replaced from outside."""
        self.restore()
        require_same_parameters(self.pruner.attached_model, self.pruner.layers)
        self.guards.follow(self.pruner.layers)
        self.guards.check(self.pruner.layers)


def is_checksum_step(step: int) -> bool:
    """Return whether checksums are taken after a step: the first 16, powers of 2, every 64th."""
    return step <= CHECKSUM_FIRST or step % CHECKSUM_EVERY == 0 or step & (step - 1) == 0


def skipped_by_scaler(optimizer: Optimizer) -> bool:
    """Return whether a GradScaler makes a fused optimizer skip; its step() is called anyway."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and bool(found)
