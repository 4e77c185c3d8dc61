"""Looking at the silos' records directly gives what the secure sum gives, but for its fixed point."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_app.contribution import Sample
from client_app.evaluation import forecast_sums, metric_sums
from data_prep.shards import open_shard
from experiments.arena.markets import Data
from experiments.arena.runs import Run
from fcfl_strategy.metrics import Metrics
from privacy.mlp import Mlp
from server_app.config import RunConfig
from tests.client_app import federation
from tests.client_app.federation import Small


@pytest.fixture(autouse=True)
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    federation.make_light(monkeypatch)


def close(one: Metrics, other: Metrics) -> bool:
    return one.keys() == other.keys() and all(one[name] == pytest.approx(other[name], rel=1e-6) for name in one)


@pytest.mark.parametrize("metric", [{}, {"metric.exponents": "1 -1", "metric.damping": 2.0}])
def test_evaluation_of_a_run_is_that_of_the_very_run_with_masks(
    tmp_path: Path, metric: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broadcast point of every round on validation, and what is served at the end on both splits."""
    monkeypatch.setattr("server_app.config.HIDDEN", federation.HIDDEN)
    small = Small.make(tmp_path, 4, epsilon=10.0)
    config = small.config(**{"noise-seed": 3, "rounds": 3, "local.steps": 2}, **metric)
    masked = federation.conduct(small.grid(config), config, tmp_path / "run")
    data = Data.open(tmp_path / "samples", 4)
    looked = RunConfig.from_mapping({**config.values, "eval.metrics": False, "eval.final": False})
    found = Run(looked, data, ("validation", "test")).do()["rounds"]
    *rows, last = masked.history
    assert len(rows) == len(found) - 1 == 3
    for row, line in zip(rows, found[1:], strict=True):
        assert close(row["validation"], line["broadcast"]["validation"])
    for split in ("validation", "test"):
        assert close(last[split], found[-1]["served"][split])
    assert found[-1]["served"]["test"]["mse"] != found[-1]["broadcast"]["test"]["mse"]


def test_sums_of_forecasts_are_those_of_the_model_that_makes_them(tmp_path: Path) -> None:
    folder = federation.write_samples(tmp_path / "silo", 30, seed=1)
    split, shard = Sample(open_shard(folder)).shard.test, open_shard(folder)
    model = Mlp(52, federation.HIDDEN)
    point = np.random.default_rng(0).normal(size=model.size, scale=0.1).astype(np.float32)
    whole = metric_sums(model, point, split.features, split.targets, split.truth, shard.target_scale)
    zero = forecast_sums(np.zeros(16), split.targets.astype(float) * shard.target_scale, split.truth)
    assert whole["count"] == zero["count"] == 16
    assert whole["sse_zero"] == zero["sse"] == zero["sse_zero"]
    assert zero["hits"] == 8.0
    assert whole["sse_optimal"] == zero["sse_optimal"]
