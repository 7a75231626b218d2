import json
import os
import re
import shutil
import time
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from spikewire import cli
from spikewire.cli.report import train_for_paper
from spikewire.config import resolve
from spikewire.errors import SpikewireError
from spikewire.report import DARK, FIGURES, LIGHT, draw_all, find, load, page, render, text, write
from spikewire.report.paper import PAPER, draw_paper
from spikewire.report.style import inline
from spikewire.report.table import cards
from spikewire.runs.rundir import RunDir
from spikewire.runs.traces import BINS, RATE_BINS, Collector, Traces
from spikewire.train.loop import Epoch, fit

torch.set_num_threads(1)

HOSTILE = (
    "<script>alert(1)<",
    'it\'s "quoted" & <b>bold',
    "ünïcode-神経-$x^2$",
    "`code` | *star* _",
)


def settings(**flags):
    flags = {"epochs": "3", "batch_size": "128", "threads": "1", "time_steps": "4"} | flags
    return resolve("digits", flags=flags)


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Four real runs on the digits."""
    root = tmp_path_factory.mktemp("runs")
    fit(settings(method="dense"), root / "dense")
    fit(settings(alpha="0.5"), root / "gradr-a")
    fit(settings(alpha="4"), root / "gradr-b")
    fit(settings(method="deepr", connectivity="0.3"), root / "deepr")
    return root


@pytest.fixture
def runs(trained, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(trained, tmp_path / "runs", ignore=shutil.ignore_patterns("*.pt"))


# ---------------------------------------------------------------------- what training collects


def test_each_epoch_says_what_was_pruned_and_regrown_in_each_layer(trained):
    rows = load(trained / "gradr-a").history
    before = {"fc1.weight": 16384, "fc2.weight": 2560}
    for row in rows:
        for name, counts in row["layers"].items():
            assert counts["present"] == before[name] - counts["pruned"] + counts["regrown"]
            before[name] = counts["present"]
        totals = sum(counts["pruned"] for counts in row["layers"].values())
        assert totals == row["stats"]["pruned"]
    assert sum(before.values()) / 18944 == rows[-1]["connectivity"]


def test_deepr_regrows_what_it_drops(trained):
    for row in load(trained / "deepr").history:
        for counts in row["layers"].values():
            assert counts["regrown"] == counts["pruned"]
            assert counts["present"] == round(0.3 * counts["total"])


def test_the_network_is_measured(trained):
    dense, sparse = (load(trained / name).measured for name in ("dense", "gradr-b"))
    assert sparse["synops"] + sparse["macs"] < dense["synops"] + dense["macs"]
    assert dense["synapse_connectivity"] == 1
    assert sparse["bytes_packed"] < dense["bytes_packed"] < dense["bytes_dense"] == 18944 * 4
    assert set(dense["firing"]) == {"lif1", "lif2"}


def test_traces_hold_every_layer_and_epoch(trained):
    arrays = RunDir(trained / "gradr-a").load_traces()
    assert arrays["theta"].shape == (3, 2, BINS)
    assert arrays["rates"].shape == (3, 2, RATE_BINS)
    assert arrays["rates"].sum(2).tolist() == [[256, 10]] * 3
    assert arrays["theta"].sum(2).tolist() == [[16384, 2560]] * 3
    assert (arrays["theta_range"][..., 0] < 0).any()  # theta, not the weight's size
    assert (trained / "gradr-a" / "traces.npz").stat().st_size < 20_000


def test_the_interval_is_chosen(tmp_path):
    fit(settings(epochs="5", trace_every="3"), tmp_path / "run")
    run = load(tmp_path / "run")
    assert [row["epoch"] for row in run.history if "measured" in row] == [1, 3, 5]
    assert all("layers" in row for row in run.history)
    assert run.traces.epochs == [1, 3, 5]


@pytest.mark.slow
def test_collecting_takes_under_5_percent_of_a_run(tmp_path, monkeypatch):
    spent = []

    def timed(owner, name):
        plain = getattr(owner, name)

        def run(*args):
            start = time.process_time()
            result = plain(*args)
            spent.append(time.process_time() - start)
            return result

        monkeypatch.setattr(owner, name, run)

    for owner, name in ((Collector, "look"), (Collector, "row"), (RunDir, "save_traces")):
        timed(owner, name)
    start = time.process_time()
    fit(resolve("digits", flags={"threads": "1"}), tmp_path / "run")
    assert 0 < sum(spent) < 0.05 * (time.process_time() - start)


@pytest.mark.parametrize("at", [1, 2])
def test_a_resumed_run_leaves_the_same_traces(trained, tmp_path, at):
    def stop(event):
        if (isinstance(event, Epoch) and event.row["epoch"] == at) or getattr(
            event, "step", 0
        ) == 14:
            raise KeyboardInterrupt

    config = settings(alpha="0.5")
    with pytest.raises(KeyboardInterrupt):
        fit(config, tmp_path / "cut", progress=stop)
    fit(config, tmp_path / "cut", resume=True)
    whole, cut = (RunDir(path).load_traces() for path in (trained / "gradr-a", tmp_path / "cut"))
    assert all(np.array_equal(whole[key], cut[key]) for key in whole)
    rows = [
        [(row["layers"], row["measured"]) for row in load(path).history]
        for path in (trained / "gradr-a", tmp_path / "cut")
    ]
    assert rows[0] == rows[1]


def test_damaged_traces_are_named(runs):
    (runs / "dense" / "traces.npz").write_bytes(b"PK\x03\x04 not a zip")
    with pytest.raises(SpikewireError, match=r"traces\.npz: is damaged"):
        RunDir(runs / "dense").load_traces()
    assert load(runs / "dense").traces is None
    assert RunDir(runs).load_traces() is None


def test_traces_survive_writing_and_cutting(trained):
    traces = Traces.of(RunDir(trained / "dense").load_traces())
    traces.cut(2)
    assert traces.epochs == [1, 2]
    assert {len(v) for k, v in vars(traces).items() if k not in ("layers", "neurons")} == {2}


# ---------------------------------------------------------------------- figures


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.__name__)
@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_each_figure_is_drawn_in_both_themes(trained, figure, theme):
    plot = figure(find([trained]))
    svg = render(plot, theme)
    root = ElementTree.fromstring(svg)
    texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert len(texts) > 4  # text is text, not outlines
    assert theme.paper in svg.decode()
    assert svg == render(plot, theme)
    assert render(plot, theme, "png", 40).startswith(b"\x89PNG")
    assert plot.data
    assert plot.caption.endswith(".")
    json.dumps(plot.data, allow_nan=False)


def test_inline_figures_use_the_pages_colours_and_share_no_name(trained):
    parts = [inline(plot) for plot in draw_all(find([trained]))]
    names = [name for part in parts for name in re.findall(r'\bid="([^"]+)"', part)]
    assert len(names) == len(set(names))
    for part in parts:
        assert "var(--ink)" in part
        used = set(re.findall(r"url\(#([^)]+)\)", part)) | set(re.findall(r'href="#([^"]+)"', part))
        assert used <= set(names)
        assert "#010203" not in part


def test_the_papers_figures(trained):
    plots = draw_paper(find([trained]))
    assert [plot.key for plot in plots] == list(PAPER)
    assert {key.split("-")[1].rstrip("ab") for key in PAPER} == set("1234567")
    for plot in plots:
        ElementTree.fromstring(render(plot))
    with pytest.raises(SpikewireError, match="figure-3-parameters: .* needs a finished dense run"):
        draw_paper(find([trained / "gradr-a"]))


def test_drawing_leaves_matplotlib_as_it_was(trained):
    import matplotlib

    before = dict(matplotlib.rcParams)
    render(draw_all(find([trained]))[0])
    assert dict(matplotlib.rcParams) == before


def test_published_points_stand_beside_mnist(runs):
    for config in runs.glob("*/config.toml"):
        config.write_text(
            config.read_text().replace('"digits"', '"mnist"').replace("digits-mlp", "mnist-mlp")
        )
    svg = render(FIGURES[0](find([runs]))).decode()
    assert "CH-SNN, published" in svg
    assert "dense" in svg


def drawn(plot):
    canvas = Figure()
    plot.draw(canvas, LIGHT)
    return canvas.axes


def picked(name):
    return next(figure for figure in FIGURES if figure.__name__ == name)


def test_captions_speak_only_of_what_is_there(trained):
    alone, all_ = find([trained / "gradr-a"]), find([trained])
    assert "dashed" not in picked("frontier")(alone).caption
    assert "dashed" in picked("frontier")(all_).caption
    assert "published" not in picked("frontier")(all_).caption
    assert "A larger penalty" not in picked("training")(alone).caption
    assert "A larger penalty" in picked("training")(all_).caption
    assert picked("firing")(alone).title == "Firing rates"


def test_a_run_of_one_epoch_is_a_mark_over_a_whole_number(runs):
    file = runs / "gradr-a" / "metrics.jsonl"
    file.write_text(file.read_text().splitlines()[0] + "\n")
    top, bottom = drawn(picked("training")(find([runs / "gradr-a"])))
    assert [line.get_marker() for line in top.lines] == ["o"]
    assert bottom.get_xlim() == (0, 2)


def test_a_failed_run_stays_in_the_picture(runs):
    file = runs / "gradr-b" / "metrics.jsonl"
    rows = [json.loads(line) | {"accuracy": 0.2} for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = find([runs])
    assert max(run.last["accuracy"] for run in found) > 0.5
    assert drawn(picked("training")(found))[0].get_ylim()[0] < 20


def test_networks_and_data_sets_are_not_mixed(runs):
    other = runs / "gradr-a" / "config.toml"
    other.write_text(
        other.read_text().replace('"digits"', '"mnist"').replace("digits-mlp", "mnist-mlp")
    )
    found = find([runs])
    assert [axes.get_ylabel() for axes in drawn(picked("layers")(found))] == [
        "digits-mlp",
        "mnist-mlp",
    ]
    for name in ("frontier", "energy"):
        said = [axes.get_ylabel() for axes in drawn(picked(name)(found))]
        assert said == [f"test accuracy on {word}, %" for word in ("digits", "mnist")]
    heads = [what for what, _, _ in cards(found)]
    assert heads[::2] == ["digits: best accuracy", "mnist: best accuracy"]


def test_bars_of_like_size_begin_at_0(trained):
    (axes,) = drawn(picked("layers")(find([trained / "dense"])))
    assert (axes.get_xscale(), axes.get_xlim()[0]) == ("linear", 0)


def test_a_line_joins_only_runs_that_were_trained_alike(runs):
    def lines():
        (axes,) = drawn(picked("frontier")(find([runs / "gradr-a", runs / "gradr-b"])))
        return [len(bars.lines[0].get_xydata()) for bars in axes.containers]

    assert lines() == [2]
    config = runs / "gradr-b" / "config.toml"
    config.write_text(config.read_text().replace("epochs = 3", "epochs = 300"))
    assert lines() == [1, 1]


# ---------------------------------------------------------------------- damage, names


def damage(runs):
    """Return the runs, each broken in another way, beside two whole ones."""
    (runs / "gradr-a" / "config.toml").write_text("method = [")
    lines = (runs / "deepr" / "metrics.jsonl").read_text().splitlines()
    (runs / "deepr" / "metrics.jsonl").write_text("\n".join([lines[0], lines[1][:50], lines[2]]))
    (runs / "half").mkdir()
    (runs / "half" / "metrics.jsonl").write_text(lines[0] + "\n" + lines[1][:30])
    shutil.copytree(runs / "dense", runs / "young")
    (runs / "young" / "metrics.jsonl").write_text("")
    (runs / "young" / "model.safetensors").unlink()
    (runs / "odd").mkdir()
    (runs / "odd" / "metrics.jsonl").write_bytes(b'\xff\xfe\n[1]\n{"epoch": "x"}\n')


def test_damaged_runs_are_listed_and_stop_nothing(runs):
    damage(runs)
    states = {run.name: run.state for run in find([runs])}
    assert states == {
        "dense": "finished",
        "gradr-b": "finished",
        "young": "unfinished",
        "gradr-a": "damaged",
        "deepr": "damaged",
        "half": "damaged",
        "odd": "damaged",
    }
    html = page.build(find([runs]))
    assert "line 2 is damaged" in html
    assert html.count('<tr class="damaged">') == 4
    assert "| half | damaged |" in text.build(find([runs]))


def test_no_usable_run_still_makes_a_page(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")
    html = page.build(find([tmp_path]))
    assert "No run has finished an epoch yet" in html
    assert "none has finished an epoch" in text.build(find([tmp_path]))


def named(runs):
    """Give the runs hostile names; return the folder."""
    for old, new in zip(sorted(runs.iterdir()), HOSTILE, strict=True):
        old.rename(runs / new)
    return runs


def test_names_are_text_in_html_and_markdown(runs):
    found = find([named(runs)])
    html = page.build(found, title="</title><script>alert(2)</script>")
    assert "<script>alert" not in html
    assert html.count("<script") == 2 + 2 * len(draw_all(found)) - len(draw_all(found)) - 1
    markdown = text.build(found)
    outside = re.sub(r"(`+).*?\1", "", markdown)  # a code span shows what is in it as text
    assert "<script>" not in outside.replace("\\<script\\>", "")
    table = [line for line in markdown.splitlines() if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1


def test_the_page_needs_nothing_from_outside(trained):
    html = page.build(find([trained]))
    links = re.findall(r'(?:src|href)="([^"]*)"', html)
    assert all(link.startswith(("#", "data:")) for link in links)
    assert "@import" not in html


def test_reports_grow_linearly(trained, tmp_path):
    def build(count):
        root = tmp_path / str(count)
        keep = shutil.ignore_patterns("*.pt", "*.safetensors")
        for i in range(count):
            shutil.copytree(trained / "gradr-a", root / f"run-{i}", ignore=keep)
        start = time.perf_counter()
        html = page.build(find([root]))
        return time.perf_counter() - start, len(html)

    build(1)
    (few, small), (many, large) = build(20), build(200)
    assert many < 11 * few  # ten times the runs
    assert large < 11 * small


# ---------------------------------------------------------------------- command line


def test_commands_write_report_and_figures(trained, tmp_path, capsys):
    out = tmp_path / "page.html"
    assert cli.main(["report", str(trained), "-o", str(out)]) == 0
    assert "report of 4 runs" in capsys.readouterr().out
    assert out.read_text("utf-8").startswith("<!doctype html>")
    assert cli.main(["report", str(trained), "--format", "md", "-o", str(tmp_path / "a.md")]) == 0
    assert cli.main(["figures", str(trained), "--paper", "--out", str(tmp_path / "fig")]) == 0
    files = {path.name for path in (tmp_path / "fig").iterdir()}
    tails = (".svg", ".png", "-dark.svg", "-dark.png")
    assert files == {key + tail for key in PAPER for tail in tails}


def test_the_papers_runs_go_on_where_they_were_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr("spikewire.report.paper.RECIPE", [{"method": "dense"}])
    monkeypatch.setattr("spikewire.report.paper.EPOCHS", "2")

    def stop(event):
        raise KeyboardInterrupt

    config = resolve("digits", flags={"method": "dense", "epochs": "2"})
    with pytest.raises(KeyboardInterrupt):
        fit(config, tmp_path / "dense", progress=stop)
    assert not RunDir(tmp_path / "dense").finished
    train_for_paper(str(tmp_path))
    assert len(RunDir.open(tmp_path / "dense").history()) == 2
    assert RunDir(tmp_path / "dense").finished


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["report", "{tmp}"], "holds no run"),
        (["report", "{runs}", "--format", "pdf"], "--format: unknown 'pdf'"),
        (["report", "{runs}", "--watch", "-1"], "--watch"),
        (["report", "{runs}", "-o", "{tmp}/no/such/place.html"], "cannot be written"),
        (["figures"], "RUN: is missing"),
        (["report"], "RUN"),
    ],
)
def test_mistakes_are_one_line(arguments, said, trained, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    places = {"tmp": tmp_path / "empty", "runs": trained}
    assert cli.main([word.format(**places) for word in arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_watch_makes_a_page_that_loads_itself_again(trained, tmp_path):
    write([trained], tmp_path / "live.html", refresh=7)
    assert '<meta http-equiv="refresh" content="7">' in (tmp_path / "live.html").read_text("utf-8")


# ---------------------------------------------------------------------- a real browser


@pytest.fixture(scope="module")
def browser():
    binary = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    driver = shutil.which("chromedriver")
    if not (binary and driver):
        assert not os.environ.get("CI"), "apt-get install -y chromium chromium-driver"
        pytest.skip("apt-get install -y chromium chromium-driver")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = webdriver.Chrome(options, webdriver.ChromeService(driver))
    yield chrome
    chrome.quit()


def open_page(browser, folder, tmp_path, width=1280):
    path = tmp_path / "report.html"
    write([folder], path)
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get_log("performance")
    browser.get_log("browser")
    browser.get(path.as_uri())


def first_column(browser):
    script = "return [...document.querySelectorAll('#runs tbody tr')].filter(r => !r.hidden)"
    return browser.execute_script(script + ".map(r => r.cells[0].textContent)")


@pytest.mark.parametrize("width", [360, 1280])
def test_the_page_loads_without_errors_or_requests(browser, runs, tmp_path, width):
    open_page(browser, named(runs), tmp_path, width)
    assert browser.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [
        m["params"]["request"]["url"]
        for m in messages
        if m["method"] == "Network.requestWillBeSent"
    ]
    assert len(sent) >= 1
    assert all(url.startswith(("file:", "data:")) for url in sent), sent
    assert sum(url.startswith("file:") for url in sent) == 1
    overflow = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert browser.execute_script(overflow) <= 0
    sizes = browser.execute_script(
        "return [...document.querySelectorAll('figure svg')].map(s => s.getBoundingClientRect())"
    )
    assert len(sizes) == len(FIGURES)
    assert all(box["width"] > 0.7 * min(width, 500) and box["height"] > 100 for box in sizes)
    assert sorted(first_column(browser)) == sorted(HOSTILE)


def test_a_desktop_shows_every_column_and_a_phone_keeps_the_name_in_view(browser, runs, tmp_path):
    open_page(browser, runs, tmp_path)
    hidden = "const e = document.querySelector('.scroll'); return e.scrollWidth - e.clientWidth"
    assert browser.execute_script(hidden) <= 0
    open_page(browser, runs, tmp_path, 360)
    assert browser.execute_script(hidden) > 0
    script = """const box = document.querySelector('.scroll'); box.scrollLeft = 400;
    const cell = document.querySelector('tbody td').getBoundingClientRect();
    return cell.left - box.getBoundingClientRect().left"""
    assert 0 <= browser.execute_script(script) < 5


def test_the_table_sorts_and_filters_by_keyboard(browser, runs, tmp_path):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    open_page(browser, runs, tmp_path)
    head = browser.find_element(By.XPATH, "//th[button='connectivity']")
    head.find_element(By.TAG_NAME, "button").send_keys(Keys.ENTER)
    assert head.get_attribute("aria-sort") == "descending"
    by_share = sorted(find([runs]), key=lambda run: -run.last["connectivity"])
    assert first_column(browser) == [run.name for run in by_share]
    head.find_element(By.TAG_NAME, "button").send_keys(Keys.SPACE)
    assert head.get_attribute("aria-sort") == "ascending"
    assert first_column(browser) == [run.name for run in reversed(by_share)]
    field = browser.find_element(By.ID, "filter")
    field.send_keys("GRADR-")
    assert sorted(first_column(browser)) == ["gradr-a", "gradr-b"]
    assert browser.find_element(By.ID, "count").text == "2 of 4 runs"


def test_the_theme_switches_and_data_can_be_saved(browser, runs, tmp_path):
    from selenium.webdriver.common.by import By

    open_page(browser, runs, tmp_path)
    ink = "return getComputedStyle(document.body).color"
    before = browser.execute_script(ink)
    browser.find_element(By.ID, "theme").click()
    assert browser.execute_script(ink) != before
    saved = tmp_path / "saved"
    behave = {"behavior": "allow", "downloadPath": str(saved)}
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", behave)
    for kind in ("csv", "json"):
        button = browser.find_element(By.CSS_SELECTOR, f"[data-figure=frontier][data-kind={kind}]")
        browser.execute_script("arguments[0].click()", button)
    deadline = time.monotonic() + 10
    wanted = [saved / "frontier.csv", saved / "frontier.json"]
    while not all(path.exists() for path in wanted) and time.monotonic() < deadline:
        time.sleep(0.05)
    rows = json.loads(wanted[1].read_text())
    assert sorted(row["run"] for row in rows) == ["deepr", "dense", "gradr-a", "gradr-b"]
    lines = wanted[0].read_text().splitlines()
    assert len(lines) == 5
    assert lines[0].startswith("run,dataset,method")
