"""Silos on disk for the tests of this folder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.client_app.federation import Desk, Small, make_light, quiet


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Desk]:
    """Make an enrolled federation of three silos (or ``n``) with a coordinator at the level of bytes."""
    make_light(monkeypatch)
    quiet()

    def make(n: int = 3, *, small: Small | None = None, **settings: Any) -> Desk:
        small = small or Small.make(tmp_path / "federation", n)
        made = Desk(small, small.config(**settings))
        made.enrol()
        return made

    return make
