"""The answers the sources give instead of a file: each has a name, an exit code and a way on, and is never stored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from data_prep.fetch.errors import (
    FetchError,
    LimitReachedError,
    NothingThereError,
    SourceRefusesError,
    UnexpectedAnswerError,
    UnreachableError,
)
from data_prep.fetch.sources import Target, fred_targets, french_targets, stooq_archive, stooq_targets
from data_prep.fetch.store import Outcome, Status
from tests.data_prep.fetch.site import FIVE, FIVE_ZIP, MOMENTUM, STOOQ_CSV, Reply, Site, fred_csv, text, zipped

Fetch = Callable[..., list[Outcome]]
AAPL = "/q/d/l/?s=aapl.us&i=d"
HTML = "<!DOCTYPE html><html><head><title>Stooq</title></head><body>%s</body></html>"
BROWSER = HTML % (
    "<noscript>This site requires JavaScript to verify your browser. Please enable JavaScript and reload.</noscript>"
    '<script>fetch("/__verify",{method:"POST"})</script>'
)
MONTHLY = STOOQ_CSV[:32] + "".join(f"2024-{month:02d}-28,1,1,1,1,1\n" for month in range(1, 9))
NOT_FOUND = HTML % "The page you requested does not exist or has been moved"
KEY_WANTED = "Get your apikey:\n1. Open https://stooq.com/q/d/?s=aapl.us&get_apikey\n2. Enter the captcha code.\n"


def answer(site: Site, fetch: Fetch, tmp_path: Path, target: Target, path: str, reply: Reply) -> FetchError:
    """Fetch a file for which only a bad answer is given; nothing may be left of it."""
    site.give(path, reply)
    (outcome,) = fetch([target], attempts=2)
    assert outcome.status is Status.FAILED
    assert outcome.fault is not None
    assert [entry.name for entry in (tmp_path / "out").iterdir()] == [".fetch.lock"]
    assert "\n" not in str(outcome.fault)
    assert "; " in str(outcome.fault), "says what to do next"
    return outcome.fault


@pytest.mark.parametrize(
    ("body", "kind", "told"),
    [
        ("Exceeded the daily hits limit", LimitReachedError, "tomorrow"),
        ("Przekroczony dzienny limit wywolan", LimitReachedError, "tomorrow"),
        (KEY_WANTED, SourceRefusesError, "FCFL_STOOQ_APIKEY"),
        ("Write to www@stooq.com if you want to use our data", SourceRefusesError, "write to them"),
        ("uzyj apikey, kontakt: www@stooq.pl", SourceRefusesError, "write to them"),
        (BROWSER, SourceRefusesError, "--archive"),
        (HTML % "captcha", SourceRefusesError, "--archive"),
        ("Access denied", SourceRefusesError, "--archive"),
        ("No data", NothingThereError, "check the symbol"),
        ("Brak danych", NothingThereError, "check the symbol"),
        ("", UnexpectedAnswerError, "the answer is empty"),
        (" \r\n", UnexpectedAnswerError, "the answer is empty"),
        (HTML % "Quotes", UnexpectedAnswerError, "a web page"),
        (
            "Symbol,Date,Time\naapl.us,2024-01-02,10\n",
            UnexpectedAnswerError,
            "found 'Symbol,Date,Time', expected a CSV",
        ),
        ("Date,Open,High,Low,Close,Volume\n", UnexpectedAnswerError, "aapl.us.csv, line 2: no rows"),
        (STOOQ_CSV + "2024-01-10,1,x,1,1,1\n", UnexpectedAnswerError, "aapl.us.csv, line 8, column High: found 'x'"),
        (STOOQ_CSV + "2024-01-1", UnexpectedAnswerError, "aapl.us.csv, line 8"),
        (MONTHLY, UnexpectedAnswerError, "the rows are not daily"),
    ],
)
def test_what_stooq_says_with_status_200_is_named(
    site: Site, fetch: Fetch, tmp_path: Path, body: str, kind: type[FetchError], told: str
) -> None:
    target = stooq_targets(["aapl.us"], base_url=site.url)[0]
    fault = answer(site, fetch, tmp_path, target, AAPL, text(body))
    assert type(fault) is kind
    assert told in str(fault)


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (404, NOT_FOUND, SourceRefusesError),
        (404, "No data", NothingThereError),
        (404, "", SourceRefusesError),
        (401, "Unauthorized", SourceRefusesError),
        (403, "", SourceRefusesError),
        (429, "", LimitReachedError),
        (400, "", UnexpectedAnswerError),
        (204, "", UnexpectedAnswerError),
        (503, "", UnreachableError),
        (500, "Exceeded the daily hits limit", LimitReachedError),
    ],
)
def test_a_status_of_stooq_is_named(
    site: Site, fetch: Fetch, tmp_path: Path, status: int, body: str, kind: type[FetchError]
) -> None:
    target = stooq_targets(["aapl.us"], base_url=site.url)[0]
    assert type(answer(site, fetch, tmp_path, target, AAPL, text(body, status=status))) is kind


@pytest.mark.parametrize("body", ["Unauthorized", HTML % "captcha", BROWSER])
def test_the_refusal_of_a_market_archive_names_the_way_by_hand(
    site: Site, fetch: Fetch, tmp_path: Path, body: str
) -> None:
    fault = answer(site, fetch, tmp_path, stooq_archive("us", base_url=site.url), "/db/d/?b=d_us_txt", text(body))
    assert type(fault) is SourceRefusesError
    assert "'fcfl data fetch stooq --archive FILE'" in str(fault)


@pytest.mark.parametrize(
    ("reply", "kind", "told"),
    [
        (text(HTML % "Access Denied", status=403), SourceRefusesError, "put it there under the name FEDFUNDS.csv"),
        (text(HTML % "Error", status=404), NothingThereError, "look at http"),
        (text(HTML % "Sign in"), UnexpectedAnswerError, "a web page"),
        (text(fred_csv("UNRATE")), UnexpectedAnswerError, "found 'observation_date,UNRATE', expected"),
        (text("observation_date,FEDFUNDS\n"), UnexpectedAnswerError, "no value of FEDFUNDS"),
        (text("DATE,FEDFUNDS\n2024-01-01,5\n2024-01-15,6\n"), UnexpectedAnswerError, "FEDFUNDS.csv, line 3"),
        (Reply(b"DATE,FEDFUNDS\n2024-01-01,5\xff\n"), UnexpectedAnswerError, "FEDFUNDS.csv, line 2"),
        (Reply(b"DATE,FEDFUNDS\n2024-01-01,5\0\n"), UnexpectedAnswerError, "FEDFUNDS.csv, line 2"),
    ],
)
def test_a_bad_answer_of_fred_is_named(
    site: Site, fetch: Fetch, tmp_path: Path, reply: Reply, kind: type[FetchError], told: str
) -> None:
    target = fred_targets(base_url=site.url)[0]
    fault = answer(site, fetch, tmp_path, target, "/graph/fredgraph.csv?id=FEDFUNDS", reply)
    assert type(fault) is kind
    assert told in str(fault)


def flipped(archive: bytes, at: int) -> bytes:
    return archive[:at] + bytes([archive[at] ^ 0x5A]) + archive[at + 1 :]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (FIVE_ZIP[:-40], "not a whole zip archive"),
        (FIVE_ZIP[: len(FIVE_ZIP) // 2], "not a whole zip archive"),
        (flipped(FIVE_ZIP, 90), "not a whole zip archive"),
        (flipped(FIVE_ZIP, FIVE_ZIP.rindex(b"PK\x01\x02") + 16), "Bad CRC-32"),
        (zipped(**{"a.CSV": MOMENTUM}), "no column 'Mkt-RF'"),
        (zipped(**{"a.CSV": FIVE, "b.csv": MOMENTUM}), "found 2 CSV files"),
        (zipped(**{"readme.txt": "x"}), "found 0 CSV files"),
        (zipped(**{"../../evil.CSV": FIVE}), "leads out of the archive"),
        (zipped(**{"/etc/evil.CSV": FIVE}), "leads out of the archive"),
        (zipped(**{"a.CSV": b"\0" * (70 * 2**20)}), "would unpack to 73400320 bytes"),
        (zipped(**{"a.CSV": "hello"}), "no row of column names"),
        (b"<html><body>moved</body></html>", "a web page"),
        (b"PK\x03\x04", "not a whole zip archive"),
    ],
)
def test_a_bad_archive_of_factors_is_named(site: Site, fetch: Fetch, tmp_path: Path, body: bytes, told: str) -> None:
    target = french_targets(base_url=site.url)[0]
    fault = answer(site, fetch, tmp_path, target, f"/{target.name}", Reply(body))
    assert type(fault) is UnexpectedAnswerError
    assert told in str(fault)


def test_after_a_refusal_the_source_is_left_alone_and_files_that_are_there_are_kept(site: Site, fetch: Fetch) -> None:
    site.give("/q/d/l/?s=b.us&i=d", text(STOOQ_CSV))
    fetch(stooq_targets(["b.us"], base_url=site.url))
    site.give(AAPL, text("Exceeded the daily hits limit"))
    outcomes = fetch(stooq_targets(["aapl.us", "b.us", "c.us", "d.us"], base_url=site.url))
    assert [x.status for x in outcomes] == [Status.FAILED, Status.KEPT, Status.SKIPPED, Status.SKIPPED]
    assert site.paths() == ["/q/d/l/?s=b.us&i=d", AAPL]


def test_three_unexpected_answers_in_a_row_end_the_asking(site: Site, fetch: Fetch) -> None:
    site.default = text(HTML % "Sign in to the network")
    outcomes = fetch(stooq_targets([f"{letter}.us" for letter in "abcde"], base_url=site.url))
    assert [x.status for x in outcomes] == [Status.FAILED] * 3 + [Status.SKIPPED] * 2
    assert len(site.asked) == 3


def test_a_symbol_without_data_does_not_stop_the_others(site: Site, fetch: Fetch) -> None:
    site.give(AAPL, text("No data"))
    site.give("/q/d/l/?s=b.us&i=d", text(STOOQ_CSV))
    outcomes = fetch(stooq_targets(["aapl.us", "b.us"], base_url=site.url))
    assert [outcome.status for outcome in outcomes] == [Status.FAILED, Status.FETCHED]


def test_every_kind_of_fault_has_its_own_exit_code() -> None:
    kinds = [FetchError, *FetchError.__subclasses__()]
    assert sorted(kind.exit_code for kind in kinds) == [2, 3, 4, 5, 6, 7]
