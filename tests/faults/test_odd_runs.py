"""One odd run among others: it is listed as damaged, and all others are shown."""

import json
import random
import re
import shutil
from collections.abc import Sequence
from math import inf, nan
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from test_damage import RESUME, run_command
from trainer import config, network

from spikewire.cli import main
from spikewire.report import load, render
from spikewire.report.internals import plot_parameters
from spikewire.report.runs import Run
from spikewire.runs.snapshots import KINDS
from spikewire.train.loop import fit

VALUES = (
    None, True, -1, 0, 0.5, 1.5, 1e30, 1e308, -1e308, 10**30, 10**400, nan, inf, -inf, "x",
    "<script>alert(1)</script>", "\x1b[31m", "\ud800", [], [1], {}, {"x": 1}, {"x": None},
    {"$\\frac{": {"total": 1}}, {"x\n": 5}, [[]], {"a": {"b": {"c": {"d": {"e": 1}}}}},
)  # fmt: skip
TRACES = ("layers", "neurons", "epochs", "theta", "theta_range", "weight", "weight_range", "rates")
TOGETHER = 5  # odd runs in one report, so that each of them is drawn


def places(value, path=()):
    """Yield the path of every field of a nested row."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from places(item, (*path, key))


def odd_row(row, path, value, rng):
    """Return a copy of a row with another value, without the field, or with one more."""
    copy = json.loads(json.dumps(row))
    parent = copy
    for key in path[:-1]:
        parent = parent[key]
    kind = rng.random()
    if kind < 0.1:
        del parent[path[-1]]
    elif kind < 0.2:
        parent[rng.choice(["new", "x\n", "$", "\ud800", "y" * 1000])] = value
    else:
        parent[path[-1]] = value
    return copy


def change_metrics(run: Path, rng: random.Random) -> str:
    """Change one field of one line of the metrics."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    at, value = rng.randrange(len(rows)), rng.choice(VALUES)
    path = rng.choice(list(places(rows[at])))
    rows[at] = odd_row(rows[at], path, value, rng)
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"{path} {str(value)[:50]!r}"


def odd_arrays(x: np.ndarray) -> list:
    """Return arrays in place of one of the traces."""
    found = [x.ravel(), x[:0], x[None], np.array(5), np.array("x"), np.zeros(3), x.astype("U8")]
    found += [np.array([b"x"]), x.astype(complex) if x.dtype.kind in "iuf" else x[:1], x[:-1]]
    if x.dtype.kind in "iuf":
        found += [np.full_like(x, value) for value in (0, 1, -1 if x.dtype.kind != "u" else 7)]
        found += [x.astype(">f8"), x.astype(np.float16), x.astype(bool), x.astype(np.uint64)]
        found += [np.full(x.shape, value) for value in (nan, inf, -inf, 1e308, 2**62)]
    else:
        found += [np.full(x.shape, name) for name in ("x", "$\\frac{", "a\nb", "\ud800", "y" * 999)]
    return [*found, None]


def change_arrays(path: Path, keys: Sequence[str], rng: random.Random) -> str:
    """Replace or remove one array of a file."""
    with np.load(path) as file:
        arrays = {key: file[key] for key in file.files}
    key = rng.choice(keys)
    value = rng.choice(odd_arrays(arrays[key]))
    if value is None:
        del arrays[key]
    else:
        arrays[key] = value
    np.savez(path, **arrays)
    return f"{key} {getattr(value, 'dtype', None)} {getattr(value, 'shape', None)}"


def change_traces(run: Path, rng: random.Random) -> str:
    """Replace or remove one array of the traces."""
    return change_arrays(run / "traces.npz", TRACES, rng)


