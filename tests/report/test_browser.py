"""The page in a real browser."""

import base64
import json
import re
import time
import xml.etree.ElementTree as ElementTree

import pytest
import torch
from short_runs import HOSTILE

from spikewire.report import FIGURES, find, write

torch.set_num_threads(1)

SHOWN_MARKS = """return [...document.querySelectorAll('#frontier .version:not([hidden]) .mark')]
    .filter(m => m.getAttribute('display') !== 'none').map(m => m.dataset.text ?? '')"""


def open_page(browser, path, width=1280):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(path.as_uri())
    browser.execute_script("sessionStorage.clear()")
    browser.get_log("performance")
    browser.get_log("browser")
    browser.refresh()


def find_all(browser, selector):
    return browser.find_elements("css selector", selector)


def click(browser, selector):
    browser.execute_script("arguments[0].click()", find_all(browser, selector)[0])


def scroll_to(browser, element):
    """Scroll to an element and wait until the page has seen it: that hides the tip of a mark."""
    browser.execute_async_script(
        """const [element, done] = arguments; element.scrollIntoView({block: 'center'});
        requestAnimationFrame(() => requestAnimationFrame(() => done()))""",
        element,
    )


def shown_runs(browser):
    script = "return [...document.querySelectorAll('#runs tbody tr')].filter(r => !r.hidden)"
    return browser.execute_script(script + ".map(r => r.cells[0].textContent)")


def type_filter(browser, text):
    field = browser.find_element("id", "filter")
    field.clear()
    field.send_keys(text)


def saved(browser, folder, names, press):
    """Return the files that the page saves when `press` is called."""
    behave = {"behavior": "allow", "downloadPath": str(folder)}
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", behave)
    press()
    deadline = time.monotonic() + 20
    while not all((folder / name).exists() for name in names) and time.monotonic() < deadline:
        time.sleep(0.05)
    return [(folder / name).read_bytes() for name in names]


@pytest.mark.parametrize("width", [360, 1280])
def test_the_page_loads_without_errors_or_requests(browser, hostile_page, width):
    open_page(browser, hostile_page, width)
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
        """return [...document.querySelectorAll('figure svg')].map(s => s.getBoundingClientRect())
        .filter(box => box.width)"""
    )
    assert len(sizes) == len(FIGURES) - 1  # no convolutions
    assert all(box["width"] > 0.7 * min(width, 500) and box["height"] > 100 for box in sizes)
    assert sorted(shown_runs(browser)) == sorted(HOSTILE)


def test_a_desktop_shows_every_column_and_a_phone_accuracy_and_connectivity(browser, seeds_page):
    open_page(browser, seeds_page)
    hidden = """return ['means', 'runs'].map(key => { click(key);
    const e = document.getElementById(key + '-panel'); return e.scrollWidth - e.clientWidth });
    function click(key) { document.querySelector(`[data-tab=${key}]`).click() }"""
    assert max(browser.execute_script(hidden)) <= 0
    open_page(browser, seeds_page, 360)
    assert min(browser.execute_script(hidden)) > 0
    ends = """return ['accuracy', 'connectivity'].map(name => {
    const heads = [...document.querySelectorAll('#KEY th')];
    const column = heads.findIndex(head => head.textContent === name);
    return document.querySelector('#KEY tbody tr').cells[column].getBoundingClientRect().right })"""
    for key in ("means", "runs"):
        click(browser, f"[data-tab={key}]")
        assert max(browser.execute_script(ends.replace("KEY", key))) <= 360, key
    script = """const box = document.getElementById('runs-panel'); box.scrollLeft = 400;
    const cell = document.querySelector('#runs tbody td').getBoundingClientRect();
    return cell.left - box.getBoundingClientRect().left"""
    assert 0 <= browser.execute_script(script) < 5


