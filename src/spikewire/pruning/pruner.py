"""`Pruner`: a method attached to a model: optimizer hooks, step count, masks, statistics, state."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from spikewire import fields
from spikewire.errors import SpikewireError, check
from spikewire.pruning import masks as mask_functions
from spikewire.pruning.checks import require_same_run, skipped_by_scaler, warn_if_short
from spikewire.pruning.costs import UseCounter
from spikewire.pruning.editing import keep_edits
from spikewire.pruning.integrity import Guards
from spikewire.pruning.layers import Layer, Targets, find_layers, managed

if TYPE_CHECKING:
    from spikewire.pruning.method import Method

CHECKSUM_EVERY = 64  # steps between checksums of all weights


class Pruner:
    """A method attached to a model; returned by `Method.attach`.

    Attributes:
        method: the hyper-parameters and hooks.
        model: the model; None after `finish` or `detach`.
        layers: the pruned layers; empty after `finish` or `detach`.
        optimizers: those of the given optimizers that move a pruned layer.
        step: optimizer steps taken since `attach`.
        total_steps: optimizer steps of the whole run.
        generator: the CPU generator of all random choices, equal on all ranks.
        memory: tensors a method keeps beside its layers' state; saved with the state.
        uses: counter of how often each weight is used, if the method uses one.
        skipped: names of weight matrices outside conv and linear layers, which are left dense.
    """

    @torch.no_grad()
    def __init__(
        self,
        method: "Method",
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        *,
        total_steps: int,
        targets: Targets,
        seed: int,
    ) -> None:
        if not optimizers:
            raise SpikewireError(f"{method.name}: attach() needs the optimizer of the weights")
        total_steps = fields.convert("total_steps", total_steps, int)
        check(total_steps >= 1, "total_steps", total_steps, "at least 1")
        layers, self.skipped = find_layers(model, optimizers, targets)
        if method.target is None and (own := [x for x in layers if x.connectivity is not None]):
            raise SpikewireError(
                f"targets: {own[0].name} has a connectivity, but {method.name} takes none here"
            )
        self.method, self.total_steps, self.step = method, total_steps, 0
        self.model: nn.Module | None = model
        self.layers: tuple[Layer, ...] = tuple(layers)
        self.optimizers = [o for o in optimizers if any(x.optimizer is o for x in layers)]
        self.generator = torch.Generator().manual_seed(fields.convert("seed", seed, int))
        self.memory: dict[str, Tensor] = {}
        self.uses: UseCounter | None = None
        self._open: list[Layer] = []  # lent to an optimizer, or changed since they were shown
        self._turn: int | None = None  # the optimizer in mid-step
        self._editing = False
        self._stepped: dict[int, list[Layer]] = {}
        self._guards = Guards(method.name)
        self._final: dict[str, Tensor] | None = None
        self._mask_hooks: list[mask_functions.MaskHook] = []
        self._hooks: list[Any] = []
        try:
            method.init(self)
            method.show_(self.layers)
            self._guard(self.layers)
            self._previous = self.masks()
            self._register_hooks()
        except BaseException:
            self.detach()
            raise

    def _register_hooks(self) -> None:
        # decorating the methods would import dynamo with this module
        before: Any = torch.compiler.disable(self._before)
        after: Any = torch.compiler.disable(self._after)
        for optimizer in self.optimizers:
            self._hooks.append(optimizer.register_step_pre_hook(before))
            self._hooks.append(optimizer.register_step_post_hook(after))
        for layer in self.layers:
            managed[layer.weight] = True

    @property
    def progress(self) -> float:
        """Fraction of the run that is done, in [0, 1]."""
        return min(1.0, self.step / self.total_steps)

    @torch.no_grad()
    def masks(self) -> dict[str, Tensor]:
        """Return the masks, name -> bool tensor; a present synapse may have weight 0.

        Raises:
            SpikewireError: if the pruner was detached without `finish`.
        """
        if self._final is not None:
            return {name: mask.clone() for name, mask in self._final.items()}
        self._require_attached()
        return {layer.name: self.method.mask(layer).clone() for layer in self.layers}

    def connectivity(self) -> float:
        """Return the fraction of weights that exist, over all pruned layers."""
        return mask_functions.connectivity(self.masks())

    def summary(self) -> list[dict[str, Any]]:
        """Return one row per layer: name, shape, present, total, connectivity."""
        return mask_functions.layer_rows(self.masks())

    def changes(self) -> dict[str, dict[str, Any]]:
        """Return per layer: synapses present, and pruned and regrown since the last call."""
        masks = self.masks()
        rows = mask_functions.changes(self._previous, masks)
        self._previous = masks
        return rows

    def stats(self) -> dict[str, float]:
        """Return values for a logger: connectivity; pruned and regrown since the last call."""
        return mask_functions.totals(self.changes())

    @torch.no_grad()
    def finish(self, keep_masks: bool = False) -> dict[str, Tensor]:
        """Leave a plain model with exact zeros and no hooks; a second call changes nothing.

        Args:
            keep_masks: keep the zeros while the same optimizers continue training.

        Returns:
            The final masks, name -> bool tensor.

        Raises:
            SpikewireError: if a weight was modified outside, or the method cannot end here.
            TrainingFailed: if weights are not finite (`Budget`).

        Example:
            >>> masks = pruner.finish()
            >>> torch.save(model.state_dict(), "sparse.pt")
        """
        if self._final is not None:
            if keep_masks and not self._mask_hooks:
                raise SpikewireError(
                    "finish(keep_masks=True): already finished without it; "
                    "call spikewire.apply_masks(model, pruner.masks(), optimizer)"
                )
            return self.masks()
        self._require_attached()
        self._restore()
        self._guards.check(self.layers)
        self._settle()
        self.method.end(self)
        self.method.show_(self.layers)
        self._final = self.masks()
        warn_if_short(self)
        model, optimizers = self.model, self.optimizers
        self.detach()
        assert model is not None
        kept = optimizers if keep_masks else ()
        self._mask_hooks = mask_functions.apply_masks(model, self._final, *kept)
        return self.masks()

    def detach(self) -> None:
        """Remove every hook and release the model; the weights stay as the network saw them."""
        for hook in self._mask_hooks:
            hook.remove()
        self._mask_hooks = []
        if self.uses is not None:
            self.uses.remove()
        if self._hooks:
            self._restore()
        for handle in self._hooks:
            handle.remove()
        for layer in self.layers if self._hooks else ():
            managed.pop(layer.weight, None)
        self.model, self.layers, self.optimizers, self._hooks = None, (), [], []

    @contextmanager
    def editing(self) -> Iterator[None]:
        """Allow writes to pruned weights from outside inside the block: SAM, Lookahead, clamping.

        Weights put back to what they were leave no trace. Other writes to present synapses are
        kept, in the latents where a method has them; absent synapses stay absent. If the block
        raises, the weights are put back. An optimizer must not step inside the block.

        Raises:
            SpikewireError: if a weight was modified before the block.

        Example:
            >>> with pruner.editing():
            ...     for weight in model.parameters():
            ...         weight.data.clamp_(-1, 1)
        """
        self._require_attached()
        self._restore()
        self._guards.check(self.layers)
        self._editing = True
        try:
            with keep_edits(self.method, self.layers):
                yield
        finally:
            self._editing = False
            self._open = list(self.layers)
            self._restore()

    def all_layers(self) -> tuple[Layer, ...]:
        """Return all layers, also those without a gradient, and project them; for `after_step`."""
        assert self._turn is None, "all_layers() is for after_step()"
        self._open = list(self.layers)
        return self.layers

    def passes(self, fraction: float) -> bool:
        """Return whether the run passed `fraction` of its length in this step."""
        return (self.step - 1) / self.total_steps < fraction <= self.step / self.total_steps

    def target_of(self, layer: Layer) -> float:
        """Return the target connectivity of a layer: its own, else the method's."""
        own = self.method.target if layer.connectivity is None else layer.connectivity
        assert own is not None
        return own

    def device_generator(self, device: torch.device) -> torch.Generator:
        """Return a generator on `device`, seeded by the CPU one: the same numbers on every rank."""
        seed = int(torch.randint(2**62, (), generator=self.generator))
        return torch.Generator(device).manual_seed(seed)

    def count_uses(self, counting: Callable[[], bool] | None = None) -> None:
        """Count how often each weight is used, for ``layer.state["cost"]``: see `UseCounter`."""
        assert self.model is not None
        for layer in self.layers:
            layer.state["cost"] = layer.weight.new_ones(())
        self.uses = UseCounter(self.model, self.layers, counting)

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs, besides the model's and the optimizers' own state.

        Raises:
            SpikewireError: if a weight was modified outside spikewire.
        """
        self._require_attached()
        self._restore()
        self._guards.check(self.layers)
        return {  # the keys are those of existing checkpoints
            "method": self.method.name,
            "options": fields.values(self.method),
            "step": self.step,
            "total_steps": self.total_steps,
            "shares": {layer.name: layer.connectivity for layer in self.layers},
            "generator": self.generator.get_state(),
            "seen": {name: mask.clone() for name, mask in self._previous.items()},
            "memory": {key: value.clone() for key, value in self.memory.items()},
            "stepped": {i: [x.name for x in layers] for i, layers in self._stepped.items()},
            "layers": {
                layer.name: {key: value.clone() for key, value in layer.state.items()}
                for layer in self.layers
            },
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned; call it after the model's and optimizers' own.

        Raises:
            SpikewireError: if the state belongs to another method, other options or targets.
        """
        self._require_attached()
        require_same_run(self, state)
        self._open = []
        self.step = state["step"]
        self.generator.set_state(state["generator"].cpu())
        device = self.layers[0].weight.device
        self.memory = {k: v.to(device, copy=True) for k, v in state["memory"].items()}
        layers = {layer.name: layer for layer in self.layers}
        self._stepped = {i: [layers[n] for n in names] for i, names in state["stepped"].items()}
        for name, layer in layers.items():
            saved = state["layers"][name]
            layer.state = {k: v.to(layer.weight.device, copy=True) for k, v in saved.items()}
        self.method.show_(self.layers)
        self._guard(self.layers)
        self._previous = {k: v.to(layers[k].weight.device) for k, v in state["seen"].items()}

    @torch.no_grad()
    def _before(self, optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
        if self._editing:
            raise SpikewireError("optimizer.step(): not inside `with pruner.editing():`")
        self._restore()
        self._turn = None
        if (args[1:] and args[1] is not None) or kwargs.get("closure") is not None:
            raise SpikewireError(
                "optimizer.step(closure): a closure would see weights in mid-step; "
                "call backward() yourself, then step() without one"
            )
        if skipped_by_scaler(optimizer):
            return
        own = [x for x in self.layers if x.optimizer is optimizer and x.weight.grad is not None]
        self._guards.check(own)
        self._turn = self.optimizers.index(optimizer)
        if self._turn in self._stepped:  # another optimizer skipped its turn: the step ends here
            self._settle()
        self._open = own
        self.method.lend_(self, own)

    @torch.no_grad()
    def _after(self, optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
        turn, self._turn = self._turn, None
        if turn is None:  # skipped by a GradScaler, or step() of a subclass around its parent's
            return
        self.method.take_back_(self._open)
        self._stepped[turn] = self._open
        if len(self._stepped) == len(self.optimizers):
            self._settle()
        else:
            self._restore()

    @torch.no_grad()
    def _settle(self) -> None:
        """End a step: every optimizer that took part in it has moved its layers."""
        if not self._stepped:
            return
        self._open = [layer for owned in self._stepped.values() for layer in owned]
        self._stepped = {}
        self.step += 1
        self.method.after_step(self, self._open)
        self._restore()

    @torch.no_grad()
    def _restore(self) -> None:
        """Show the network its weights in open layers, also after a step cut by an exception."""
        self.method.show_(self._open)
        self._guard(self._open)
        self._open = []

    def _guard(self, layers: Sequence[Layer]) -> None:
        self._guards.renew(layers, deep=self.step % CHECKSUM_EVERY == 0)

    def _require_attached(self) -> None:
        if not self.layers:
            state = "detached" if self._final is None else "finished"
            raise SpikewireError(f"{self.method.name}: {state}; call attach() on the method again")
