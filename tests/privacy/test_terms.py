"""The terms and plans both sides read: canonical, complete, and never dearer than the ledger opens."""

import dataclasses
import math
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy.calibration import calibrate
from privacy.conversion import order_budget
from privacy.count_filter import CountFilter
from privacy.errors import PrivacyError
from privacy.filter import RenyiFilter
from privacy.metrics import BACKTRACKING, EVALUATION
from privacy.records import FULL_GRADIENT, SILO_REPLACE_ADJACENCY, SILO_ZERO_ADJACENCY, TRAINING
from privacy.release import METRIC_NORM, METRICS, ReleasePlan, noised_metric_scales
from privacy.terms import Allowance, RunTerms
from tests.client_app.terms import plan_of, terms_of

EXTRA = Allowance(0.5, 60.0, 0.1, 9.0)
COUNTED = {"accountant": "pld", "contributions": 7, "rdp_budget": 0.0}
NOISED = {"metrics": True, "evaluation": EXTRA, "metric_bound": 0.01}


@pytest.mark.parametrize("change", [{}, COUNTED, NOISED, {"noise_seed": 2**63 - 1}, {"adjacency": SILO_ZERO_ADJACENCY}])
def test_terms_survive_the_wire(change: dict[str, Any]) -> None:
    terms = terms_of(**change)
    assert RunTerms.from_bytes(terms.to_bytes()) == terms
    assert RunTerms.from_bytes(terms.to_bytes()).hash() == terms.hash()
    plan = plan_of(terms)
    assert ReleasePlan.from_bytes(plan.to_bytes()) == plan


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(RunTerms)])
def test_a_term_of_another_type_is_refused_by_name(field: str) -> None:
    values = cbor2.loads(terms_of(**NOISED).to_bytes())
    for bad in ({"a": 1}, [None], math.nan, math.inf, "unheard of"):
        with pytest.raises(PrivacyError, match=field) as caught:
            RunTerms.from_bytes(cbor2.dumps(values | {field: bad}, canonical=True))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(Allowance)])
def test_a_field_of_a_nested_budget_is_refused_by_name(field: str) -> None:
    values = cbor2.loads(terms_of(**NOISED).to_bytes())
    for bad in (-1.0, 0.0, "x", None, math.nan):
        nested = values["evaluation"] | {field: bad}
        with pytest.raises(PrivacyError, match=field):
            RunTerms.from_bytes(cbor2.dumps(values | {"evaluation": nested}, canonical=True))
    short = {name: value for name, value in values["evaluation"].items() if name != field}
    with pytest.raises(PrivacyError, match="evaluation"):
        RunTerms.from_bytes(cbor2.dumps(values | {"evaluation": short}, canonical=True))


def test_a_whole_number_beyond_every_float_is_refused_by_name() -> None:
    values = cbor2.loads(terms_of().to_bytes())
    with pytest.raises(PrivacyError, match=r"run terms\.epsilon"):
        RunTerms.from_bytes(cbor2.dumps(values | {"epsilon": 10**400}, canonical=True))


def test_an_encoding_that_is_not_canonical_is_refused() -> None:
    data = terms_of().to_bytes()
    values = cbor2.loads(data)
    for other in (cbor2.dumps(dict(reversed(values.items()))), data + b"\0", data[:-1], b"", b"\xff"):
        with pytest.raises(PrivacyError, match="run terms"):
            RunTerms.from_bytes(other)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rdp_budget": 1.0}, "rdp_budget"),
        ({"accountant": "pld"}, "rdp_budget"),
        ({"accountant": "pld", "rdp_budget": 0.0}, "contributions"),
        ({"contributions": 3}, "contributions"),
        (COUNTED | {"backtracks": 1, "loss_bound": 1.0}, "backtracks"),
        ({"backtracks": 1}, "loss_bound"),
        ({"loss_bound": 1.0}, "loss_bound"),
        ({"evaluation": EXTRA, "metric_bound": 0.01}, "evaluation"),
        ({"metrics": True, "evaluation": EXTRA}, "metric_bound"),
        (NOISED | {"evaluation": dataclasses.replace(EXTRA, rdp_budget=9.0)}, "rdp_budget"),
        ({"adjacency": "whatever"}, "adjacency"),
        ({"adjacency": SILO_ZERO_ADJACENCY, "variance_scale": 0.5}, "variance_scale"),
        ({"adjacency": SILO_ZERO_ADJACENCY, "backtracks": 1, "loss_bound": 1.0}, "backtracks"),
        (NOISED | {"adjacency": SILO_ZERO_ADJACENCY}, "evaluation"),
        (COUNTED | {"gradient_noise": 9.0}, "gradient_noise"),
        ({"adjacency": SILO_ZERO_ADJACENCY, "gradient_noise": 9.0}, "gradient_noise"),
    ],
)
def test_terms_that_contradict_each_other_are_refused_by_name(change: dict[str, Any], says: str) -> None:
    with pytest.raises(PrivacyError, match=says):
        terms_of(**change)


