"""`spikewire data` and `spikewire methods`: what there is."""

from collections.abc import Sequence
from dataclasses import MISSING

from spikewire.cli.flags import Parser, shown
from spikewire.cli.show import download_display, print_table
from spikewire.config import flag, method_defaults, method_fields
from spikewire.errors import SpikewireError, unknown


def data(arguments: Sequence[str]) -> None:
    """List the data sets; `spikewire data get NAME` downloads one."""
    parser = Parser("data", data.__doc__ or "")
    parser.add_argument("words", nargs="*", metavar="get NAME", help="what to download")
    parser.add_argument(
        "--data-dir", help="where data sets lie ($SPIKEWIRE_DATA, ~/.cache/spikewire)"
    )
    given = parser.read(arguments)
    from spikewire import data as datasets

    if not given["words"]:
        root = datasets.data_dir(given["data_dir"])
        rows = []
        for name, source in datasets.DATASETS.items():
            here = all((root / file.path).is_file() for file in source.files)
            rows.append((name, source.summary, "present" if here else "absent"))
        print_table(("data set", "what it is", str(root)), rows)
    elif given["words"][0] != "get":
        raise unknown("data", given["words"][0], ["get"])
    elif len(given["words"]) != 2:
        raise SpikewireError("data get: takes one name, as in `spikewire data get mnist`")
    else:
        name = given["words"][1]
        with download_display() as show:
            root = datasets.get(name, given["data_dir"], progress=show)
        print(f"{name}: in {root}")


def methods(arguments: Sequence[str]) -> None:
    """List the methods, and the fields of each with their defaults."""
    Parser("methods", methods.__doc__ or "").read(arguments)
    from spikewire.methods import METHODS

    rows = []
    for name, method in METHODS.items():
        rows.append((name, (method.__doc__ or "").splitlines()[0], ""))
        defaults = method_defaults(name)
        for key, rule in method_fields(name).items():
            default = "needed" if defaults[key] is MISSING else shown(defaults[key])
            rows.append(("", f"{flag(key)}: {rule.metadata.get('help', '')}", default))
    print_table(("method", "what it does", "default"), rows)
