"""Means of a split from its sums."""

import numpy as np
import pytest

from fcfl_strategy.metrics import split_metrics
from fcfl_strategy.rounds import Sums


def sums(split: str = "test", **changes: float) -> Sums:
    values = {
        "count": 4.0,
        "sse": 8e-4,
        "sae": 0.04,
        "hits": 3.0,
        "sse_zero": 1e-3,
        "count_optimal": 4.0,
        "sse_optimal": 6e-4,
    } | changes
    return {f"{split}.{name}": np.array([value]) for name, value in values.items()}


def test_sums_become_means() -> None:
    assert split_metrics(sums(), "test") == pytest.approx(
        {
            "count": 4,
            "mse": 2e-4,
            "mae": 0.01,
            "directional_accuracy": 0.75,
            "mse_zero": 2.5e-4,
            "mse_optimal": 1.5e-4,
        }
    )


def test_the_optimum_is_shown_only_where_every_record_has_one() -> None:
    found = split_metrics(sums(count_optimal=3.0), "test")
    assert found is not None
    assert found["mse_optimal"] is None


def test_a_split_without_records_has_no_metrics() -> None:
    assert split_metrics(sums(count=0.0), "test") is None


def test_splits_do_not_mix() -> None:
    both = {**sums("validation", count=2.0, sse=2e-4), **sums("test")}
    found = split_metrics(both, "validation")
    assert found is not None
    assert found["count"] == 2
    assert found["mse"] == pytest.approx(1e-4)


def test_a_count_with_the_error_of_its_ring_is_rounded() -> None:
    found = split_metrics(sums(count=4.0 + 1e-9), "test")
    assert found is not None
    assert found["count"] == 4


def test_a_count_below_zero_gives_no_metrics() -> None:
    """One silo that does not follow the protocol can make it."""
    assert split_metrics({"test.count": np.array([-3.0])}, "test") is None
