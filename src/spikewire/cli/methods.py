"""`spikewire methods`: list the methods, or describe one."""

import sys
from collections.abc import Sequence
from dataclasses import MISSING
from inspect import cleandoc

from spikewire.cli.flags import Parser
from spikewire.cli.show import first_line, print_line, print_table
from spikewire.config import flag, method_defaults, method_fields
from spikewire.errors import check_word
from spikewire.fields import accepted, show


def methods(arguments: Sequence[str]) -> None:
    """List the methods; `spikewire methods NAME` describes one: paper, equations and fields."""
    parser = Parser("methods", methods.__doc__ or "")
    parser.add_argument("name", nargs="?", metavar="NAME", help="method to describe")
    name = parser.read(arguments)["name"]
    from spikewire.methods import METHODS

    if name is None:
        rows = [(name, first_line(method.__doc__)) for name, method in METHODS.items()]
        print_table(("method", "description"), rows)
        print_line("spikewire methods NAME describes one, with its fields")
        return
    check_word("method", name, METHODS)
    for line in description(METHODS[name]).splitlines():
        print_line(line, flush=False)
    print_table(("field", "description", "accepts", "default"), field_rows(name))


def description(method: type) -> str:
    """Return the paper, from the module, and the equations, from the class; `-OO` has neither."""
    paper = cleandoc(sys.modules[method.__module__].__doc__ or "").partition("\n\n")[0]
    text = cleandoc(method.__doc__ or "").partition("\nArgs:")[0].rstrip()
    return f"{paper}\n\n{text}".replace("::\n", ":\n").replace("``", "")


def field_rows(method: str) -> list[tuple[str, str, str, str]]:
    """Return one row per field of the method: flag, help, accepted values, default."""
    rows = []
    defaults = method_defaults(method)
    for key, rule in method_fields(method).items():
        default = "required" if defaults[key] is MISSING else show(defaults[key])
        if key == "connectivity" and defaults[key] is None and (usual := usual_target(method)):
            default = f"{usual} without another target"
        rows.append((flag(key), rule.metadata["help"], accepted(rule), default))
    return rows


def usual_target(method: str) -> float | None:
    """Return the connectivity of a method where no target is given; None where it needs none."""
    from spikewire.methods import METHODS

    return getattr(METHODS[method], "default", None)
