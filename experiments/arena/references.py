"""What a study is measured against: forecasts that need no federation, made once for each data set.

They see the pooled records of all silos without any protection, which is what makes them references. Everything that
is chosen (a penalty, a learning rate, when to stop) is chosen on validation.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client_app.contribution import Sample
from client_app.evaluation import forecast_sums
from experiments.arena.cache import key_of
from experiments.arena.central import train_central
from experiments.arena.evaluation import evaluate, means, split_of
from experiments.arena.markets import Data
from experiments.arena.runs import samples_in
from fcfl_strategy.metrics import Metrics
from server_app import run_settings

SPLITS = ("validation", "test")
LABELS = {
    "zero": "zero forecast",
    "mean": "historical mean of the stock",
    "silo-only": "silo alone, ridge regression",
    "ridge": "pooled ridge regression",
    "network": "pooled network",
    "central": "centralised (better of the two)",
    "optimal": "optimal forecast of the market",
}
PENALTIES = (0.0, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
BATCH = 8192
_Forecast = Callable[[str, Sample, slice], NDArray[np.float64]]


@dataclass(frozen=True)
class References:
    """The references of one data set, as a task that any process can do and that is done once.

    Attributes
    ----------
    data : Data
    passes : int
        Most passes of the pooled network over the records.
    """

    data: Data
    passes: int = 12

    @cached_property
    def content(self) -> Mapping[str, Any]:
        """All that decides the result."""
        hidden = list(run_settings.network().hidden)
        return {"kind": "references", "data": self.data.fingerprint, "hidden": hidden, "passes": self.passes}

    @cached_property
    def key(self) -> str:
        """Hash of ``content`` and of the version of the code."""
        return key_of(self.content)

    def do(self) -> dict[str, Any]:
        """Make them: metrics by name and split; ``optimal`` only where the market knows it."""
        samples = samples_in(self.data.folder)
        silos = list(samples.values())
        ridge = _best([_linear(silos, penalty) for penalty in PENALTIES], silos)
        model = run_settings.network()
        weights = train_central(model, silos, passes=self.passes)
        found: dict[str, Mapping[str, Metrics]] = {
            "zero": _score(lambda name, silo, rows: np.zeros(len(split_of(silo.shard, name).targets[rows])), silos),
            "mean": _score(_historical_mean(silos), silos),
            "silo-only": _alone(silos),
            "ridge": ridge,
            "network": evaluate(model, weights, silos, SPLITS),
        }
        found["central"] = min(found["ridge"], found["network"], key=_validation)
        if all(silo.shard.test.truth is not None for silo in silos):
            found["optimal"] = _score(_truth, silos)
        return {"references": found}


def _validation(found: Mapping[str, Metrics]) -> float:
    error = found["validation"]["mse"]
    assert error is not None
    return error


def _score(forecast: _Forecast, silos: Sequence[Sample]) -> dict[str, Metrics]:
    return {name: means(_sums(forecast, name, silo) for silo in silos) for name in SPLITS}


def _sums(forecast: _Forecast, name: str, silo: Sample) -> Mapping[str, float]:
    split, total = split_of(silo.shard, name), forecast_sums(np.zeros(0), np.zeros(0), np.zeros(0, np.float32))
    for rows in _parts(len(split.targets)):
        actual = np.asarray(split.targets[rows], dtype=np.float64) * silo.shard.target_scale
        truth = None if split.truth is None else split.truth[rows]
        part = forecast_sums(forecast(name, silo, rows), actual, truth)
        total = {metric: value + part[metric] for metric, value in total.items()}
    return total


def _parts(size: int) -> Iterator[slice]:
    return (slice(first, first + BATCH) for first in range(0, size, BATCH))


def _truth(name: str, silo: Sample, rows: slice) -> NDArray[np.float64]:
    truth = split_of(silo.shard, name).truth
    assert truth is not None
    return np.asarray(truth[rows], dtype=np.float64)


def _historical_mean(silos: Sequence[Sample]) -> _Forecast:
    """Mean return of the very stock over the training years; of all stocks for one without training records."""
    everything = np.concatenate([np.asarray(silo.shard.train.targets, dtype=np.float64) for silo in silos])
    overall, means_of = float(everything.mean()), {}
    for silo in silos:
        train = silo.shard.train
        size = 1 + max(int(_instruments(silo, name).max(initial=0)) for name in ("train", *SPLITS))
        count = np.bincount(_instruments(silo, "train"), minlength=size)
        total = np.bincount(_instruments(silo, "train"), weights=train.targets, minlength=size)
        means_of[id(silo)] = np.where(count > 0, total / np.maximum(count, 1), overall)

    def forecast(name: str, silo: Sample, rows: slice) -> NDArray[np.float64]:
        found: NDArray[np.float64] = means_of[id(silo)][_instruments(silo, name)[rows]] * silo.shard.target_scale
        return found

    return forecast


def _instruments(silo: Sample, name: str) -> NDArray[np.int32]:
    found = split_of(silo.shard, name).instruments
    assert found is not None
    return found


def _linear(silos: Sequence[Sample], penalty: float) -> _Forecast:
    """Ridge regression with an intercept that is not penalised; the penalty is in units of the number of records."""
    products, weighted, records = _moments(silos)
    system = products / records + penalty * np.diag([*np.ones(len(products) - 1), 0.0])
    # The least solution where features are constant, as those of a group without files are.
    solution = np.linalg.lstsq(system, weighted / records, rcond=None)[0]

    def forecast(name: str, silo: Sample, rows: slice) -> NDArray[np.float64]:
        features = np.asarray(split_of(silo.shard, name).features[rows], dtype=np.float64)
        found: NDArray[np.float64] = (features @ solution[:-1] + solution[-1]) * silo.shard.target_scale
        return found

    return forecast


def _moments(silos: Sequence[Sample]) -> tuple[NDArray[np.float64], NDArray[np.float64], int]:
    width = silos[0].features + 1
    products, weighted, records = np.zeros((width, width)), np.zeros(width), 0
    for silo in silos:
        train = silo.shard.train
        for rows in _parts(len(train.targets)):
            features = np.asarray(train.features[rows], dtype=np.float64)
            with_one = np.column_stack([features, np.ones(len(features))])
            products += with_one.T @ with_one
            weighted += with_one.T @ np.asarray(train.targets[rows], dtype=np.float64)
        records += silo.records
    return products, weighted, records


def _best(forecasts: Sequence[_Forecast], silos: Sequence[Sample]) -> dict[str, Metrics]:
    return min((_score(forecast, silos) for forecast in forecasts), key=_validation)


def _alone(silos: Sequence[Sample]) -> dict[str, Metrics]:
    """Ridge regression of every silo on its own records, the penalty chosen on its own validation records."""
    chosen = []
    for silo in silos:
        forecasts = [_linear([silo], penalty) for penalty in PENALTIES]
        own = [_sums(forecast, "validation", silo)["sse"] for forecast in forecasts]
        chosen.append(forecasts[int(np.argmin(own))])
    return {
        name: means(_sums(forecast, name, silo) for forecast, silo in zip(chosen, silos, strict=True))
        for name in SPLITS
    }
