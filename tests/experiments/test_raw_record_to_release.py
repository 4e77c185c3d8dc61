"""From one bar in a price file to what leaves the silo: reading, features, scaling, clipping and the release."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from data_prep.errors import DataError
from data_prep.features.table import MEMORY_ROWS, N_FEATURES
from data_prep.prepare import FederationSpec, Splits, prepare_files
from data_prep.shards import open_shard
from privacy.dpsgd import clipped_sum, private_gradient
from privacy.mlp import Mlp
from privacy.plan import MechanismPlan
from privacy.randomness import RandomStream
from privacy.scaling import FeatureScale, feature_scale, private_moments, sums_stddev
from tests.data_prep.conftest import random_bars, yahoo_text

torch.set_num_threads(1)
SPEC = FederationSpec(
    silos=1, min_samples=50, splits=Splits(train=(2020, 2021), validation=(2022, 2022), test=(2023, 2023))
)
STRICT = replace(SPEC, strict=True)
MODEL = Mlp(N_FEATURES, (8,))
BOUND, CLIP = 3.0, 1.0
TICKER = "US1"
HOSTILE = [  # factor on the four prices, factor on the volume
    (1000.0, 1.0),
    (1e-6, 1.0),
    (1.0, 1e30),
    (1.0, 0.0),
    (1e-6, 1e30),
    (1e306, 1e300),  # about the largest numbers a file can hold
    (1e-300, 0.0),
]
Array = np.ndarray[Any, Any]
Scaler = Callable[[Array], Array]


class Quiet(RandomStream):
    """A stream of samples without noise."""

    def rounded_normal(self, n: int, scale: float) -> Array:
        return np.zeros(n)


@dataclass(frozen=True)
class Samples:
    """Training samples of the silo, and how many samples one bar may enter."""

    features: Array
    targets: Array
    tickers: Array
    days: Array
    samples_per_bar: int


@dataclass(frozen=True)
class Market:
    """A folder of price files that can be prepared with one bar replaced."""

    folder: Path
    out: Path

    def lines(self) -> list[str]:
        return (self.folder / f"{TICKER}.csv").read_text(encoding="utf-8").splitlines()

    def last_training_row(self) -> int:
        """Line of the last bar of the training years: only the target of the sample before it is training data."""
        return max(row for row, line in enumerate(self.lines()) if line.startswith("2021-"))

    def returns(self, samples: Samples) -> Array:
        """Raw log return of the day of every sample, without a public range."""
        found = {}
        for file in self.folder.iterdir():
            cells = [line.split(",") for line in file.read_text(encoding="utf-8").splitlines()[1:]]
            closes = np.log([float(cell[4]) for cell in cells])
            found |= {(file.stem, cell[0]): move for cell, move in zip(cells[1:], np.diff(closes), strict=True)}
        return np.array([found[key] for key in zip(samples.tickers, samples.days.astype(str), strict=True)])

    def prepared(self, row: int | None = None, price: float = 1.0, volume: float = 1.0) -> Samples:
        """Prepare, with the bar in line `row` replaced in the file."""
        file = self.folder / f"{TICKER}.csv"
        before = file.read_text(encoding="utf-8")
        if row is not None:
            lines = before.splitlines()
            day, *prices, traded = lines[row].split(",")
            lines[row] = ",".join([day, *(repr(float(p) * price) for p in prices), repr(float(traded) * volume)])
            file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        try:
            (path,) = prepare_files([self.folder], self.out / f"{row}-{price}-{volume}", SPEC)
        finally:
            file.write_text(before, encoding="utf-8")
        shard = open_shard(path)
        assert shard.train.dates is not None
        assert shard.train.instruments is not None
        names = np.array(shard.manifest["tickers"])[shard.train.instruments]
        days = np.asarray(shard.train.dates).astype("datetime64[D]")
        return Samples(
            np.array(shard.train.features),
            np.array(shard.train.targets),
            names,
            days,
            int(shard.manifest["samples_per_bar"]),
        )


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> Market:
    root = tmp_path_factory.mktemp("market")
    folder = root / "us"
    folder.mkdir()
    for number in range(3):
        bars = random_bars(20 + number, 900)
        (folder / f"US{number}.csv").write_text(yahoo_text(bars), encoding="utf-8")
    return Market(folder, root / "out")


@pytest.fixture(scope="module")
def before(market: Market) -> Samples:
    return market.prepared()


@pytest.fixture(scope="module")
def released(before: Samples) -> FeatureScale:
    """A scale from one private release, fixed before the bar is replaced: a public number."""
    plan = MechanismPlan(1.0, 4.0, 10.0, 1, len(before.targets))
    sums = private_moments(before.features, plan, RandomStream.seeded(3), BOUND)
    noise = sums_stddev(plan, N_FEATURES, len(before.targets))
    return feature_scale(sums, len(before.targets), noise, BOUND)


def weights() -> torch.Tensor:
    start = torch.from_numpy(MODEL.initial_parameters(0))
    start[-9:] = 0.3
    return start


def gradient_sum(features: Array, targets: Array) -> Array:
    rows = np.arange(len(targets), dtype=np.int64)
    return clipped_sum(MODEL, weights(), features, targets.astype(np.float32), rows, CLIP)[0]


def changed_rows(one: Array, other: Array) -> Array:
    assert one.shape == other.shape
    return np.flatnonzero((one.view(np.uint32) != other.view(np.uint32)).reshape(len(one), -1).any(axis=1))


def moved_samples(one: Samples, other: Samples) -> Array:
    np.testing.assert_array_equal(one.days, other.days)
    np.testing.assert_array_equal(one.tickers, other.tickers)
    return np.union1d(changed_rows(one.features, other.features), changed_rows(one.targets, other.targets))


def fitted_here(features: Array) -> Array:
    """What must not be: a standard scaler fitted on the silo's own records."""
    rows = features.astype(np.float64)
    return ((rows - rows.mean(0)) / np.maximum(rows.std(0), 1e-6)).astype(np.float32)


