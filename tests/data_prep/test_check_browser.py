"""The page of a check in a real browser: Chromium, headless, desktop and phone, light and dark."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from data_prep.bars import Bars
from data_prep.check.folder import check_files
from data_prep.check.report import write_html
from data_prep.readers.folder import list_price_files

from .conftest import yahoo_text

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome on PATH")
SIZES = {"desktop": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(
            executable_path=CHROMIUM, headless=True, args=["--no-sandbox", "--disable-gpu"]
        )
        yield chromium
        chromium.close()


@pytest.fixture
def page_file(tmp_path: Path, make_bars: Callable[..., Bars]) -> Path:
    folder = tmp_path / "us"
    folder.mkdir()
    for number, name in enumerate(("A", "a ticker with a long name in several words", "LONGNAME" * 12)):
        text = yahoo_text(make_bars(number, 400))
        if number:
            text = text.replace(text.splitlines()[200], text.splitlines()[200].replace(",", ",-", 1))
        (folder / f"{name}.csv").write_text(text, encoding="utf-8")
    (folder / "EMPTY.csv").write_text("")
    write_html(tmp_path / "page.html", check_files(list_price_files(folder)), title="Price files: us")
    return tmp_path / "page.html"


def luminance(colour: str) -> float:
    parts = [int(part) / 255.0 for part in re.findall(r"\d+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_the_page_fits_is_readable_and_loads_nothing(browser: Any, page_file: Path, size: str, scheme: str) -> None:
    context = browser.new_context(viewport=SIZES[size], color_scheme=scheme)
    page = context.new_page()
    requests: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(page_file.as_uri(), wait_until="networkidle")
    assert requests == [page_file.as_uri()]
    assert complaints == []
    width = SIZES[size]["width"]
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "only the table scrolls sideways"
    style = "e => { const s = getComputedStyle(e); return [s.color, s.backgroundColor]; }"
    ground = luminance(page.eval_on_selector("body", style)[1])
    assert (ground < 0.05) == (scheme == "dark")
    for selector in ("body", "h2", ".muted", ".bad", ".warn", ".good", "tbody th", "tbody td"):
        ink = luminance(page.eval_on_selector(selector, style)[0])
        contrast = (max(ink, ground) + 0.05) / (min(ink, ground) + 0.05)
        assert contrast >= 4.5, f"{selector}: {contrast:.1f}"
    strokes = page.eval_on_selector_all("td svg path", "all => all.map(e => getComputedStyle(e).stroke)")
    stroke = next(colour for colour in strokes if colour.startswith("rgb"))
    assert abs(luminance(stroke) - ground) > 0.1
    # Far to the right of the table the names are still there, and leave room for the figures.
    page.eval_on_selector(".scroll", "e => { e.scrollLeft = e.scrollWidth; }")
    boxes = page.eval_on_selector_all(
        "tbody th", "all => all.map(e => [e.getBoundingClientRect().left, e.offsetWidth])"
    )
    assert all(0 <= left < 40 + width / 8 for left, _ in boxes)
    if size == "phone":
        assert all(wide < width / 2 for _, wide in boxes)
    assert page.eval_on_selector(".scroll", "e => { e.focus(); return document.activeElement === e; }")
    context.close()
