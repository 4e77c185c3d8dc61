"""What the page says, and how it is written."""

import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from server_app.report.console import summary_table
from server_app.report.data import ReportError, load_run
from server_app.report.page import render_report, write_report

from .conftest import HEAD, ZERO, WriteRun, epoch, history, metrics, summary

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)> & \"quotes\" 'n' {{ 7*7 }}"


class _Text(HTMLParser):
    """Visible text, with tags and style left out."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.tags: list[str] = []
        self.skipping = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.skipping += tag == "style"

    def handle_endtag(self, tag: str) -> None:
        self.skipping -= tag == "style"

    def handle_data(self, data: str) -> None:
        if not self.skipping:
            self.parts.append(data)


def read(page: str) -> tuple[str, list[str]]:
    parser = _Text()
    parser.feed(page)
    return " ".join("".join(parser.parts).replace("\u202f", " ").split()), parser.tags


def text_of(directory: Path) -> str:
    return read(render_report(load_run(directory)))[0]


def both(**test: Any) -> dict[str, Any]:
    return {"validation": metrics(**test), "test": metrics(**test)}


def test_the_page_says_what_happened(write_run: WriteRun) -> None:
    said = text_of(write_run())
    for part in (
        "The model beats the zero forecast on the test split: its mean squared error is 4.21 % lower.",
        "it learned 81 % (skill)",
        "All 15 planned rounds were done.",
        "0.944 (target 1.000)",
        "1 × 10⁻⁵",
        "89.2 %",
        "one record replaced by a null record with zero gradient",
        "validation split not protected",
        "Prices and tickers.",
        "the 134 samples that one price may enter have epsilon 812.4 together",
        "Epsilon of the evaluation",
        "0.410 (granted 0.500)",
        "543 210 records",
        "on, threshold 14 of 20 silos",
        HEAD,
        "flwr 1.42.0",
        "server.preconditioner",
        "c0ffee" * 10 + "c0ff",
        "1 of them without a result",
    ):
        assert part in said
    assert "not private" not in said


def test_the_same_run_gives_the_same_bytes(write_run: WriteRun) -> None:
    directory = write_run()
    first = write_report(directory).read_bytes()
    assert write_report(directory).read_bytes() == first


def test_the_report_replaces_the_old_one_and_leaves_nothing_else(write_run: WriteRun) -> None:
    directory = write_run()
    (directory / "report.html").write_text("old")
    assert write_report(directory) == directory / "report.html"
    assert (directory / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert sorted(path.name for path in directory.iterdir()) == [
        "config.json",
        "history.jsonl",
        "report.html",
        "summary.json",
    ]


def test_a_failed_write_keeps_the_old_report(write_run: WriteRun, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = write_run()
    (directory / "report.html").write_text("old")

    def full(_: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_report(directory)
    assert (directory / "report.html").read_text() == "old"
    assert not list(directory.glob(".report*"))


def test_a_broken_run_directory_keeps_the_old_report(write_run: WriteRun) -> None:
    directory = write_run(summary_=None)
    (directory / "report.html").write_text("old")
    with pytest.raises(ReportError, match=r"summary\.json"):
        write_report(directory)
    assert (directory / "report.html").read_text() == "old"


def test_a_losing_model_is_called_a_losing_model(write_run: WriteRun) -> None:
    said = text_of(write_run(summary_=summary(evaluation=both(mse=ZERO * 1.032, mse_optimal=None))))
    assert (
        "The model loses against the zero forecast on the test split: its mean squared error is 3.20 % higher." in said
    )
    assert "Forecasting no move at all would have been better." in said
    assert "−3.20" in said
    assert "Optimum" not in said
    assert "Skill" not in said


def test_an_equal_model_is_called_equal(write_run: WriteRun) -> None:
    assert "no better than the zero forecast" in text_of(write_run(summary_=summary(evaluation=both(mse=ZERO))))


def test_splits_that_disagree_are_both_told(write_run: WriteRun) -> None:
    value = summary(evaluation={"validation": metrics(ZERO * 1.01), "test": metrics(ZERO * 0.99)})
    said = text_of(write_run(summary_=value))
    assert "beats the zero forecast on the test split: its mean squared error is 1.00 % lower" in said
    assert "On the validation split the same model loses against it: 1.00 % higher." in said


def test_a_zero_forecast_without_error_compares_with_nothing(write_run: WriteRun) -> None:
    said = text_of(write_run(summary_=summary(evaluation=both(mse_zero=0.0, mse_optimal=0.0))))
    assert "nothing can be compared" in said


def test_no_completed_round(write_run: WriteRun) -> None:
    rows = [epoch(0, 0, "empty"), epoch(1, 0, "abandoned")]
    said = text_of(write_run(history_=rows, summary_=summary(evaluation=None, rounds=0, outcome="failed")))
    assert "Nothing was learned: no training round completed in 2 attempts." in said
    assert "There is no evaluation" in said
    assert "Not drawn, for want of data: validation loss, noise multiplier, divergence between silos." in said


def test_no_attempt_at_all(write_run: WriteRun) -> None:
    said = text_of(write_run(history_=[], summary_=summary(evaluation=None, rounds=0)))
    assert "Nothing was learned: no round was started." in said


def test_an_evaluation_of_the_starting_point_is_no_learning(write_run: WriteRun) -> None:
    said = text_of(write_run(history_=[epoch(0, 0, "abandoned")], summary_=summary(rounds=0)))
    assert "Nothing was learned" in said
    assert "untrained starting point" in said


def test_without_evaluation_the_validation_point_is_named_as_such(write_run: WriteRun) -> None:
    said = text_of(write_run(summary_=summary(evaluation=None)))
    assert "beats the zero forecast on the validation split" in said
    assert "There was no final evaluation" in said
    assert "Validation MSE" in said
    assert "Test MSE" not in said


def test_never_measured(write_run: WriteRun) -> None:
    rows = history()
    for row in rows:
        row["validation"] = None
    said = text_of(write_run(history_=rows, summary_=summary(evaluation=None)))
    assert "trained for 15 rounds but never evaluated" in said


def test_a_seeded_run_is_not_private(write_run: WriteRun) -> None:
    said = text_of(write_run(summary_=summary(seeded=True)))
    body = said[said.index("Skip to the content") :]
    assert body.index("not private: seeded") < body.index("The model beats")
    assert "which is no guarantee" in said


def test_no_bound_and_no_secure_sum_are_said(write_run: WriteRun) -> None:
    said = text_of(write_run(summary_=summary(epsilon=None, epsilon_target=None, secure_aggregation=False)))
    assert "not private: no bound on epsilon" in said
    assert "no secure aggregation" in said
    assert "∞ (target ∞)" in said


def test_a_protected_validation_split_has_no_label(write_run: WriteRun) -> None:
    said = text_of(write_run(summary_=summary(validation_protected=True)))
    assert "validation split not protected" not in said
    # One noised release covers both splits.
    assert "Validation and test records. Their metrics are noised sums" in said


def test_evaluation_attempts_get_a_purpose_column(write_run: WriteRun) -> None:
    assert "Purpose" not in text_of(write_run())
    rows = [epoch(0, 0), epoch(1, 0, purpose="evaluate"), epoch(2, 1)]
    assert "Purpose" in text_of(write_run(history_=rows, name="evaluated"))


def test_hostile_strings_stay_text(write_run: WriteRun) -> None:
    value = summary(message=HOSTILE, outcome=HOSTILE, software={HOSTILE: HOSTILE, "fcfl": "0.1.0"})
    directory = write_run(config_={"config": {HOSTILE: HOSTILE, "list": [HOSTILE]}, "hash": "00"}, summary_=value)
    page = render_report(load_run(directory))
    said, tags = read(page)
    assert said.count("<script>alert(1)</script>") >= 5
    assert "{{ 7*7 }}" in said
    assert not {"script", "img", "iframe", "object"} & set(tags)


def test_the_page_is_self_contained(write_run: WriteRun) -> None:
    page = render_report(load_run(write_run()))
    assert not re.search(r"""(?:src|href)=["'](?!#|data:,)""", page)
    assert set(re.findall(r"https?://[^\"'\s<]+", page)) == {"http://www.w3.org/2000/svg"}
    assert "url(http" not in page
    assert "@import" not in page
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_a_seeded_run_warns_on_the_console_too(write_run: WriteRun) -> None:
    from rich.console import Console

    console = Console(width=100, record=True, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    directory = write_run(summary_=summary(seeded=True, outcome="[red]budget exhausted[/nonsense]"))
    console.print(summary_table(directory))
    said = console.export_text()
    for part in ("zero forecast", "1.2650", "FCFL", "1.2117", "optimum", "1.1995", "4.21", "56.12"):
        assert part in said
    for part in ("0.944 of 1.000", "1e-05", "15", HEAD, "not private: seeded", "[red]budget exhausted[/nonsense]"):
        assert part in said


def test_the_console_without_evaluation_or_optimum(write_run: WriteRun) -> None:
    from rich.console import Console

    console = Console(width=100, record=True, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    console.print(summary_table(write_run(history_=[], summary_=summary(evaluation=None, rounds=0))))
    said = console.export_text()
    assert "Nothing was learned" in said
    assert "optimum" not in said


def test_a_run_that_measured_its_features_first_has_a_report(write_run: WriteRun) -> None:
    scale = epoch(1, 0, purpose="scale", contributors=None, sigma=None, validation=None, epsilon=0.01)
    page = render_report(load_run(write_run(history_=[scale, *(epoch(k + 1, k, epsilon=0.1) for k in range(1, 4))])))
    assert re.search(r"<td[^>]*>scale</td>", page)
