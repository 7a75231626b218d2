"""`spikewire predict`: run an exported network on images."""

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from spikewire.cli.flags import Parser, errors_name_flags, number, whole
from spikewire.cli.show import print_line, print_values
from spikewire.errors import check
from spikewire.text import percent

if TYPE_CHECKING:
    from torch import Tensor

    from spikewire.runtime import Runtime


TRAIN_IMAGES = "number of training images to use instead of the test set, the same ones every time"


def predict(arguments: Sequence[str]) -> None:
    """Run a packed or NIR file on a .npy array, a picture or the test part of a data set."""
    given = make_predict_parser().read(arguments)
    import torch

    from spikewire.runtime import from_nir, load
    from spikewire.runtime.inputs import PICTURES, read_images

    threads, margin = whole("--threads", given["threads"]), given["early_exit"]
    batch = whole("--batch-size", given["batch_size"])
    early_exit = None if margin is None else number("--early-exit", margin)
    check(early_exit is None or early_exit >= 0, "--early-exit", margin, "0 or more")
    options = {"threads": threads, "kernels": given["kernels"], "exact": given["exact"]}
    steps = given["time_steps"] and whole("--time-steps", given["time_steps"])
    with errors_name_flags(given):
        if given["model"].endswith(".nir"):
            model = from_nir(given["model"], time_steps=8 if steps is None else steps, **options)
        else:
            model = load(given["model"], time_steps=steps, **options)
    torch.set_num_threads(threads)  # for stages that are computed by dense torch
    source, folder = given["input"], given["data_dir"]
    few = given["train_images"]
    named = {"input": source, "time_steps": given["time_steps"], "train_images": few}
    with errors_name_flags(named):
        images, labels = read_images(
            source,
            model,
            folder,
            resize=given["resize"],
            train_images=0 if few is None else whole("--train-images", few),
        )
    counted = given["count"]
    printed = labels is not None and not given["json"] and early_exit is None
    allowed = "left out with --json, --early-exit, pictures and arrays"
    check(printed or not counted, "--count", counted, allowed)
    predictions = iterate_predictions(model, images, labels, batch, early_exit)
    begin = time.perf_counter()
    if given["json"] or labels is None:
        picture = Path(source).name if Path(source).suffix.lower() in PICTURES else None
        for record in predictions:
            text = f"{picture or record['image']} {record['class']}"
            print_line(json.dumps(record) if given["json"] else text, flush=False)
        return
    records = list(predictions)
    values = accuracy_values(records, time.perf_counter() - begin, model.kernels)
    print_values(values | (operation_values(model, images, batch) if counted else {}))


def is_packed(source: str) -> bool:
    """Return whether a packed file is named, in the zoo or by its path, and not a run."""
    return source.startswith("zoo:") or Path(source).is_file()


def evaluate_packed(file: str, data_dir: str | None, train_images: str | None) -> None:
    """Print the accuracy of a packed file on the data set it was trained on."""
    from spikewire.data import DATASETS
    from spikewire.formats import packed

    name = packed.read(file).about.get("dataset")
    allowed = f"a packed file of one of {', '.join(DATASETS)}; spikewire predict reads others"
    check(name in DATASETS, "dataset", name, allowed)
    given = {"--data-dir": data_dir, "--train-images": train_images}
    words = [word for key, value in given.items() if value is not None for word in (key, value)]
    predict([file, "--input", str(name), *words])


def accuracy_values(records: list[dict[str, Any]], seconds: float, kernels: str) -> dict[str, str]:
    """Return accuracy, speed and time steps of predictions with labels."""
    steps = mean(record["time_steps"] for record in records)
    return {
        "accuracy": percent(mean(record["class"] == record["label"] for record in records)),
        "images": f"{len(records):,}; {len(records) / seconds:,.0f} per second ({kernels})",
        "time steps": f"{steps:.2f} on average",
    }


def operation_values(model: "Runtime", images: "Tensor", batch: int) -> dict[str, str]:
    """Return the operations per image, counted in a second pass."""
    from spikewire.runtime.inputs import is_over_time

    frames = is_over_time(images, model)
    synops = macs = 0.0
    for part in images.split(batch):
        x = part.transpose(0, 1) if frames else part
        found = model.count_operations(x, frames=frames)
        synops, macs = synops + found.synops * len(part), macs + found.macs * len(part)
    return {
        "SynOps per image": f"{synops / len(images):,.0f}",
        "multiply-accumulates per image": f"{macs / len(images):,.0f}",
    }


def make_predict_parser() -> Parser:
    """Return the parser of `spikewire predict`."""
    parser = Parser("predict", predict.__doc__ or "")
    parser.add_argument("model", help="packed file, zoo:NAME or .nir file")
    parser.add_argument("--input", required=True, help=".npy, .png, .jpg or the name of a data set")
    parser.add_argument(
        "--resize", action="store_true", help="resize the whole image instead of its central part"
    )
    parser.add_argument("--train-images", metavar="N", help=TRAIN_IMAGES)
    parser.add_argument("--time-steps", help="time steps per image (those of the file; .nir: 8)")
    parser.add_argument("--threads", default="1", help="threads (1)")
    parser.add_argument("--batch-size", default="32", help="images per batch (32)")
    about = "stop once the best class leads by more than X times the remaining time steps"
    parser.add_argument("--early-exit", metavar="X", help=about)
    parser.add_argument(
        "--exact", action="store_true", help="compute the same spikes at any batch size"
    )
    parser.add_argument(
        "--count", action="store_true", help="count operations too, in a second pass"
    )
    parser.add_argument("--kernels", help="avx512, avx2, portable or torch (the fastest)")
    parser.add_argument("--json", action="store_true", help="print one JSON record per image")
    parser.add_argument("--data-dir", help="directory of the data sets")
    return parser


def iterate_predictions(
    model: "Runtime",
    images: "Tensor",
    labels: "Tensor | None",
    batch: int,
    early_exit: float | None,
) -> Iterator[dict[str, Any]]:
    """Yield one record per image, with its label where that is known."""
    from spikewire.runtime.inputs import is_over_time

    names, frames = model.network.classes, is_over_time(images, model)
    for first in range(0, len(images), batch):
        part = images[first : first + batch]
        part = part.transpose(0, 1) if frames else part
        classes, steps = model.decide(part, early_exit, frames=frames)
        pairs = zip(classes.tolist(), steps.tolist(), strict=True)
        for image, (predicted, taken) in enumerate(pairs, first):
            record = {"image": image, "class": names[predicted], "time_steps": taken}
            yield record if labels is None else {**record, "label": names[int(labels[image])]}
