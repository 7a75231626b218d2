"""Results of a measurement: costs per layer, firing rates per neuron, totals of the network.

synops = sum over layers, time steps and spikes of the surviving fan-out, per sample (accumulates)
macs   = the same for inputs that are no spikes, such as an image (multiply-accumulates)
energy = 0.9 pJ * synops + 4.6 pJ * macs (45 nm; memory access is counted separately)
"""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from spikewire.text import percent, size, table


@dataclass(frozen=True)
class Costs:
    """Energy per operation in pJ, by default 32-bit operations at 45 nm (Horowitz, ISSCC 2014).

    Args:
        accumulate: One addition: a spike arrives at a synapse.
        multiply_accumulate: One multiplication and addition: an analogue input arrives.
        weight_read: One weight read from an 8 kB SRAM.
    """

    accumulate: float = 0.9
    multiply_accumulate: float = 4.6
    weight_read: float = 5.0


@dataclass(frozen=True)
class Energy:
    """Energy per sample in pJ.

    Args:
        compute: Energy of the arithmetic.
        memory: Energy of one weight read per operation.
    """

    compute: float
    memory: float


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


@dataclass(frozen=True)
class LayerMeasure:
    """One synaptic layer; all operations are per sample.

    Args:
        name: Name of the layer's weight in the model.
        weights: Number of weights.
        present: Number of weights that exist, by mask.
        synops: Accumulates: spikes times surviving fan-out.
        macs: Multiply-accumulates: the same for inputs that are neither spikes nor sums of them.
        unpruned: Operations if no weight were pruned, for the same inputs.
        dense: Operations if no weight were pruned and every input were active.
        synapses: Synapses that exist: present weights times the positions at which each is
            applied; None if not counted.
        reached: Those of them whose source neuron is reached from the input.
        alive: Those of them whose target neuron also leads to the output.
        dense_synapses: Synapses of the unpruned layer; None if not counted.
    """

    name: str
    weights: int
    present: int
    synops: float
    macs: float
    unpruned: float
    dense: float
    synapses: int | None = None
    reached: int | None = None
    alive: int | None = None
    dense_synapses: int | None = None

    @property
    def connectivity(self) -> float:
        """Fraction of the weights that exist."""
        return _ratio(self.present, self.weights)


@dataclass(frozen=True)
class Firing:
    """Firing rates of one spiking layer.

    Args:
        name: Name of the module.
        rates: Mean spikes per time step of each neuron, in the shape of the layer's output.
    """

    name: str
    rates: Tensor

    @property
    def rate(self) -> float:
        """Mean rate over neurons."""
        return float(self.rates.mean())

    @property
    def silent(self) -> float:
        """Fraction of neurons that never fire."""
        return float((self.rates == 0).double().mean())

    @property
    def saturated(self) -> float:
        """Fraction of neurons that fire at every time step."""
        return float((self.rates == 1).double().mean())


