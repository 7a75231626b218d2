"""benchmarks/time_to_accuracy.py: a chain that starts from a network of the zoo."""

import sys
from argparse import Namespace
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def benchmark_module(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import time_to_accuracy  # pyright: ignore[reportMissingImports]

    yield time_to_accuracy
    sys.modules.pop("time_to_accuracy")


def test_the_time_from_scratch_includes_that_of_the_network_of_the_zoo(benchmark_module):
    before = benchmark_module.seconds_before("zoo:cifar10-2.23", ROOT / "results" / "cifar10")
    assert before == pytest.approx(953.2)
    assert benchmark_module.fraction("zoo:cifar10-2.23", "connectivity") == pytest.approx(0.0223)


def test_the_points_after_it_start_from_it_and_learn_from_it(benchmark_module, monkeypatch):
    commands = []
    monkeypatch.setattr(benchmark_module, "call", lambda words, until: commands.append(words))
    args = Namespace(runs=Path("nowhere"), seed=2, chain=True, zoo="cifar10-2.23")
    point = next(x for x in benchmark_module.POINTS if x.label == "synapses-0.054")
    benchmark_module.train(point, args, [])
    words = " ".join(commands[0])
    assert "--start zoo:cifar10-2.23 --first 0.2011" in words
    assert "--teacher zoo:cifar10-2.23" in words
