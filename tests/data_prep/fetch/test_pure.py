"""Addresses, waits, checksum lines and archive tables, without a server."""

from __future__ import annotations

import io
import stat
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.errors import DataError
from data_prep.fetch.archive import members
from data_prep.fetch.checksums import format_sums, parse_sums
from data_prep.fetch.errors import UnexpectedAnswerError
from data_prep.fetch.partial import validator
from data_prep.fetch.retry import Policy, back_off, retry_after
from data_prep.fetch.sources import fred_targets, french_targets, request_url, stooq_archive, stooq_targets
from tests.data_prep.fetch.site import zipped


def test_the_addresses_are_those_of_the_publishers() -> None:
    assert [target.url for target in stooq_targets(["AAPL.US", "^spx"])] == [
        "https://stooq.com/q/d/l/?s=aapl.us&i=d",
        "https://stooq.com/q/d/l/?s=%5Espx&i=d",
    ]
    assert stooq_archive("us").url == "https://stooq.com/db/d/?b=d_us_txt"
    assert [target.url for target in fred_targets()] == [
        f"https://fred.stlouisfed.org/graph/fredgraph.csv?id={series}"
        for series in ("FEDFUNDS", "INDPRO", "UNRATE", "CPIAUCSL")
    ]
    assert [target.url for target in french_targets()] == [
        "https://mba.tuck.dartmouth.edu/pages/faculty/ken.french/ftp/F-F_Research_Data_5_Factors_2x3_daily_CSV.zip",
        "https://mba.tuck.dartmouth.edu/pages/faculty/ken.french/ftp/F-F_Momentum_Factor_daily_CSV.zip",
    ]


@pytest.mark.parametrize("symbol", ["", "..", "../x", "a/b", "a b", "a\nb", "a&apikey=1", "ä.de", "-a", "x" * 40])
def test_what_is_no_symbol_is_refused(symbol: str) -> None:
    with pytest.raises(DataError, match=r"expected one such as aapl\.us"):
        stooq_targets([symbol])


@pytest.mark.parametrize(
    "url", ["", "stooq.com", "ftp://x", "https://", "https://a:b@x", "https://x?q=1", "https://x#y", "http://x:99999"]
)
def test_what_is_no_base_address_is_refused(url: str) -> None:
    with pytest.raises(DataError, match="base address"):
        fred_targets(base_url=url)


def test_a_key_travels_encrypted_or_not_at_all() -> None:
    key = "0123456789abcdef"
    (target,) = stooq_targets(["a.us"], key=key)
    assert request_url(target) == target.url + f"&apikey={key}"
    assert key not in repr(target)
    with pytest.raises(DataError, match="unencrypted") as caught:
        stooq_targets(["a.us"], base_url="http://mirror.example", key=key)
    assert key not in str(caught.value)
    with pytest.raises(DataError, match="letters and digits"):
        stooq_targets(["a.us"], key="abc&s=other")


@given(st.integers(1, 10**6), st.floats(0, 1, exclude_max=True))
def test_waits_grow_to_a_bound_and_keep_away_from_zero(failed: int, jitter: float) -> None:
    policy = Policy()
    wait = back_off(policy, failed, jitter)
    highest = min(policy.longest_wait, policy.back_off * 2.0 ** min(failed - 1, 60))
    assert highest / 2 <= wait <= highest


NOW = datetime(2024, 8, 28, 0, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("7", 7.0),
        ("Wed, 28 Aug 2024 00:02:00 GMT", 120.0),
        ("Wed, 28 Aug 2023 00:02:00 GMT", 0.0),
        ("-5", 0.0),
        ("soon", None),
        ("inf", None),
        ("nan", None),
        ("", None),
        ("Wed, 99 Aug 2024 00:02:00 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_a_date_or_nothing(value: str | None, seconds: float | None) -> None:
    assert retry_after(value, NOW) == seconds


@given(st.text())
def test_no_header_breaks_the_reading_of_headers(value: str) -> None:
    retry_after(value, NOW)
    validator({"etag": value})
    validator({"last-modified": value, "date": value})


NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)


@given(st.dictionaries(NAMES, st.binary(min_size=32, max_size=32).map(bytes.hex)))
def test_checksum_lines_are_read_as_they_were_written(sums: dict[str, str]) -> None:
    assert parse_sums(format_sums(sums), "SHA256SUMS") == sums


@pytest.mark.parametrize("line", ["x", "0" * 63 + "  a", "0" * 64 + " a", "G" * 64 + "  a"])
def test_a_bad_checksum_line_is_named(line: str) -> None:
    with pytest.raises(DataError, match="SHA256SUMS, line 2: found"):
        parse_sums(f"{'0' * 64}  a\n{line}\n", "SHA256SUMS")


def test_two_checksums_for_one_file_are_refused() -> None:
    with pytest.raises(DataError, match="another checksum"):
        parse_sums(f"{'0' * 64}  a\n{'1' * 64}  a\n", "SHA256SUMS")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("../a.txt", "leads out"),
        ("x/../../a.txt", "leads out"),
        ("/a.txt", "leads out"),
        ("c:a.txt", "leads out"),
        ("x\\a.txt", "leads out"),
        ("x\n.txt", "no usable file name"),
        ("x" * 300 + ".txt", "no usable file name"),
    ],
)
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str, told: str) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(zipped(**{"good.txt": "1", name: "2"}))
    with pytest.raises(UnexpectedAnswerError, match=told):
        members(path, "a.zip", suffix=".txt", limit=100)


def test_links_and_encrypted_and_doubled_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    link = zipfile.ZipInfo("link.txt")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(link, "/etc/passwd")
    path.write_bytes(out.getvalue())
    with pytest.raises(UnexpectedAnswerError, match="a link or a device"):
        members(path, "a.zip", suffix=".txt", limit=100)
    path.write_bytes(zipped(**{"a.txt": "1", "A.TXT": "2"}))
    with pytest.raises(UnexpectedAnswerError, match="two files of one name"):
        members(path, "a.zip", suffix=".txt", limit=100)
    plain = zipped(**{"a.txt": "1"})
    flags = plain.rindex(b"PK\x01\x02") + 8
    path.write_bytes(plain[:flags] + b"\x01" + plain[flags + 1 :])
    with pytest.raises(UnexpectedAnswerError, match="encrypted"):
        members(path, "a.zip", suffix=".txt", limit=100)