@pytest.mark.parametrize(("price", "volume"), HOSTILE)
@pytest.mark.parametrize("row", [2, 200, 350])
def test_a_hostile_bar_changes_only_samples_whose_windows_hold_it(
    market: Market, before: Samples, row: int, price: float, volume: float
) -> None:
    after = market.prepared(row, price, volume)
    moved = moved_samples(before, after)
    days = np.array([line.split(",")[0] for line in market.lines()[1:]], dtype="datetime64[D]")
    place = np.searchsorted(days, before.days[moved]) - (row - 1)
    assert (before.tickers[moved] == TICKER).all()
    assert ((place >= -1) & (place < MEMORY_ROWS)).all(), "all other samples are the same to the last bit"
    assert len(moved) <= MEMORY_ROWS + 1 <= before.samples_per_bar
    assert len(moved) > 0 or row == 2, "volumes of the first bars are only part of the warm-up"
    assert np.isfinite(after.features).all()
    assert (np.abs(after.features) <= BOUND).all()
    assert (np.abs(after.targets) <= SPEC.target_clip).all()


@pytest.mark.parametrize("price", [float("nan"), -1.0, float("inf")])
def test_a_bar_that_is_left_out_changes_only_samples_whose_windows_hold_it(
    market: Market, before: Samples, price: float
) -> None:
    row = 200
    after = market.prepared(row, price)
    key = [np.array([f"{t} {d}" for t, d in zip(s.tickers, s.days, strict=True)]) for s in (before, after)]
    assert set(key[1]) < set(key[0])
    days = np.array([line.split(",")[0] for line in market.lines()[1:]], dtype="datetime64[D]")
    gone = np.flatnonzero(~np.isin(key[0], key[1]))
    kept = np.flatnonzero(np.isin(key[0], key[1]))
    moved = np.union1d(gone, kept[changed_rows(before.features[kept], after.features)])
    place = np.searchsorted(days, before.days[moved]) - (row - 1)
    assert (before.tickers[moved] == TICKER).all()
    assert list(place[np.isin(moved, gone)]) == [-1, 0]
    assert ((place >= -1) & (place < MEMORY_ROWS)).all()
    assert 2 < len(moved) <= before.samples_per_bar


@pytest.mark.parametrize("scaling", ["public", "released"])
@pytest.mark.parametrize(("price", "volume"), HOSTILE)
def test_a_bar_of_m_samples_moves_the_release_by_two_clips_for_each(
    market: Market, before: Samples, released: FeatureScale, scaling: str, price: float, volume: float
) -> None:
    scale = released if scaling == "released" else FeatureScale.public(N_FEATURES, BOUND)
    after = market.prepared(200, price, volume)
    moved = moved_samples(before, after)
    x, other = scale.apply(before.features), scale.apply(after.features)
    assert set(changed_rows(x, other)) <= set(moved.tolist())
    distance = np.linalg.norm(gradient_sum(x, before.targets) - gradient_sum(other, after.targets))
    assert 0 < distance <= 2 * CLIP * len(moved)

    plan = MechanismPlan(0.3, CLIP, 2.0, 1, len(before.targets))
    one, two = (
        private_gradient(MODEL, weights(), features, samples.targets, plan, Quiet.seeded(5)).mean.double().numpy()
        for features, samples in ((x, before), (other, after))
    )
    sampled = np.intersect1d(Quiet.seeded(5).poisson_sample(len(x), 0.3), moved)
    slack = 2 * np.sqrt(MODEL.size) * plan.grid(MODEL.size, len(x)).step
    assert np.linalg.norm(one - two) * plan.divisor <= 2 * CLIP * len(sampled) + slack


