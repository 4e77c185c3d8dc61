"""Settings, states and sums of small runs, made by hand."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fcfl_strategy.rounds import RunState, first_state
from fcfl_strategy.schedule import NoiseSchedule
from fcfl_strategy.server_update import ServerUpdate
from fcfl_strategy.settings import Deadlines, Settings
from privacy.conversion import order_budget
from privacy.filter import RenyiFilter
from privacy.metric import Metric
from privacy.records import RECORD_ADJACENCY
from privacy.terms import RunTerms

RECORDS = {"silo-a": 300, "silo-b": 1000, "silo-c": 5000}
PARAMETERS = 6
SIGMA = 4.0
ORDER = 17.0


def make_terms(**changes: Any) -> RunTerms:
    terms = RunTerms(
        run_id=b"r" * 16,
        epsilon=1.0,
        delta=1e-5,
        order=ORDER,
        rdp_budget=order_budget(ORDER, 1.0, 1e-5),
        adjacency=RECORD_ADJACENCY,
        accountant="rdp",
        conversion="improved",
        contributions=0,
        variance_scale=0.0,
        backtracks=0,
        loss_bound=0.0,
        scaling_noise=0.0,
        evaluation=None,
        metric_bound=0.0,
        sampling_rate=0.1,
        clip_norm=1.0,
        sigma_min=0.5,
        sigma_max=100.0,
        steps=5,
        cohort=2.0,
        min_probability=0.1,
        features=3,
        hidden=(1,),
        metric=Metric(),
        noise_seed=None,
        metrics=True,
        config_hash=b"c" * 32,
    )
    return replace(terms, **changes)


def make_settings(terms: RunTerms | None = None, **changes: Any) -> Settings:
    settings = Settings(
        terms=terms or make_terms(),
        rounds=15,
        contributions=15,
        rule=ServerUpdate(),
        schedule=NoiseSchedule("constant", SIGMA, 0.5, 100.0),
        step_size=0.5,
        drift_budget=4.0,
        proximal=0.0,
        proximal_max=10.0,
        control_smoothing=0.3,
        control_gain=0.5,
        drift_penalty=0.0,
        silos=3,
        colluders=0,
        max_abandoned=3,
        evaluate_every=1,
        evaluate=True,
        deadlines=Deadlines(),
    )
    return replace(settings, **changes)


def make_state(settings: Settings, **changes: Any) -> RunState:
    weights = np.linspace(-0.5, 0.5, PARAMETERS).astype(np.float32)
    return replace(first_state(settings, weights, RECORDS), **changes)


def spent(state: RunState) -> RenyiFilter:
    """Filter of the training budget."""
    found = state.spent[(b"r" * 16).hex()]
    assert isinstance(found, RenyiFilter)
    return found


def cost(settings: Settings, noise: float) -> float:
    """Renyi cost of one contribution."""
    return settings.terms.mechanism(noise, settings.terms.steps, 1).rdp(settings.terms.order)


def make_sums(contributors: int = 2, **changes: Any) -> Mapping[str, NDArray[np.float64]]:
    """Sums of a round, noise energies well below the squared norms."""
    sums = {
        "update": np.linspace(-300.0, 200.0, PARAMETERS),
        "control": np.linspace(10.0, -20.0, PARAMETERS),
        "weight": np.array([2000.0]),
        "squared_norm": np.array([500.0]),
        "noise_energy": np.array([20.0]),
        "weighted_noise_energy": np.array([3000.0]),
        "score": np.array([4000.0]),
        "contributors": np.array([float(contributors)]),
    }
    if contributors == 0:
        sums |= {name: np.zeros_like(value) for name, value in sums.items() if name != "score"}
    return sums | changes