def test_the_table_sorts_and_filters_by_keyboard(browser, seeds_page):
    from selenium.webdriver.common.keys import Keys

    open_page(browser, seeds_page)
    click(browser, "[data-tab=runs]")
    head = browser.find_element("xpath", "//table[@id='runs']//th[button='connectivity']")
    head.find_element("tag name", "button").send_keys(Keys.ENTER)
    assert head.get_attribute("aria-sort") == "descending"
    found = {run.name: run.last["connectivity"] for run in find([seeds_page.parent / "runs"])}
    assert [found[name] for name in shown_runs(browser)] == sorted(found.values(), reverse=True)
    head.find_element("tag name", "button").send_keys(Keys.SPACE)
    assert head.get_attribute("aria-sort") == "ascending"
    assert [found[name] for name in shown_runs(browser)] == sorted(found.values())
    type_filter(browser, "GRADR- α seed=0")
    assert sorted(shown_runs(browser)) == ["gradr-a", "gradr-b"]
    assert browser.find_element("id", "count").text == "2 of 5 runs"


def test_the_filter_acts_on_figures_and_means_too(browser, seeds_page):
    open_page(browser, seeds_page)
    before = browser.execute_script(SHOWN_MARKS)
    assert {"gradr", "deepr"} <= set(before)
    type_filter(browser, "method=deepr")
    assert shown_runs(browser) == ["deepr"]
    marks = browser.execute_script(SHOWN_MARKS)
    assert len(marks) < len(before)
    assert any(text.startswith("deepr 30%") for text in marks)
    assert not any(text.startswith("gradr") for text in marks)
    script = "return [...document.querySelectorAll('#means tbody tr')].filter(r => !r.hidden)"
    assert browser.execute_script(script + ".map(r => r.cells[0].textContent)") == ["deepr"]
    type_filter(browser, "seed=1")
    assert shown_runs(browser) == ["gradr-a-seed1"]
    marks = browser.execute_script(SHOWN_MARKS)
    assert any("seeds 0, 1" in text for text in marks)  # the mean stays
    assert "gradr" not in marks  # the line to gradr-b, which is hidden, does not


def test_pointing_at_a_mark_shows_run_seed_and_values(browser, seeds_page):
    from selenium.webdriver.common.action_chains import ActionChains

    open_page(browser, seeds_page)
    mark = next(
        mark
        for mark in find_all(browser, "#frontier .version:not([hidden]) .mark")
        if (mark.get_attribute("data-text") or "").startswith("deepr 30%")
    )
    scroll_to(browser, mark)
    use = mark.find_element("css selector", "use")
    ActionChains(browser).move_to_element(use).perform()
    tip = browser.find_element("id", "tip")
    assert tip.is_displayed()
    assert re.fullmatch(
        r"deepr 30% · deepr, seed 0\naccuracy [\d.]+% · connectivity 30.00%", tip.text
    )
    hot = browser.execute_script(
        "return [...document.querySelectorAll('#runs tr.hot')].map(r => r.cells[0].textContent)"
    )
    assert hot == ["deepr"]
    type_filter(browser, "deepr")  # the table above shrinks, and the figure moves
    assert not tip.is_displayed()
    ActionChains(browser).move_to_element(browser.find_element("tag name", "h1")).perform()
    assert not tip.is_displayed()


def test_axis_run_theme_filter_and_tab_survive_a_reload(browser, seeds_page):
    open_page(browser, seeds_page)
    ink = "return getComputedStyle(document.body).color"
    before = browser.execute_script(ink)
    browser.find_element("id", "theme").click()
    dark = browser.execute_script(ink)
    assert dark != before
    click(browser, "[data-tab=runs]")
    click(browser, "#frontier [data-choose=SynOps]")
    type_filter(browser, "gradr")
    options = find_all(browser, "#chosen option")
    browser.execute_script(
        """const s = document.getElementById('chosen'); s.value = arguments[0];
        s.dispatchEvent(new Event('change'))""",
        options[-1].get_attribute("value"),
    )
    for _ in range(2):  # before and after
        assert browser.execute_script(ink) == dark
        assert not find_all(browser, "#means-panel")[0].is_displayed()
        titles = [title.text for title in find_all(browser, "#frontier h3") if title.text]
        assert titles == ["Accuracy against SynOps"]
        assert len(shown_runs(browser)) == 3
        shown = [part for part in find_all(browser, ".inside") if part.is_displayed()]
        assert [part.get_attribute("data-run") for part in shown] == [options[-1].text]
        chosen = options[-1].text
        browser.refresh()
        options = find_all(browser, "#chosen option")
        assert options[-1].text == chosen


