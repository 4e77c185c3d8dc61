"""Whole runs under every accountant and unit of privacy: the ledgers say what was done, and `verify` agrees."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_app.home import SiloHome
from client_app.privacy_book import PrivacyBook
from data_prep.features.table import FEATURES, MEMORY_ROWS
from data_prep.shards import open_shard
from data_prep.spec import FederationSpec
from fcfl_strategy.errors import RunError
from privacy.audit import LedgerSummary
from privacy.ledger import verify
from privacy.metrics import BACKTRACKING, EVALUATION
from privacy.records import (
    SILO_REPLACE_ADJACENCY,
    SILO_ZERO_ADJACENCY,
    TRAINING,
    Abstention,
    Release,
    RunOpened,
)
from privacy.release import FEATURE_BOUND, METRIC_NORM, SAMPLES_PER_BAR
from privacy.scaling import SCALING
from tests.client_app.federation import Conducted, Small, conduct, records_of
from tests.experiments.watch import TRAIN, UNMASK, Faults, Sums, before_close, drop

MakeSmall = Callable[..., Small]
SILO_UNIT = {"dp.unit": "silo", "drift.smoothing": 0.0, "drift.gain": 0.0}


def verified(root: Path) -> LedgerSummary:
    return verify(root / "ledger.jsonl", root / "ledger.anchor")


def all_verified(made: Small, done: Conducted) -> list[LedgerSummary]:
    return [verified(done.path), *(verified(home.root) for home in made.homes.values())]


def rows(home: SiloHome, purpose: str) -> list[Release | Abstention]:
    return [r for r in records_of(home) if isinstance(r, Release | Abstention) and r.purpose == purpose]


# --- counted budgets ----------------------------------------------------------------------------------


def test_a_counted_run_needs_less_noise_and_every_ledger_verifies(small: MakeSmall, tmp_path: Path) -> None:
    made = small(3)
    config = made.config(**{"dp.accountant": "pld", "rounds": 3})
    done = conduct(made.grid(config), config, tmp_path / "run")
    assert done.strategy.outcome == "completed"
    for summary in all_verified(made, done):
        (run,) = summary.runs
        assert run.opened.accountant == "pld"
        assert run.opened.contributions == run.releases == 3
        assert 0.999 <= run.epsilon <= 1.0
    renyi = conduct_settings(made, **{"rounds": 3})
    assert done.strategy.settings.schedule.sigma_0 < 0.95 * renyi


def conduct_settings(made: Small, **settings: Any) -> float:
    from server_app.run_settings import settings_of

    return settings_of(made.config(**settings), bytes(16)).schedule.sigma_0


def test_a_counted_run_ends_when_its_contributions_are_used(
    small: MakeSmall, hurry: dict[str, Any], tmp_path: Path
) -> None:
    """An abandoned epoch is a contribution like any other."""
    made = small(5)
    config = made.config(**hurry, **{"dp.accountant": "pld", "rounds": 3})
    done = conduct(made.grid(config, fault=Faults(drop(UNMASK, [1], [3, 4]))), config, tmp_path / "run")
    assert done.strategy.outcome == "budget exhausted"
    assert done.strategy.rounds_done == 2
    assert [row["budget_fraction"] for row in done.history if row["purpose"] == "train"] == pytest.approx(
        [1 / 3, 2 / 3, 1.0]
    )
    for summary in all_verified(made, done):
        assert summary.runs[0].releases == 3
        assert summary.runs[0].epsilon <= 1.0


def test_the_paper_s_accountant_needs_the_most_noise(small: MakeSmall, tmp_path: Path) -> None:
    made = small(3)
    config = made.config(**{"dp.accountant": "paper"})
    done = conduct(made.grid(config), config, tmp_path / "run")
    assert (
        done.strategy.settings.schedule.sigma_0
        > conduct_settings(made)
        > conduct_settings(made, **{"dp.accountant": "pld"})
    )
    for summary in all_verified(made, done):
        assert summary.runs[0].opened.conversion == "paper"
        assert summary.runs[0].opened.order in (2, 4, 8, 16, 32, 64, 128)
        assert 0.999 <= summary.runs[0].epsilon <= 1.0


# --- the silo as unit ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("neighbour", "adjacency", "factor"), [("zero", SILO_ZERO_ADJACENCY, 1), ("replace", SILO_REPLACE_ADJACENCY, 2)]
)
def test_with_the_silo_as_unit_only_update_and_count_leave(
    small: MakeSmall, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, neighbour: str, adjacency: str, factor: float
) -> None:
    made, sums = small(3, allow_silo_unit=True), Sums.watched(monkeypatch)
    config = made.config(**SILO_UNIT, **{"dp.neighbour": neighbour, "eval.metrics": False, "eval.final": False})
    done = conduct(made.grid(config), config, tmp_path / "run")
    sums.check()
    terms = done.strategy.settings.terms
    for summary in all_verified(made, done):
        (run,) = summary.runs
        assert (run.opened.unit, run.opened.adjacency) == ("silo", adjacency)
        assert run.releases == 2
        assert run.epsilon <= 1.0
    for release in rows(next(iter(made.homes.values())), TRAINING):
        assert isinstance(release, Release)
        assert (release.sampling_rate, release.steps, release.records) == (1.0, 1, 1)
    for encoded in (vector for epoch in sums.encoded.values() for vector in epoch.values()):
        assert set(encoded.values) == {"update", "contributors"}
    step = next(s.step for s in layout_of(done) if s.name == "update")
    noise = np.concatenate([e.signed("update") * step for epoch in sums.encoded.values() for e in epoch.values()])
    assert terms.update_sensitivity == factor
    assert noise.std() == pytest.approx(factor * terms.sigma_min, rel=0.05), "the signal is at most C, the noise is not"


def layout_of(done: Conducted) -> Any:
    from fcfl_strategy import rounds
    from secagg.layout import layout_for

    strategy = done.strategy
    plan = rounds.plan_training(strategy.settings, strategy._state, strategy.records)
    bounds = plan.bounds(strategy.settings.terms)
    return layout_for(((b.name, b.length, b.bits, b.bound) for b in bounds), len(strategy.records))


def test_a_silo_takes_part_as_a_whole_only_if_its_policy_says_so(
    small: MakeSmall, hurry: dict[str, Any], tmp_path: Path
) -> None:
    made = small(3)
    config = made.config(**hurry, **SILO_UNIT)
    with pytest.raises(RunError, match="too few silos"):
        conduct(made.grid(config), config, tmp_path / "run")
    for home in made.homes.values():
        assert records_of(home) == []
        assert "allow_silo_unit" in (home.root / "silo.log").read_text()


# --- noised metrics -----------------------------------------------------------------------------------


def test_noised_metrics_have_a_budget_and_a_row_of_their_own(small: MakeSmall, tmp_path: Path) -> None:
    """No permission is needed for them, and they are the exact ones but for the noise that the ledgers tell of."""
    made = small(3, allow_metrics=False, epsilon=1e6, delta=1e-4)
    config = made.config(**{"eval.epsilon": 1000.0, "rounds": 2})
    done = conduct(made.grid(config), config, tmp_path / "run")
    assert done.strategy.further_budgets["evaluation"]["epsilon"] <= 1000
    for summary in all_verified(made, done):
        training, evaluation = summary.runs
        assert evaluation.opened.run == f"{training.opened.run}.evaluation"
        assert (training.releases, evaluation.releases) == (2, 3)
        assert 999 <= evaluation.epsilon <= 1000
        assert evaluation.closed
    last = done.history[-1]
    assert last["purpose"] == "evaluate"
    assert (last["validation"]["count"], last["test"]["count"]) == (3 * 24, 3 * 16)
    exact_done = conduct_exact(tmp_path)
    released = [rows(home, EVALUATION) for home in made.homes.values()]
    assert [[type(row) for row in silo] for silo in released] == [[Release] * 3] * 3
    multiplier = next(row.noise_multiplier for row in released[0] if isinstance(row, Release))
    noise = math.sqrt(3) * METRIC_NORM * float(config.real("eval.loss-bound")) * multiplier
    # The error of the zero forecast is a property of the data. Beyond 6 deviations of the noise: one run in 10^8.
    for split in ("validation", "test"):
        exact = exact_done.history[-1][split]
        assert last[split]["mse_zero"] == pytest.approx(exact["mse_zero"], abs=6 * noise / exact["count"])
        assert 6 * noise / exact["count"] < exact["mse_zero"]


def conduct_exact(tmp_path: Path) -> Conducted:
    made = Small.make(tmp_path / "exact", 3)
    config = made.config(rounds=2)
    return conduct(made.grid(config), config, tmp_path / "exact-run")


def test_metrics_beyond_their_budget_are_zero_and_training_goes_on(
    small: MakeSmall, hurry: dict[str, Any], tmp_path: Path
) -> None:
    made = small(5, allow_metrics=False, epsilon=3.0, delta=1e-4)
    config = made.config(
        **hurry, **{"eval.epsilon": 1.0, "rounds": 4, "dp.contributions": 4, "eval.final": False, "eval.every": 2}
    )
    # Round 2 is tried twice, so that the second validation finds its budget for two used up.
    done = conduct(made.grid(config, fault=Faults(drop(UNMASK, [2], [3, 4]))), config, tmp_path / "run")
    trained = [row for row in done.history if row["status"] != "abandoned"]
    assert [row["validation"] is not None for row in trained] == [False, True, False]
    assert done.strategy.outcome == "budget exhausted"
    for home in made.homes.values():
        assert [type(row) for row in rows(home, EVALUATION)] == [Release] * 2
        assert verified(home.root).epsilon <= 2.0


def test_noised_metrics_count_towards_the_lifetime_budget(
    small: MakeSmall, hurry: dict[str, Any], tmp_path: Path
) -> None:
    made = small(3, epsilon=1.5, delta=1e-4)
    config = made.config(**hurry, **{"eval.epsilon": 0.6})
    with pytest.raises(RunError, match="too few silos"):
        conduct(made.grid(config), config, tmp_path / "run")
    half = made.config(**hurry, **{"eval.epsilon": 0.5})
    assert conduct(made.grid(half), half, tmp_path / "half").strategy.outcome == "completed"


# --- gradient variance and backtracking ---------------------------------------------------------------


def test_a_measured_variance_steers_the_score_and_is_paid_for_in_noise(
    small: MakeSmall, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = small(3, epsilon=50.0)
    found: dict[str, float] = {}

    def look(strategy: Any) -> None:
        for name, home in made.homes.items():
            control = home.run(strategy.settings.terms.run_id).control(strategy._opened.plan.parameters)
            found[name] = control.variance

    before_close(monkeypatch, look)
    settings = {"dp.variance-scale": 1.0, "dp.epsilon": 50.0, "dp.sampling-rate": 0.5, "rounds": 3, "local.steps": 3}
    config = made.config(**settings)
    done = conduct(made.grid(config), config, tmp_path / "run")
    assert done.strategy.outcome == "completed"
    for name, home in made.homes.items():
        releases = [row for row in rows(home, TRAINING) if isinstance(row, Release)]
        assert [row.variance_scale for row in releases] == [1.0] * 3
        assert 0.0 <= found[name] <= 1.0
        assert verified(home.root).runs[0].epsilon <= 50.0
    assert any(0.0 < variance < 1.0 for variance in found.values())
    # After a settled contribution the scores are above those of the bound v_i = C^2.
    at_the_bound = sum(done.strategy.records.values()) / np.sqrt(2)
    assert done.strategy._state.score_total > at_the_bound * (1 + 1e-9)


def test_backtracking_is_charged_in_rows_of_its_own_whether_or_not_it_is_used(small: MakeSmall, tmp_path: Path) -> None:
    made = small(3)
    config = made.config(**{"local.backtracks": 2, "local.steps": 2, "rounds": 3})
    done = conduct(made.grid(config), config, tmp_path / "run")
    assert done.strategy.outcome == "completed"
    for home in made.homes.values():
        looks = rows(home, BACKTRACKING)
        assert [(type(row), row.epoch) for row in looks] == [(Release, 1), (Release, 2), (Release, 3)]
        assert all(isinstance(row, Release) and row.steps == 2 and row.clip_norm == 0.1 for row in looks)
    for summary in all_verified(made, done):
        assert summary.runs[0].releases == 6
        assert 0.999 <= summary.runs[0].epsilon <= 1.0


def test_a_lost_silo_has_as_many_rows_as_one_that_took_part(
    small: MakeSmall, hurry: dict[str, Any], tmp_path: Path
) -> None:
    """The head of a ledger tells the coordinator its count: coin tails must not show in it."""
    made = small(4, epsilon=3.0, delta=1e-4)
    settings = {"local.backtracks": 1, "eval.epsilon": 1.0, "rounds": 3, "eval.final": False}
    thin = {"participation.cohort": 2.0, "participation.min-probability": 0.3}
    config = made.config(**hurry, **settings, **thin)
    conduct(made.grid(config, fault=Faults(drop(TRAIN, [99], [0]))), config, tmp_path / "run")
    counts = {name: len(records_of(home)) for name, home in made.homes.items()}
    assert len(set(counts.values())) == 1
    kinds = [type(record) for home in made.homes.values() for record in records_of(home)]
    assert kinds.count(Abstention) > 0
    assert kinds.count(RunOpened) == 2 * 4


# --- scaling of the features --------------------------------------------------------------------------


def test_moments_of_the_features_are_one_release_from_the_training_budget(small: MakeSmall, tmp_path: Path) -> None:
    made = small(3, epsilon=20.0, max_sampling_rate=1.0)
    config = made.config(**{"dp.scaling-share": 0.3, "dp.epsilon": 20.0, "dp.sampling-rate": 1.0, "rounds": 3})
    done = conduct(made.grid(config), config, tmp_path / "run")
    assert done.strategy.outcome == "completed"
    assert [row["purpose"] for row in done.history] == ["scale", "train", "train", "train", "evaluate"]
    for summary in all_verified(made, done):
        (run,) = summary.runs
        assert run.releases == 4
        assert run.epsilon <= 20.0
        assert run.fraction == pytest.approx(1.0, abs=1e-3)
    for home in made.homes.values():
        (row,) = rows(home, SCALING)
        assert isinstance(row, Release)
        assert (row.sampling_rate, row.steps, row.epoch) == (1.0, 1, 1)
    rows_of = [open_shard(home.settings.data).train.features for home in made.homes.values()]
    pooled = np.concatenate(rows_of).astype(float)
    scale = done.strategy.feature_scale
    # With so much budget the noise of a mean is small; records are clipped to the norm of the release.
    assert np.corrcoef(scale["feature_mean"], pooled.mean(axis=0))[0, 1] > 0.5
    assert np.abs(scale["feature_mean"] - pooled.mean(axis=0)).max() < 0.6
    assert (scale["feature_scale"] > 0).all()


def test_a_run_that_lost_its_scaling_epoch_repeats_it_and_pays_twice(
    small: MakeSmall, hurry: dict[str, Any], tmp_path: Path
) -> None:
    made = small(5)
    config = made.config(**hurry, **{"dp.scaling-share": 0.1, "rounds": 2})
    done = conduct(made.grid(config, fault=Faults(drop(UNMASK, [1], [3, 4]))), config, tmp_path / "run")
    assert [(row["purpose"], row["status"]) for row in done.history][:3] == [
        ("scale", "abandoned"),
        ("scale", "completed"),
        ("train", "completed"),
    ]
    for summary in all_verified(made, done):
        assert summary.epsilon <= 1.0
    assert len(rows(made.homes["silo-00"], SCALING)) == 2


def test_silos_whose_budget_cannot_hold_the_release_leave_the_public_scale(
    small: MakeSmall, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = small(3)
    monkeypatch.setattr(PrivacyBook, "admits", lambda self, charges: not any(c.purpose == SCALING for c in charges))
    config = made.config(**{"dp.scaling-share": 0.1, "rounds": 1})
    done = conduct(made.grid(config), config, tmp_path / "run")
    scale = done.strategy.feature_scale
    assert (scale["feature_mean"] == 0).all()
    assert (scale["feature_scale"] == 1).all()
    assert [type(row) for row in rows(made.homes["silo-00"], SCALING)] == [Abstention]


def test_the_group_told_beside_one_sample_is_every_sample_a_bar_can_enter() -> None:
    assert MEMORY_ROWS + 1 + FederationSpec().fill_limit == SAMPLES_PER_BAR


def test_the_public_range_of_a_scaling_release_is_that_of_the_features() -> None:
    assert max(feature.clip for feature in FEATURES) == FEATURE_BOUND
