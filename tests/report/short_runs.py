"""Settings of short runs, and names that a page must escape."""

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


def rename_hostile(runs):
    """Rename the runs to hostile names; return the folder."""
    for old, new in zip(sorted(runs.iterdir()), HOSTILE, strict=True):
        old.rename(runs / new)
    return runs
