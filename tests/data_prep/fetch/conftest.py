"""A server, and a downloader that does not really wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from data_prep.fetch.retry import Policy
from data_prep.fetch.sources import Target
from data_prep.fetch.store import Outcome, fetch_all
from data_prep.fetch.transport import Downloader
from tests.data_prep.fetch.site import Site, serving


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("FCFL_STOOQ_APIKEY", raising=False)


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as site:
        yield site


@pytest.fixture
def waits() -> list[float]:
    """The waits that were asked for, none of which really happened."""
    return []


@pytest.fixture
def fetch(tmp_path: Path, waits: list[float]) -> Callable[..., list[Outcome]]:
    def run(targets: list[Target], *, refresh: bool = False, **policy: float) -> list[Outcome]:
        settings = Policy(**{"delay": 0.0, "timeout": 5.0, **policy})  # type: ignore[arg-type]
        with Downloader(settings, sleep=waits.append, jitter=lambda: 0.0) as downloader:
            return fetch_all(targets, tmp_path / "out", downloader, refresh=refresh)

    return run
