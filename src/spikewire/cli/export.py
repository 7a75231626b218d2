"""`spikewire export`: write the network of a finished run to a file."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from spikewire.cli.flags import Parser, errors_name_flags, whole
from spikewire.cli.predict import is_packed
from spikewire.cli.show import print_values
from spikewire.cli.train import add_own_files
from spikewire.errors import check
from spikewire.text import percent, size

if TYPE_CHECKING:
    from spikewire.deploy import ExportedRun


def export(arguments: Sequence[str]) -> None:
    """Write the network of a finished run as a packed file, NIR, connection lists or C."""
    from spikewire.deploy import convert, export_run

    given = make_export_parser().read(arguments)
    images, source = given.pop("check"), given.pop("run")
    given["check_images"] = whole("--check", images, 0)
    if not is_packed(source):
        with errors_name_flags(given):
            exported = export_run(source, **given)
        print_export(exported)
        return
    for key in ("model", "dataset"):
        value = given.pop(key)
        check(value is None, f"--{key}", value, "given for a run, not a packed file")
    with errors_name_flags(given):
        exported = convert(source, **given)
    print_export(exported)


def make_export_parser() -> Parser:
    """Return the parser of `spikewire export`."""
    from spikewire.deploy import FORMATS
    from spikewire.formats.nir import POOLINGS
    from spikewire.formats.packed import VALUES

    parser = Parser("export", export.__doc__ or "")
    parser.add_argument("run", help="run directory, packed file or zoo:NAME")
    parser.add_argument("--format", default="packed", help=f"{', '.join(FORMATS)} (packed)")
    parser.add_argument(
        "--out",
        metavar="PATH",
        help="path to write to (in the run directory, or here for a packed file)",
    )
    parser.add_argument(
        "--values", help=f"packed: {', '.join(VALUES)} (fp16); c: int8, fp32 (int8)"
    )
    parser.add_argument("--pooling", default="conv", help=f"nir: {', '.join(POOLINGS)} (conv)")
    parser.add_argument(
        "--check",
        metavar="N",
        default="256",
        help="number of test images to compare on; 0: none (256)",
    )
    parser.add_argument("--data-dir", help="directory of the data sets")
    add_own_files(parser)
    return parser


def print_export(exported: "ExportedRun") -> None:
    """Print what was written, and the accuracies where they were measured."""
    rows = {
        "file": str(exported.path),
        "size": f"{size(exported.size)}; dense fp32 {size(exported.dense_size)}",
        "connectivity by non-zero weights": percent(exported.connectivity),
    }
    if exported.memory:
        flash, ram = size(exported.memory.flash), size(exported.memory.ram)
        rows["on a device"] = f"{flash} of constants (flash), {ram} of RAM"
    if exported.checked_images:
        before, after = exported.accuracy_before, exported.accuracy_after
        rows["accuracy before, after"] = f"{percent(before)}, {percent(after)}"
        rows["accuracy change"] = f"{100 * (after - before):+.2f} percentage points"
        rows["measured on"] = f"{exported.checked_images} test images"
    print_values(rows)
