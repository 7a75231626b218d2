"""Published results, drawn next to ours: (connectivity in %, accuracy in %).

Connectivity counts weights; results in other units are apart. Sources: the Grad R paper's tables
(IJCAI 2021), STDS's public logs (ICML 2022, last epoch), UPR (ICLR 2024), CH-SNN (ICLR 2026). The
code behind the Grad R paper's own runs of Deep R starts dense and never regrows; Deep R as its
authors run it has one point here: an LSNN on sequential MNIST (Bellec et al., NeurIPS 2018).
"""

from spikewire.report.style import MARKERS

Points = list[tuple[float, float]]

PUBLISHED: dict[str, dict[str, Points]] = {
    "mnist": {
        "Grad R": [(25.71, 98.59), (17.94, 98.49), (5.63, 96.90), (3.06, 95.37), (1.38, 90.84)],
        "Deep R (Chen et al.'s code)": [
            (37.14, 98.56),
            (13.30, 98.36),
            (4.18, 96.45),
            (1.10, 89.25),
        ],
        "Deep R (LSNN, sequential)": [(12.0, 96.4)],
        "ADMM (LeNet-5)": [(50.0, 99.10), (40.0, 98.64), (25.0, 96.84)],
        "event-driven CD": [(26.0, 95.00)],
        "STDP": [(8.0, 91.5)],
        "online APTN": [(10.0, 86.53)],
        "CH-SNN": [(2.25, 98.97)],
        "STDP (Shi et al.)": [(30.0, 75.0)],
    },
    "cifar10": {
        "Grad R": [(28.41, 92.54), (12.04, 92.50), (5.08, 92.03), (2.35, 91.37), (0.73, 89.32)],
        "Deep R (Chen et al.'s code)": [(5.24, 90.86), (1.95, 90.28), (1.04, 89.31)],
        "ADMM (7 conv, 2 FC)": [(50.0, 89.15), (25.0, 87.37), (10.0, 85.68)],
        "STDS": [(4.64, 92.49), (2.23, 92.49), (1.40, 91.64), (0.99, 91.06), (0.746, 90.21)],
    },
}

DENSE: dict[str, float] = {"mnist": 98.92, "cifar10": 92.84}

# Results in other units, where they are known. UPR: synapses reached from the input, and
# operations per image. STDS: synapses counted from the layer densities in its logs, dead paths not
# removed, so at most as many are reached.
AT_MOST = " (at most)"
IN_UNIT: dict[str, dict[str, dict[str, Points]]] = {
    "synapses": {
        "cifar10": {
            "UPR": [(1.16, 92.05), (0.63, 90.65)],
            f"STDS{AT_MOST}": [(5.4, 92.49), (3.0, 91.64), (1.4, 90.21)],
        },
    },
    "synops": {"cifar10": {"UPR": [(16.5e6, 92.05), (8.5e6, 90.65)]}},
}


def published_in(unit: str, dataset: str) -> dict[str, Points]:
    """Return the published results whose x is really in a unit.

    Args:
        unit: ``"connectivity"``, ``"synapses"`` or ``"synops"``.
        dataset: Name of the data set.

    Returns:
        Points by the name of the method; fractions are in %.
    """
    found = PUBLISHED if unit == "connectivity" else IN_UNIT.get(unit, {})
    return found.get(dataset, {})


def marker_of(dataset: str, name: str) -> str:
    """Return the marker of a published method: one per method, the same in every unit."""
    units = ("connectivity", *IN_UNIT)
    names = [x.removesuffix(AT_MOST) for unit in units for x in published_in(unit, dataset)]
    return MARKERS[list(dict.fromkeys(names)).index(name.removesuffix(AT_MOST))]
