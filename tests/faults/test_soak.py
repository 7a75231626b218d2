"""Long runs: memory and open files stay flat; metrics and report keep working."""

import json
import time

import pytest
from trainer import code, config, soak

from spikewire.report import write
from spikewire.runs.rundir import RunDir
from spikewire.train.loop import fit


@pytest.mark.parametrize("epochs", [300, pytest.param(2_000, marks=pytest.mark.slow)])
def test_many_epochs_leak_nothing(tmp_path, figure, epochs):
    assert code(soak, epochs, tmp_path / "figures") == 0
    memory, files, seconds = zip(*json.loads((tmp_path / "figures").read_text()), strict=True)
    assert len(memory) == epochs
    first, part = 200, epochs // 10
    growth = max(memory[first:]) / memory[first] - 1
    assert growth < 0.02
    assert len(set(files[first:])) == 1
    early, late = (sorted(times)[part // 2] for times in (seconds[first:][:part], seconds[-part:]))
    figure(
        f"{epochs} epochs: memory {growth:+.2%} after epoch {first}, {files[-1]} open files "
        f"throughout, median epoch {1e3 * early:.1f} ms early, {1e3 * late:.1f} ms late"
    )


def measure_time(action):
    begin = time.perf_counter()
    return action(), time.perf_counter() - begin


@pytest.mark.parametrize("lines", [5_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_metrics_and_report_of_a_long_run(tmp_path, figure, lines):
    fit(config(), tmp_path / "run")
    run = RunDir(tmp_path / "run")
    rows = run.history()
    with (run.path / "metrics.jsonl").open("w") as file:
        for epoch in range(1, lines + 1):
            file.write(json.dumps({**rows[epoch % 3], "epoch": epoch}) + "\n")
    history, reading = measure_time(run.history)
    assert len(history) == lines
    _, adding = measure_time(lambda: run.append({**rows[-1], "epoch": lines + 1}))
    _, truncating = measure_time(lambda: run.truncate(lines))
    assert run.history() == history
    _, drawing = measure_time(lambda: write([run.path], tmp_path / "page.html"))
    size = (tmp_path / "page.html").stat().st_size
    assert size < 2_000_000
    page = (tmp_path / "page.html").read_text()
    assert f'["run","gradr α = 0.001",0,{lines},' in page, "the last epoch is drawn"
    assert f'[{lines},"fc1.weight",' in page
    figure(
        f"{lines} lines of metrics: read in {reading:.2f} s, one added in {1e3 * adding:.1f} ms, "
        f"truncated in {truncating:.2f} s; report in {drawing:.2f} s, {size / 1e6:.2f} MB"
    )
