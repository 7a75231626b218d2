"""Names of a model's parameters without the prefixes of wrappers: `torch.compile`, DDP, Fabric."""

from collections.abc import Iterator

from torch import Tensor, nn

# class name of a wrapper -> its attribute that holds the wrapped module; torch.compile's class
# would import dynamo, Fabric's is of another package
WRAPPERS = {
    "OptimizedModule": "_orig_mod",
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "AveragedModel": "module",
    "_FabricModule": "_forward_module",
}


def unwrap(model: nn.Module) -> nn.Module:
    """Return the module inside any wrappers.

    Args:
        model: a module, perhaps wrapped by `torch.compile`, by data parallelism or by Fabric.

    Example:
        >>> unwrap(torch.compile(model)) is model
        True
    """
    while attribute := WRAPPERS.get(type(model).__name__):
        model = getattr(model, attribute)
    return model


def clean_name(model: nn.Module, path: str) -> str:
    """Return the name of a parameter or module in `model` without the prefixes of wrappers.

    Args:
        model: the module that `path` starts from.
        path: a name as in ``model.named_parameters()``.

    Example:
        >>> clean_name(torch.compile(model), "_orig_mod.fc1.weight")
        'fc1.weight'
    """
    words, module = [], model
    for word in path.split("."):
        if WRAPPERS.get(type(module).__name__) != word:
            words.append(word)
        module = getattr(module, word)
    return ".".join(words)


def named_parameters(model: nn.Module, remove_duplicate: bool = True) -> dict[str, nn.Parameter]:
    """Return the parameters of a model by their clean names.

    Args:
        model: any module, perhaps wrapped.
        remove_duplicate: whether a shared parameter appears only once, under its first name.
    """
    found = model.named_parameters(remove_duplicate=remove_duplicate)
    return {clean_name(model, path): parameter for path, parameter in found}


def named_state(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and saved buffers of a model by their clean names.

    Args:
        model: any module, perhaps wrapped; its parts may be wrapped too.
    """
    found = {}
    for path, value in model.state_dict().items():
        owner, _, word = path.rpartition(".")
        if isinstance(value, Tensor):
            name = clean_name(model, owner) if owner else ""
            found[f"{name}.{word}" if name else word] = value
    return found


def named_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules of a model with their clean names; the wrappers are left out."""
    for path, module in model.named_modules():
        if type(module).__name__ not in WRAPPERS:
            yield clean_name(model, path) if path else "", module


def find_module(model: nn.Module, name: str) -> nn.Module | None:
    """Return the module with a clean name, inside any wrappers; None if there is none."""
    module = unwrap(model)
    for word in name.split(".") if name else ():
        module = getattr(module, word, None)
        if not isinstance(module, nn.Module):
            return None
        module = unwrap(module)
    return module


def find_parameter(model: nn.Module, name: str) -> nn.Parameter | None:
    """Return the parameter with a clean name; None if there is none."""
    path, _, word = name.rpartition(".")
    found = getattr(find_module(model, path), word, None)
    return found if isinstance(found, nn.Parameter) else None