def change_snapshots(run: Path, rng: random.Random) -> str:
    """Replace or remove one array of the snapshots."""
    return change_arrays(run / "snapshots.npz", list(KINDS), rng)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished Grad R run and a dense one."""
    folder = tmp_path_factory.mktemp("finished")
    fit(config(trace_every=1), folder / "gradr")
    fit(config(method="dense", epochs=1), folder / "dense")
    return folder


def is_shown(run: Run, page: str) -> bool:
    return f">{run.name}</td>" in page and f'<tr class="{run.state}" data-runs=' in page


@pytest.mark.parametrize("change", [change_metrics, change_traces, change_snapshots])
@pytest.mark.parametrize("count", [5, pytest.param(300, marks=pytest.mark.slow)])
def test_an_odd_run_does_not_stop_the_report(
    finished, tmp_path, monkeypatch, capsys, faults, change, count
):
    monkeypatch.chdir(tmp_path)
    for first in range(0, count, TOGETHER):
        shutil.copytree(finished / "gradr", "runs/good")
        about = []
        for case in range(first, min(first + TOGETHER, count)):
            shutil.copytree(finished / "gradr", f"runs/odd{case}")
            about.append(change(Path(f"runs/odd{case}"), random.Random(case)))
        for form in ("html", "md"):
            assert run_command(["report", "runs", f"--format={form}"], capsys, about) == 0
        page = Path("report.html").read_text()
        runs = [load(path) for path in sorted(Path("runs").iterdir())]
        assert all(is_shown(run, page) for run in runs), about
        assert runs[0].state == "finished"
        assert page.count('<figure id="') >= 5, about
        shutil.rmtree("runs")
    faults("odd metrics, traces or snapshots in a report", count, count)


@pytest.mark.parametrize("change", [change_metrics, change_traces, change_snapshots])
@pytest.mark.parametrize("count", [4, pytest.param(100, marks=pytest.mark.slow)])
def test_odd_metrics_and_traces_are_noticed_before_training(
    intact, tmp_path, monkeypatch, capsys, faults, change, count
):
    monkeypatch.chdir(tmp_path)
    for case in range(count):
        shutil.copytree(intact / "stopped", "run")
        about = change(Path("run"), random.Random(case))
        if run_command(RESUME, capsys, about) == 0:
            assert network(Path("run")) == network(intact / "finished"), about
        shutil.rmtree("run")
    faults("odd metrics, traces or snapshots on resume", count, count)


def test_null_seconds_of_a_past_epoch_are_noticed_at_once(intact, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(intact / "stopped", "run")
    text = Path("run/metrics.jsonl").read_text()
    Path("run/metrics.jsonl").write_text(re.sub(r'"seconds": [0-9.e-]+', '"seconds": null', text))
    assert main(RESUME) == 2
    out, err = capsys.readouterr()
    assert err == "spikewire: metrics.jsonl: epoch 1: seconds is None\n"
    assert "epoch" not in out.partition("[gradr]")[2]


@pytest.mark.parametrize("threads", ["1e999", "1.5", "true", "null", "0", '"2"', "[]"])
def test_a_wrong_number_of_threads_is_one_line(intact, tmp_path, monkeypatch, capsys, threads):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(intact / "stopped", "run")
    Path("run/env.json").write_text(f'{{"threads": {threads}}}')
    assert main(RESUME) == 2
    assert capsys.readouterr().err.startswith("spikewire: run/env.json: is damaged (threads: ")


def odd_networks():
    weight = torch.randn(256, 64)
    yield {}
    yield {"x": torch.zeros(())}
    yield {"fc1.weight": torch.full((256, 64), nan)}
    yield {"fc1.weight": weight.to(torch.int64)}
    yield {"fc1.weight": weight.to(torch.complex64)}
    yield {"fc1.weight": torch.full((256, 64), 3e38)}
    yield {"$\\frac{": weight, "\x1b": weight.clone()}
    yield {f"w{number}": weight[:2].clone() for number in range(300)}
    yield {"fc1.weight": torch.zeros(0, 5)}
    yield {"fc1.weight": weight > 0}
    yield {"spikewire.mask.nowhere": weight > 0, "fc1.weight": weight}


@pytest.mark.parametrize("tensors", list(odd_networks()))
def test_an_odd_network_is_one_line_or_left_out(
    finished, tmp_path, monkeypatch, capsys, faults, tensors
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(finished / "dense", "run")
    Path("run/model.safetensors").unlink()
    save_file(tensors, "run/model.safetensors")
    assert run_command(["report", "run", "--format=md"], capsys, "") == 0
    plot = plot_parameters([load("run")])
    assert plot is None or render(plot)
    for words in (["eval", "run"], ["export", "run"]):
        assert run_command(words, capsys, tensors) == 2
    faults("odd network", 4, 4)


def test_masks_of_other_layers_are_one_line(finished, tmp_path, monkeypatch, capsys, faults):
    from safetensors.torch import load_file

    monkeypatch.chdir(tmp_path)
    weights = load_file(finished / "gradr/model.safetensors")
    masks = {name: x for name, x in weights.items() if name.startswith("spikewire.mask.")}
    plain = {name: x for name, x in weights.items() if name not in masks}
    for odd in (
        {"spikewire.mask.nowhere": torch.ones(3)},
        {"spikewire.mask.fc1.weight": torch.ones(2)},
        {},
    ):
        shutil.copytree(finished / "gradr", "run")
        Path("run/model.safetensors").unlink()
        save_file({**plain, **odd}, "run/model.safetensors")
        assert run_command(["eval", "run"], capsys, odd) == 2
        shutil.rmtree("run")
    faults("odd network", 3, 3)


@pytest.mark.parametrize(
    "word",
    [
        "``\n\n<script>alert(1)</script>",
        "`<b>`",
        "\n\n<img src=x onerror=alert(1)>\n\n",
        "```\n<i>\n```",
    ],
)
def test_a_command_is_not_markup_in_markdown(finished, tmp_path, monkeypatch, capsys, faults, word):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(finished / "gradr", "run")
    env = json.loads(Path("run/env.json").read_text())
    Path("run/env.json").write_text(json.dumps({**env, "command": ["spikewire", "train", word]}))
    assert main(["report", "run", "--format=md"]) == 0
    (line,) = [x for x in Path("report.md").read_text().splitlines() if x.startswith("- run: ")]
    fence = re.match("- run: (`+)", line)[1]
    inside = line.removeprefix(f"- run: {fence}").removesuffix(fence)
    assert fence not in inside
    assert line.endswith(fence)
    assert "<" in inside
    assert "<" not in Path("report.md").read_text().replace(line, "")
    faults("markup in a report", 1, 1)
