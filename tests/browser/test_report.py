"""The report as a person uses it: read, hovered, hidden, by keyboard, on a phone, in print."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("plotly")

from neural_attention.report.results_page import write_report

from ..results import write_result
from .test_viewer import HOSTILE, SCHEMES

LOSSES = {"dot": [3.0, 3.1, 3.2], "neural": [2.9, 3.05, 3.1], "dot+feed_forward=9": [2.95] * 3}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report([write_result(tmp_path_factory.mktemp("comparison"), LOSSES)])[0]


def until(page: Any, expression: str) -> None:
    """Wait; the page's own policy forbids the waiting that Playwright would do inside it."""
    deadline = time.monotonic() + 20
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, expression
        page.wait_for_timeout(50)


def lines_of(page: Any, plot: str) -> int:
    return int(page.evaluate(f"document.getElementById('run0-{plot}').data.length"))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_the_page_reads_well(report, open_page, check_accessibility, size, scheme):
    page = open_page(report, size=size, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    check_accessibility(page)
    paper = page.evaluate("document.getElementById('run0-curves').layout.paper_bgcolor")
    assert paper == ("#ffffff" if scheme == "light" else "#191c20")
    page.locator("summary").click()
    check_accessibility(page)
    assert page.screenshot(full_page=True)


def test_curves_are_hovered_and_drawn_over_steps_tokens_and_seconds(report, open_page):
    page = open_page(report)
    axis = "document.getElementById('run0-curves').layout.xaxis.title.text"
    assert page.evaluate(axis) == "training steps"
    page.locator("#run0-curves").scroll_into_view_if_needed()
    point = page.locator("#run0-curves .scatterlayer .point").last
    box = point.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector("#run0-curves .hoverlayer text")
    assert "validation loss" in page.locator("#run0-curves .hoverlayer").text_content()
    page.select_option("#run0-curves-axis", label="training tokens")
    assert page.evaluate(axis) == "training tokens"
    assert page.evaluate("document.getElementById('run0-curves').data[0].x") == [768, 1536]
    page.select_option("#run0-curves-axis", label="seconds of training")
    assert page.evaluate("document.getElementById('run0-curves').data[0].x") == [0.5, 1.0]
    assert page.evaluate("document.getElementById('run0-curves').layout.yaxis.type") == "linear"
    page.check("#run0-curves-log")
    assert page.evaluate("document.getElementById('run0-curves').layout.yaxis.type") == "log"


def test_an_arm_is_hidden_in_all_plots_by_the_keyboard(report, open_page):
    page = open_page(report)
    assert [lines_of(page, name) for name in ("curves", "sweep", "costs")] == [9, 3, 3]
    box = page.locator("input[data-run='0'][value='1']")
    box.focus()
    page.keyboard.press("Space")
    assert [lines_of(page, name) for name in ("curves", "sweep", "costs")] == [6, 2, 2]
    page.keyboard.press("Space")
    assert lines_of(page, "curves") == 9


def test_a_plot_is_zoomed(report, open_page):
    page = open_page(report)
    page.locator("#run0-curves").scroll_into_view_if_needed()
    box = page.locator("#run0-curves .nsewdrag").first.bounding_box()
    page.mouse.move(box["x"] + 100, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 400, box["y"] + 200, steps=5)
    page.mouse.up()
    until(page, "document.getElementById('run0-curves').layout.xaxis.autorange === false")
    zoomed = page.evaluate("document.getElementById('run0-curves').layout.xaxis.range")
    assert 0 < zoomed[1] - zoomed[0] < 6
    # It stays when an arm is hidden, and goes with another axis.
    page.uncheck("input[data-run='0'][value='1']")
    assert lines_of(page, "curves") == 6
    assert page.evaluate("document.getElementById('run0-curves').layout.xaxis.range") == zoomed
    page.select_option("#run0-curves-axis", label="training tokens")
    until(page, "document.getElementById('run0-curves').layout.xaxis.range[1] > 700")


@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_a_plot_is_zoomed_by_the_keyboard_and_on_a_phone(report, open_page, size):
    page = open_page(report, size=size)
    shown = "document.getElementById('run0-curves').layout.xaxis.range"
    width = f"(([first, last]) => last - first)({shown})"
    before = page.evaluate(width)
    page.locator("#run0-curves").get_by_role("button", name="Zoom in").focus()
    page.keyboard.press("Enter")
    until(page, f"{width} < {before}")


def test_no_button_sends_anything_anywhere(report, open_page):
    page = open_page(report)
    names = page.locator(".modebar-btn").evaluate_all("all => all.map((one) => one.ariaLabel)")
    assert "Zoom in" in names
    assert not [name for name in names if "share" in name.lower() or "cloud" in name.lower()]


def test_the_scheme_may_change_while_the_page_is_open(report, open_page):
    page = open_page(report, color_scheme="light")
    colour = "document.getElementById('run0-curves').data[0].line.color"
    light = page.evaluate(colour)
    page.emulate_media(color_scheme="dark")
    until(page, f"{colour} !== '{light}'")


def test_the_command_is_copied(report, open_page):
    page = open_page(report, permissions=["clipboard-read", "clipboard-write"])
    button = page.get_by_role("button", name="Copy the command")
    button.click()
    until(page, "/Copied|Selected/.test(document.querySelector('.again button').textContent)")


def test_it_prints_whole_and_light(report, open_page, tmp_path):
    page = open_page(report, color_scheme="dark")
    assert page.pdf(path=tmp_path / "report.pdf").startswith(b"%PDF")
    # As the browser does it: the event, then paper, here of A5.
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print", color_scheme="dark")
    page.set_viewport_size({"width": 520, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    fits = "(one) => one.scrollWidth <= one.clientWidth && one.getBoundingClientRect().right <= 520"
    assert all(page.evaluate(f"[...document.querySelectorAll('.wide, .plot svg')].map({fits})"))
    assert page.evaluate("document.getElementById('run0-curves').layout.paper_bgcolor") == "#fff"
    ink = "getComputedStyle(document.querySelector('pre')).color"
    assert page.evaluate(ink) == "rgb(0, 0, 0)"
    assert page.locator(".arms .swatch").first.is_visible()
    assert not page.locator(".arms input").first.is_visible()
    assert page.locator("dt").first.is_visible()  # folded on screens
    page.emulate_media(media="screen", color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    paper = "document.getElementById('run0-curves').layout.paper_bgcolor"
    until(page, f"{paper} === '#191c20'")
    assert not page.locator("details").get_attribute("open")
    width = "document.querySelector('#run0-curves .main-svg').clientWidth"
    until(page, f"{width} === document.getElementById('run0-curves').offsetWidth")


def test_hostile_names_neither_break_nor_script_the_page(open_page, check_accessibility, tmp_path):
    names = [name.replace("\ud800", "\\ud800") for name in HOSTILE]
    folder = write_result(
        tmp_path / "comparison",
        {name: [3.0 + index / 10, 3.1] for index, name in enumerate(names)},
        notes=names,
        failures=[{"run": name, "why": name} for name in names],
        command=" ".join(names),
        preset_name=names[0],
    )
    page = open_page(write_report([folder])[0], size="phone")
    assert page.evaluate("window.struck") is None
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    rows = page.locator("tbody th").all_text_contents()
    assert rows[0].startswith("<script>window.struck=1</script>")
    assert any("x" * 400 in row for row in rows)
    assert not page.locator("svg image, .plot a").count()
    check_accessibility(page)
