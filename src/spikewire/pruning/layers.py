"""Which weights of a model are pruned, and which optimizer moves each of them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.weak import WeakTensorKeyDictionary

from spikewire.errors import SpikewireError, check, unknown
from spikewire.nn.names import named_modules, named_parameters
from spikewire.nn.synapses import SYNAPTIC
from spikewire.pruning.skipped import Skipped, can_train, find_skipped, is_matrix

managed = WeakTensorKeyDictionary()  # weights some pruner has; a copy of one is not in it

Targets = Callable[[str, nn.Module], bool] | str | Sequence[str] | Mapping[str, float]


@dataclass(eq=False)
class Layer:
    """One pruned weight, the optimizer that moves it, and a method's state for it.

    Attributes:
        name: name of the parameter in the model.
        weight: the parameter: what the network sees.
        optimizer: the optimizer that moves it.
        group: index of its group in ``optimizer.param_groups``.
        connectivity: target of this layer alone; None where it is the method's.
        state: a method's tensors, by name; saved and loaded with the pruner's state.
    """

    name: str
    weight: nn.Parameter
    optimizer: Optimizer
    group: int
    connectivity: float | None = None
    state: dict[str, Tensor] = field(default_factory=dict)

    @property
    def options(self) -> dict[str, Any]:
        """The optimizer's group of this weight, read now: `load_state_dict` replaces the dict."""
        return self.optimizer.param_groups[self.group]

    @property
    def lr(self) -> Any:
        """The learning rate of this step: a float, or a tensor where the optimizer has one."""
        return self.options["lr"]

    @property
    def grad(self) -> Tensor:
        """The gradient, unscaled where a GradScaler leaves that to a fused optimizer."""
        assert self.weight.grad is not None
        scale = getattr(self.optimizer, "grad_scale", None)
        return self.weight.grad if scale is None else self.weight.grad / scale

    def to_device_of_weight(self) -> None:
        """Move the state to where the weight is: ``model.to(device)`` moves only the model."""
        self.state = {key: value.to(self.weight.device) for key, value in self.state.items()}


def prunable(name: str, module: nn.Module) -> bool:
    """Return whether a module's `weight` is pruned by default: conv and linear, not depthwise.

    Args:
        name: name of the module; not used, so that a predicate of yours may use it.
        module: the module.
    """
    groups = getattr(module, "groups", 1)
    depthwise = groups > 1 and groups == getattr(module, "in_channels", 0)
    return isinstance(module, SYNAPTIC) and not depthwise


def find_layers(
    model: nn.Module, optimizers: Iterable[Optimizer], targets: Targets
) -> tuple[list[Layer], tuple[Skipped, ...]]:
    """Return the layers to prune, and the weights of two or more dimensions left dense.

    Args:
        model: the model.
        optimizers: the optimizers that move its weights.
        targets: see `Method.attach`.

    Raises:
        SpikewireError: if there is nothing to prune, or a target cannot be pruned.
    """
    owners = {
        id(weight): (optimizer, index)
        for optimizer in optimizers
        for index, group in enumerate(optimizer.param_groups)
        for weight in group["params"]
    }
    parameters = named_parameters(model)  # a tied weight appears once
    chosen = _choose(model, parameters, targets)
    layers = []
    for name, connectivity in chosen.items():
        weight = parameters[name]
        if not can_train(weight):
            continue
        _refuse_unfit(name, weight)
        if id(weight) not in owners:
            raise SpikewireError(f"{name}: no optimizer given to attach() has this parameter")
        layers.append(Layer(name, weight, *owners[id(weight)], connectivity))
    if not layers:
        raise _nothing_to_prune(parameters, chosen)
    covered = _coverage(targets, chosen)
    return layers, find_skipped(model, parameters, {x.name for x in layers}, covered)


def _choose(
    model: nn.Module, parameters: Mapping[str, nn.Parameter], targets: Targets
) -> dict[str, float | None]:
    """Map the name of each target to its own connectivity, None where it has none."""
    what = "a predicate, a name or glob, a list of these, or a mapping to connectivities"
    check(not isinstance(targets, nn.Module), "targets", type(targets).__name__, what)
    rule = targets if callable(targets) else prunable
    fit = [
        f"{name}.weight" if name else "weight"
        for name, module in named_modules(model)
        if isinstance(getattr(module, "weight", None), Tensor) and rule(name, module)
    ]
    fit = [name for name in fit if name in parameters and is_matrix(parameters[name])]
    if callable(targets):
        return dict.fromkeys(fit)
    chosen: dict[str, float | None] = dict.fromkeys(fit if isinstance(targets, Mapping) else ())
    for pattern in [targets] if isinstance(targets, str) else targets if parameters else ():
        own = targets[pattern] if isinstance(targets, Mapping) else None
        if own is not None:
            check(0 < own <= 1, f"targets[{pattern!r}]", own, "a connectivity in (0, 1]")
        chosen.update(dict.fromkeys(_named(pattern, fit, parameters), own))
    return chosen


def _coverage(targets: Targets, chosen: Mapping[str, float | None]) -> Callable[[str], bool]:
    """Return a test of whether the user meant a weight to be pruned, given its name."""
    if targets is prunable or isinstance(targets, Mapping):
        return lambda name: True
    patterns = () if callable(targets) else [targets] if isinstance(targets, str) else targets
    return lambda name: name in chosen or any(_matches(name, pattern) for pattern in patterns)


def _nothing_to_prune(
    parameters: Mapping[str, nn.Parameter], chosen: Mapping[str, float | None]
) -> SpikewireError:
    if chosen:
        names = ", ".join(chosen)
        return SpikewireError(f"targets: nothing to prune; frozen or empty: {names}")
    candidates = ", ".join(name for name, weight in parameters.items() if is_matrix(weight))
    rest = (
        f"name one of: {candidates}"
        if candidates
        else ("it has no parameter of two or more dimensions")
    )
    return SpikewireError(f"targets: the model has no weight to prune; {rest}")


def _named(pattern: str, fit: list[str], parameters: Iterable[str]) -> list[str]:
    """Return the prunable weights that match; an exact name picks any parameter."""
    found = [name for name in fit if _matches(name, pattern)]
    found = found or [name for name in parameters if name in (pattern, f"{pattern}.weight")]
    if not found:
        raise unknown("targets", pattern, parameters)
    return found


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(name.removesuffix(".weight"), pattern)


def _refuse_unfit(name: str, weight: nn.Parameter) -> None:
    if isinstance(weight, nn.parameter.UninitializedParameter):
        raise SpikewireError(f"{name}: is lazy; run one forward pass before attach()")
    if not weight.is_floating_point():
        raise SpikewireError(
            f"{name}: dtype {weight.dtype} cannot be trained; it must be floating point"
        )
    sharded = hasattr(weight, "device_mesh") or hasattr(weight, "_sharded_size")
    if sharded or hasattr(weight, "_is_flat_param"):
        raise SpikewireError(f"{name}: is an FSDP shard; wrap with DistributedDataParallel instead")
    if weight in managed:
        raise SpikewireError(f"{name}: another pruner has it; call its finish() or detach() first")
