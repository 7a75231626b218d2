"""Settings of short runs, and names that a page must escape."""

import json
import shutil

from spikewire.config import resolve

HOSTILE = (
    "<script>alert(1)<",
    'it\'s "quoted" & <b>bold',
    "ünïcode-神経-$x^2$",
    "`code` | *star* _",
)


def short_config(**flags):
    """Return the settings of a run of three short epochs on the digits."""
    flags = {"epochs": "3", "batch_size": "128", "threads": "1", "time_steps": "4"} | flags
    return resolve("digits", flags=flags)


def rename_hostile(runs, *names):
    """Rename these runs, or all four, to hostile names; return the folder."""
    paths = [runs / name for name in names] or sorted(runs.iterdir())
    for old, new in zip(paths, HOSTILE, strict=bool(not names)):
        old.rename(runs / new)
    return runs


def repeat(runs, name, seed, accuracy, into=None):
    """Copy a run as one with another seed and final accuracy; return its folder."""
    folder = runs / (into or f"{name}-seed{seed}")
    if folder != runs / name:
        shutil.copytree(runs / name, folder)
    config, metrics = folder / "config.toml", folder / "metrics.jsonl"
    config.write_text(config.read_text().replace("seed = 0", f"seed = {seed}"))
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    rows[-1]["accuracy"] = accuracy
    metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder
