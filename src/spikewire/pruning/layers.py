"""Which weights of a model a method rewires, and which optimizer moves each of them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.weak import WeakTensorKeyDictionary

from spikewire.errors import SpikewireError, check, unknown

managed = WeakTensorKeyDictionary()  # weights some method has; no mark that a copy would carry

Targets = Callable[[str, nn.Module], bool] | str | Sequence[str] | Mapping[str, float]


@dataclass(eq=False)
class Layer:
    """One prunable weight, the optimizer that moves it, and what a method remembers about it."""

    name: str
    weight: nn.Parameter
    optimizer: Optimizer
    group: int
    connectivity: float | None = None
    state: dict[str, Tensor] = field(default_factory=dict)

    @property
    def options(self) -> dict[str, Any]:
        """The optimizer's live group: `load_state_dict` replaces the dict, so it is never kept."""
        return self.optimizer.param_groups[self.group]

    @property
    def lr(self) -> float:
        """The rate of this very step."""
        return self.options["lr"]

    @property
    def grad(self) -> Tensor:
        """The gradient, unscaled where a GradScaler left that to a fused optimizer."""
        assert self.weight.grad is not None
        scale = getattr(self.optimizer, "grad_scale", None)
        return self.weight.grad if scale is None else self.weight.grad / scale


def prunable(name: str, module: nn.Module) -> bool:
    """Tell whether a module's `weight` is a synaptic matrix: conv or linear, not depthwise."""
    if isinstance(module, nn.modules.conv._ConvNd):
        return not (module.groups > 1 and module.groups == module.in_channels)
    return isinstance(module, nn.Linear)


def find_layers(
    model: nn.Module, optimizers: Iterable[Optimizer], targets: Targets
) -> tuple[list[Layer], list[str]]:
    """Return the chosen layers, and the names of raw matrices that were not looked at."""
    owners = {
        id(weight): (optimizer, index)
        for optimizer in optimizers
        for index, group in enumerate(optimizer.param_groups)
        for weight in group["params"]
    }
    parameters = dict(model.named_parameters())  # a tied weight appears once
    chosen = _choose(model, parameters, targets)
    layers = []
    for name, connectivity in chosen.items():
        weight = parameters[name]
        _refuse_unfit(name, weight)
        if id(weight) not in owners:
            raise SpikewireError(f"{name}: no optimizer given to attach() moves this target")
        layers.append(Layer(name, weight, *owners[id(weight)], connectivity))
    raw = [n for n, p in parameters.items() if _is_matrix(p) and not _is_module_weight(model, n)]
    return layers, [name for name in raw if name not in chosen]


def _choose(
    model: nn.Module, parameters: dict[str, nn.Parameter], targets: Targets
) -> dict[str, float | None]:
    """Map each chosen parameter's name to its own connectivity, None where none was given."""
    rule = targets if callable(targets) else prunable
    fit = [
        f"{name}.weight" if name else "weight"
        for name, module in model.named_modules()
        if isinstance(getattr(module, "weight", None), Tensor) and rule(name, module)
    ]
    fit = [name for name in fit if name in parameters and _is_matrix(parameters[name])]
    chosen: dict[str, float | None] = {}
    if callable(targets):
        chosen.update(dict.fromkeys(fit))
    elif parameters:
        for pattern in [targets] if isinstance(targets, str) else targets:
            share = targets[pattern] if isinstance(targets, Mapping) else None
            if share is not None:
                check(0 < share <= 1, f"targets[{pattern!r}]", share, "a connectivity in (0, 1]")
            chosen.update(dict.fromkeys(_named(pattern, fit, parameters), share))
    if not chosen:
        candidates = ", ".join(name for name, p in parameters.items() if _is_matrix(p))
        raise SpikewireError(
            "targets: the model has no weight to prune; name one of: "
            + (candidates or "(no parameter of two or more dimensions)")
        )
    return chosen


def _named(pattern: str, fit: list[str], parameters: Iterable[str]) -> list[str]:
    """Return the fit weights that match; an exact name picks any parameter at all."""
    found = [name for name in fit if _matches(name, pattern)]
    found = found or [name for name in parameters if name in (pattern, f"{pattern}.weight")]
    if not found:
        raise unknown("targets", pattern, parameters)
    return found


def _is_matrix(weight: nn.Parameter) -> bool:
    """Tell synapses from biases and scales; a lazy weight has no shape yet and is refused later."""
    return isinstance(weight, nn.parameter.UninitializedParameter) or weight.dim() >= 2


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(name.removesuffix(".weight"), pattern)


def _is_module_weight(model: nn.Module, name: str) -> bool:
    """Tell raw matrices (recurrent cells, attention) from the `weight` of an ordinary module."""
    if name.rpartition(".")[2] != "weight":
        return False
    owner = model.get_submodule(name.rpartition(".")[0])
    return prunable(name, owner) or type(owner).__module__.startswith("torch.nn")


def _refuse_unfit(name: str, weight: nn.Parameter) -> None:
    if isinstance(weight, nn.parameter.UninitializedParameter):
        raise SpikewireError(f"{name}: is lazy; run one forward pass before attach()")
    if not weight.requires_grad:
        raise SpikewireError(
            f"{name}: is frozen (requires_grad is False); thaw it or leave it out of targets"
        )
    if not weight.is_floating_point():
        raise SpikewireError(
            f"{name}: dtype {weight.dtype} cannot be trained; it must be floating point"
        )
    sharded = hasattr(weight, "device_mesh") or hasattr(weight, "_sharded_size")
    if sharded or hasattr(weight, "_is_flat_param"):
        raise SpikewireError(f"{name}: is an FSDP shard; wrap with DistributedDataParallel instead")
    if weight in managed:
        raise SpikewireError(
            f"{name}: another method manages or holds it; call its finish() or detach() first"
        )
