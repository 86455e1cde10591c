"""The page of ``tracekit report`` in a real Chromium: ``pytest -m browser`` (needs Debian's ``chromium``, or another by ``CHROMIUM``)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import tracekit
from tests.support.browser import Page, chromium
from tests.support.reported import HOSTILE, hostile, shop
from tracekit import record
from tracekit.cli import main

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    with chromium() as page:
        yield page


@pytest.fixture
def page(browser: Page) -> Iterator[Page]:
    """The page, of which nothing may be asked of the network, and nothing be complained."""
    browser.requested.clear()
    browser.complaints.clear()
    browser.look(1400, 900)
    yield browser
    assert browser.complaints == []
    assert [one for one in browser.requested if not one.startswith("file:")] == []


def written(tmp_path: Path, *runs: str) -> Path:
    path = tmp_path / "report.html"
    done = CliRunner().invoke(main, ["report", *runs, "-o", str(path)])
    assert done.exit_code == 0, done.stderr
    return path


def test_it_shows_the_run_and_goes_by_keys(page: Page, tmp_path: Path) -> None:
    """j and k choose steps, Enter goes to the details, / searches, f leaves what failed, Esc goes back."""
    page.open(written(tmp_path, shop(tmp_path / "store").path))
    assert page.value("document.documentElement.dataset.ready") == "1"
    assert page.text(".count") == "13 of 16 steps"
    assert "Longest" in page.value("document.querySelector('.details').textContent")
    page.press("j", "j", "j", "k")
    assert page.text(".row[aria-selected=true]").split()[0] == "3"
    assert "question 0 on order" in page.text(".details")
    page.press("/", *"courier")
    page.until("document.querySelector('.count').innerText === '2 of 16 steps'")
    page.press("Escape", "f")
    assert page.text(".count") == "0 of 16 steps"
    page.press("Escape")
    assert page.text(".count") == "1 of 16 steps"
    page.press("j")
    assert "ValueError: -1 is no amount" in page.text(".details")
    assert "reported.py:" in page.text(".details")
    assert 'in charge: raise ValueError(f"{cents} is no amount")' in page.text(".details")
    page.press("f", "g", "Enter")
    assert page.value("document.activeElement.className") == "details"
    assert page.text(".row[aria-selected=true]").split()[0] == "2"
    assert page.value("document.querySelectorAll('.row').length") == 13


def test_the_time_line_begins_where_something_happens(page: Page, tmp_path: Path) -> None:
    """A run that waits for most of its time, and then works, is shown from its first step on; t shows all of it."""
    with record("late", store=tmp_path / "store") as run:
        began = time.monotonic()
        tracekit.traced_tool(side_effect="read_only", name="first")(lambda: None)()
        worked = time.monotonic() - began
        while time.monotonic() - began < 5 * worked:
            pass
    page.open(written(tmp_path, run.path))
    assert page.value("document.querySelector('.reset').hidden") is False
    page.press("t")
    assert page.value("document.querySelector('.reset').hidden") is True


def test_a_prompt_shows_what_changed_and_all_of_it(page: Page, tmp_path: Path) -> None:
    """The system prompt that was changed as a difference by lines; unchanged messages are folded, and are there when they are asked for."""
    page.open(written(tmp_path, shop(tmp_path / "store").path))
    page.press("j", "j", "j", "j")
    assert "1 changed" in page.text(".details h3 small")
    assert page.text(".message.tilde del") == "- You are kind."
    assert page.text(".message.tilde ins") == "+ You are precise."
    before = page.value("document.querySelectorAll('.message').length")
    page.click(".details h3 button")
    assert page.value("document.querySelectorAll('.message').length") > before
    page.click(".details h3 button")
    page.click(".fold")
    assert "question 0" in page.text(".details")


def test_hostile_texts_are_shown_and_do_nothing(page: Page, tmp_path: Path) -> None:
    """Every step of a run that has markup, scripts and control characters in every place is looked at: no script of theirs runs."""
    page.open(written(tmp_path, hostile(tmp_path / "store").path))
    page.press("a")
    steps = int(page.value("document.querySelectorAll('.row').length"))
    assert steps > 20
    for _ in range(80):
        page.press("j")
        assert page.value("document.querySelectorAll('main script, main img, main iframe, main style').length") == 0
    assert HOSTILE[0] in page.value("document.title")
    assert page.value("document.title") != "owned"
    page.press("g", "j")
    assert "</script>" in page.text(".details")
    assert "\u202e" not in page.value("document.querySelector('main').textContent")
    assert page.value("Object.prototype.hasOwnProperty.call(Object.prototype, 'owned')") is False


def test_two_runs_with_their_differences(page: Page, tmp_path: Path) -> None:
    """The differences are shown first; from a step there one comes to the step in its run."""
    store = tmp_path / "store"
    page.open(written(tmp_path, shop(store).path, shop(store, cents=80, turns=5).path))
    assert "1 added, 2 changed" in page.text(".differences")
    assert page.value("document.querySelectorAll('.card').length") == 3
    page.click(".card:last-child h4 a", 1)
    assert page.text(".tabs button[aria-selected=true]").startswith("shop")
    assert "cents: 80" in page.text(".details")


#: The elements whose text stands out by less than 4.5 from what is behind it (WCAG 2, AA).
CONTRAST = """
(() => {
  const light = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).map((one) => one / 255).map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (one) => {
    for (; one; one = one.parentElement) {
      const colour = getComputedStyle(one).backgroundColor;
      if (!/, 0\\)$|transparent/.test(colour)) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const ratio = (one) => {
    const [a, b] = [light(getComputedStyle(one).color), light(behind(one))].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
  };
  const all = document.querySelectorAll("h1, .figures, .badge, .row span, .details pre, .details dt, .details h3, .chip, .key, .num");
  return [...all].filter((one) => one.textContent.trim() && ratio(one) < 4.5).map((one) => `${one.className} ${one.textContent}`);
})()"""


@pytest.mark.parametrize(("width", "dark"), [(1400, False), (1400, True), (390, False), (390, True)])
def test_it_fits_and_can_be_read(page: Page, tmp_path: Path, width: int, dark: bool) -> None:
    """Wide and narrow, light and dark: nothing is wider than the window, and text stands out from what is behind it."""
    page.look(width, 844, dark=dark)
    page.open(written(tmp_path, shop(tmp_path / "store").path))
    page.press("j", "j", "Enter")
    assert page.value("document.documentElement.scrollWidth") <= width
    assert page.value(CONTRAST) == []


def test_it_is_read_in_its_head_without_a_script(page: Page, tmp_path: Path) -> None:
    """Where scripts are off, the head has what happened, and the page says how to see the steps."""
    path = written(tmp_path, shop(tmp_path / "store").path)
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        page.go(path)
        assert "7 model calls" in page.text("header")
        assert "tracekit show" in page.text("main")
    finally:
        page.call("Emulation.setScriptExecutionDisabled", value=False)


def test_a_run_without_a_step(page: Page, tmp_path: Path) -> None:
    """Nothing happened, and the page says so."""
    with record("nothing", store=tmp_path / "store") as run:
        pass
    page.open(written(tmp_path, run.path))
    page.press("j", "k", "Enter", "f", "Escape")
    assert "No step is like that." in page.text(".list")
