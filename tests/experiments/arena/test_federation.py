"""The run without masks is the product's run: the same bits in weights and history, seed for seed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_app.contribution import Sample
from data_prep.shards import open_shard
from experiments.arena.federation import Epoch, conduct
from fcfl_strategy import rounds
from server_app.config import RunConfig
from server_app.run_settings import initial_weights, settings_of
from tests.client_app import federation
from tests.client_app.federation import RUN_ID, Small

SILOS = 4
CASES: Mapping[str, Mapping[str, Any]] = {
    "defaults": {"rounds": 3, "participation.cohort": 2.0, "participation.min-probability": 0.1},
    "self-thinning, proximal steps, variance, divergence-aware noise": {
        "rounds": 3,
        "participation.cohort": 3.0,
        "participation.min-probability": 0.2,
        "participation.drift-penalty": 2.0,
        "dp.variance-scale": 0.25,
        "dp.schedule": "divergence",
        "dp.sensitivity": 1.0,
        "local.proximal": 0.1,
        "local.steps": 3,
    },
    "scaling, backtracking, noised metrics": {
        "rounds": 2,
        "dp.scaling-share": 0.1,
        "local.backtracks": 1,
        "eval.epsilon": 1.0,
        "eval.every": 2,
    },
    "a budget that ends early": {"rounds": 5, "dp.contributions": 2},
    "counted contributions, no metrics": {
        "rounds": 3,
        "dp.accountant": "pld",
        "dp.contributions": 2,
        "eval.metrics": False,
        "eval.final": False,
    },
    "whole silos": {"rounds": 2, "dp.unit": "silo", "drift.smoothing": 0.0, "drift.gain": 0.0, "dp.sigma-max": 1e4},
}


@pytest.fixture(autouse=True)
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    federation.make_light(monkeypatch)


def samples_of(small: Small) -> dict[str, Sample]:
    return {home.settings.name: Sample(open_shard(home.settings.data)) for home in small.homes.values()}


def in_the_clear(config: RunConfig, samples: Mapping[str, Sample]) -> list[Epoch]:
    return list(conduct(settings_of(config, RUN_ID), initial_weights(config), samples))


def without_costs(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("seconds", "bytes_up", "bytes_down")}


@pytest.mark.parametrize("name", CASES)
def test_weights_and_history_are_bit_for_bit_those_of_the_run_with_masks(name: str, tmp_path: Path) -> None:
    policy = {"epsilon": 10.0, "delta": 1e-4, "allow_silo_unit": True, "min_noise_multiplier": 0.01}
    small = Small.make(tmp_path, SILOS, records=[100, 40, 250, 160], **policy)
    config = small.config(**{"noise-seed": 11, **CASES[name]})
    masked = federation.conduct(small.grid(config), config, tmp_path / "run")
    epochs = in_the_clear(config, samples_of(small))
    assert [without_costs(row) for row in masked.history] == [dict(epoch.row) for epoch in epochs]
    assert rounds_of(masked.strategy).server.weights.tobytes() == epochs[-1].state.server.weights.tobytes()


def rounds_of(strategy: Any) -> rounds.RunState:
    state = strategy._state
    assert isinstance(state, rounds.RunState)
    return state


def test_another_seed_gives_other_weights(tmp_path: Path) -> None:
    small = Small.make(tmp_path, SILOS)
    first, second = (in_the_clear(small.config(**{"noise-seed": seed}), samples_of(small))[-1] for seed in (1, 2))
    assert first.state.server.weights.tobytes() != second.state.server.weights.tobytes()


def test_the_order_of_the_silos_changes_nothing(tmp_path: Path) -> None:
    small = Small.make(tmp_path, SILOS)
    samples, config = samples_of(small), small.config(**{"noise-seed": 1})
    turned = dict(reversed(samples.items()))
    one, other = in_the_clear(config, samples)[-1], in_the_clear(config, turned)[-1]
    assert one.state.server.weights.tobytes() == other.state.server.weights.tobytes()
    assert dict(one.row) == dict(other.row)


def test_what_is_evaluated_at_the_end_is_what_is_served(tmp_path: Path) -> None:
    small = Small.make(tmp_path, SILOS)
    config = small.config(**{"noise-seed": 1})
    last = in_the_clear(config, samples_of(small))[-1]
    assert last.row["purpose"] == "evaluate"
    served = rounds.served(settings_of(config, RUN_ID), last.state).astype(np.float32)
    assert last.point.tobytes() == served.tobytes()


def test_a_silo_whose_filter_is_full_contributes_nothing_more(tmp_path: Path) -> None:
    small = Small.make(tmp_path, SILOS)
    config = small.config(**{"noise-seed": 1, "rounds": 6, "dp.contributions": 2, "eval.final": False})
    epochs = in_the_clear(config, samples_of(small))
    assert [epoch.row["contributors"] for epoch in epochs][:3] == [SILOS, SILOS, 0]
    terms = settings_of(config, RUN_ID).terms
    for silo in epochs[-1].silos:
        assert silo.budgets[terms.run].epsilon(terms.delta) <= terms.epsilon
