"""Silos on disk for the tests of this folder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.client_app.federation import Small, make_light, quiet


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Small]:
    """Make ``n`` silos with few records and a narrow model."""
    make_light(monkeypatch)
    quiet()
    return lambda n, **settings: Small.make(tmp_path / "federation", n, **settings)


@pytest.fixture
def hurry() -> dict[str, Any]:
    """Deadlines short enough to lose messages in; replies of a LocalGrid are there once it has handled the request.

    The time for unmasking and that for joining include the handling of both.
    """
    return {"deadline.train": 0.1, "deadline.unmask": 2.0, "deadline.enrol": 0.2}
