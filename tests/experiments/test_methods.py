"""Whole runs of every method, and federations that have broken others."""

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from client_app.home import SiloHome
from data_prep.features.table import N_FEATURES
from data_prep.shard_writer import write_shard
from data_prep.shards import Split
from experiments.local_grid import Fault
from fcfl_strategy.secure_epoch import SecureEpoch
from privacy.randomness import RandomStream
from privacy.records import FULL_GRADIENT, TRAINING
from server_app.config import RunConfig
from server_app.methods import METHODS
from tests.client_app.federation import Conducted, Small, conduct, name_of, releases_of, silo_toml

MakeSmall = Callable[..., Small]
SEEDED = {"noise-seed": 7, "participation.cohort": 3.0, "participation.min-probability": 0.5, "local.steps": 2}
SHARED = {"local.step-decay": 0.5, "server.averaging": 0.6}


def weights(done: Conducted) -> bytes:
    state = done.strategy._state
    return state.server.weights.tobytes() + state.average.tobytes() + state.control_total.tobytes()


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_over_the_same_secure_rounds(small: MakeSmall, tmp_path: Path, method: str) -> None:
    made = small(4)
    config = made.config(method=method, rounds=2, **SHARED)
    done = conduct(made.grid(config), config, tmp_path / "run")
    assert done.strategy.outcome == "completed"
    assert [row["status"] for row in done.history] == ["completed"] * 3
    assert all(row["contributors"] == 4 for row in done.history[:2])
    state = done.strategy._state
    assert state.server.updates == 2
    assert np.isfinite(state.server.weights).all()
    assert state.control_total.any() == (method in ("fcfl", "scaffold"))
    # Every line of every ledger is training, for MIME beside as many gradients of all records.
    for home in made.homes.values():
        purposes = [release.purpose for release in releases_of(home)]
        assert purposes == [TRAINING, FULL_GRADIENT] * 2 if method == "mime" else [TRAINING] * 2
    served = done.strategy._weights()["weights"].numpy()
    assert (served != state.server.weights.astype(np.float32)).any(), "the average is served"


def test_mime_s_momentum_is_the_mean_gradient_that_was_paid_for(small: MakeSmall, tmp_path: Path) -> None:
    """After one round s = (1 - beta) g with noise sigma C / N_i on each silo's gradient."""
    made = small(4)
    config = made.config(method="mime", rounds=1, **{"server.momentum": 0.75, "noise-seed": 1})
    done = conduct(made.grid(config), config, tmp_path / "run")
    terms, total = done.strategy.settings.terms, sum(done.strategy.records.values())
    moment = done.strategy._state.server.first_moment
    noise = 0.25 * math.sqrt(4) * terms.gradient_noise * terms.clip_norm / total
    assert float(np.std(moment)) == pytest.approx(noise, rel=0.5)
    for home in made.homes.values():
        (row,) = [release for release in releases_of(home) if release.purpose == FULL_GRADIENT]
        assert (row.plan.sampling_rate, row.plan.steps) == (1.0, 1)
        assert row.plan.noise_multiplier == terms.gradient_noise


def test_a_silo_knows_the_noise_in_its_control_and_the_gain_of_the_next_round_follows(
    small: MakeSmall, tmp_path: Path
) -> None:
    """After two contributions ``xi^2 ((1 - xi)^2 + 1) V`` with ``V = p (sigma C / (q N_i))^2 / tau``."""
    made = small(4)
    keys = {"drift.gain-rule": "signal-to-noise", "drift.gain": 1.0, "drift.smoothing": 0.4, "local.steps": 2}
    config = made.config(rounds=3, **keys, **{"local.drift-budget": 0.0})
    done = conduct(made.grid(config), config, tmp_path / "run")
    state, terms, counts = done.strategy._state, done.strategy.settings.terms, done.strategy.records.values()
    size, rate = len(state.server.weights), terms.sampling_rate
    known = [0.4**2 * (0.6**2 + 1) * size * (terms.sigma_min * terms.clip_norm / (rate * n)) ** 2 / 2 for n in counts]
    mean = sum(n * energy for n, energy in zip(counts, known, strict=True)) / sum(counts)
    assert state.control_noise == pytest.approx(mean, rel=1e-3)
    assert state.control_spread > 0


@pytest.mark.parametrize(
    ("scores", "expected"), [("uniform", [0.5] * 4), ("importance", [0.2, 4 / 15, 8 / 15, 1.0])], ids=str
)
def test_coins_follow_the_records_unless_participation_is_uniform(
    small: MakeSmall, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scores: str, expected: list[float]
) -> None:
    made, chances = small(4, records=[100, 400, 200, 800]), []
    draw = RandomStream.coin

    def coin(stream: RandomStream, chance: float) -> bool:
        chances.append(chance)
        return draw(stream, chance)

    monkeypatch.setattr(RandomStream, "coin", coin)
    keys = {"participation.cohort": 2.0, "participation.min-probability": 0.2, "participation.scores": scores}
    config = made.config(method="fedavg", rounds=1, **keys)
    conduct(made.grid(config), config, tmp_path / "run")
    assert sorted(chances) == pytest.approx(expected)


