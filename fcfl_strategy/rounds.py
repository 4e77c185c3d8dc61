"""The run as a pure state: plan an epoch from it, absorb the epoch's sums into it."""

import hashlib
import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fcfl_strategy import server_update
from fcfl_strategy.divergence import MomentSums, divergence, update_noise_variance
from fcfl_strategy.errors import SumError
from fcfl_strategy.schedule import noise_multiplier
from fcfl_strategy.server_update import ServerState
from fcfl_strategy.settings import Settings
from privacy.count_filter import Budget
from privacy.errors import BudgetExceeded
from privacy.release import FEATURE_BOUND, Charge, ReleasePlan
from privacy.scaling import FeatureScale, feature_scale, sums_stddev
from secagg.messages import EpochOutcome

Sums = Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True)
class RunState:
    """All the coordinator carries from one epoch to the next.

    Attributes
    ----------
    server : ServerState
    control_total : ndarray of float64, shape (p,)
        ``sum_i N_i c_i`` over all enrolled silos, a sum of ring integers times powers of two: exact.
    generation : int
        How often all controls were reset (errata E7).
    rounds : int
        Rounds done, empty ones included.
    epoch : int
        Last epoch used; never reused.
    outcomes : tuple of EpochOutcome
        Those that a silo may still have to be told.
    score_total : float
        ``Z`` of errata E10.
    divergence : float
        ``D_hat`` of the last completed round.
    spent : mapping of str to Budget
        Upper bound on a silo's spend of each budget of the run: as if one silo had contributed in every epoch
        announced so far, and the whole budget once an epoch did not fit that silo any more.
    abandoned, empty : int
        Consecutive abandoned epochs and rounds without contributor.
    ledger_heads : mapping of str to bytes
        Highest ledger head each silo has shown: 8 bytes of count, 32 of hash.
    evaluated : bool
        Whether the final evaluation is done.
    scale : FeatureScale or None
        Scale of the features, once silos released their moments (errata E27); None where the public one stays.
    """

    server: ServerState
    control_total: NDArray[np.float64]
    rounds: int
    epoch: int
    outcomes: tuple[EpochOutcome, ...]
    score_total: float
    divergence: float
    spent: Mapping[str, Budget]
    abandoned: int
    empty: int
    ledger_heads: Mapping[str, bytes]
    evaluated: bool = False
    generation: int = 0
    scale: FeatureScale | None = None


@dataclass(frozen=True)
class Facts:
    """What one completed round showed, for the history.

    Attributes
    ----------
    contributors : int
    divergence, update_norm : float or None
        None in a round without contributor.
    """

    contributors: int
    divergence: float | None
    update_norm: float | None


def first_state(settings: Settings, weights: NDArray[np.float32], records: Mapping[str, int]) -> RunState:
    """State before the first round; ``Z`` starts from the enrolled ``N_i`` (``d_i = 0``, ``v_i = C^2``)."""
    terms = settings.terms
    return RunState(
        server=server_update.init(weights),
        control_total=np.zeros(len(weights)),
        rounds=0,
        epoch=0,
        outcomes=(),
        score_total=_first_score_total(settings, records),
        divergence=0.0,
        spent=terms.budgets(),
        abandoned=0,
        empty=0,
        ledger_heads={},
    )


def _first_score_total(settings: Settings, records: Mapping[str, int]) -> float:
    if settings.terms.unit == "silo":
        return float(len(records))
    return sum(records.values()) / math.sqrt(1 + settings.terms.clip_norm**2)


def sigma(settings: Settings, state: RunState) -> float:
    """Noise multiplier of the next round."""
    movement = float(np.linalg.norm(state.server.weights - state.server.previous))
    return noise_multiplier(settings.schedule, state.rounds, state.divergence, movement)


def plan_training(settings: Settings, state: RunState, records: Mapping[str, int]) -> ReleasePlan:
    """Plan the next training epoch."""
    terms, noise = settings.terms, sigma(settings, state)
    point, control = broadcast(settings, state, records)
    typical = statistics.median(records.values())
    term = settings.step_size * terms.mechanism(noise, terms.steps, 1).noise_stddev / (terms.sampling_rate * typical)
    return ReleasePlan(
        purpose="train",
        round=state.rounds + 1,
        parameters=len(point),
        sampling_rate=terms.sampling_rate,
        clip_norm=terms.clip_norm,
        noise_multiplier=noise,
        steps=terms.steps,
        step_size=settings.step_size,
        proximal=min(settings.proximal * state.divergence, settings.proximal_max),
        drift_budget=settings.drift_budget * terms.steps * len(point) * term**2,
        control_generation=state.generation,
        control_smoothing=settings.control_smoothing,
        control_gain=settings.control_gain,
        cohort=terms.cohort,
        score_total=state.score_total,
        min_probability=terms.min_probability,
        drift_penalty=settings.drift_penalty,
        min_records=2 ** math.floor(math.log2(min(records.values()))),
        max_records=2 ** math.ceil(math.log2(max(records.values()))),
        splits=("validation",) if terms.metrics and (state.rounds + 1) % settings.evaluate_every == 0 else (),
        point_hash=digest(point),
        control_hash=digest(control),
        scale_hash=b"" if state.scale is None else digest(scale_array(state.scale)),
        terms_hash=terms.hash(),
    )


