"""Which weights are left dense, and why."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from spikewire.nn.names import find_module
from spikewire.nn.synapses import NORMS, SYNAPTIC
from spikewire.pruning.warn import warn_caller

NOT_TARGETED = "not in targets"
_KINDS = {  # other classes are named by their own name
    nn.MultiheadAttention: "attention",
    nn.Embedding: "embedding",
    nn.EmbeddingBag: "embedding",
}


@dataclass(frozen=True)
class Skipped:
    """A weight of two or more dimensions that is left dense.

    Attributes:
        name: name of the parameter in the model.
        weights: number of its values.
        reason: why it is not pruned, such as ``"recurrent (LSTM)"``, ``"attention"``,
            ``"reparametrized"``, ``"depthwise convolution"``, ``"embedding"``, ``"frozen"``,
            ``"empty"`` or ``"not in targets"``.
    """

    name: str
    weights: int
    reason: str


def find_skipped(
    model: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    pruned: Iterable[str],
    targeted: Callable[[str], bool],
) -> tuple[Skipped, ...]:
    """Return the matrices that are not pruned, in the order of the model.

    Args:
        model: the model.
        parameters: its parameters, by clean name.
        pruned: names of the pruned ones.
        targeted: returns whether `targets` covers a name, so that a reason has to be given.
    """
    pruned = set(pruned)
    return tuple(
        Skipped(
            name,
            0 if isinstance(weight, nn.parameter.UninitializedParameter) else weight.numel(),
            _reason(model, name, weight) if targeted(name) else NOT_TARGETED,
        )
        for name, weight in parameters.items()
        if name not in pruned and is_matrix(weight) and not _is_norm(model, name)
    )


def is_matrix(weight: nn.Parameter) -> bool:
    """Return whether it is a matrix of synapses; a lazy weight has no shape yet, refused later."""
    return isinstance(weight, nn.parameter.UninitializedParameter) or weight.dim() >= 2


def can_train(weight: nn.Parameter) -> bool:
    """Return whether it can be pruned at all: it is neither frozen nor empty."""
    lazy = isinstance(weight, nn.parameter.UninitializedParameter)
    return weight.requires_grad and (lazy or weight.numel() > 0)


def _owner(model: nn.Module, name: str) -> nn.Module | None:
    return find_module(model, name.rpartition(".")[0])


def _is_norm(model: nn.Module, name: str) -> bool:
    return isinstance(_owner(model, name), NORMS)


def _reason(model: nn.Module, name: str, weight: nn.Parameter) -> str:
    owner = _owner(model, name)
    if not weight.requires_grad:
        return "frozen"
    if not can_train(weight):
        return "empty"
    if isinstance(owner, nn.utils.parametrize.ParametrizationList):
        return "reparametrized"
    if isinstance(owner, SYNAPTIC):  # weight_v of weight_norm, weight_orig of torch's pruning
        return "depthwise convolution" if name.endswith("weight") else "reparametrized"
    if isinstance(owner, nn.RNNBase | nn.RNNCellBase):
        return f"recurrent ({type(owner).__name__})"
    named = (word for kind, word in _KINDS.items() if isinstance(owner, kind))
    return next(named, f"matrix of {type(owner).__name__}")


def warn_of_skipped(method: str, skipped: Sequence[Skipped]) -> None:
    """Warn of the weights left dense, grouped by reason; not of those `targets` leaves out."""
    groups: dict[str, list[Skipped]] = {}
    for each in skipped:
        if each.reason != NOT_TARGETED:
            groups.setdefault(each.reason, []).append(each)
    if groups:
        text = "; ".join(_group_text(reason, group) for reason, group in groups.items())
        warn_caller(
            f"{method}: left dense: {text}; pruner.skipped lists them, `targets` may name more"
        )


def _group_text(reason: str, group: Sequence[Skipped]) -> str:
    more = f" and {len(group) - 1} more" if len(group) > 1 else ""
    return f"{reason}: {group[0].name}{more}, {sum(x.weights for x in group):,} weights"
