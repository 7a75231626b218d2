"""`spikewire data`: list and download data sets."""

from collections.abc import Sequence

from spikewire.cli.flags import Parser
from spikewire.cli.show import download_display, print_line, print_table
from spikewire.errors import SpikewireError, unknown


def data(arguments: Sequence[str]) -> None:
    """List the data sets; `spikewire data get NAME` downloads one."""
    parser = Parser("data", data.__doc__ or "")
    parser.add_argument("words", nargs="*", metavar="get NAME", help="what to download")
    parser.add_argument(
        "--data-dir", help="directory of the data sets ($SPIKEWIRE_DATA, ~/.cache/spikewire)"
    )
    given = parser.read(arguments)
    from spikewire import data as datasets

    if not given["words"]:
        root = datasets.data_dir(given["data_dir"])
        rows = []
        for name, source in datasets.DATASETS.items():
            here = source.is_present(root)
            rows.append((name, source.summary, "present" if here else "absent"))
        print_table(("data set", "description", "state"), rows)
        print_line(f"data directory: {root}")
    elif given["words"][0] != "get":
        if (name := given["words"][0]) in datasets.DATASETS:
            raise SpikewireError(f"data: unknown {name!r}; did you mean `data get {name}`?")
        raise unknown("data", name, ["get"])
    elif len(given["words"]) != 2:
        raise SpikewireError("data get: takes one name, as in `spikewire data get mnist`")
    else:
        name = given["words"][1]
        with download_display() as update:
            root = datasets.get(name, given["data_dir"], progress=update)
        embedded = not datasets.DATASETS[name].files
        print_line(f"{name}: {'part of the package' if embedded else f'in {root}'}")
