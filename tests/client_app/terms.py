"""Terms and plans that fit each other, to be changed in one value by a test."""

from typing import Any

from privacy.metric import Metric
from privacy.records import RECORD_ADJACENCY
from privacy.release import ReleasePlan
from privacy.terms import RunTerms


def terms_of(**change: Any) -> RunTerms:
    values: dict[str, Any] = {
        "run_id": bytes(16),
        "epsilon": 0.5,
        "delta": 1e-6,
        "adjacency": RECORD_ADJACENCY,
        "accountant": "rdp",
        "conversion": "improved",
        "contributions": 0,
        "variance_scale": 0.0,
        "backtracks": 0,
        "loss_bound": 0.0,
        "scaling_noise": 0.0,
        "evaluation": None,
        "metric_bound": 0.0,
        "order": 40.0,
        "rdp_budget": 0.1,
        "sampling_rate": 0.1,
        "clip_norm": 1.0,
        "sigma_min": 1.0,
        "sigma_max": 4.0,
        "steps": 5,
        "cohort": 9.0,
        "min_probability": 0.1,
        "features": 52,
        "hidden": (320, 320),
        "metric": Metric(),
        "noise_seed": None,
        "metrics": False,
        "config_hash": bytes(32),
    }
    return RunTerms(**(values | change))


def plan_of(terms: RunTerms, **change: Any) -> ReleasePlan:
    values: dict[str, Any] = {
        "purpose": "train",
        "round": 1,
        "parameters": 5,
        "sampling_rate": terms.sampling_rate,
        "clip_norm": terms.clip_norm,
        "noise_multiplier": terms.sigma_min,
        "steps": terms.steps,
        "step_size": 0.5,
        "proximal": 0.0,
        "drift_budget": 0.0,
        "control_generation": 0,
        "control_smoothing": 0.3,
        "control_gain": 0.5,
        "cohort": terms.cohort,
        "score_total": 1000.0,
        "min_probability": terms.min_probability,
        "drift_penalty": 0.0,
        "min_records": 64,
        "max_records": 128,
        "splits": (),
        "point_hash": bytes(32),
        "control_hash": bytes(32),
        "scale_hash": b"",
        "terms_hash": terms.hash(),
    }
    return ReleasePlan(**(values | change))