@pytest.mark.parametrize("scaling", ["public", "released"])
def test_a_bar_of_one_sample_moves_the_sum_by_two_clips_at_most_and_reaches_that(
    market: Market, before: Samples, released: FeatureScale, scaling: str
) -> None:
    scale = released if scaling == "released" else FeatureScale.public(N_FEATURES, BOUND)
    x = scale.apply(before.features)
    distances = []
    for price in (1000.0, 1e-6, 1e306, 1e-300):
        after = market.prepared(market.last_training_row(), price)
        assert len(moved_samples(before, after)) == 1
        other = scale.apply(after.features)
        np.testing.assert_array_equal(x, other)
        distances.append(np.linalg.norm(gradient_sum(x, before.targets) - gradient_sum(other, after.targets)))
    assert max(distances) <= 2 * CLIP
    assert max(distances) > 1.98 * CLIP, "the replaced target turns the gradient round: the bound is met"


@pytest.mark.parametrize(("price", "volume"), HOSTILE)
def test_a_bar_moves_the_scaling_release_by_two_clips_for_each_of_its_samples(
    market: Market, before: Samples, price: float, volume: float
) -> None:
    after = market.prepared(200, price, volume)
    m = len(changed_rows(before.features, after.features))
    plan = MechanismPlan(1.0, 4.0, 10.0, 1, len(before.targets))
    one, two = (private_moments(s.features, plan, Quiet.seeded(0), BOUND) for s in (before, after))
    slack = np.sqrt(2 * N_FEATURES) * plan.grid(2 * N_FEATURES, len(before.targets)).step
    assert 0 < np.linalg.norm(one - two) <= 2 * m * (plan.clip_norm + slack)


def test_a_target_scaler_fitted_on_the_silo_breaks_the_bound(market: Market, before: Samples) -> None:
    after = market.prepared(market.last_training_row(), 1000.0)
    (row,) = moved_samples(before, after)
    returns = before.targets.astype(np.float64) * SPEC.target_scale
    replaced = returns.copy()
    replaced[row] += np.log(1000.0)  # a fitted scaler has no public range that would cut it off
    sums = [gradient_sum(before.features, raw / raw.std()) for raw in (returns, replaced)]
    assert np.linalg.norm(sums[0] - sums[1]) > 300 * CLIP, "where 2 C is allowed"


def test_a_feature_scaler_fitted_on_the_silo_breaks_the_bound(market: Market, before: Samples) -> None:
    row = market.last_training_row() - 1
    moved = moved_samples(before, market.prepared(row, 1000.0))
    assert len(moved) == 2, "the target of one sample and the features of the next"
    raw = market.returns(before)
    replaced = raw.copy()
    replaced[moved.max()] += np.log(1000.0)
    x, other = (np.column_stack([fitted_here(r[:, None]), before.features[:, 1:]]) for r in (raw, replaced))
    assert len(changed_rows(x, other)) == len(x), "every sample depends on the bar"
    distance = np.linalg.norm(gradient_sum(x, before.targets) - gradient_sum(other, before.targets))
    assert distance > 5 * CLIP, "one feature of 52, and 4 C is allowed"


def test_a_scaler_fitted_on_clipped_features_makes_every_sample_depend_on_every_bar(
    market: Market, before: Samples
) -> None:
    after = market.prepared(market.last_training_row() - 1, 1000.0)
    assert len(moved_samples(before, after)) == 2
    assert len(changed_rows(fitted_here(before.features), fitted_here(after.features))) == len(before.features)


@pytest.mark.parametrize("cell", ["-1.0", "0.0", "nan", "inf", "1e999", "x", ""])
def test_prices_that_are_not_positive_numbers_are_refused_by_name(market: Market, tmp_path: Path, cell: str) -> None:
    lines = market.lines()
    day, *prices, volume = lines[200].split(",")
    lines[200] = ",".join([day, *prices[:-1], cell, volume])
    folder = tmp_path / "us"
    folder.mkdir()
    (folder / f"{TICKER}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match="line 201, column Close"):
        prepare_files([folder], tmp_path / "out", STRICT)


@pytest.mark.parametrize("factor", [1000.0, 1e-6])
def test_a_close_outside_the_range_of_its_own_day_is_refused(market: Market, tmp_path: Path, factor: float) -> None:
    lines = market.lines()
    day, *prices, volume = lines[200].split(",")
    lines[200] = ",".join([day, *prices[:-1], repr(float(prices[-1]) * factor), volume])
    folder = tmp_path / "us"
    folder.mkdir()
    (folder / f"{TICKER}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match="line 201"):
        prepare_files([folder], tmp_path / "out", STRICT)
