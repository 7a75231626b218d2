"""The builder: collects the stages of a network while a model or a NIR graph is followed."""

from dataclasses import replace

from spikewire.errors import SpikewireError
from spikewire.formats.neuron import Neuron
from spikewire.formats.pooling import Pooling
from spikewire.formats.stage import IMAGE, Pool, Shape, Source, Stage
from spikewire.formats.values import (
    Current,
    Spikes,
    Value,
    expect_known,
    expect_spikes,
    pass_through,
    pool_currents,
)


class Builder:
    """The neurons that were found, and what feeds them.

    Attributes:
        fired: Per stage, the current and the constants of its neurons.
        shapes: Per stage, the shape of its neurons.
        pools: Pooling of the spikes, by the number of the stage.
    """

    def __init__(self) -> None:
        self.fired: list[tuple[Current, Neuron]] = []
        self.shapes: list[Shape] = []
        self.pools: dict[int, Pool] = {}
        self.numbers: dict[str, int] = {}  # of the stages, by the name of the neurons

    def fire(
        self,
        name: str,
        value: Value,
        neuron: Neuron,
        shape: Shape,
        feedback: Current | None = None,
    ) -> int:
        """Return the number of the stage of some neurons, a new one when they fire first.

        Args:
            name: Name of the neurons.
            value: What feeds them; spikes do without synapses.
            neuron: Their constants.
            shape: Their shape, without batch and time.
            feedback: Current of their spikes of the time step before, for recurrent neurons; its
                sources are filled in here.

        Raises:
            SpikewireError: If the input is not supported, or differs from that of another call.
        """
        value = expect_known(name, value)
        if value.reduced or value.vote > 1:
            raise SpikewireError(f"{name}: neurons after a sum or a vote are not supported")
        if isinstance(value, Spikes):
            value = pass_through(name, expect_spikes(name, value), shape)
        if feedback is not None:
            own = Source(self.numbers.get(name, len(self.fired)))
            value = replace(
                feedback, sources=(own,), others=(replace(value, others=()), *value.others)
            )
        if name not in self.numbers:
            used = {
                part.path[0] for current, _ in self.fired for part in (current, *current.others)
            }
            for part in (value, *value.others):
                if part.path[0] in used:
                    twice = "weights that are used twice are not supported"
                    raise SpikewireError(f"{part.path[0]}: {twice}")
            self.numbers[name] = len(self.fired)
            self.fired.append((value, neuron))
            self.shapes.append(shape)
        number = self.numbers[name]
        if self.fired[number][0].key != value.key:
            raise SpikewireError(
                f"{name}: its input comes from different layers in different calls, as in a "
                "recurrent network, which is not supported"
            )
        return number

    def pool(self, name: str, value: Value, pooling: Pooling) -> Value:
        """Return pooled spikes or currents.

        Raises:
            SpikewireError: If this pooling is not supported.
        """
        value, (pool, average) = expect_known(name, value), pooling
        if pool is None:
            return value
        if isinstance(value, Current):
            return pool_currents(name, value, pool, average)
        stages = [source.stage for source in expect_spikes(name, value).sources]
        if IMAGE in stages:
            raise SpikewireError(f"{name}: pooling of the image is not supported")
        if pool.kind == "max" and len(stages) > 1:
            raise SpikewireError(f"{name}: max pooling of added spikes is not supported")
        again = any(source.pooled for source in value.sources)
        if again or any(self.pools.setdefault(stage, pool) != pool for stage in stages):
            raise SpikewireError(f"{name}: a second pooling of the same spikes is not supported")
        scale = value.scale / pool.size**2 if average else value.scale
        return replace(value, sources=tuple(Source(s, True) for s in stages), scale=scale)

    def finish(self, value: Spikes | Current) -> tuple[list[Stage], dict[int, int]]:
        """Return the stages that an output needs, and their new numbers by the old ones."""
        used = sorted(self._find_used(value))
        numbers: dict[int, int] = {}
        stages: list[Stage] = []
        for old in used:
            self._append_stages(stages, *self.fired[old])
            numbers[old] = len(stages) - 1
        last = self._read_out(value, used)
        if last is not None:
            self._append_stages(stages, last, None)
        stages = [replace(stage, inputs=_renumber(stage.inputs, numbers)) for stage in stages]
        pooled = {source.stage for stage in stages for source in stage.inputs if source.pooled}
        for old, new in numbers.items():
            if new in pooled:
                stages[new] = replace(stages[new], pool=self.pools[old])
        return stages, numbers

    def _append_stages(self, stages: list[Stage], current: Current, neuron: Neuron | None) -> None:
        """Append a stage, after those whose currents it adds."""
        adds = tuple(range(len(stages), len(stages) + len(current.others)))
        stages += [other.to_stage(None) for other in current.others]
        stages.append(current.to_stage(neuron, adds))

    def _find_used(self, value: Spikes | Current) -> set[int]:
        found: set[int] = set()
        start = value.all_sources if isinstance(value, Current) else value.sources
        ahead = [source.stage for source in start]
        while ahead:
            number = ahead.pop()
            if number != IMAGE and number not in found:
                found.add(number)
                ahead += [source.stage for source in self.fired[number][0].all_sources]
        return found

    def _read_out(self, value: Spikes | Current, used: list[int]) -> Current | None:
        """Return the last synapses; None where the output is the spikes of the last stage."""
        if isinstance(value, Current):
            return value
        source, *others = value.sources
        if source.stage == IMAGE:
            raise SpikewireError("output: a network without neurons is not supported")
        plain = not others and not source.pooled and source.stage == used[-1]
        if plain and (value.scale == 1 or value.reduced):
            return None
        if value.membrane:
            raise SpikewireError("output: scaled membrane potentials are not supported")
        shape = self.shapes[source.stage]
        if source.pooled:
            shape = self.pools[source.stage].infer_outputs("output", shape)
        size = 1
        for side in shape:
            size *= side
        return pass_through("readout", value, (size,))


def _renumber(sources: tuple[Source, ...], numbers: dict[int, int]) -> tuple[Source, ...]:
    return tuple(source._replace(stage=numbers.get(source.stage, IMAGE)) for source in sources)
