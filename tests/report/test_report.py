"""The page and the Markdown: damaged runs, hostile names, size; the commands that write them."""

import re
import shutil
import time
from pathlib import Path

import pytest
import torch

from spikewire import cli
from spikewire.cli.report import train_paper_runs
from spikewire.config import resolve
from spikewire.report import find, markdown, page, plot_frontier, save_figures, write
from spikewire.report.paper import PAPER
from spikewire.runs.rundir import RunDir
from spikewire.train.loop import fit

torch.set_num_threads(1)


def damage(runs):
    """Damage the runs, each in another way; two stay intact."""
    (runs / "gradr-a" / "config.toml").write_text("method = [")
    lines = (runs / "deepr" / "metrics.jsonl").read_text().splitlines()
    (runs / "deepr" / "metrics.jsonl").write_text("\n".join([lines[0], lines[1][:50], lines[2]]))
    (runs / "half").mkdir()
    (runs / "half" / "metrics.jsonl").write_text(lines[0] + "\n" + lines[1][:30])
    shutil.copytree(runs / "dense", runs / "new")
    (runs / "new" / "metrics.jsonl").write_text("")
    (runs / "new" / "model.safetensors").unlink()
    (runs / "odd").mkdir()
    (runs / "odd" / "metrics.jsonl").write_bytes(b'\xff\xfe\n[1]\n{"epoch": "x"}\n')


def test_damaged_runs_are_listed_and_the_others_are_shown(runs):
    damage(runs)
    states = {run.name: run.state for run in find([runs])}
    assert states == {
        "dense": "finished",
        "gradr-b": "finished",
        "new": "unfinished",
        "gradr-a": "damaged",
        "deepr": "damaged",
        "half": "damaged",
        "odd": "damaged",
    }
    html = page.build(find([runs]))
    assert "line 2 is damaged" in html
    assert html.count('<tr class="damaged"') == 4
    assert re.search(r"\| half \|.*\| damaged \|", markdown.build(find([runs])))


def test_a_folder_that_cannot_be_listed_is_damaged_and_the_others_are_shown(runs, monkeypatch):
    (runs / "locked").mkdir()
    listed = Path.iterdir

    def denied(path):
        if path.name == "locked":
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", denied)
    states = {run.name: run.state for run in find([runs])}
    assert states["locked"] == "damaged"
    assert "finished" in states.values()


def test_a_run_whose_files_cannot_be_read_says_why_in_plain_words(runs, monkeypatch):
    opened = Path.read_bytes

    def denied(path):
        if path.parent.name == "dense":
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path)

    monkeypatch.setattr(Path, "read_bytes", denied)
    problems = {run.name: run.problem for run in find([runs])}
    assert problems.pop("dense") == "metrics.jsonl: cannot be read: Permission denied"
    assert not all(problems.values())


def copy_with(runs, old, new, **values):
    """Copy a run, with other settings."""
    shutil.copytree(runs / old, runs / new)
    file = runs / new / "config.toml"
    text = file.read_text()
    for key, value in values.items():
        text = re.sub(rf"(?m)^{key} = .*\n", "", text)
        text = f"{key} = {value}\n{text}"
    file.write_text(text)


def test_a_label_names_in_what_runs_of_one_method_and_target_differ(runs):
    copy_with(runs, "deepr", "faster", lr="0.5", dropout="0.25", weight_decay="0.125")
    copy_with(runs, "deepr", "faster-seed1", lr="0.5", dropout="0.25", weight_decay="0.125", seed=1)
    copy_with(runs, "gradr-a", "gradr-seed1", seed=1)
    labels = {run.name: run.label for run in find([runs])}
    assert labels["faster"] == labels["faster-seed1"]
    assert re.fullmatch(r"deepr 30%, \w+ [\d.]+, \w+ [\d.]+", labels["faster"])
    assert re.fullmatch(r"deepr 30%, \w+ [\d.e-]+, \w+ [\d.e-]+", labels["deepr"])
    assert labels["deepr"] != labels["faster"]
    assert labels["gradr-a"] == labels["gradr-seed1"] == "gradr α = 0.5"
    assert page.build(find([runs])).count(labels["faster"]) > 0


