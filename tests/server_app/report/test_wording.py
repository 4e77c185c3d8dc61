"""Numbers as text: bounds are rounded up, the rest is rounded to nearest."""

from datetime import timedelta

import pytest

from server_app.report import wording


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.9431, "0.944"), (0.943, "0.943"), (1.001, "1.001"), (0.0, "0.000"), (1e-9, "0.001"), (float("inf"), "∞")],
)
def test_bounds_are_rounded_up(value: float, text: str) -> None:
    assert wording.bound(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (1.25, "1.25"),
        (-0.001, "0.00"),
        (-3.556, "−3.56"),
        (12345.6, "12\u202f345.60"),
        (float("inf"), "∞"),
    ],
)
def test_plain(value: float | None, text: str) -> None:
    assert wording.plain(value, 2) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(1e-5, "1\u202f×\u202f10⁻⁵"), (14.5, "14.5"), (0.25, "0.25"), (2.5e9, "2.5\u202f×\u202f10⁹"), (0.0, "0")],
)
def test_general(value: float, text: str) -> None:
    assert wording.general(value) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (9_702_480, "9.7 MB"), (2_930_000_000, "2.93 GB")]
)
def test_size(count: int, text: str) -> None:
    assert wording.size(count).replace("\u202f", " ") == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(4, "4 s"), (226, "3 min 46 s"), (7260, "2 h 1 min"), (90000, "1 d 1 h")]
)
def test_duration(seconds: int, text: str) -> None:
    assert wording.duration(timedelta(seconds=seconds)).replace("\u202f", " ") == text