# --- the order of the silos -----------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fcfl", "fedyogi"])
def test_permuting_the_silos_changes_nothing(small: MakeSmall, tmp_path: Path, method: str) -> None:
    """Randomness belongs to a silo's name, not to its place; sums of whole numbers have no order."""
    made = small(4)
    permuted = tmp_path / "permuted"
    shutil.copytree(made.root / "silos", permuted / "silos")
    for place, number in enumerate((2, 0, 3, 1)):
        target = permuted / "silos" / name_of(place)
        shutil.rmtree(target)
        shutil.copytree(made.root / "silos" / name_of(number), target)
    moved = Small(permuted, {name_of(i): SiloHome.open(permuted / "silos" / name_of(i)) for i in range(4)})
    runs = []
    for number, one in enumerate((made, moved)):
        config = one.config(method=method, rounds=3, **SEEDED, **SHARED)
        runs.append(conduct(one.grid(config), config, tmp_path / f"run-{number}"))
    assert [home.settings.name for home in moved.homes.values()] == [name_of(i) for i in (2, 0, 3, 1)]
    assert {row["contributors"] for row in runs[0].history[:3]} != {4}, "some silos sat out, by their own coins"
    assert weights(runs[0]) == weights(runs[1])


# --- resumption -----------------------------------------------------------------------------------------


class Crash(BaseException):
    """Goes through every handler, as a kill does."""


@pytest.mark.parametrize("method", ["fedadam", "mime"])
def test_a_resumed_run_of_a_baseline_ends_with_the_very_bits(
    small: MakeSmall, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Moments, average and budgets come back from the checkpoint."""
    made = small(4)
    copy = tmp_path / "copy"
    shutil.copytree(made.root, copy)
    other = Small(copy, {name: SiloHome.open(copy / "silos" / name) for name in made.homes})
    config = made.config(method=method, rounds=4, **SEEDED, **SHARED)
    whole = conduct(made.grid(config), config, tmp_path / "whole")

    run, ask = tmp_path / "broken", SecureEpoch.unmask_requests
    config = other.config(method=method, rounds=4, **SEEDED, **SHARED)

    def crash(epoch: SecureEpoch, *arguments: Any) -> list[Message]:
        if epoch.number == 3:
            raise Crash
        return ask(epoch, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(SecureEpoch, "unmask_requests", crash)
        with pytest.raises(Crash):
            conduct(other.grid(config), config, run)
    again = RunConfig.from_mapping({**config.values, "resume": True})
    resumed = conduct(other.grid(again), again, run)
    assert weights(resumed) == weights(whole)
    first, second = whole.strategy._state.server, resumed.strategy._state.server
    assert first.first_moment.tobytes() == second.first_moment.tobytes()
    assert first.second_moment.tobytes() == second.second_moment.tobytes()
    assert first.first_moment.any()


# --- silos of all sizes -----------------------------------------------------------------------------------

HUGE = 1_000_000


def write_extremes(root: Path) -> Small:
    """Silos with 40 samples, with a million, with one constant target, and two ordinary ones, one of them silent."""
    draw = np.random.default_rng(4)
    block = draw.normal(size=(1000, N_FEATURES)).clip(-3, 3).astype(np.float32)

    def split(rows: int, *, constant: bool = False) -> Split:
        features = np.resize(block, (rows, N_FEATURES))
        targets = np.full(rows, 0.5) if constant else features[:, 0] + np.resize(draw.normal(size=1000), rows)
        truth = np.zeros(rows, np.float32)
        days = np.arange(rows, dtype=np.int32)
        return Split(features, targets.clip(-5, 5).astype(np.float32), truth, days, np.zeros(rows, np.int32))

    homes = {}
    for i, rows in enumerate((40, HUGE, 300, 400, 500)):
        folder = root / "samples" / name_of(i)
        folder.mkdir(parents=True)
        splits = {"train": split(rows, constant=i == 2), "validation": split(20), "test": split(20)}
        write_shard(folder, splits, {"target_scale": 0.01, "first_date": "2015-01-02", "last_date": "2024-12-31"})
        toml = silo_toml(name_of(i), folder, roster="", allow_unpinned=True)
        homes[name_of(i)] = SiloHome.create(root / "silos" / name_of(i), toml)
    return Small(root, homes)


@pytest.fixture(scope="module")
def extremes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("extremes")
    write_extremes(root)
    return root


@pytest.mark.parametrize("method", ["fcfl", "fedavg", pytest.param("mime", marks=pytest.mark.slow)])
def test_tiny_huge_constant_and_silent_silos_leave_a_run_that_goes_on_with_finite_weights(
    small: MakeSmall, extremes: Path, tmp_path: Path, method: str
) -> None:
    small(3)  # a narrow model, and no waiting for the disk
    shutil.copytree(extremes / "silos", tmp_path / "silos")
    made = Small(tmp_path, {name_of(i): SiloHome.open(tmp_path / "silos" / name_of(i)) for i in range(5)})
    config = made.config(
        method=method,
        rounds=3,
        **{
            "silos": 5,
            "participation.cohort": 5.0,
            "dp.sampling-rate": 0.01,
            "deadline.train": 60.0,
            "deadline.unmask": 10.0,
            "max-abandoned": 1,
        },
    )

    def silent(message: Message) -> Fault | None:
        """The last silo enrols and is never heard of again."""
        last = message.metadata.dst_node_id == 1004
        return Fault("error") if last and message.metadata.message_type != "query.enrol" else None

    done = conduct(made.grid(config, fault=silent), config, tmp_path / "run")
    assert done.strategy.outcome == "completed"
    training = [row for row in done.history if row["purpose"] == "train"]
    assert [row["status"] for row in training] == ["completed"] * 3
    assert [row["survivors"] for row in training] == [4, 4, 4]
    assert dict(done.strategy.records)[name_of(1)] == HUGE
    state = done.strategy._state
    for vector in (state.server.weights, state.server.first_moment, state.server.second_moment, state.control_total):
        assert np.isfinite(vector).all()
    assert all(math.isfinite(row["update_norm"]) and math.isfinite(row["divergence"]) for row in training)
    # The silo of 40 samples has a noise of norm sigma sqrt(p) / 0.4 a step and a weight of 4e-5: it does not show.
    assert max(row["update_norm"] for row in training) < 5
