"""The page in a real browser: Chromium, headless, desktop and phone, light and dark."""

import itertools
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from server_app.report.page import write_report

from .conftest import HEAD, WriteRun, epoch, summary

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome on PATH")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
DESKTOP = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        yield chromium
        chromium.close()


class Opened:
    """A page with all it asked for and complained about."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(path.as_uri(), wait_until="networkidle")

    def __enter__(self) -> "Opened":
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()


def words(text: str) -> str:
    return " ".join(text.replace("\u202f", " ").split())


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page(write_run: WriteRun, browser: Any, viewport: dict[str, int], scheme: str) -> None:
    path = write_report(write_run())
    with Opened(browser, path, viewport=viewport, color_scheme=scheme) as opened:
        page = opened.page
        assert opened.requests == [path.as_uri()]
        assert opened.complaints == []
        assert words(page.locator("h1").inner_text()) == (
            "The model beats the zero forecast on the test split: its mean squared error is 4.21 % lower."
        )
        assert page.locator(".card", has_text="Epsilon").locator(".value").inner_text() == "0.944"
        assert "validation split not protected" in page.locator("#metrics-table").inner_text()
        assert "validation split not protected" in page.locator("#privacy").inner_text()
        assert page.locator("#rounds-table tbody tr").count() == 16
        assert page.locator("#rounds-table tr.failed").count() == 1
        assert page.locator("#metrics-table tbody tr.ours").count() == 2
        assert page.locator("#configuration-table tbody tr").count() == 14
        assert HEAD in page.locator("#provenance").inner_text()

        figures = page.locator("figure svg[role=img]")
        assert figures.count() == 6
        for index in range(6):
            figure = figures.nth(index)
            assert figure.is_visible()
            assert figure.get_attribute("aria-label")
            box = figure.bounding_box()
            assert box["width"] > 250
            assert box["height"] > 120
            assert 0 <= box["x"] <= box["x"] + box["width"] <= viewport["width"]

        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= viewport["width"]


def test_drawn_colours_follow_the_scheme_and_stand_out(write_run: WriteRun, browser: Any) -> None:
    path = write_report(write_run())
    script = """() => {
      const rgb = text => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
      const light = c => { const [r, g, b] = rgb(c).map(v => { v /= 255;
        return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
      const contrast = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p);
        return (x + 0.05) / (y + 0.05); };
      const ground = getComputedStyle(document.body).backgroundColor;
      return [...document.querySelectorAll('figure svg text')].map(
        node => contrast(getComputedStyle(node).fill, ground));
    }"""
    for scheme in ("light", "dark"):
        with Opened(browser, path, viewport=DESKTOP, color_scheme=scheme) as opened:
            contrasts = opened.page.evaluate(script)
            assert len(contrasts) > 40
            assert min(contrasts) >= 4.5


def test_structure_for_assistive_technology(write_run: WriteRun, browser: Any) -> None:
    with Opened(browser, write_report(write_run()), viewport=DESKTOP) as opened:
        page = opened.page
        assert page.locator("html").get_attribute("lang") == "en"
        levels = page.locator("h1, h2, h3, h4").evaluate_all("all => all.map(h => Number(h.tagName[1]))")
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
        tables = page.locator("table")
        assert tables.count() == 3
        for index in range(3):
            table = tables.nth(index)
            assert table.locator("caption").inner_text().strip()
            assert table.locator("th:not([scope])").count() == 0
        assert page.locator("main").count() == 1

        page.keyboard.press("Tab")
        skip = page.locator(".skip")
        assert skip.evaluate("node => node === document.activeElement")
        assert skip.bounding_box()["x"] >= 0
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"
        reached = set()
        for _ in range(12):
            page.keyboard.press("Tab")
            reached.add(page.evaluate("document.activeElement.getAttribute('aria-labelledby')"))
        assert {"metrics-caption", "rounds-caption"} <= reached
        for link in page.locator(".contents a").evaluate_all("all => all.map(a => a.getAttribute('href'))"):
            assert page.locator(link).count() == 1


def test_print(write_run: WriteRun, browser: Any) -> None:
    with Opened(browser, write_report(write_run()), viewport=DESKTOP, color_scheme="dark") as opened:
        pdf = opened.page.pdf(prefer_css_page_size=True)
        pages = len(re.findall(rb"/Type\s*/Page\b", pdf))
        assert 2 <= pages <= 4
        opened.page.emulate_media(media="print")
        opened.page.set_viewport_size({"width": 695, "height": 1000})  # the printable width of A4
        for table in ("#rounds-table", "#metrics-table"):
            box = opened.page.locator(table).bounding_box()
            assert box["x"] + box["width"] <= 695
        ink = opened.page.locator("h1").evaluate("node => getComputedStyle(node).color")
        assert max(map(int, re.findall(r"\d+", ink)[:3])) < 80


def test_hostile_strings_do_nothing(write_run: WriteRun, browser: Any) -> None:
    hostile = "<script>document.title = 'owned'</script><img src='http://127.0.0.1:9/x.png' onerror='alert(1)'>"
    long = "x" * 300
    directory = write_run(
        config_={"config": {hostile: hostile, long: long}, "hash": "ab" * 32},
        summary_=summary(message=hostile, outcome=long, seeded=True),
    )
    path = write_report(directory)
    with Opened(browser, path, viewport=PHONE) as opened:
        assert opened.requests == [path.as_uri()]
        assert opened.complaints == []
        assert opened.page.title().startswith("FCFL run")
        assert opened.page.locator("#message").inner_text() == hostile
        warning = opened.page.locator(".warning")
        assert warning.is_visible()
        assert "not private: seeded" in warning.inner_text()
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


@pytest.mark.parametrize("rows", [[], [epoch(0, 0, "empty"), epoch(1, 0, "abandoned")]], ids=["none", "failed"])
def test_a_run_without_a_completed_round(write_run: WriteRun, browser: Any, rows: list[dict[str, Any]]) -> None:
    path = write_report(write_run(history_=rows, summary_=summary(evaluation=None, rounds=0, outcome="failed")))
    with Opened(browser, path, viewport=PHONE) as opened:
        assert opened.complaints == []
        assert opened.page.locator("h1").inner_text().startswith("Nothing was learned")
        assert opened.page.locator("figure svg").count() == (3 if rows else 0)
        assert opened.page.locator("#rounds-table tbody tr").count() == len(rows)
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
