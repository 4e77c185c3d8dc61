"""The curves: deterministic, self-contained, described in words, independent of the caller's matplotlib."""

import re
import xml.etree.ElementTree as ET

import matplotlib as mpl
import pytest

from server_app.report.data import load_run
from server_app.report.figures import charts

from .conftest import WriteRun, epoch, history, metrics, summary


def test_same_run_same_figures_whatever_the_style(write_run: WriteRun) -> None:
    run = load_run(write_run())
    first = charts(run)
    with mpl.rc_context({"font.size": 30, "lines.linewidth": 9, "svg.fonttype": "path", "axes.facecolor": "red"}):
        assert charts(run) == first
        assert mpl.rcParams["font.size"] == 30


def test_all_six_are_drawn(write_run: WriteRun) -> None:
    drawn = charts(load_run(write_run()))
    assert [chart.key for chart in drawn] == ["loss", "epsilon", "sigma", "divergence", "silos", "seconds"]
    for chart in drawn:
        root = ET.fromstring(chart.svg)
        assert root.get("role") == "img"
        assert root.get("aria-label") == chart.alt != ""
        assert "nan" not in chart.svg.lower()
        assert any("round" in (node.text or "") for node in root.iter("{http://www.w3.org/2000/svg}text"))


def test_reference_lines_are_named(write_run: WriteRun) -> None:
    by_key = {chart.key: chart for chart in charts(load_run(write_run()))}
    for word in ("zero forecast", "optimum", "FCFL"):
        assert word in by_key["loss"].svg
    assert "target" in by_key["epsilon"].svg
    assert "1.2650" in by_key["loss"].alt
    rows = [epoch(k, k, validation=metrics(mse_optimal=None)) for k in range(3)]
    loss = charts(load_run(write_run(history_=rows, name="real")))[0]
    assert "optimum" not in loss.svg


def test_no_ids_collide_and_nothing_is_loaded(write_run: WriteRun) -> None:
    text = "".join(chart.svg for chart in charts(load_run(write_run())))
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    links = re.findall(r'href="([^"]+)"', text) + re.findall(r"url\(([^)]+)\)", text)
    assert links
    assert {link.removeprefix("#") for link in links} <= set(ids)
    assert not re.search(r"<(metadata|style|script|!--)", text)
    assert "#0102" not in text


def test_what_has_no_data_is_not_drawn(write_run: WriteRun) -> None:
    rows = [epoch(k, 0, "abandoned") for k in range(3)]
    drawn = charts(load_run(write_run(history_=rows, summary_=summary(evaluation=None))))
    assert [chart.key for chart in drawn if chart.svg] == ["epsilon", "silos", "seconds"]
    assert "Rounds without a completed sum: 0." in drawn[4].alt
    assert not any(chart.svg for chart in charts(load_run(write_run(history_=[], name="empty"))))


def test_a_retried_round_shows_its_completed_attempt(write_run: WriteRun) -> None:
    alt = charts(load_run(write_run()))[4].alt
    assert "without a completed sum" not in alt


@pytest.mark.parametrize("change", [{"epsilon": None}, {"sigma": 0.0, "divergence": 0.0, "seconds": 0.0}])
def test_odd_values_are_drawn(write_run: WriteRun, change: dict[str, object]) -> None:
    rows = [epoch(k, k, **change) for k in range(2)]
    drawn = charts(load_run(write_run(history_=rows)))
    assert all("nan" not in chart.svg.lower() for chart in drawn)


def test_a_diverged_run_gets_a_logarithmic_scale(write_run: WriteRun) -> None:
    rows = history()
    for k, row in enumerate(rows):
        row["validation"] = metrics(1e-4 * 10.0**k)
    loss = charts(load_run(write_run(history_=rows)))[0]
    assert "nan" not in loss.svg.lower()
    assert "10" in loss.svg