def test_theme_and_filter_survive_an_update_of_a_watched_page(browser, trained, tmp_path):
    path = tmp_path / "live.html"
    write([trained / "dense"], path, refresh=3)
    open_page(browser, path)
    ink = "return getComputedStyle(document.body).color"
    before = browser.execute_script(ink)
    for _ in range(6):  # on a busy machine the browser loses what was chosen right before an update
        if browser.execute_script("return document.documentElement.dataset.theme") != "dark":
            browser.find_element("id", "theme").click()
        type_filter(browser, "nothing")
        wait_for_update(browser)
        field = browser.find_element("id", "filter").get_property("value")
        after, count = browser.execute_script(ink), browser.find_element("id", "count").text
        if after != before and field == "nothing":
            break
    assert after != before
    assert field == "nothing"
    assert count == "0 of 1 runs"


def wait_for_update(browser):
    """Wait until the page was replaced by its next version, and the scripts of that have run."""
    browser.execute_script("window.old = true")
    replaced = "return !window.old && document.readyState === 'complete'"
    deadline = time.monotonic() + 20
    while not browser.execute_script(replaced):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_figures_and_tables_can_be_saved(browser, seeds_page, tmp_path):
    open_page(browser, seeds_page)

    def press():
        for kind in ("csv", "json", "svg", "png"):
            click(browser, f"#frontier [data-kind={kind}]")
        click(browser, "#table-csv")
        click(browser, "[data-tab=runs]")
        click(browser, "#table-csv")

    names = [f"frontier.{kind}" for kind in ("csv", "json", "svg", "png")]
    names += ["means.csv", "runs.csv"]
    lines, rows, svg, png, means, runs = saved(browser, tmp_path, names, press)
    rows = json.loads(rows)
    assert sorted(row["run"] for row in rows) == [
        "deepr", "dense", "gradr-a", "gradr-a-seed1", "gradr-b",
    ]  # fmt: skip
    assert {"connectivity", "synapses", "synops", "bytes"} <= rows[0].keys()
    assert lines.decode().splitlines()[0].startswith("run,dataset,method,setting,seed")
    assert len(lines.decode().splitlines()) == 6
    root = ElementTree.fromstring(svg)
    texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}title")]
    assert any("deepr 30%" in text for text in texts)
    assert b"var(" not in svg
    assert png.startswith(b"\x89PNG")
    assert int.from_bytes(png[16:20]) > 1000  # pixels wide
    table = [line.split(",") for line in means.decode().splitlines()]
    assert table[0][:6] == ["method", "setting", "accuracy", "std", "connectivity", "n"]
    gradr = next(row for row in table if row[1] == "α = 0.5")
    assert (float(gradr[3]) > 0, gradr[5]) == (True, "2")
    assert len(runs.decode().splitlines()) == 6


def test_the_pdf_is_one_page_of_the_size_of_the_figure(browser, seeds_page):
    open_page(browser, seeds_page)
    browser.execute_script("window.print = () => { window.printed = true }")
    click(browser, "#frontier [data-kind=pdf]")
    assert browser.execute_script("return window.printed")
    made = browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})
    pdf = base64.b64decode(made["data"])
    boxes = re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", pdf)
    assert len(boxes) == 1
    box = find_all(browser, "#frontier .version:not([hidden]) svg")[0].get_dom_attribute("viewBox")
    assert [float(x) for x in boxes[0]] == pytest.approx([float(x) for x in box.split()[2:]], abs=2)
    browser.execute_script("dispatchEvent(new Event('afterprint'))")
    assert find_all(browser, "#sheet") == []
