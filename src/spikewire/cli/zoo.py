"""`spikewire zoo`: the trained networks in the package, and the card of one."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from spikewire.cli.flags import Parser
from spikewire.cli.show import print_line, print_table, print_values
from spikewire.text import amount, percent, size
from spikewire.zoo import Card, card, cards

UNKNOWN = "–"


def zoo(arguments: Sequence[str]) -> None:
    """List the trained networks in the package; `spikewire zoo NAME` prints the card of one."""
    parser = Parser("zoo", zoo.__doc__ or "")
    parser.add_argument("name", nargs="?", metavar="NAME", help="network whose card to print")
    parser.add_argument("--json", action="store_true", help="print one JSON record per network")
    given = parser.read(arguments)
    shown = [card(given["name"])] if given["name"] is not None else list(cards().values())
    if given["json"]:
        for found in shown:
            print_line(json.dumps(asdict(found)), flush=False)
    elif given["name"] is not None:
        print_values(card_values(shown[0]))
    else:
        print_table(HEAD, [table_row(found) for found in shown])
        print_line("synapses: those that the input reaches; SynOps: per sample")
        print_line("spikewire zoo NAME prints a card; spikewire predict zoo:NAME runs a network")


HEAD = ("network", "accuracy", "weights", "synapses", "SynOps", "file")  # 80 columns


def table_row(card: Card) -> tuple[str, ...]:
    """Return the row of one network in the table."""
    return (
        f"zoo:{card.name}",
        percent(card.accuracy),
        percent(card.connectivity),
        shown_fraction(card.synapses_reached),
        shown_short(card.synops),
        size(card.bytes),
    )


def card_values(card: Card) -> dict[str, str]:
    """Return all of a card as names and texts."""
    c = "not possible" if card.flash is None else f"{size(card.flash)} flash, {size(card.ram or 0)}"
    target = UNKNOWN if card.target is None else f"{amount(card.unit, card.target)} ({card.unit})"
    return {
        "network": f"zoo:{card.name}",
        "data set": card.dataset,
        "model": f"{card.model}, {card.time_steps} time steps",
        "method": f"{card.method}, seed {card.seed}, target {target}",
        "accuracy": f"{percent(card.accuracy)} of {card.test_samples:,} test samples, packed file",
        "accuracy before packing": percent(card.trained_accuracy),
        "weights": f"{card.weights:,} ({percent(card.connectivity)})",
        "synapses present": shown_fraction(card.synapses),
        "synapses reached from the input": shown_fraction(card.synapses_reached),
        "synapses on a path to the output": shown_fraction(card.synapses_alive),
        "SynOps per sample": shown_count(card.synops),
        "multiply-accumulates per sample": shown_count(card.macs),
        "file": f"{size(card.bytes)}, {card.values} weights; dense fp32 {size(card.dense_bytes)}",
        "C export, int8": c if card.flash is None else f"{c} RAM",
        **shown_commands(card.commands),
        "training time": UNKNOWN if card.seconds is None else f"{card.seconds / 60:.1f} min",
        "trained with": ", ".join(f"{key} {word}" for key, word in card.versions.items()),
        "trained on": card.device,
        "date": card.date,
        "licence": card.licence,
    }


def shown_commands(commands: Sequence[str]) -> dict[str, str]:
    """Return the commands by name, numbered where there are several."""
    if len(commands) == 1:
        return {"command": commands[0]}
    return {f"command {i}": command for i, command in enumerate(commands, 1)}


def shown_fraction(value: float | None) -> str:
    """Return a fraction in %, or a dash where it is unknown."""
    return UNKNOWN if value is None else percent(value)


def shown_short(value: float | None) -> str:
    """Return a number of operations, in millions from one million on."""
    return shown_count(value) if value is None or value < 1e6 else f"{value / 1e6:.1f} M"


def shown_count(value: float | None) -> str:
    """Return a number of operations, or a dash where it is unknown."""
    return UNKNOWN if value is None else f"{value:,.0f}"