def plan_evaluation(settings: Settings, state: RunState, records: Mapping[str, int]) -> ReleasePlan:
    """Plan an epoch that only sums the metrics of the served model ``w``; training is charged nothing."""
    return replace(
        plan_training(settings, state, records),
        purpose="evaluate",
        splits=("validation", "test"),
        point_hash=digest(served(settings, state).astype(np.float32)),
    )


def served(settings: Settings, state: RunState) -> NDArray[np.float64]:
    """Return the weights that the run serves."""
    return state.server.weights


def unscaled(settings: Settings, state: RunState) -> bool:
    """Whether the run still has to ask for the moments of the features."""
    return settings.terms.scaling_noise > 0 and state.scale is None


def plan_scaling(settings: Settings, state: RunState, records: Mapping[str, int]) -> ReleasePlan:
    """Plan the epoch that sums the moments of the features, before the first round."""
    return replace(plan_training(settings, state, records), purpose="scale", splits=())


def scale_array(scale: FeatureScale) -> NDArray[np.float32]:
    """Means, then scales, as they are sent."""
    return np.array([*scale.mean, *scale.scale], dtype=np.float32)


def absorb_moments(settings: Settings, state: RunState, plan: ReleasePlan, sums: Sums) -> RunState:
    """Fix the scale of the features for the rest of the run; where no silo had budget left it is the public one.

    Raises
    ------
    SumError
        If the sums contradict each other.
    """
    terms, contributors = settings.terms, round(float(sums["contributors"][0]))
    if contributors < 0 or round(float(sums["records"][0])) < contributors:
        raise SumError("contributors and their records do not fit together; a silo does not follow the protocol")
    if contributors == 0:
        return replace(state, scale=FeatureScale.public(terms.features, FEATURE_BOUND))
    (charge,) = plan.charges(terms, 1)
    noise = sums_stddev(charge.mechanism, terms.features, plan.max_records) * math.sqrt(contributors)
    found = feature_scale(sums["moments"], round(float(sums["records"][0])), noise, FEATURE_BOUND)
    # What is kept is what is sent, so that a resumed run goes on with the very numbers.
    kept = scale_array(found).astype(float).tolist()
    mean, scale = tuple(kept[: terms.features]), tuple(kept[terms.features :])
    return replace(state, scale=replace(found, mean=mean, scale=scale))


