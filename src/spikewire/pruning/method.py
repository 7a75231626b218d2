"""The extension contract: a method rides on an unmodified torch optimizer through its step hooks.

::

    loss.backward(); optimizer.step()
                     |-- pre-hook:  open layers, before_step()
                     |-- the user's optimizer moves the weights
                     '-- post-hook: after_step(), the network sees the new wiring

A method writes `init`, `before_step`, `after_step` and `mask`; the families `Latent` and `Masked`
say what the optimizer moves and what the network sees.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn, optim
from torch.optim import Optimizer

from spikewire.errors import SpikewireError
from spikewire.pruning import allocation as mask_functions
from spikewire.pruning.integrity import WriteGuard
from spikewire.pruning.layers import Layer, Targets, find_layers, managed, prunable
from spikewire.pruning.masks import apply_masks

CHECKSUM_EVERY = 64


@dataclass(kw_only=True)
class Method:
    """One way to prune and regrow; its dataclass fields are its flags and its TOML keys."""

    name: ClassVar[str] = ""
    rounds: ClassVar[int] = 1
    exclusive = ()  # fields of which only one may be given
    asked: ClassVar[Any] = None  # the share given as the field `connectivity`, where there is one

    # Run-time state; without annotations these are no dataclass fields.
    _model = None
    _layers = tuple[Layer, ...]()
    _optimizers = ()
    _step = 0
    _total_steps = 1
    _final = None
    _held = ()

    # ------------------------------------------------------------------ what a method writes

    def init(self, layers: Sequence[Layer]) -> None:
        """Prepare each `layer.state` from its weight."""

    def before_step(self, layers: Sequence[Layer]) -> None:
        """Act on gradients, or on what the optimizer is about to move (once per optimizer)."""

    def after_step(self, layers: Sequence[Layer]) -> None:
        """Rewire: all layers that stepped, after the last of the optimizers."""

    @property
    def sees_images(self) -> str:
        """The field by which more than gradients decides: what one rank alone sees; "" if none."""
        return ""

    def end(self, layers: Sequence[Layer]) -> None:
        """Make the last change before the wiring is handed over by `finish()`."""

    def mask(self, layer: Layer) -> Tensor:
        """Return the layer's wiring: bool, True = the synapse exists."""
        raise NotImplementedError

    # ------------------------------------------------------------------ what a family writes

    def _lend(self, layers: Sequence[Layer]) -> None:
        """Give the optimizer what it moves."""
        self.before_step(layers)

    def _take(self, layers: Sequence[Layer]) -> None:
        """Keep what the optimizer moved."""

    def _show(self, layers: Sequence[Layer]) -> None:
        """Give the network what it sees."""

    # ------------------------------------------------------------------ what a user calls

    @torch.no_grad()
    def attach(
        self,
        model: nn.Module,
        *optimizers: Optimizer,
        total_steps: int,
        targets: Targets = prunable,
        seed: int = 0,
    ) -> Self:
        """Register hooks on `optimizers`; `total_steps` counts optimizer steps of the whole run."""
        if self._layers:
            raise SpikewireError(f"{self.name}: already attached; call finish() or detach() first")
        if not optimizers:
            raise SpikewireError(
                f"{self.name}: attach() needs the optimizer that moves the weights"
            )
        if total_steps < 1:
            raise SpikewireError(
                f"total_steps: {total_steps} is not allowed; it must be at least 1"
            )
        layers, self.skipped = find_layers(model, optimizers, targets)
        if self.asked is None and (own := [x for x in layers if x.connectivity is not None]):
            raise SpikewireError(
                f"targets: {own[0].name} has a share, but {self.name} takes none here"
            )
        self._model, self._total_steps, self._step, self._final = model, total_steps, 0, None
        self._generator = torch.Generator().manual_seed(seed)
        self._optimizers = [o for o in optimizers if any(x.optimizer is o for x in layers)]
        self._open: list[Layer] = []  # lent to an optimizer
        self._turn: int | None = None  # the optimizer in mid-step
        self._stepped: dict[int, list[Layer]] = {}
        self._seals: dict[str, WriteGuard] = {}
        self.memory: dict[str, Tensor] = {}  # what a method remembers beside its layers
        try:
            self.init(layers)
        except BaseException:
            self.detach()  # what a method has put on the model by then
            raise
        self._layers = layers
        self._show(layers)
        self._seal(layers)
        self._seen = self.masks()
        self._hooks = [
            handle
            for optimizer in self._optimizers
            for handle in (
                optimizer.register_step_pre_hook(self._before),  # pyright: ignore
                optimizer.register_step_post_hook(self._after),  # pyright: ignore
            )
        ]
        for layer in layers:
            managed[layer.weight] = True
        return self

    @property
    def step(self) -> int:
        """Optimizer steps taken since `attach`."""
        return self._step

    @property
    def progress(self) -> float:
        """Share of the run that is done, in [0, 1]."""
        return min(1.0, self._step / self._total_steps)

    @torch.no_grad()
    def masks(self) -> dict[str, Tensor]:
        """Return the wiring, name -> bool tensor: this, not ``weight != 0``, is the truth."""
        if self._final is not None:
            return {name: mask.clone() for name, mask in self._final.items()}
        self._need_attached()
        return {layer.name: self.mask(layer).clone() for layer in self._layers}

    def reached(self) -> float:
        """Return the share of synapses that exist, over all targets."""
        masks = self.masks().values()
        return sum(int(m.sum()) for m in masks) / sum(m.numel() for m in masks)

    def connectivity(self) -> float:
        """Return the share of synapses that exist."""
        return self.reached()

    def summary(self) -> list[dict[str, Any]]:
        """Return one row a layer: name, shape, present, total, connectivity."""
        rows = []
        for name, mask in self.masks().items():
            present, total = int(mask.sum()), mask.numel()
            row = {"name": name, "shape": tuple(mask.shape), "present": present, "total": total}
            rows.append({**row, "connectivity": present / total})
        return rows

    def stats(self) -> dict[str, float]:
        """Return figures for a logger; pruned and regrown count since the last call."""
        masks = self.masks()
        moves = [mask_functions.turnover(self._seen[name], mask) for name, mask in masks.items()]
        self._seen = masks
        return {
            "connectivity": self.reached(),
            "pruned": float(sum(pruned for pruned, _ in moves)),
            "regrown": float(sum(regrown for _, regrown in moves)),
        }

    @torch.no_grad()
    def finish(self, keep_masks: bool = False) -> dict[str, Tensor]:
        """Leave a plain model with exact zeros and no hook; return the masks.

        With `keep_masks` the same optimizers may go on, and the wiring stays.
        """
        if self._final is not None:
            if keep_masks and not self._held:
                raise SpikewireError(
                    "finish(keep_masks=True): already finished without it; "
                    "call spikewire.apply_masks(model, method.masks(), optimizer)"
                )
            return self.masks()
        self._need_attached()
        self._restore()
        self._check_seals(self._layers)
        self._settle()
        self.end(self._layers)
        self._show(self._layers)
        self._final = self.masks()
        self._warn_if_short()
        model, optimizers = self._model, self._optimizers
        self.detach()
        assert model is not None
        self._held = apply_masks(model, self._final, *(optimizers if keep_masks else ()))
        return self.masks()

    def detach(self) -> None:
        """Remove every hook and let go of the model; the weights stay as the network saw them."""
        for held in self._held:
            held.remove()
        self._held = ()
        if not self._layers:
            return
        self._restore()
        for handle in self._hooks:
            handle.remove()
        for layer in self._layers:
            managed.pop(layer.weight, None)
        self._model, self._layers, self._optimizers, self._hooks = None, (), (), []

    def state_dict(self) -> dict[str, Any]:
        """Return all that a resumed run needs, beside the model's and the optimizers' own state."""
        self._need_attached()
        self._restore()
        self._check_seals(self._layers)
        return {
            "method": self.name,
            "options": self.options(),
            "step": self._step,
            "total_steps": self._total_steps,
            "shares": {layer.name: layer.connectivity for layer in self._layers},
            "generator": self._generator.get_state(),
            "seen": {name: mask.clone() for name, mask in self._seen.items()},
            "memory": {key: value.clone() for key, value in self.memory.items()},
            "stepped": {i: [x.name for x in layers] for i, layers in self._stepped.items()},
            "layers": {
                layer.name: {key: value.clone() for key, value in layer.state.items()}
                for layer in self._layers
            },
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`; call it last, after the model's and the optimizers' own."""
        self._need_attached()
        self._refuse_foreign(state)
        self._open = []
        self._step = state["step"]
        self._generator.set_state(state["generator"].cpu())
        device = next(iter(self._layers)).weight.device
        self.memory = {k: v.to(device, copy=True) for k, v in state["memory"].items()}
        layers = {layer.name: layer for layer in self._layers}
        self._stepped = {i: [layers[n] for n in names] for i, names in state["stepped"].items()}
        for name, layer in layers.items():
            saved = state["layers"][name]
            layer.state = {k: v.to(layer.weight.device, copy=True) for k, v in saved.items()}
        self._show(self._layers)
        self._seal(self._layers)
        self._seen = {k: v.to(layers[k].weight.device) for k, v in state["seen"].items()}

    def options(self) -> dict[str, Any]:
        """Return the hyper-parameters by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**values, "connectivity": self.asked} if "connectivity" in values else values

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Return the hyper-parameters' defaults by name."""
        return {field.name: getattr(cls, field.name) for field in fields(cls)}

    # ------------------------------------------------------------------ for methods

    def everyone(self) -> list[Layer]:
        """Return all layers, also those without a gradient; each will be shown anew."""
        self._open = list(self._layers)
        return self._open

    def crosses(self, share: float) -> bool:
        """Tell whether this very step carried the run over `share` of its length."""
        return (self._step - 1) / self._total_steps < share <= self._step / self._total_steps

    def share(self, layer: Layer) -> float:
        """Return the connectivity asked of this layer: its own, else the method's."""
        return self.asked if layer.connectivity is None else layer.connectivity  # pyright: ignore

    def draws(self, device: torch.device) -> torch.Generator:
        """Return a device generator seeded by the method's CPU one: the same on every rank."""
        seed = int(torch.randint(2**62, (), generator=self._generator))
        return torch.Generator(device).manual_seed(seed)

    # ------------------------------------------------------------------ the hooks

    @torch.compiler.disable
    @torch.no_grad()
    def _before(self, optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
        self._restore()
        self._turn = None
        if (args[1:] and args[1] is not None) or kwargs.get("closure") is not None:
            raise SpikewireError(
                "optimizer.step(closure): a closure would see weights in mid-step; "
                "call backward() yourself, then step() without one"
            )
        if _skipped(optimizer):
            return
        own = [x for x in self._layers if x.optimizer is optimizer and x.weight.grad is not None]
        self._check_seals(own)
        self._turn = self._optimizers.index(optimizer)
        if self._turn in self._stepped:  # another optimizer skipped its turn: the step ends here
            self._settle()
        self._open = own
        self._lend(own)

    @torch.compiler.disable
    @torch.no_grad()
    def _after(self, optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
        turn, self._turn = self._turn, None
        if turn is None:  # skipped by a GradScaler, or step() of a subclass around its parent's
            return
        self._take(self._open)
        self._stepped[turn] = self._open
        if len(self._stepped) == len(self._optimizers):
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
        self._step += 1
        self.after_step(self._open)
        self._restore()

    @torch.no_grad()
    def _restore(self) -> None:
        """Show the wiring in every open layer, also after a step that an exception cut short."""
        self._show(self._open)
        self._seal(self._open)
        self._open = []

    # ------------------------------------------------------------------ guards

    def _need_attached(self) -> None:
        if not self._layers:
            raise SpikewireError(
                f"{self.name}: not attached; call attach(model, optimizer, ...) first"
            )

    def _warn_if_short(self) -> None:
        """Say so when a run ended before its method reached what it was asked."""
        if self.asked is None or self._step >= self._total_steps:
            return
        even = all(layer.connectivity is None for layer in self._layers)
        if even and self.reached() > 1.02 * self.asked:
            warnings.warn(
                f"{self.name}: finished at step {self._step} of {self._total_steps}, with "
                f"connectivity {self.reached():.4g}; asked was {self.asked:.4g}",
                stacklevel=4,
            )

    def _seal(self, layers: Sequence[Layer]) -> None:
        deep = self._step % CHECKSUM_EVERY == 0
        self._seals.update({x.name: WriteGuard.of(x.weight, deep) for x in layers})

    def _check_seals(self, layers: Sequence[Layer]) -> None:
        for layer in layers:
            if reason := self._seals[layer.name].broken(layer.weight):
                raise SpikewireError(
                    f"{layer.name}: changed by another hand ({reason}) while {self.name} has it; "
                    "load or write weights before attach(), or call method.load_state_dict() last"
                )

    def _refuse_foreign(self, state: dict[str, Any]) -> None:
        if state.get("method") != self.name:
            raise SpikewireError(
                f"method: the state is of {state.get('method')!r}, not {self.name!r}"
            )
        for key, value in self.options().items():
            saved = state["options"].get(key, self.defaults()[key])  # older than the option
            if saved != value:
                raise SpikewireError(f"{key}: the state was saved with {saved!r}, not {value!r}")
        if (steps := state["total_steps"]) != self._total_steps:
            raise SpikewireError(
                f"total_steps: the state was saved with {steps}, not {self._total_steps}"
            )
        for layer in self._layers:
            saved = state["layers"].get(layer.name)
            if saved is None or set(saved) != set(layer.state):
                raise SpikewireError(
                    f"{layer.name}: not in the saved state; the targets must be the same"
                )
            share = state.get("shares", {}).get(layer.name, layer.connectivity)
            if share != layer.connectivity:
                raise SpikewireError(
                    f"targets: the state was saved with {share} for {layer.name}, "
                    f"not {layer.connectivity}"
                )
            for key, value in saved.items():
                if value.shape != layer.state[key].shape:
                    raise SpikewireError(
                        f"{layer.name}: saved {key} has shape {tuple(value.shape)}, "
                        f"not {tuple(layer.state[key].shape)}"
                    )
        if extra := set(state["layers"]) - {layer.name for layer in self._layers}:
            raise SpikewireError(f"{sorted(extra)[0]}: in the saved state but not a target here")


def _skipped(optimizer: Optimizer) -> bool:
    """Tell whether a GradScaler makes a fused optimizer skip; its step() is called anyway."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and bool(found)


class Latent(Method):
    """The optimizer moves a hidden tensor, the network sees ``project(latent)``.

    Absent synapses keep a latent too, so the gradient at weight 0 can bring them back.
    """

    def project(self, layer: Layer) -> Tensor:
        """Return the weight the network sees for ``layer.state["latent"]``."""
        raise NotImplementedError

    def project_(self, layer: Layer) -> None:
        """Write the projection into the weight; a method may do so without a tensor between."""
        layer.weight.copy_(self.project(layer))

    def __init_subclass__(cls) -> None:
        if "project" in vars(cls) and "project_" not in vars(cls):
            cls.project_ = Latent.project_  # not that of a parent with another projection

    def mask(self, layer: Layer) -> Tensor:
        """Return where the projection is not zero."""
        return self.project(layer) != 0

    def _lend(self, layers: Sequence[Layer]) -> None:
        for layer in layers:
            layer.weight.copy_(layer.state["latent"])
        self.before_step(layers)
        for layer in layers:
            if decay := layer.options.get("weight_decay", 0.0):
                _spare_from_decay_(layer, ~self.mask(layer), decay)

    def _take(self, layers: Sequence[Layer]) -> None:
        for layer in layers:
            layer.state["latent"].copy_(layer.weight)

    def _show(self, layers: Sequence[Layer]) -> None:
        for layer in layers:
            self.project_(layer)


DECOUPLED = tuple(
    getattr(optim, name) for name in ("AdamW", "Adafactor", "Muon") if hasattr(optim, name)
)


def _spare_from_decay_(layer: Layer, absent: Tensor, decay: float) -> None:
    """Cancel beforehand what weight decay will do to absent synapses.

    Decoupled: ``u <- u (1 - lr decay)``, so divide. Coupled: ``g <- g + decay u``, so subtract.
    """
    weight, options = layer.weight, layer.options
    if options.get("decoupled_weight_decay", isinstance(layer.optimizer, DECOUPLED)):
        weight.copy_(torch.where(absent, weight / (1 - layer.lr * decay), weight))
        return
    assert weight.grad is not None
    scale = getattr(layer.optimizer, "grad_scale", None)
    factor = decay * (-1.0 if options.get("maximize") else 1.0)
    correction = absent * weight * factor
    weight.grad.sub_(correction if scale is None else correction * scale)


class Masked(Method):
    """A mask on gradient and weight: an absent synapse is 0 and does not move."""

    def mask(self, layer: Layer) -> Tensor:
        """Return the mask, which is the state itself."""
        return layer.state["mask"]

    def _lend(self, layers: Sequence[Layer]) -> None:
        self.before_step(layers)  # sees the dense gradient
        for layer in layers:
            assert layer.weight.grad is not None
            layer.weight.grad.masked_fill_(~self.mask(layer), 0.0)

    def _show(self, layers: Sequence[Layer]) -> None:
        for layer in layers:
            layer.weight.masked_fill_(~self.mask(layer), 0.0)

    def regrow_(self, layer: Layer, regrown: Tensor) -> None:
        """Add synapses at weight 0 with fresh moments."""
        mask = layer.state["mask"]
        mask_functions.reset_moments_(layer.optimizer, layer.weight, regrown, mask)
        layer.weight.masked_fill_(regrown, 0.0)
        mask |= regrown


def warn_of_weight_decay(method: Method, layers: Sequence[Layer]) -> None:
    """Say so when weight decay is on for a method whose paper has none."""
    names = [layer.name for layer in layers if layer.options.get("weight_decay")]
    if names:
        warnings.warn(
            f"{method.name}: weight decay is on for {names[0]} and {len(names) - 1} more; "
            "published without it (AdamW's default is 0.01), and it acts on present synapses only",
            stacklevel=4,
        )
