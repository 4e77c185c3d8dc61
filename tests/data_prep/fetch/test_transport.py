"""Over a real connection: resumed where that is safe, tried again where that may help, polite, and never for ever."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from data_prep.fetch.errors import FetchError, LimitReachedError, UnexpectedAnswerError, UnreachableError
from data_prep.fetch.retry import Policy
from data_prep.fetch.sources import Target, french_targets, stooq_targets
from data_prep.fetch.store import Outcome, Status
from data_prep.fetch.transport import Downloader
from tests.data_prep.fetch.site import FIVE_ZIP, STOOQ_CSV, Reply, Site, factor_csv, text, zipped

Fetch = Callable[..., list[Outcome]]
AAPL = "/q/d/l/?s=aapl.us&i=d"
FIVE_PATH = "/F-F_Research_Data_5_Factors_2x3_daily_CSV.zip"
NEWER_ZIP = zipped(**{"F-F_Research_Data_5_Factors_2x3_daily.CSV": factor_csv("Mkt-RF,SMB,HML,RMW,CMA,RF", 9)})
HALF = len(FIVE_ZIP) // 2


@pytest.fixture
def five(site: Site) -> list[Target]:
    return french_targets(base_url=site.url)[:1]


@pytest.fixture
def aapl(site: Site) -> list[Target]:
    return stooq_targets(["aapl.us"], base_url=site.url)


def archive(tmp_path: Path) -> bytes:
    return (tmp_path / "out" / FIVE_PATH[1:]).read_bytes()


def ranges(site: Site) -> list[str | None]:
    return [headers.get("range") for _, headers in site.asked]


def test_a_cut_answer_is_continued_where_it_ended(site: Site, fetch: Fetch, five: list[Target], tmp_path: Path) -> None:
    site.give(FIVE_PATH, Reply(FIVE_ZIP, etag='"a"', cut=HALF), Reply(FIVE_ZIP, etag='"a"'))
    assert fetch(five)[0].status is Status.FETCHED
    assert ranges(site) == [None, f"bytes={HALF}-"]
    assert site.asked[1][1]["if-range"] == '"a"'
    assert archive(tmp_path) == FIVE_ZIP


def test_what_one_run_left_the_next_run_continues(site: Site, fetch: Fetch, five: list[Target], tmp_path: Path) -> None:
    site.give(FIVE_PATH, Reply(FIVE_ZIP, etag='"a"', cut=HALF), Reply(FIVE_ZIP, etag='"a"'))
    assert type(fetch(five, attempts=1)[0].fault) is UnreachableError
    assert fetch(five)[0].status is Status.FETCHED
    assert ranges(site) == [None, f"bytes={HALF}-"]
    assert archive(tmp_path) == FIVE_ZIP


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"ETag": 'W/"weak"'},
        {"ETag": "unquoted"},
        {"Last-Modified": "Wed, 28 Aug 2024 00:02:00 GMT", "Date": "Wed, 28 Aug 2024 00:02:30 GMT"},
    ],
)
def test_without_a_sure_mark_of_the_version_everything_is_fetched_anew(
    site: Site, fetch: Fetch, five: list[Target], headers: dict[str, str]
) -> None:
    site.give(FIVE_PATH, Reply(FIVE_ZIP, headers=headers, cut=HALF), Reply(FIVE_ZIP, headers=headers))
    assert fetch(five)[0].status is Status.FETCHED
    assert ranges(site) == [None, None]


def test_an_old_modification_date_is_a_sure_mark(site: Site, fetch: Fetch, five: list[Target]) -> None:
    headers = {"Last-Modified": "Wed, 28 Aug 2024 00:02:00 GMT"}
    site.give(FIVE_PATH, Reply(FIVE_ZIP, headers=headers, cut=HALF), Reply(FIVE_ZIP, headers=headers))
    assert fetch(five)[0].status is Status.FETCHED
    assert site.asked[1][1]["if-range"] == headers["Last-Modified"]


def test_a_file_that_changed_between_the_parts_is_fetched_whole(
    site: Site, fetch: Fetch, five: list[Target], tmp_path: Path
) -> None:
    site.give(FIVE_PATH, Reply(FIVE_ZIP, etag='"a"', cut=HALF), Reply(NEWER_ZIP, etag='"b"'))
    assert fetch(five)[0].status is Status.FETCHED
    assert archive(tmp_path) == NEWER_ZIP


@pytest.mark.parametrize(
    ("status", "content_range", "etag"),
    [
        (206, f"bytes {HALF}-{len(FIVE_ZIP) - 1}/{len(FIVE_ZIP)}", '"b"'),
        (206, f"bytes 0-{len(FIVE_ZIP) - 1}/{len(FIVE_ZIP)}", '"a"'),
        (206, f"bytes {HALF}-{len(FIVE_ZIP)}/{len(FIVE_ZIP) + 1}", '"a"'),
        (206, "nonsense", '"a"'),
        (416, f"bytes */{len(FIVE_ZIP) - 1}", '"a"'),
    ],
)
def test_parts_that_do_not_fit_are_never_joined(
    site: Site, fetch: Fetch, five: list[Target], tmp_path: Path, status: int, content_range: str, etag: str
) -> None:
    wrong = Reply(FIVE_ZIP[HALF:], status, {"Content-Range": content_range, "ETag": etag})
    site.give(FIVE_PATH, Reply(FIVE_ZIP, etag='"a"', cut=HALF), wrong, Reply(NEWER_ZIP, etag='"b"'))
    assert fetch(five)[0].status is Status.FETCHED
    assert ranges(site) == [None, f"bytes={HALF}-", None]
    assert archive(tmp_path) == NEWER_ZIP


def test_parts_that_fit_and_are_bad_together_are_fetched_whole(
    site: Site, fetch: Fetch, five: list[Target], tmp_path: Path
) -> None:
    site.give(FIVE_PATH, Reply(FIVE_ZIP, etag='"a"', cut=HALF), Reply(FIVE_ZIP, etag='"a"'))
    fetch(five, attempts=1)
    part = tmp_path / "out" / f".{five[0].name}.part"
    part.write_bytes(bytes(HALF))
    assert fetch(five)[0].status is Status.FETCHED
    assert ranges(site) == [None, f"bytes={HALF}-", None]


def test_a_part_of_another_address_is_not_continued(site: Site, fetch: Fetch, five: list[Target]) -> None:
    site.give(FIVE_PATH, Reply(FIVE_ZIP, etag='"a"', cut=HALF))
    site.give("/mirror" + FIVE_PATH, Reply(FIVE_ZIP, etag='"a"'))
    fetch(five, attempts=1)
    assert fetch(french_targets(base_url=site.url + "/mirror")[:1])[0].status is Status.FETCHED
    assert ranges(site) == [None, None]


def test_trouble_at_the_source_is_waited_for_longer_each_time(
    site: Site, fetch: Fetch, aapl: list[Target], waits: list[float]
) -> None:
    site.give(AAPL, Reply(status=503), Reply(status=503), text(STOOQ_CSV))
    assert fetch(aapl)[0].status is Status.FETCHED
    assert waits == [1.0, 2.0]


def test_the_server_says_how_long_to_wait(site: Site, fetch: Fetch, aapl: list[Target], waits: list[float]) -> None:
    site.give(AAPL, Reply(status=429, headers={"Retry-After": "7"}), text(STOOQ_CSV))
    assert fetch(aapl)[0].status is Status.FETCHED
    assert waits == [7.0]


def test_a_server_that_wants_an_hour_is_left_alone(
    site: Site, fetch: Fetch, aapl: list[Target], waits: list[float]
) -> None:
    site.give(AAPL, Reply(status=503, headers={"Retry-After": "3600"}))
    fault = fetch(aapl)[0].fault
    assert type(fault) is LimitReachedError
    assert "wait 3600 seconds" in str(fault)
    assert (len(site.asked), waits) == (1, [])


def test_attempts_end_and_the_message_counts_them(site: Site, fetch: Fetch, aapl: list[Target]) -> None:
    site.give(AAPL, Reply(status=502))
    fault = fetch(aapl, attempts=3)[0].fault
    assert type(fault) is UnreachableError
    assert "status 502, given up after 3 attempts; " in str(fault)
    assert len(site.asked) == 3


def test_silence_in_the_middle_of_an_answer_is_a_fault_and_the_part_is_continued(
    site: Site, fetch: Fetch, five: list[Target]
) -> None:
    site.give(FIVE_PATH, Reply(FIVE_ZIP, etag='"a"', stall=HALF), Reply(FIVE_ZIP, etag='"a"'))
    assert fetch(five, timeout=0.3)[0].status is Status.FETCHED
    assert ranges(site) == [None, f"bytes={HALF}-"]


def test_an_answer_that_only_trickles_ends_at_the_deadline(site: Site, aapl: list[Target], tmp_path: Path) -> None:
    site.give(AAPL, text(STOOQ_CSV))
    clock = itertools.count(0.0, 100.0)
    policy = Policy(attempts=1, deadline=150.0)
    with (
        Downloader(policy, clock=lambda: next(clock)) as downloader,
        pytest.raises(UnreachableError, match="longer than"),
    ):
        downloader.download(aapl[0], tmp_path / "part")


def test_nobody_listening_is_a_fault(fetch: Fetch) -> None:
    fault = fetch(stooq_targets(["aapl.us"], base_url="http://127.0.0.1:9"), attempts=2)[0].fault
    assert type(fault) is UnreachableError
    assert "check the network" in str(fault)


def test_an_answer_beyond_the_limit_is_dropped_before_it_fills_the_disk(
    site: Site, fetch: Fetch, tmp_path: Path
) -> None:
    target = Target(**{**vars(stooq_targets(["aapl.us"], base_url=site.url)[0]), "limit": 100})
    site.give(AAPL, text(STOOQ_CSV))
    fault = fetch([target])[0].fault
    assert type(fault) is UnexpectedAnswerError
    assert "larger than 100 bytes" in str(fault)
    assert not list((tmp_path / "out").glob(".*part*"))


def test_a_redirect_on_the_same_host_is_followed(site: Site, fetch: Fetch, aapl: list[Target]) -> None:
    site.give(AAPL, Reply(status=302, headers={"Location": "/moved.csv"}))
    site.give("/moved.csv", text(STOOQ_CSV))
    assert fetch(aapl)[0].status is Status.FETCHED


@pytest.mark.parametrize(
    "location",
    ["http://127.0.0.2:1/x", "ftp://127.0.0.1/x", "file:///etc/passwd", "https://a@b/", "http://["],
)
def test_a_redirect_to_elsewhere_is_not_followed(site: Site, fetch: Fetch, aapl: list[Target], location: str) -> None:
    site.give(AAPL, Reply(status=301, headers={"Location": location}))
    fault = fetch(aapl)[0].fault
    assert type(fault) is UnexpectedAnswerError
    assert "redirected to" in str(fault)
    assert len(site.asked) == 1


def test_redirects_in_a_circle_end(site: Site, fetch: Fetch, aapl: list[Target]) -> None:
    site.give(AAPL, Reply(status=302, headers={"Location": AAPL}))
    fault = fetch(aapl)[0].fault
    assert type(fault) is UnexpectedAnswerError
    assert "redirects" in str(fault)


def test_requests_keep_their_distance_and_say_who_asks(site: Site, fetch: Fetch, waits: list[float]) -> None:
    for symbol in ("a", "b", "c"):
        site.give(f"/q/d/l/?s={symbol}.us&i=d", text(STOOQ_CSV))
    fetch(stooq_targets(["a.us", "b.us", "c.us"], base_url=site.url), delay=50.0)
    assert len(waits) == 2
    assert all(40.0 < wait <= 50.0 for wait in waits)
    assert {headers["user-agent"].split("/")[0] for _, headers in site.asked} == {"fcfl"}


def test_a_key_is_sent_and_shown_nowhere(
    site: Site, fetch: Fetch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    key = "0123456789abcdef"
    (target,) = stooq_targets(["aapl.us"], base_url=site.url, key=key)
    site.give(f"{AAPL}&apikey={key}", text(STOOQ_CSV, headers={"ETag": '"a"'}, cut=40), text("nonsense"))
    (outcome,) = fetch([target])
    assert type(outcome.fault) is UnexpectedAnswerError
    assert len(site.asked) == 2
    kept = "".join(path.read_text() for path in (tmp_path / "out").iterdir())
    assert key not in repr(outcome) + str(outcome.fault) + caplog.text + kept


def test_an_answer_compressed_against_the_request_is_read(site: Site, fetch: Fetch, aapl: list[Target]) -> None:
    import gzip

    site.give(AAPL, Reply(gzip.compress(STOOQ_CSV.encode()), headers={"Content-Encoding": "gzip", "ETag": '"a"'}))
    assert fetch(aapl)[0].status is Status.FETCHED


def test_unusable_proxy_settings_are_a_named_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "gopher://proxy:1")
    with pytest.raises(FetchError, match="HTTPS_PROXY"):
        Downloader(Policy())
