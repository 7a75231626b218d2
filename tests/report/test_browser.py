"""The page in a real browser."""

import json
import time

import pytest
import torch
from short_runs import HOSTILE, rename_hostile

from spikewire.report import FIGURES, find, write

torch.set_num_threads(1)


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
    open_page(browser, rename_hostile(runs), tmp_path, width)
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


def test_every_column_fits_a_desktop_and_the_name_stays_visible_on_a_phone(browser, runs, tmp_path):
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
    by_connectivity = sorted(find([runs]), key=lambda run: -run.last["connectivity"])
    assert first_column(browser) == [run.name for run in by_connectivity]
    head.find_element(By.TAG_NAME, "button").send_keys(Keys.SPACE)
    assert head.get_attribute("aria-sort") == "ascending"
    assert first_column(browser) == [run.name for run in reversed(by_connectivity)]
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
