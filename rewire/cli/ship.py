"""`rewire export` and `rewire predict`: the finished network, smaller and elsewhere."""

import time
from collections.abc import Sequence

from rewire.cli.flags import Parser, number, whole
from rewire.cli.show import percent, print_figures, size


def export(arguments: Sequence[str]) -> None:
    """Write the network of a finished run as a packed file, NIR or connection lists."""
    from rewire.export.nir import POOLINGS
    from rewire.export.packed import VALUES
    from rewire.export.run import FORMATS
    from rewire.export.run import export as write

    parser = Parser("export", export.__doc__ or "")
    parser.add_argument("run", help="run directory")
    parser.add_argument("--format", default="packed", help=f"{', '.join(FORMATS)} (packed)")
    parser.add_argument("--out", metavar="PATH", help="where to (into the run directory)")
    parser.add_argument("--values", default="fp16", help=f"packed: {', '.join(VALUES)} (fp16)")
    parser.add_argument("--pooling", default="conv", help=f"nir: {', '.join(POOLINGS)} (conv)")
    parser.add_argument("--check", default="256", help="test images to compare on, or 0 (256)")
    parser.add_argument("--licence", default="", help="a word on the licence, kept in the file")
    parser.add_argument("--data-dir", help="where data sets lie")
    given = parser.read(arguments)
    text = given.pop("check")
    given["check_images"] = 0 if text == "0" else whole("--check", text)
    done = write(given.pop("run"), **given)
    rows = {
        "file": str(done.path),
        "size": f"{size(done.size)}; dense fp32 {size(done.dense_size)}",
        "connectivity by non-zero weights": percent(done.connectivity),
    }
    if done.checked:
        rows["accuracy before, after"] = f"{percent(done.before)}, {percent(done.after)}"
        rows["accuracy change"] = f"{100 * (done.after - done.before):+.2f} points"
        rows["on"] = f"{done.checked} test images"
    print_figures(rows)


def predict(arguments: Sequence[str]) -> None:
    """Run a packed network on images.npy, a .png or the test part of a data set."""
    parser = Parser("predict", predict.__doc__ or "")
    parser.add_argument("model", help="packed file")
    parser.add_argument("--input", required=True, help=".npy, .png or the name of a data set")
    parser.add_argument("--threads", default="1", help="threads (1)")
    parser.add_argument("--batch", default="32", help="images at once (32)")
    parser.add_argument("--early-exit", metavar="X", help="stop an image that leads by X a step")
    parser.add_argument("--kernels", help="avx512, avx2, portable or torch (the quickest)")
    parser.add_argument("--data-dir", help="where data sets lie")
    given = parser.read(arguments)
    from rewire.runtime import load
    from rewire.runtime.inputs import read_images

    threads, kernels = whole("--threads", given["threads"]), given["kernels"]
    model = load(given["model"], threads=threads, kernels=kernels)
    batch, margin = whole("--batch", given["batch"]), given["early_exit"]
    images, labels = read_images(given["input"], model, given["data_dir"])
    lead = float("inf") if margin is None else number("--early-exit", margin)
    begin, right, steps = time.perf_counter(), 0, 0
    for first in range(0, len(images), batch):
        here = slice(first, first + batch)
        if margin is None:
            found = model.predict(images[here])
            steps += model.network.time_steps * len(found)
        else:
            found, taken = model.decide(images[here], lead)
            steps += int(taken.sum())
        if labels is None:
            rows = enumerate(found.tolist(), first)
            print("\n".join(f"{i} {model.network.classes[label]}" for i, label in rows))
        else:
            right += int((found == labels[here]).sum())
    if labels is not None:
        seconds = time.perf_counter() - begin
        print_figures(
            {
                "accuracy": percent(right / len(images)),
                "images": f"{len(images)}; {len(images) / seconds:.0f} a second ({model.kernels})",
                "time steps": f"{steps / len(images):.2f} on average",
            }
        )