def test_a_label_names_no_long_or_odd_value(runs):
    copy_with(runs, "dense", "started", start='"runs/$x^{<b>/very-long-name-of-another-run"')
    copy_with(runs, "dense", "named", start='"$x^"')
    labels = {run.name: run.label for run in find([runs])}
    assert labels["started"] == labels["named"] == "dense"


def lose(metrics):
    metrics.unlink()


def replace(metrics):
    metrics.write_text("{bad json")


def garble(metrics):
    lines = metrics.read_text().splitlines()
    metrics.write_text("\n".join([*lines[:-1], lines[-1][:40]]) + "\n")


@pytest.mark.parametrize(("damage", "last"), [(lose, 0), (replace, 0), (garble, 2)])
def test_a_finished_run_without_its_last_metrics_is_damaged(runs, damage, last):
    damage(runs / "deepr" / "metrics.jsonl")
    found = {run.name: run for run in find([runs])}
    assert found["deepr"].state == "damaged"
    assert found["deepr"].problem == (
        f"metrics.jsonl: ends at epoch {last} of 3, but the run is finished; "
        "lines are missing or damaged"
    )
    assert [run.state for run in found.values() if run.name != "deepr"] == ["finished"] * 3
    (runs / "deepr" / "model.safetensors").unlink()
    assert find([runs / "deepr"])[0].state == "unfinished", "it may be resumed"


def test_no_usable_run_still_makes_a_page(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")
    html = page.build(find([tmp_path]))
    assert "No run has finished an epoch yet" in html
    assert "none has finished an epoch" in markdown.build(find([tmp_path]))


def test_names_are_escaped_in_html_and_markdown(hostile_page):
    html = hostile_page.read_text("utf-8")
    assert "<script>alert" not in html
    scripts, figures = html.count("<script"), html.count("<figure ")
    assert scripts == 2 + figures == 2 + html.count('<script type="application/json">')
    text = markdown.build(find([hostile_page.parent / "runs"]))
    outside = re.sub(r"(`+).*?\1", "", text)  # a code span shows its content as text
    assert "<script>" not in outside.replace("\\<script\\>", "")
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1


def test_the_first_lines_name_runs_data_set_and_methods(runs):
    html = page.build(find([runs]))
    assert '<p class="lead">4 runs on digits: deepr, dense, gradr</p>' in html


def test_the_column_of_data_sets_is_hidden_while_there_is_one(runs):
    head = '<button type="button" title="data set">data</button>'
    before = re.findall(f"<th ([^>]*)>{head}", page.build(find([runs])))
    other = runs / "gradr-a" / "config.toml"
    other.write_text(other.read_text().replace('"digits"', '"mnist"'))
    after = re.findall(f"<th ([^>]*)>{head}", page.build(find([runs])))
    assert [text.endswith(" hidden") for text in before] == [True, True]  # of both tables
    assert [text.endswith(" hidden") for text in after] == [False, False]


def test_the_page_requests_nothing(hostile_page):
    html = hostile_page.read_text("utf-8")
    links = re.findall(r'(?:src|href)="([^"]*)"', html)
    assert all(link.startswith(("#", "data:")) for link in links)
    assert "@import" not in html


def test_reports_grow_linearly(trained, tmp_path):
    def build(count):
        root = tmp_path / str(count)
        keep = shutil.ignore_patterns("*.pt", "*.safetensors")
        for i in range(count):
            config = shutil.copytree(trained / "gradr-a", root / f"run-{i}", ignore=keep)
            config /= "config.toml"
            config.write_text(config.read_text().replace("seed = 0", f"seed = {i}"))
        start = time.process_time()
        html = page.build(find([root]))
        return time.process_time() - start, len(html)

    build(1)
    (few, small), (many, large) = build(20), build(200)
    assert many < 11 * few  # ten times the runs
    assert large < 11 * small


# ---------------------------------------------------------------------- command line


def test_commands_write_report_and_figures(trained, tmp_path, capsys):
    out = tmp_path / "page.html"
    assert cli.main(["report", str(trained / "dense"), "-o", str(out)]) == 0
    assert "report of 1 run" in capsys.readouterr().out
    assert out.read_text("utf-8").startswith("<!doctype html>")
    assert cli.main(["report", str(trained), "--format", "md", "-o", str(tmp_path / "a.md")]) == 0
    capsys.readouterr()
    assert cli.main(["figures", str(trained), "--paper", "--out", str(tmp_path / "fig")]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert sorted(printed) == sorted(str(path) for path in (tmp_path / "fig").iterdir())
    files = {path.name for path in (tmp_path / "fig").iterdir()}
    tails = (".svg", ".png", ".pdf", "-dark.svg", "-dark.png")
    assert files == {key + tail for key in PAPER for tail in tails}


def test_runs_without_anything_to_draw_are_refused(tmp_path, capsys):
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "config.toml").write_text("damaged")
    assert cli.main(["figures", str(tmp_path / "runs"), "--out", str(tmp_path / "fig")]) == 2
    error = capsys.readouterr().err
    assert "RUN: no run has anything to draw; " in error
    assert "config.toml" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "fig").exists()