@dataclass(frozen=True)
class Measurement:
    """The result of `measure`: one network on some samples.

    Args:
        samples: Number of samples measured.
        layers: One record per convolution or linear layer, in the order of the model.
        firing: One record per spiking layer that emitted spikes, in the order of the model.
        bytes_dense: Size of all parameters as they are.
        bytes_packed: Size of all parameters with pruned weights packed at 16 bits.
        uncounted: Names of matrices whose operations are not counted: those outside convolution
            and linear layers, and those of layers that were not called.

    Example:
        >>> found = spikewire.measure(model, images)
        >>> found.synops, found.energy().compute, found.firing[0].rate
    """

    samples: int
    layers: list[LayerMeasure]
    firing: list[Firing]
    bytes_dense: int
    bytes_packed: int
    uncounted: list[str] = field(default_factory=list)

    @property
    def connectivity(self) -> float:
        """Fraction of all weights that exist."""
        return _ratio(sum(x.present for x in self.layers), sum(x.weights for x in self.layers))

    @property
    def synapses(self) -> float | None:
        """Fraction of the dense network's synapses that exist; None if not counted.

        A convolution weight is one synapse per position at which it is applied.
        """
        return self._fraction("synapses")

    @property
    def synapses_reached(self) -> float | None:
        """Fraction of the dense network's synapses that are reached from the input.

        This is the connectivity of UPR (ICLR 2024), which counts forward only: compare with UPR by
        this figure. None if not counted.
        """
        return self._fraction("reached")

    @property
    def synapses_alive(self) -> float | None:
        """Fraction of the dense network's synapses on a path from input to output, or None."""
        return self._fraction("alive")

    def _fraction(self, kind: str) -> float | None:
        if any(x.dense_synapses is None for x in self.layers):
            return None
        dense = sum(x.dense_synapses or 0 for x in self.layers)
        return sum(getattr(x, kind) for x in self.layers) / dense

    @property
    def synops(self) -> float:
        """Accumulates per sample."""
        return sum(x.synops for x in self.layers)

    @property
    def macs(self) -> float:
        """Multiply-accumulates per sample."""
        return sum(x.macs for x in self.layers)

    @property
    def unpruned(self) -> float:
        """Operations per sample as reported by a counter that ignores masks."""
        return sum(x.unpruned for x in self.layers)

    @property
    def dense(self) -> float:
        """Operations per sample of a dense network in which every input is active."""
        return sum(x.dense for x in self.layers)

    def energy(self, costs: Costs = Costs()) -> Energy:  # noqa: B008 - frozen
        """Return the energy per sample.

        Args:
            costs: Energy per operation in pJ.

        Returns:
            Energy of arithmetic and of memory access, in pJ.

        Example:
            >>> found.energy(Costs(accumulate=0.1, weight_read=0)).compute
        """
        compute = costs.accumulate * self.synops + costs.multiply_accumulate * self.macs
        return Energy(compute, costs.weight_read * (self.synops + self.macs))

    def row(self) -> dict[str, Any]:
        """Return the totals of the network as a flat dict, for a logger or `metrics.jsonl`.

        Returns:
            Operations, energy in pJ, fractions of synapses, mean firing figures over all neurons
            (None without spiking layers), and bytes.
        """
        energy = self.energy()
        return {
            "synops": self.synops,
            "macs": self.macs,
            "unpruned": self.unpruned,
            "dense": self.dense,
            "compute_pj": energy.compute,
            "memory_pj": energy.memory,
            "synapses": self.synapses,
            "synapses_reached": self.synapses_reached,
            "synapses_alive": self.synapses_alive,
            "rate": self._mean_over_neurons([x.rate for x in self.firing]),
            "silent": self._mean_over_neurons([x.silent for x in self.firing]),
            "saturated": self._mean_over_neurons([x.saturated for x in self.firing]),
            "bytes_dense": self.bytes_dense,
            "bytes_packed": self.bytes_packed,
        }

    def __str__(self) -> str:
        layers = [
            (x.name, f"{x.weights:,}", f"{x.present:,}", x.connectivity, x.synops, x.macs)
            for x in self.layers
        ]
        sums = (sum(x.weights for x in self.layers), sum(x.present for x in self.layers))
        total = ("total", *(f"{n:,}" for n in sums), self.connectivity, self.synops, self.macs)
        rows = [
            (name, weights, present, percent(part), f"{synops:,.0f}", f"{macs:,.0f}")
            for name, weights, present, part, synops, macs in [*layers, total]
        ]
        header = ("layer", "weights", "present", "connectivity", "SynOps", "MACs")
        return "\n".join([table(header, rows), *self._figures()])

    def _figures(self) -> list[str]:
        """Return the lines below the table: synapses, energy, firing, bytes, what is missing."""
        energy, figures = self.energy(), self.row()
        costs = f"compute {energy.compute / 1e3:,.1f} nJ, memory {energy.memory / 1e3:,.1f} nJ"
        lines = [f"per sample (mean of {self.samples}): {costs}"]
        if figures["synapses_reached"] is not None:
            kinds = ("synapses", "synapses_reached", "synapses_alive")
            present, reached, alive = (percent(figures[kind]) for kind in kinds)
            lines.append(f"synapses {present}, reached from the input {reached}, alive {alive}")
        if figures["rate"] is not None:
            rate, silent = percent(figures["rate"]), percent(figures["silent"])
            lines.append(f"firing rate {rate} per time step, {silent} of the neurons silent")
        lines.append(f"parameters {size(self.bytes_dense)}, packed {size(self.bytes_packed)}")
        if self.uncounted:
            lines.append(f"not counted: {', '.join(self.uncounted)}")
        return lines

    def _mean_over_neurons(self, values: list[float]) -> float | None:
        """Return the mean of one value per spiking layer, weighted by its number of neurons."""
        sizes = [x.rates.numel() for x in self.firing]
        if not sum(sizes):
            return None
        return sum(v * size for v, size in zip(values, sizes, strict=True)) / sum(sizes)
