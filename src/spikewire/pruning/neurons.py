"""Hidden neurons: which rows of which layers are a neuron's inputs, which columns its outputs.

A group of neurons is found in the graph that autograd records: the input of a synaptic layer is
followed back to the outputs of others. Layers that write to the same neurons, as where a shortcut
is added, or read from them are one group::

    sources: weight[i] is what neuron i receives        targets: weight[:, i] is what it sends

A convolution's neuron is a channel; a linear layer behind a flattened image has one column per
position of it. Where neurons are not these of all layers involved, as behind a concatenation or an
unknown product of matrices, a group is left out.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from spikewire.pruning.layers import Layer

MIXING = ("Mm", "Bmm", "Addmm", "Baddbmm", "Convolution", "Linear", "Cat", "Dot", "Mv", "Embedding")


class Neurons(NamedTuple):
    """A group of hidden neurons.

    Args:
        sources: layers whose rows are the incoming synapses of the neurons.
        targets: layers whose columns are the outgoing synapses.
        size: number of neurons.
    """

    sources: tuple[Layer, ...]
    targets: tuple[Layer, ...]
    size: int

    def present(self) -> Tensor:
        """Return which neurons have an incoming and an outgoing synapse, by ``state["mask"]``."""
        masks = [layer.state["mask"].flatten(1).any(1) for layer in self.sources]
        reads = [
            self.columns(layer.state["mask"]).flatten(2).any(2).any(0) for layer in self.targets
        ]
        first, *others = [*masks, *reads]
        for mask in others:
            first = first & mask
        return first

    def columns(self, tensor: Tensor) -> Tensor:
        """Return a tensor of a target's shape as ``[outputs, neurons, ...]``, a view."""
        return tensor.view(tensor.shape[0], self.size, -1)

    def drop_(self, neuron: int) -> None:
        """Remove all incoming and outgoing synapses of a neuron from the masks."""
        for layer in self.sources:
            layer.state["mask"][neuron] = False
        for layer in self.targets:
            self.columns(layer.state["mask"])[:, neuron] = False

    def merge_(self, neuron: int, other: int, factor: Tensor | float) -> None:
        """Add the outgoing weights of a neuron, times a factor, to those of another."""
        for layer in self.targets:
            columns = self.columns(layer.weight)
            columns[:, other] += factor * columns[:, neuron]


class Flow:
    """Which synaptic layers feed which, from the forward passes of training.

    Args:
        layers: the pruned layers by their modules; other synaptic modules are in no group.
    """

    def __init__(self, layers: Mapping[nn.Module, Layer]) -> None:
        self.layers = layers
        self.outputs: dict[Any, nn.Module] = {}  # autograd's node of an output -> its module
        self.links: dict[tuple[str, nn.Module], tuple[str, nn.Module]] = {}  # a union-find forest
        self.mixed: set[tuple[str, nn.Module]] = set()

    def enter(self, module: nn.Module, inputs: Tensor) -> None:
        """Follow the input of a module back to the outputs it is made of."""
        here = ("in", module)
        for node, mixing in ancestors(inputs.grad_fn, self.outputs):
            if mixing:
                self.mixed.add(here)
            elif node in self.outputs:
                self.links[self.root(("out", self.outputs[node]))] = self.root(here)

    def leave(self, module: nn.Module, output: Tensor) -> None:
        """Note the output of a module."""
        if output.grad_fn is not None:
            self.outputs[output.grad_fn] = module

    def root(self, end: tuple[str, nn.Module]) -> tuple[str, nn.Module]:
        """Return what stands for all ends that are linked with this one."""
        while (above := self.links.get(end, end)) != end:
            end = above
        return end

    def groups(self) -> list[Neurons]:
        """Return the groups of hidden neurons, in the order of their first layer."""
        found: dict[Any, dict[str, list[nn.Module]]] = {}
        ends = {end for pair in self.links.items() for end in pair}
        order = list(self.layers)
        ends = sorted(ends, key=lambda end: order.index(end[1]) if end[1] in self.layers else -1)
        for side, module in ends:
            found.setdefault(self.root((side, module)), {}).setdefault(side, []).append(module)
        bad = {self.root(end) for end in self.mixed}
        groups = [self.group(x["out"], x["in"]) for root, x in found.items() if root not in bad]
        return [group for group in groups if group is not None]

    def group(self, sources: list[nn.Module], targets: list[nn.Module]) -> Neurons | None:
        """Return the neurons between modules, None where they are not the same for all."""
        if not all(module in self.layers and is_plain(module) for module in [*sources, *targets]):
            return None
        size = len(self.layers[sources[0]].weight)
        images = all(isinstance(module, _ConvNd) for module in sources)
        fits = [len(self.layers[module].weight) == size for module in sources]
        for module in targets:
            inputs = self.layers[module].weight.shape[1]
            flattened = images and isinstance(module, nn.Linear) and inputs % size == 0
            fits.append(inputs == size or flattened)
        if not all(fits):
            return None
        return Neurons(self.of(sources), self.of(targets), size)

    def of(self, modules: Iterable[nn.Module]) -> tuple[Layer, ...]:
        """Return the layers of modules."""
        return tuple(self.layers[module] for module in modules)


def is_plain(module: nn.Module) -> bool:
    """Return whether rows of a module's weight are outputs, and columns inputs."""
    return not isinstance(module, _ConvTransposeNd) and getattr(module, "groups", 1) == 1


def ancestors(start: Any, stops: Mapping[Any, Any]) -> Iterator[tuple[Any, bool]]:
    """Yield the nodes of autograd behind `start`, up to `stops`, each with whether it mixes."""
    stack, seen = [start], set()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node in stops:
            yield node, False
            continue
        yield node, node.name().startswith(MIXING)
        stack.extend(parent for parent, _ in node.next_functions)
