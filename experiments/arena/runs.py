"""One run of the arena, as a task that any process can do and that is done once."""

import base64
import functools
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client_app.contribution import Sample
from experiments.arena.cache import key_of
from experiments.arena.evaluation import evaluate
from experiments.arena.federation import IN_THE_CLEAR, Epoch, conduct
from experiments.arena.markets import Data
from fcfl_strategy import rounds
from fcfl_strategy.errors import SumError
from fcfl_strategy.metrics import Metrics
from fcfl_strategy.settings import Settings
from server_app import run_settings
from server_app.config import RunConfig


@dataclass(frozen=True)
class Run:
    """A run to do.

    Attributes
    ----------
    config : RunConfig
    data : Data
    splits : tuple of str
        On which it is evaluated after every round; a run that tunes never sees ``test``.
    """

    config: RunConfig
    data: Data
    splits: tuple[str, ...]

    @functools.cached_property
    def content(self) -> Mapping[str, Any]:
        """All that decides the result."""
        return {
            "kind": "run",
            "config": dict(self.config.values),
            "data": self.data.fingerprint,
            "splits": list(self.splits),
            "hidden": list(run_settings.network().hidden),
        }

    @functools.cached_property
    def key(self) -> str:
        """Hash of ``content`` and of the version of the code."""
        return key_of(self.content)

    def do(self) -> dict[str, Any]:
        """Do the run.

        Returns
        -------
        dict
            ``rounds``: for every round the coordinator's history and ``served`` and ``broadcast``, the metrics by
            split of the weights that would be served after it and of the point that was broadcast in it; ``failed``:
            why it could not go on, or None; epsilon of the silo that spent most; seconds; and, of a run that is
            reported, ``weights``: what it serves, for `weights_of`.
        """
        began, cpu = time.perf_counter(), time.process_time()
        samples = samples_in(self.data.folder)
        settings = run_settings.settings_of(self.config, bytes.fromhex(self.key)[:16])
        look = _Look(settings, samples, self.splits)
        weights = run_settings.initial_weights(self.config)
        found: list[Mapping[str, Any]] = [look.start(weights)]
        failed, last = None, None
        try:
            for epoch in conduct(settings, weights, samples):
                last = epoch
                if epoch.row["purpose"] == "train":
                    found.append(look.after(epoch))
        except SumError as error:
            failed = str(error)
        return {
            "sums": IN_THE_CLEAR,
            "rounds": found,
            "failed": failed,
            "epsilon_of_silos": 0.0 if last is None else _largest_epsilon(settings, last),
            "weights": None if last is None or "test" not in self.splits else _written(settings, last),
            "seconds": time.perf_counter() - began,
            "cpu_seconds": time.process_time() - cpu,
        }


def _written(settings: Settings, last: Epoch) -> str:
    return base64.b64encode(rounds.served(settings, last.state).astype("<f4").tobytes()).decode()


def weights_of(result: Mapping[str, Any]) -> NDArray[np.float32]:
    """Return the weights that a reported run serves, shape (p,)."""
    return np.frombuffer(base64.b64decode(result["weights"]), dtype="<f4")


def _largest_epsilon(settings: Settings, last: Epoch) -> float:
    terms = settings.terms
    budgets = [silo.budgets[terms.run] for silo in last.silos]
    return max(budgets, key=lambda budget: budget.fraction).epsilon(terms.delta, terms.conversion)


@functools.lru_cache(maxsize=4)
def samples_in(folder: Path) -> Mapping[str, Sample]:
    """Return the silos of a folder; the next run in this process takes the same ones."""
    return Data(folder, "").samples()


class _Look:
    """Evaluates what a run has after every round; equal weights are evaluated once."""

    def __init__(self, settings: Settings, samples: Mapping[str, Sample], splits: tuple[str, ...]) -> None:
        self._settings, self._samples, self._splits = settings, samples, splits
        self._model = settings.terms.model
        self._known: dict[bytes, dict[str, Metrics]] = {}

    def start(self, weights: NDArray[np.float32]) -> Mapping[str, Any]:
        found = evaluate(self._model, weights, self._samples.values(), self._splits)
        self._known = {rounds.digest(weights): found}
        return {"round": 0, "served": found, "broadcast": found}

    def after(self, epoch: Epoch) -> Mapping[str, Any]:
        served = rounds.served(self._settings, epoch.state).astype(np.float32)
        kept: dict[bytes, dict[str, Metrics]] = {}
        for weights in (epoch.point, served):
            key = rounds.digest(weights)
            known = kept.get(key) or self._known.get(key)
            kept[key] = known or evaluate(self._model, weights, self._samples.values(), self._splits, epoch.state.scale)
        self._known = kept
        history = ("round", "status", "contributors", "sigma", "epsilon", "divergence", "update_norm")
        return {
            **{name: epoch.row[name] for name in history},
            "served": kept[rounds.digest(served)],
            "broadcast": kept[rounds.digest(epoch.point)],
        }
