"""`spikewire export` and `spikewire predict`: the finished network, smaller and elsewhere."""

import json
import time
from collections.abc import Iterator, Sequence
from statistics import mean
from typing import TYPE_CHECKING, Any

from spikewire.cli.flags import Parser, number, whole
from spikewire.cli.show import percent, print_figures, size

if TYPE_CHECKING:
    from torch import Tensor

    from spikewire.runtime import Runtime


def export(arguments: Sequence[str]) -> None:
    """Write the network of a finished run as a packed file, NIR or connection lists."""
    from spikewire.deploy import FORMATS
    from spikewire.deploy import export as write
    from spikewire.formats.nir import POOLINGS
    from spikewire.formats.packed import VALUES

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
    parser.add_argument("--batch-size", default="32", help="images at once (32)")
    parser.add_argument("--early-exit", metavar="X", help="stop an image that leads by X a step")
    parser.add_argument("--exact", action="store_true", help="the same spikes at any batch size")
    parser.add_argument("--kernels", help="avx512, avx2, portable or torch (the quickest)")
    parser.add_argument("--json", action="store_true", help="print a JSON record an image")
    parser.add_argument("--data-dir", help="where data sets lie")
    given = parser.read(arguments)
    import torch

    from spikewire.runtime import load
    from spikewire.runtime.inputs import read_images

    threads, margin = whole("--threads", given["threads"]), given["early_exit"]
    batch = whole("--batch-size", given["batch_size"])
    lead = None if margin is None else number("--early-exit", margin)
    model = load(given["model"], threads=threads, kernels=given["kernels"], exact=given["exact"])
    torch.set_num_threads(threads)  # of the stages that go through dense torch
    images, labels = read_images(given["input"], model, given["data_dir"])
    found, begin = answers(model, images, labels, batch, lead), time.perf_counter()
    if given["json"] or labels is None:
        for answer in found:
            print(json.dumps(answer) if given["json"] else f"{answer['image']} {answer['class']}")
        return
    done = list(found)
    speed = len(done) / (time.perf_counter() - begin)
    print_figures(
        {
            "accuracy": percent(mean(answer["class"] == answer["label"] for answer in done)),
            "images": f"{len(done)}; {speed:.0f} a second ({model.kernels})",
            "time steps": f"{mean(answer['time_steps'] for answer in done):.2f} on average",
        }
    )


def answers(
    model: "Runtime", images: "Tensor", labels: "Tensor | None", batch: int, lead: float | None
) -> Iterator[dict[str, Any]]:
    """Yield a record an image, with its label where that is known."""
    names = model.network.classes
    for first in range(0, len(images), batch):
        classes, steps = model.decide(images[first : first + batch], lead)
        both = zip(classes.tolist(), steps.tolist(), strict=True)
        for image, (found, taken) in enumerate(both, first):
            answer = {"image": image, "class": names[found], "time_steps": taken}
            yield answer if labels is None else {**answer, "label": names[int(labels[image])]}