def broadcast(
    settings: Settings, state: RunState, records: Mapping[str, int]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return ``y`` and ``c = sum_i N_i c_i / sum_i N_i`` as they are sent."""
    point = server_update.broadcast_point(settings.update, state.server).astype(np.float32)
    return point, (state.control_total / sum(records.values())).astype(np.float32)


def digest(vector: NDArray[np.float32]) -> bytes:
    """SHA-256 of the little-endian float32 bytes."""
    return hashlib.sha256(vector.astype("<f4").tobytes()).digest()


def fits(spent: Mapping[str, Budget], charges: Iterable[Charge]) -> Mapping[str, Budget] | None:
    """Return the budgets once these are charged, or None if one does not fit."""
    spent = dict(spent)
    try:
        for charge in charges:
            spent[charge.run] = spent[charge.run].charge(charge.mechanism)
    except BudgetExceeded:
        return None
    return spent


def charges(settings: Settings, plan: ReleasePlan) -> tuple[tuple[Charge, ...], tuple[Charge, ...]]:
    """Return what an epoch costs a silo that takes part in training, and in its metrics; no cost depends on ``N_i``."""
    everything, run = plan.charges(settings.terms, 1), settings.terms.run
    return tuple(c for c in everything if c.run == run), tuple(c for c in everything if c.run != run)


def epsilon(settings: Settings, state: RunState) -> float:
    """Upper bound on a silo's epsilon in training so far."""
    return state.spent[settings.terms.run].epsilon(settings.terms.delta, settings.terms.conversion)


def exhausted(settings: Settings, state: RunState, records: Mapping[str, int]) -> bool:
    """Whether the budget of training has ended.

    A silo that contributed in every epoch so far could not contribute in the next one. Where fewer
    contributions than rounds are planned it answers coin tails instead, and the run goes on until two
    rounds in a row find nobody left.
    """
    training, _ = charges(settings, plan_training(settings, state, records))
    return fits(state.spent, training) is None and (settings.contributions >= settings.rounds or state.empty >= 2)


def announced(settings: Settings, state: RunState, plan: ReleasePlan) -> RunState:
    """State once an epoch is announced: its number is used, and its cost counts in the upper bound.

    Where it does not fit a silo that took part in every epoch, it still may fit one that did not. That silo can have
    spent more than the first, up to the whole budget; so the bound is the whole budget from then on.
    """
    for part in charges(settings, plan):
        after = fits(state.spent, part)
        if after is None:
            after = {**state.spent, **{charge.run: state.spent[charge.run].full() for charge in part}}
        state = replace(state, spent=after)
    return replace(state, epoch=state.epoch + 1)


def reset_controls(state: RunState) -> RunState:
    """State after a silo lost its control: all begin again at zero, so that ``c`` stays the exact mean."""
    return replace(state, control_total=np.zeros_like(state.control_total), generation=state.generation + 1)


def abandon(state: RunState, heads: Mapping[str, bytes]) -> RunState:
    """State after an abandoned epoch: nothing but the outcome and the ledger heads that were shown changes."""
    outcome = EpochOutcome(state.epoch, "abandoned", ())
    outcomes, known = _needed((*state.outcomes, outcome)), _highest(state.ledger_heads, heads)
    return replace(state, outcomes=outcomes, abandoned=state.abandoned + 1, ledger_heads=known)


def complete(state: RunState, heads: Mapping[str, bytes]) -> RunState:
    """State after a completed epoch, before its sums are used; ``heads`` are the survivors' ledger heads."""
    outcome = EpochOutcome(state.epoch, "completed", tuple(sorted(heads)))
    outcomes, known = _needed((*state.outcomes, outcome)), _highest(state.ledger_heads, heads)
    return replace(state, outcomes=outcomes, abandoned=0, ledger_heads=known)


def _highest(known: Mapping[str, bytes], heads: Mapping[str, bytes]) -> Mapping[str, bytes]:
    # The count comes first in a head, so the greater bytes are the later head.
    return {**known, **{silo: max(head, known.get(silo, b"")) for silo, head in heads.items()}}


def _needed(outcomes: tuple[EpochOutcome, ...]) -> tuple[EpochOutcome, ...]:
    """Return the outcomes a silo may still have to be told: the last, and at most one for each silo.

    A silo waits for the outcome of an epoch only if its vector may have counted, and knows it once it masks for a
    later one; an outcome it is not told is one in which its vector did not count.
    """
    kept: list[EpochOutcome] = []
    told: set[str] = set()
    for outcome in reversed(outcomes):
        if not kept or not told.issuperset(outcome.survivors):
            kept.append(outcome)
        told.update(outcome.survivors)
    return tuple(reversed(kept))


def _check(sums: Sums) -> None:
    """Refuse sums that no honest silos can make, so that one silo's nonsense cannot end the run."""
    contributors = float(sums["contributors"][0])
    weight, score = (float(sums[name][0]) if name in sums else contributors for name in ("weight", "score"))
    if score < 0 or contributors < -0.5 or (contributors >= 0.5) != (weight > 0):
        raise SumError("scores, weights or contributors do not fit together; a silo does not follow the protocol")


def absorb(settings: Settings, state: RunState, plan: ReleasePlan, sums: Sums) -> tuple[RunState, Facts]:
    """Take the optimisation step of a completed training epoch.

    With no contributor no optimiser state changes and ``t_k`` does not advance; the round is used up.

    Raises
    ------
    SumError
        If the sums contradict each other.
    """
    _check(sums)
    measured = float(sums["score"][0]) if "score" in sums else 0.0
    state = replace(state, rounds=state.rounds + 1, score_total=measured or state.score_total)
    contributors = round(float(sums["contributors"][0]))
    if contributors == 0:
        return replace(state, empty=state.empty + 1), Facts(0, None, None)
    if settings.terms.unit == "silo":
        return _absorb_whole_silos(settings, state, plan, sums, contributors)
    moments = MomentSums(
        weight=float(sums["weight"][0]),
        squared_norm=float(sums["squared_norm"][0]),
        noise_energy=float(sums["noise_energy"][0]),
        weighted_noise_energy=float(sums["weighted_noise_energy"][0]),
    )
    mean_update = sums["update"] / moments.weight
    squared = float(mean_update @ mean_update)
    spread = divergence(moments, squared, plan.steps * plan.step_size)
    server = server_update.update(
        settings.update, state.server, mean_update, update_noise_variance(moments, plan.parameters)
    )
    control = state.control_total + sums["control"] if "control" in sums else state.control_total
    state = replace(state, server=server, control_total=control, divergence=spread, empty=0)
    return state, Facts(contributors, spread, math.sqrt(squared))


def _absorb_whole_silos(
    settings: Settings, state: RunState, plan: ReleasePlan, sums: Sums, contributors: int
) -> tuple[RunState, Facts]:
    """Take the step from updates of weight 1; nothing is known of their dispersion (errata E6)."""
    mean_update = sums["update"] / contributors
    variance = (plan.noise_multiplier * settings.terms.update_sensitivity) ** 2 / contributors
    server = server_update.update(settings.update, state.server, mean_update, variance)
    return replace(state, server=server, empty=0), Facts(contributors, None, float(np.linalg.norm(mean_update)))