def test_the_budgets_are_those_the_ledger_opens() -> None:
    terms = terms_of(**NOISED)
    training, evaluation = terms.openings("software 1")
    assert terms.budgets() == {terms.run: training.budget(), terms.evaluation_run: evaluation.budget()}
    assert training.budget() == RenyiFilter(40.0, 0.1)
    assert (evaluation.epsilon, evaluation.delta) == (0.5, terms.delta)
    assert (terms.total_epsilon, terms.total_delta) == (terms.epsilon + 0.5, 2 * terms.delta)
    counted = terms_of(**COUNTED)
    assert counted.budgets() == {counted.run: CountFilter(7, 0.1, counted.sigma_min, 5, 40.0)}


def test_with_the_silo_as_unit_nothing_is_amplified_or_repeated() -> None:
    terms = terms_of(adjacency=SILO_REPLACE_ADJACENCY)
    mechanism = terms.mechanism(3.0, 5, 400)
    assert (mechanism.sampling_rate, mechanism.steps, mechanism.noise_multiplier) == (1.0, 1, 3.0)
    assert terms.update_sensitivity == 2 * terms.clip_norm
    assert mechanism.rdp(8.0) == pytest.approx(8.0 / (2 * 9.0))
    counted = terms_of(adjacency=SILO_ZERO_ADJACENCY, **COUNTED)
    (budget,) = counted.budgets().values()
    assert budget == CountFilter(7, 1.0, counted.sigma_min, 1, 40.0)


def test_a_training_epoch_with_looks_costs_as_many_steps_more() -> None:
    """What calibration priced: tau + M steps of one mechanism, although the ledger has two rows."""
    terms = terms_of(backtracks=3, loss_bound=0.2)
    training, looks = plan_of(terms).charges(terms, 100)
    assert (training.purpose, looks.purpose) == (TRAINING, BACKTRACKING)
    assert looks.mechanism.clip_norm == 0.2
    together = terms.mechanism(terms.sigma_min, terms.steps + 3, 100)
    assert training.mechanism.rdp(40.0) + looks.mechanism.rdp(40.0) == pytest.approx(together.rdp(40.0))


def test_a_gradient_of_all_records_is_one_release_without_sampling_from_the_training_budget() -> None:
    terms = terms_of(gradient_noise=7.0)
    training, full = plan_of(terms).charges(terms, 100)
    assert (training.purpose, full.purpose) == (TRAINING, FULL_GRADIENT)
    assert full.run == training.run == terms.run
    assert full.mechanism.rdp(40.0) == pytest.approx(40.0 / (2 * 7.0**2))
    assert full.mechanism.divisor == 100, "all records, whatever the sampling rate of the steps"
    assert plan_of(terms, purpose="evaluate").charges(terms, 100) == ()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"momentum": 1.0, "control_gain": 0.0}, "momentum"),
        ({"momentum": 0.5, "control_gain": 0.5}, "momentum"),
        ({"control_measured": True, "control_smoothing": 0.0}, "control_measured"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused_by_name(change: dict[str, Any], field: str) -> None:
    with pytest.raises(PrivacyError, match=rf"release plan\.{field}"):
        plan_of(terms_of(), **change)


def test_an_epoch_with_noised_metrics_charges_their_own_budget_once_for_all_splits() -> None:
    terms = terms_of(**NOISED)
    plan = plan_of(terms, purpose="evaluate", splits=("validation", "test"))
    (charge,) = plan.charges(terms, 100)
    assert (charge.run, charge.purpose) == (terms.evaluation_run, EVALUATION)
    assert charge.mechanism.rdp(60.0) == pytest.approx(60.0 / (2 * 9.0**2))
    assert plan_of(terms, purpose="evaluate", splits=()).charges(terms, 100) == ()
    exact = terms_of(metrics=True)
    assert plan_of(exact, purpose="evaluate", splits=("test",)).charges(exact, 100) == ()


@given(bound=st.floats(1e-9, 1e6))
def test_a_record_s_metrics_have_at_most_the_norm_that_is_charged(bound: float) -> None:
    scales = noised_metric_scales(bound)
    assert set(scales) < set(METRICS)
    assert math.sqrt(len(scales)) <= METRIC_NORM
    assert scales["sae"] ** 2 == pytest.approx(scales["sse"])


@pytest.mark.parametrize("change", [{}, {"variance_scale": 1.0}])
def test_the_ring_has_room_for_the_noise_of_the_terms(change: dict[str, Any]) -> None:
    terms = terms_of(**change)
    plan = plan_of(terms)
    update = next(bound for bound in plan.bounds(terms) if bound.name == "update")
    noise = terms.mechanism(terms.sigma_min, 5, 100).noise_stddev / terms.sampling_rate
    assert update.bound >= 12 * noise * plan.step_size * plan.steps / plan.min_probability


def test_a_calibration_makes_terms_that_are_accepted() -> None:
    found = calibrate(1.0, 1e-5, 0.1, 5, 15, accountant="pld")
    terms = terms_of(
        epsilon=1.0,
        delta=1e-5,
        accountant="pld",
        contributions=15,
        order=found.order,
        rdp_budget=0.0,
        sigma_min=found.noise_multiplier,
        sigma_max=found.noise_multiplier,
    )
    (budget,) = terms.budgets().values()
    for _ in range(15):
        budget = budget.charge(terms.mechanism(terms.sigma_min, 5, 300))
    assert budget.fraction == 1.0
    assert order_budget(40.0, 0.5, 1e-6) > 0.1, "the terms of these tests fit their epsilon"
