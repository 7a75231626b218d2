"""The card of a network in the zoo, and the files behind a name.

A network is two files in the folder of this package: ``NAME.packed.safetensors``, and the card
``NAME.json``. ``benchmarks/zoo.py`` writes both from a run directory.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from spikewire.errors import check_word

FOLDER = Path(__file__).parent
PREFIX = "zoo:"


@dataclass(frozen=True, kw_only=True)
class Card:
    """What is known about a trained network.

    Args:
        name: Name in the zoo.
        dataset: Data set that it was trained and tested on.
        model: Name of the architecture.
        method: Method that pruned it.
        accuracy: Fraction of the test samples that the packed file classifies correctly on the CPU
            runtime.
        test_samples: Number of test samples.
        trained_accuracy: Accuracy of the trained model after its last epoch, before weights were
            rounded.
        target: Target of the method, in `unit`; None without one.
        unit: ``"connectivity"``, ``"synapses"``, ``"synops"`` or ``"bytes"``.
        connectivity: Fraction of the weights that are in the packed file.
        weights: Number of weights in the packed file.
        synapses: Synapses present, as a fraction of those of the dense network; None if unknown.
        synapses_reached: Those of them that are reached from the input.
        synapses_alive: Those of them that are on a path from input to output.
        synops: Accumulates per test sample, of the trained model; None if unknown.
        macs: Multiply-accumulates per test sample, which are those of the first layer.
        time_steps: Time steps per sample.
        values: Type of the weights in the packed file.
        bytes: Size of the packed file.
        dense_bytes: Size of all parameters as fp32.
        flash: Bytes of constants of the C export with int8 weights; None if C cannot express it.
        ram: Bytes of static variables of the C export.
        commands: Commands that trained it, in order; all but the last one trained a network that
            the next one started from.
        seconds: Training and test time, with that of the networks it started from and learnt from;
            None if unknown.
        seed: Seed of the run.
        device: Where it was trained.
        versions: Versions of spikewire, torch and Python that trained it.
        date: Day on which the entry was made, as ``YYYY-MM-DD``.
        licence: Licence of the weights.
    """

    name: str
    dataset: str
    model: str
    method: str
    accuracy: float
    test_samples: int
    trained_accuracy: float
    target: float | None
    unit: str
    connectivity: float
    weights: int
    synapses: float | None
    synapses_reached: float | None
    synapses_alive: float | None
    synops: float | None
    macs: float | None
    time_steps: int
    values: str
    bytes: int
    dense_bytes: int
    flash: int | None
    ram: int | None
    commands: list[str]
    seconds: float | None
    seed: int
    device: str
    versions: dict[str, str]
    date: str
    licence: str

    def to_json(self) -> str:
        """Return the content of the card's file."""
        return json.dumps(asdict(self), indent=2) + "\n"


def cards() -> dict[str, Card]:
    """Return the cards of all networks in the zoo, by name in alphabetical order.

    Example:
        >>> [card.name for card in spikewire.zoo.cards().values() if card.dataset == "digits"]
        ['digits-2', 'digits-5']
    """
    files = sorted(FOLDER.glob("*.json"), key=lambda path: path.stem)
    return {path.stem: Card(**json.loads(path.read_text("utf-8"))) for path in files}


def card(name: str) -> Card:
    """Return the card of one network.

    Args:
        name: Its name, such as ``"digits-5"``, with or without ``zoo:`` in front.

    Raises:
        SpikewireError: If the zoo has no network of this name; the message has the nearest one.

    Example:
        >>> spikewire.zoo.card("digits-5").accuracy
        0.9777777777777777
    """
    known, name = cards(), name.removeprefix(PREFIX)
    check_word("zoo", name, known)
    return known[name]


def network_path(name: str, folder: Path = FOLDER) -> Path:
    """Return the path of the packed file of a network, which may be missing."""
    return folder / f"{name}.packed.safetensors"


def resolve(path: str | Path) -> str | Path:
    """Return the path of a packed file, which may be given as ``zoo:NAME``.

    Args:
        path: A path, which is returned as it is, or ``zoo:NAME``. A file that really has such a
            name can be given as a `Path`, or as ``./zoo:NAME``.

    Raises:
        SpikewireError: If the zoo has no network of this name; the message has the nearest one.

    Example:
        >>> resolve("zoo:digits-5").name
        'digits-5.packed.safetensors'
    """
    if not isinstance(path, str) or not path.startswith(PREFIX):
        return path
    return network_path(card(path).name)
