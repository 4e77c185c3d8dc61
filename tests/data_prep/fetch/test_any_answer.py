"""Whatever a server sends, the outcome is a good file or a named fault, and a good file that is there stays."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_prep.fetch.checksums import CHECKSUM_FILE, read_sums
from data_prep.fetch.errors import FetchError
from data_prep.fetch.retry import Policy
from data_prep.fetch.sources import Target, fred_targets, french_targets, stooq_archive, stooq_targets
from data_prep.fetch.store import Outcome, fetch_all
from data_prep.fetch.transport import Downloader
from data_prep.files import fingerprint
from data_prep.readers.factors import read_factor_file
from data_prep.readers.macro import read_macro_file
from data_prep.readers.series import read_series
from tests.data_prep.fetch.site import FIVE_ZIP, STOOQ_CSV, Reply, Site, fred_csv, serving, zipped

BULK_ZIP = zipped(**{"data/aapl.us.txt": "<TICKER>,<PER>,<DATE>,<OPEN>,<HIGH>,<LOW>,<CLOSE>\nA,D,20240102,1,1,1,1\n"})
GOOD = {
    "/q/d/l/?s=aapl.us&i=d": STOOQ_CSV.encode(),
    "/graph/fredgraph.csv?id=FEDFUNDS": fred_csv("FEDFUNDS").encode(),
    "/F-F_Research_Data_5_Factors_2x3_daily_CSV.zip": FIVE_ZIP,
    "/db/d/?b=d_us_txt": BULK_ZIP,
}
EXAMPLES = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def targets(url: str) -> list[Target]:
    return [
        stooq_targets(["aapl.us"], base_url=url)[0],
        fred_targets(base_url=url)[0],
        french_targets(base_url=url)[0],
        stooq_archive("us", base_url=url),
    ]


@st.composite
def altered(draw: st.DrawFn, good: bytes) -> bytes:
    """A good file with bytes replaced, cut out, put in, or its end lost."""
    body = bytearray(good)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(0, len(body) - 1)))
        length = draw(st.integers(0, 8))
        body[at : at + length] = draw(st.binary(max_size=8))
    return bytes(body[: draw(st.integers(0, len(body)))] if draw(st.booleans()) else body)


BODIES = st.one_of(
    st.binary(max_size=300),
    st.text(alphabet="Date,Open0123456789-.\n<PK\"'; ", max_size=200).map(str.encode),
    *(altered(good) for good in GOOD.values()),
    st.sampled_from(list(GOOD.values())),
)
REPLIES = st.builds(
    Reply,
    body=BODIES,
    status=st.sampled_from([200, 200, 200, 200, 204, 206, 301, 304, 400, 403, 404, 416, 429, 500]),
    headers=st.dictionaries(
        st.sampled_from(["Content-Range", "Content-Encoding", "Retry-After", "Location", "Last-Modified", "Date"]),
        st.sampled_from(["", "gzip", "-1", "1e400", "bytes 0-1/2", "/x", "Wed, 28 Aug 2024 00:02:00 GMT", "nonsense"]),
        max_size=2,
    ),
    etag=st.sampled_from(["", '"a"', "W/x"]),
    cut=st.none() | st.integers(0, 200),
    raw=st.none() | st.none() | st.none() | st.binary(max_size=100),
)


@pytest.fixture(scope="module", autouse=True)
def no_flushing() -> Iterator[None]:
    """What is asked here does not depend on a power cut, and hundreds of flushes take minutes on a busy disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _handle: None)
        yield


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serving() as site:
        yield site


@pytest.fixture(scope="module")
def downloader() -> Iterator[Downloader]:
    with Downloader(Policy(attempts=3, delay=0.0, timeout=1.0), sleep=lambda _: None, jitter=random.random) as found:
        yield found


def readable(target: Target, folder: Path) -> None:
    if target.unpacked.endswith(".CSV"):
        read_factor_file(folder / target.unpacked)
    elif target.unpacked:
        assert any((folder / target.unpacked).rglob("*.txt"))
    elif target.what == "FEDFUNDS":
        read_macro_file(folder / target.name, target.what)
    else:
        read_series(folder / target.name, target.name)


def judged(outcome: Outcome, folder: Path) -> None:
    target = outcome.target
    if outcome.fault is None:
        readable(target, folder)
        assert read_sums(folder)[target.name] == fingerprint(folder / target.name)
        return
    assert isinstance(outcome.fault, FetchError)
    assert str(outcome.fault).isprintable(), "one line, whatever the server said"
    assert not (folder / target.name).exists()


@given(st.lists(REPLIES, min_size=1, max_size=3), st.integers(0, 3))
@EXAMPLES
def test_any_answer_is_a_good_file_or_a_named_fault(
    site: Site, downloader: Downloader, replies: list[Reply], which: int
) -> None:
    target = targets(site.url)[which]
    path = target.url.removeprefix(site.url)
    site.give(path, *replies)
    with TemporaryDirectory() as folder:
        (outcome,) = fetch_all([target], Path(folder), downloader)
        judged(outcome, Path(folder))
        # Whatever the first run left does not keep the next from a good answer.
        site.give(path, Reply(GOOD[path]))
        (outcome,) = fetch_all([target], Path(folder), downloader)
        assert outcome.fault is None


@given(st.lists(REPLIES, min_size=1, max_size=2), st.integers(0, 3))
@EXAMPLES
def test_no_bad_answer_changes_a_good_file(
    site: Site, downloader: Downloader, replies: list[Reply], which: int
) -> None:
    target = targets(site.url)[which]
    path = target.url.removeprefix(site.url)
    site.give(path, Reply(GOOD[path]))
    with TemporaryDirectory() as name:
        folder = Path(name)
        fetch_all([target], folder, downloader)
        before = {entry: entry.read_bytes() for entry in folder.rglob("*") if entry.is_file()}
        assert folder / CHECKSUM_FILE in before
        site.give(path, *replies)
        (outcome,) = fetch_all([target], folder, downloader, refresh=True)
        if outcome.fault is None:
            readable(target, folder)
        else:
            assert {entry: entry.read_bytes() for entry in before} == before
