"""`Pruner`: a method attached to a model: step count, masks, statistics, state."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from spikewire import fields
from spikewire.errors import SpikewireError, check
from spikewire.nn.names import named_parameters
from spikewire.pruning import masks as mask_functions
from spikewire.pruning.checks import (
    require_alive,
    require_attachable,
    require_same_run,
    unwrap_optimizer,
    warn_if_missed,
)
from spikewire.pruning.costs.meter import Meter
from spikewire.pruning.costs.uses import UseCounter
from spikewire.pruning.editing import keep_edits
from spikewire.pruning.layers import Layer, Targets, find_layers, managed
from spikewire.pruning.skipped import warn_of_skipped
from spikewire.pruning.statistics import MaskCounter
from spikewire.pruning.steps import Steps
from spikewire.pruning.targets import shared_target, total_target

if TYPE_CHECKING:
    from spikewire.pruning.method import Method


class Pruner:
    """A method attached to a model; returned by `Method.attach`.

    Attributes:
        method: the hyper-parameters and hooks.
        model: the model; None after `finish` or `detach`.
        layers: the pruned layers; empty after `finish` or `detach`.
        optimizers: those of the given optimizers that move a pruned layer.
        all_optimizers: all given optimizers.
        step: optimizer steps taken since `attach`.
        total_steps: optimizer steps of the whole run.
        target: target connectivity of all pruned layers together; None where there is none.
        shared_target: target of the layers that have none of their own.
        generator: the CPU generator of all random choices, equal on all ranks.
        memory: tensors a method keeps beside its layers' state; saved with the state.
        uses: counter of how often each weight is used, if the method uses one.
        skipped: the weights left dense, each with its size and the reason.
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
        optimizers = [unwrap_optimizer(optimizer) for optimizer in optimizers]
        require_attachable(method, model, optimizers)
        total_steps = fields.convert("total_steps", total_steps, int)
        check(total_steps >= 1, "total_steps", total_steps, "at least 1")
        layers, self.skipped = find_layers(model, optimizers, targets)
        self.shared_target = shared_target(method, layers)
        self.target = total_target(method.target, layers)
        self.method, self.total_steps, self.step = method, total_steps, 0
        self.model: nn.Module | None = model
        self.layers: tuple[Layer, ...] = tuple(layers)
        self.all_optimizers = optimizers
        self.optimizers = [o for o in optimizers if any(x.optimizer is o for x in layers)]
        self.generator = torch.Generator().manual_seed(fields.convert("seed", seed, int))
        self.memory: dict[str, Tensor] = {}
        self.uses: Meter | None = None
        self._steps = Steps(self)
        self._final: dict[str, Tensor] | None = None
        self._after_finish: list[mask_functions.MaskHook | mask_functions.RefillWarning] = []
        self._hooks: list[Any] = []
        try:
            self._steps.show_first()
            self._counter = MaskCounter(self._masks())
            self._hooks = self._steps.register()
            managed.update(dict.fromkeys([layer.weight for layer in self.layers], True))
            warn_of_skipped(method.name, self.skipped)
        except BaseException:  # also a warning, where warnings are errors
            if self._steps.originals:
                self._steps.undo_first()
            self.detach()
            raise

    def __repr__(self) -> str:
        state = f"step {self.step} of {self.total_steps}"
        if not self.layers:
            state += ", detached" if self._final is None else ", finished"
        if self.layers or self._final is not None:
            count = len(self._masks())
            layers = "1 layer" if count == 1 else f"{count} layers"
            state += f", connectivity {self.connectivity():.4g} over {layers}"
        return f"Pruner({self.method!r}, {state})"

    @property
    def progress(self) -> float:
        """Fraction of the run that is done, in [0, 1]."""
        return min(1.0, self.step / self.total_steps)

    @property
    def attached_model(self) -> nn.Module:
        """The model of a pruner that is attached.

        Raises:
            SpikewireError: if the pruner was finished or detached.
        """
        self._require_attached()
        assert self.model is not None
        return self.model

    @torch.no_grad()
    def masks(self) -> dict[str, Tensor]:
        """Return the masks, name -> bool tensor; a present synapse may have weight 0.

        Raises:
            SpikewireError: if the pruner was detached without `finish`.
        """
        return {name: mask.clone() for name, mask in self._masks().items()}

    @torch.no_grad()
    def _masks(self) -> dict[str, Tensor]:
        if self._final is not None:
            return self._final
        self._require_attached()
        return {layer.name: self.method.mask(layer) for layer in self.layers}

    def connectivity(self) -> float:
        """Return the fraction of weights that exist, over all pruned layers.

        The weights in `skipped`, biases and normalisation do not count: they are dense.
        """
        return mask_functions.connectivity(self._masks())

    def summary(self) -> mask_functions.Summary:
        """Return one row per pruned layer: name, shape, present, total, connectivity.

        Returns:
            A list of dicts; printed, it is a table whose last lines say what the connectivity is
            over and which weights are left dense.
        """
        return mask_functions.Summary(mask_functions.layer_rows(self._masks()), self.skipped)

    @torch.no_grad()
    def changes(self) -> dict[str, dict[str, Any]]:
        """Return per layer: synapses present, and pruned and regrown since the last call."""
        return self._counter.changes(self._masks())

    def stats(self) -> dict[str, float]:
        """Return values for a logger: connectivity; pruned and regrown since the last call.

        It may be called at every step: masks that did not change are not counted again.
        """
        return mask_functions.totals(self.changes())

    @torch.no_grad()
    def finish(self, keep_masks: bool = False) -> dict[str, Tensor]:
        """Leave a plain model with exact zeros and no hooks; a second call changes nothing.

        Training on after a plain `finish`, or with an optimizer that was not attached, fills the
        zeros again; the first such step warns.

        Args:
            keep_masks: keep the zeros while the same optimizers continue training. Another
                optimizer keeps them after ``spikewire.apply_masks(model, masks, optimizer)``.

        Returns:
            The final masks, name -> bool tensor.

        Raises:
            SpikewireError: if a weight was modified or replaced outside, or the method cannot end
                here.
            TrainingFailed: if weights are not finite, or none is left.

        Example:
            >>> masks = pruner.finish()
            >>> torch.save(model.state_dict(), "sparse.pt")
        """
        if self._final is not None:
            if keep_masks and not any(map(_keeps, self._after_finish)):
                raise SpikewireError(
                    "finish(keep_masks=True): already finished without it; "
                    "call spikewire.apply_masks(model, pruner.masks(), optimizer)"
                )
            return self.masks()
        model = self.attached_model
        self._steps.require_unmodified()
        self._steps.settle()
        self.method.end(self)
        self.method.show_(self.layers)
        final = self.masks()
        require_alive(self, final)
        self._final, optimizers = final, self.optimizers
        try:
            warn_if_missed(self)
        finally:  # also where warnings are errors
            self.detach()
            self._after_finish = self._keep_or_warn(model, optimizers, keep_masks)
        return self.masks()

    def _keep_or_warn(
        self, model: nn.Module, optimizers: Sequence[Optimizer], keep_masks: bool
    ) -> list[Any]:
        hooks = mask_functions.apply_masks(
            model, self._masks(), *(optimizers if keep_masks else ())
        )
        parameters = named_parameters(model, remove_duplicate=False)
        pruned = {parameters[name]: mask for name, mask in self._masks().items()}
        return [*hooks, mask_functions.RefillWarning(pruned, kept=keep_masks)]

    def detach(self) -> None:
        """Remove every hook and release the model; the weights stay as the network saw them."""
        for hook in self._after_finish:
            hook.remove()
        if self.uses is not None:
            self.uses.remove()
        if self._hooks:
            self._steps.restore()
        for handle in self._hooks:
            handle.remove()
        for layer in self.layers if self._hooks else ():
            managed.pop(layer.weight, None)
        self.model, self.layers, self.optimizers, self.all_optimizers = None, (), [], []
        self._hooks, self._after_finish = [], []

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
        self._steps.require_unmodified()
        self._steps.editing, self._steps.originals = True, {}
        try:
            with keep_edits(self.method, self.layers):
                yield
        finally:
            self._steps.editing = False
            self._steps.open = list(self.layers)
            self._steps.restore()

    def all_layers(self) -> tuple[Layer, ...]:
        """Return all layers, also those without a gradient, and project them; for `after_step`."""
        assert self._steps.turn is None, "all_layers() is for after_step()"
        self._steps.open = list(self.layers)
        return self.layers

    def passes(self, fraction: float) -> bool:
        """Return whether the run passed `fraction` of its length in this step."""
        return (self.step - 1) / self.total_steps < fraction <= self.step / self.total_steps

    def target_of(self, layer: Layer) -> float:
        """Return the target connectivity of a layer: its own, else that of the others."""
        own = self.shared_target if layer.connectivity is None else layer.connectivity
        assert own is not None
        return own

    def device_generator(self, device: torch.device) -> torch.Generator:
        """Return a generator on `device`, seeded by the CPU one: the same numbers on every rank."""
        seed = int(torch.randint(2**62, (), generator=self.generator))
        return torch.Generator(device).manual_seed(seed)

    def count_uses(self, relative: bool = True) -> None:
        """Count how often each weight is used, for ``layer.state["cost"]``: see `UseCounter`."""
        self.uses = UseCounter(self, relative)

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs, besides the model's and the optimizers' own state.

        Raises:
            SpikewireError: if a weight was modified outside spikewire.
        """
        self._require_attached()
        self._steps.require_unmodified()
        return {
            "method": self.method.name,
            "options": fields.values(self.method),
            "step": self.step,
            "total_steps": self.total_steps,
            "targets": {layer.name: layer.connectivity for layer in self.layers},
            "generator": self.generator.get_state(),
            "seen": {name: mask.clone() for name, mask in self._counter.previous.items()},
            "memory": {key: value.clone() for key, value in self.memory.items()},
            "stepped": {i: [x.name for x in layers] for i, layers in self._steps.stepped.items()},
            "layers": {
                layer.name: {key: value.clone() for key, value in layer.state.items()}
                for layer in self.layers
            },
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned; call it after the model's and optimizers' own.

        Those may be loaded before or after `attach`.

        Raises:
            SpikewireError: if the state belongs to another method, other options or targets.
        """
        self._require_attached()
        require_same_run(self, state)
        self._steps.undo_first()
        self._steps.open = []
        self.step = state["step"]
        self.generator.set_state(state["generator"].cpu())
        device = self.layers[0].weight.device
        self.memory = {k: v.to(device, copy=True) for k, v in state["memory"].items()}
        layers = {layer.name: layer for layer in self.layers}
        stepped = {i: [layers[n] for n in names] for i, names in state["stepped"].items()}
        self._steps.stepped = stepped
        for name, layer in layers.items():
            saved = state["layers"][name]
            layer.state = {k: v.to(layer.weight.device, copy=True) for k, v in saved.items()}
        self.method.show_(self.layers)
        self._steps.guard(self.layers)
        seen = {k: v.to(layers[k].weight.device) for k, v in state["seen"].items()}
        self._counter = MaskCounter(seen)
        if self.uses is not None:
            self.uses.resume()

    def _require_attached(self) -> None:
        if not self.layers:
            state = "detached" if self._final is None else "finished"
            raise SpikewireError(f"{self.method.name}: {state}; call attach() on the method again")


def _keeps(hook: object) -> bool:
    return isinstance(hook, mask_functions.MaskHook)
