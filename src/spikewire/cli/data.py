"""`spikewire data` and `spikewire methods`: list data sets and methods."""

from collections.abc import Sequence
from dataclasses import MISSING

from spikewire.cli.flags import Parser
from spikewire.cli.show import download_display, first_line, print_line, print_table
from spikewire.config import flag, method_defaults, method_fields
from spikewire.errors import SpikewireError, unknown
from spikewire.fields import accepted, show


def data(arguments: Sequence[str]) -> None:
    """List the data sets; `spikewire data get NAME` downloads one."""
    parser = Parser("data", data.__doc__ or "")
    parser.add_argument("words", nargs="*", metavar="get NAME", help="what to download")
    parser.add_argument(
        "--data-dir", help="folder of the data sets ($SPIKEWIRE_DATA, ~/.cache/spikewire)"
    )
    given = parser.read(arguments)
    from spikewire import data as datasets

    if not given["words"]:
        root = datasets.data_dir(given["data_dir"])
        rows = []
        for name, source in datasets.DATASETS.items():
            here = all((root / file.path).is_file() for file in source.files)
            rows.append((name, source.summary, "present" if here else "absent"))
        print_table(("data set", "description", "state"), rows)
        print_line(f"data directory: {root}")
    elif given["words"][0] != "get":
        raise unknown("data", given["words"][0], ["get"])
    elif len(given["words"]) != 2:
        raise SpikewireError("data get: takes one name, as in `spikewire data get mnist`")
    else:
        name = given["words"][1]
        with download_display() as update:
            root = datasets.get(name, given["data_dir"], progress=update)
        print_line(f"{name}: in {root}")


def methods(arguments: Sequence[str]) -> None:
    """List the methods, and the fields of each with defaults and accepted values."""
    Parser("methods", methods.__doc__ or "").read(arguments)
    from spikewire.methods import METHODS

    rows = []
    for name, method in METHODS.items():
        rows.append((name, first_line(method.__doc__), "", ""))
        defaults = method_defaults(name)
        for key, rule in method_fields(name).items():
            default = "required" if defaults[key] is MISSING else show(defaults[key])
            about = f"{flag(key)}: {rule.metadata['help']}"
            rows.append(("", about, accepted(rule), default))
    print_table(("method", "description", "accepts", "default"), rows)
