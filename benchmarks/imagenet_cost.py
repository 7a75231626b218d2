"""What ImageNet with SEW-ResNet-18 would cost, from the training step measured on one GPU.

    python benchmarks/gpu_networks.py --networks imagenet --sections eager,graph,peer --out FILE
    python benchmarks/imagenet_cost.py FILE                        # print the table
    python benchmarks/imagenet_cost.py FILE --docs docs/scaling.md # write it between the marks

Computed from the samples per second of random images: hours of the published 320 epochs, at the
time steps measured, and what an all-reduce of the gradients moves. Nothing is trained.
"""

import argparse
from pathlib import Path
from typing import Any

from marked import replace_marked
from script import read_json, run_script

from spikewire.errors import SpikewireError
from spikewire.files import read_errors
from spikewire.nn.models import build

IMAGES, EPOCHS = 1_281_167, 320  # epochs: those of SEW-ResNet's authors
RANKS, LINK = 8, 450e9  # GPUs of a machine, and bytes/s between them: an assumption (NVLink)


def gradient_bytes() -> int:
    """Return the bytes of all float32 gradients, which an all-reduce of a step adds up."""
    model = build("sew-resnet18-imagenet", time_steps=4)
    return 4 * sum(parameter.numel() for parameter in model.parameters())


def hours(samples_per_second: float) -> float:
    """Return the GPU-hours of the published epochs."""
    return IMAGES * EPOCHS / samples_per_second / 3600


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return one line per measured step."""
    lines = [
        "| | batch | ms per step | images/s | GiB | hours per epoch "
        f"| GPU-hours of {EPOCHS} epochs |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        memory = max(row["peak_gib"] or 0, row["reserved_gib"] or 0)
        total = hours(row["samples_per_s"])
        lines.append(
            f"| {row['name'].replace('ours', 'spikewire')} | {row['batch']} | {row['ms']:.1f} "
            f"| {row['samples_per_s']:,.0f} | {memory:.1f} | {total / EPOCHS:.2f} "
            f"| {total:.0f} |"
        )
    return lines


def text(found: dict[str, Any]) -> str:
    """Return the table and what follows from it.

    Raises:
        SpikewireError: if the file has no measurement of ImageNet.
    """
    rows = found["networks"].get("imagenet", {}).get("rows", [])
    if not rows:
        raise SpikewireError("networks: no rows of imagenet; run gpu_networks.py with it")
    best = min((row for row in rows if row["name"].startswith("ours")), key=lambda row: row["ms"])
    sent = gradient_bytes()
    moved = 2 * (RANKS - 1) / RANKS * sent
    return "\n".join(
        [
            f"`python {found['command']}` (one {found['device']}, torch {found['torch']}, bf16, "
            f"{best['time_steps']} time steps, random images; memory: the larger of used and "
            "reserved)",
            "",
            *table(rows),
            "",
            f"An all-reduce adds up {sent / 1e6:.1f} MB of gradients per step. On {RANKS} GPUs a "
            f"ring moves {moved / 1e6:.1f} MB through each: {1e3 * moved / LINK:.2f} ms at an "
            f"assumed {LINK / 1e9:.0f} GB/s, against {best['ms']:.1f} ms of compute.",
        ]
    )


def main() -> None:
    """Print the table, or write it into a file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path, help="what gpu_networks.py has written")
    parser.add_argument("--docs", type=Path, help="Markdown file with the marks")
    arguments = parser.parse_args()
    content = read_json(arguments.file)
    with read_errors(arguments.file):
        found = text(content)
    if arguments.docs:
        replace_marked(arguments.docs, "imagenet", found)
    else:
        print(found)


if __name__ == "__main__":
    run_script(main)