def test_figures_for_one_column_are_that_wide(trained, tmp_path):
    save_figures([plot_frontier(find([trained]))], tmp_path, width=3.3)
    box = re.search(r'viewBox="0 0 ([\d.]+)', (tmp_path / "frontier.svg").read_text())[1]
    assert float(box) == pytest.approx(72 * 3.3)
    pdf = (tmp_path / "frontier.pdf").read_bytes()
    assert float(re.search(rb"/MediaBox \[ 0 0 ([\d.]+)", pdf)[1]) == pytest.approx(72 * 3.3)
    assert b"/Subtype /Type3" not in pdf  # journals want TrueType


def test_interrupted_paper_runs_are_resumed(tmp_path, monkeypatch):
    monkeypatch.setattr("spikewire.report.paper.PAPER_RUNS", [{"method": "dense"}])
    monkeypatch.setattr("spikewire.report.paper.PAPER_EPOCHS", "2")

    def stop(event):
        return True

    config = resolve("digits", flags={"method": "dense", "epochs": "2"})
    with pytest.raises(KeyboardInterrupt):
        fit(config, tmp_path / "dense", progress=stop)
    assert not RunDir(tmp_path / "dense").finished
    train_paper_runs(str(tmp_path))
    assert len(RunDir.open(tmp_path / "dense").history()) == 2
    assert RunDir(tmp_path / "dense").finished


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["report", "{tmp}"], "contains no run"),
        (["report", "{tmp}/absent"], "absent: does not exist"),
        (["report", "{runs}", "--format", "pdf"], "--format: unknown 'pdf'"),
        (["report", "{runs}", "--watch", "-1"], "--watch"),
        (["report", "{runs}", "--format", "md", "-o", "{tmp}/no/such/place"], "cannot be written"),
        (
            ["report", "{runs}", "-o", "{tmp}/page.pdf"],
            "page.pdf' is not allowed",
        ),
        (["report", __file__], "is a file; name run directories"),
        (["figures", "{runs}", "--out", __file__], "is a file, not a folder"),
        (["figures"], "RUN: is missing"),
        (["figures", "{runs}", "--width", "0.5"], "--width: 0.5 is not allowed"),
        (["figures", "{runs}", "--width", "wide"], "--width: 'wide' is not allowed"),
        (["report"], "RUN"),
    ],
)
def test_mistakes_are_one_line(arguments, expected, trained, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    paths = {"tmp": tmp_path / "empty", "runs": trained}
    assert cli.main([word.format(**paths) for word in arguments]) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert error.count("\n") == 1


def test_the_name_of_a_page_decides_its_format(trained, tmp_path, capsys):
    assert cli.main(["report", str(trained), "-o", str(tmp_path / "page.md")]) == 0
    assert (tmp_path / "page.md").read_text("utf-8").startswith("# Runs")
    assert cli.main(["report", str(trained), "-o", str(tmp_path / "page")]) == 0
    assert (tmp_path / "page").read_text("utf-8").startswith("<!doctype html>")


def test_watch_makes_a_page_that_reloads_itself(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")
    write([tmp_path], tmp_path / "live.html", refresh=7)
    assert '<meta http-equiv="refresh" content="7">' in (tmp_path / "live.html").read_text("utf-8")


def test_one_path_is_enough_and_a_figure_without_data_is_left_out(trained, tmp_path):
    assert [run.path for run in find(str(trained))] == [run.path for run in find([trained])]
    assert save_figures([None], tmp_path / "figures") == []
