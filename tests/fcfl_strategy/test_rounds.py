"""The run as a pure state: plans, announcements, outcomes, budget."""

import hashlib
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fcfl_strategy import rounds
from fcfl_strategy.divergence import MomentSums, divergence, update_noise_variance
from fcfl_strategy.errors import SumError
from fcfl_strategy.mime import Mime
from fcfl_strategy.rounds import RunState
from fcfl_strategy.schedule import NoiseSchedule
from fcfl_strategy.server_update import ServerUpdate
from fcfl_strategy.settings import Settings
from privacy.conversion import epsilon_at_order, order_budget
from privacy.filter import RenyiFilter
from privacy.release import ReleasePlan
from secagg.layout import layout_for
from secagg.messages import EpochOutcome
from secagg.ring import decode_sum, encode
from tests.fcfl_strategy.made import (
    ORDER,
    PARAMETERS,
    RECORDS,
    SIGMA,
    cost,
    make_settings,
    make_state,
    make_sums,
    make_terms,
    spent,
)

HEADS = {silo: bytes(7) + b"\x02" + silo.encode().ljust(32, b".") for silo in RECORDS}


def plan_of(settings_: Settings, state: RunState) -> ReleasePlan:
    return rounds.plan_training(settings_, state, RECORDS)


def step(settings_: Settings, state: RunState, contributors: int = 2) -> RunState:
    """One whole training epoch."""
    plan = plan_of(settings_, state)
    state = rounds.complete(rounds.announced(settings_, state, plan), HEADS)
    return rounds.absorb(settings_, state, plan, make_sums(contributors))[0]


def optimiser(state: RunState) -> list[bytes]:
    server = state.server
    vectors = server.weights, server.previous, server.first_moment, server.second_moment, state.control_total
    return [
        *(vector.tobytes() for vector in vectors),
        repr((server.noise_moment, server.updates, server.first_noise)).encode(),
    ]


# --- the plan ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("contributors", "records"), [(-1.0, 10.0), (2.0, 0.0), (2.0, -5.0)])
def test_moments_no_honest_silos_can_make_are_refused(contributors: float, records: float) -> None:
    made = make_settings(terms=make_terms(scaling_noise=5.0))
    state = make_state(made)
    sums = {
        "moments": np.zeros(2 * made.terms.features),
        "records": np.array([records]),
        "contributors": np.array([contributors]),
    }
    with pytest.raises(SumError, match="do not fit together"):
        rounds.absorb_moments(made, state, rounds.plan_scaling(made, state, RECORDS), sums)


def test_the_drift_budget_counts_the_noise_that_the_gradient_variance_costs() -> None:
    plain = make_settings()
    joint = replace(plain, terms=replace(plain.terms, variance_scale=1.0))
    budgets = [plan_of(each, make_state(each)).drift_budget for each in (plain, joint)]
    assert budgets[1] == pytest.approx(2 * budgets[0])


def test_a_plan_says_what_the_settings_say() -> None:
    made = make_settings(proximal=0.5, drift_penalty=0.25)
    state = make_state(made, rounds=4, divergence=3.0)
    plan = plan_of(made, state)
    point, control = rounds.broadcast(made, state, RECORDS)
    assert plan.purpose == "train"
    assert plan.round == 5
    assert plan.parameters == PARAMETERS
    assert (plan.sampling_rate, plan.clip_norm, plan.noise_multiplier, plan.steps) == (0.1, 1.0, SIGMA, 5)
    assert plan.step_size == 0.5
    assert plan.proximal == 1.5
    # four times tau p (eta sigma C / (q median N_i))^2, the noise energy of the median silo's drift
    assert plan.drift_budget == pytest.approx(4.0 * 5 * PARAMETERS * (0.5 * SIGMA / (0.1 * 1000)) ** 2)
    assert (plan.control_smoothing, plan.control_gain, plan.drift_penalty) == (0.3, 0.5, 0.25)
    assert (plan.cohort, plan.min_probability) == (2.0, 0.1)
    assert plan.score_total == pytest.approx(6300 / math.sqrt(2))
    assert (plan.min_records, plan.max_records) == (256, 8192)
    assert plan.splits == ("validation",)
    assert plan.point_hash == hashlib.sha256(point.astype("<f4").tobytes()).digest()
    assert plan.control_hash == hashlib.sha256(control.astype("<f4").tobytes()).digest()
    assert plan.terms_hash == made.terms.hash()
    assert ReleasePlan.from_bytes(plan.to_bytes()) == plan


def test_mu_is_bounded_but_for_its_constant_part() -> None:
    made = make_settings(proximal=2.0, proximal_max=10.0)
    assert plan_of(made, make_state(made, divergence=1e6)).proximal == 10.0
    made = replace(made, proximal_constant=0.5)
    assert plan_of(made, make_state(made, divergence=1e6)).proximal == 10.5
    assert plan_of(made, make_state(made)).proximal == 0.5


def test_the_client_step_and_what_hangs_on_it_decay_over_the_rounds() -> None:
    made = make_settings(step_decay=0.6, rounds=3)
    plans = [plan_of(made, make_state(made, rounds=k)) for k in range(3)]
    np.testing.assert_allclose([plan.step_size for plan in plans], [0.5, 0.4, 0.3])
    budgets = [plan.drift_budget for plan in plans]
    np.testing.assert_allclose(budgets, np.array([1.0, 0.64, 0.36]) * budgets[0])


def test_switches_of_the_local_steps_are_part_of_the_plan() -> None:
    made = make_settings(adaptive_step=False, normalised=False, uniform=True)
    plan = plan_of(made, make_state(made))
    assert plan.uniform
    assert plan.score_total == 3.0
    assert (plan.adaptive_step, plan.normalised, plan.control_measured, plan.momentum) == (False, False, False, 0.0)
    assert "control_spread" not in {bound.name for bound in plan.bounds(made.terms)}


def test_the_average_of_the_iterates_is_what_is_served_and_evaluated() -> None:
    made = make_settings(averaging=0.5)
    state = make_state(made)
    np.testing.assert_array_equal(rounds.served(made, state), state.server.weights)
    first = step(made, state)
    np.testing.assert_allclose(rounds.served(made, first), first.server.weights)
    second = step(made, step(made, first, contributors=0))
    served = rounds.served(made, second)
    np.testing.assert_allclose(served, (first.server.weights + 2 * second.server.weights) / 3)
    plan = rounds.plan_evaluation(made, second, RECORDS)
    assert plan.point_hash == rounds.digest(served.astype(np.float32))
    assert plan.point_hash != rounds.digest(second.server.weights.astype(np.float32))


def test_a_measured_gain_follows_the_sums_and_starts_again_with_the_controls() -> None:
    made = make_settings(gain_rule="signal-to-noise", control_gain=1.0)
    state = make_state(made)
    plan = plan_of(made, state)
    assert plan.control_measured
    assert plan.control_gain == 0.0
    sums = make_sums(control_spread=np.array([1000.0]), control_noise=np.array([100.0]))
    state, _ = rounds.absorb(made, state, plan, sums)
    assert (state.control_spread, state.control_noise) == (0.5, 0.05)
    counts = np.array(list(RECORDS.values()), dtype=float)
    # Of noise in proportion to 1 / N_i^2 the mean sum p_i V_i keeps sum p_i (1 - p_i) V_i in c - c_i.
    shares, noises = counts / counts.sum(), 1 / counts**2
    left = np.sum(shares * (1 - shares) * noises) / np.sum(shares * noises)
    assert plan_of(made, state).control_gain == pytest.approx(1 - 0.1 * left)
    reset = rounds.reset_controls(state)
    assert plan_of(made, reset).control_gain == 0.0
    loud, _ = rounds.absorb(made, state, plan, make_sums(control_spread=np.array([1.0]), control_noise=np.array([9.0])))
    assert plan_of(made, loud).control_gain == 0.0


def test_mime_sends_its_momentum_in_the_place_of_the_controls_and_takes_the_gradient_of_the_round() -> None:
    made = make_settings(make_terms(gradient_noise=9.0), rule=Mime(1.0, 0.75), control_smoothing=0.0, control_gain=0.0)
    state = make_state(made)
    plan = plan_of(made, state)
    assert plan.momentum == 0.75
    training, others = rounds.charges(made, plan)
    assert [charge.purpose for charge in training] == ["training", "full gradient"]
    assert not others
    full = training[1].mechanism
    assert (full.sampling_rate, full.clip_norm, full.noise_multiplier, full.steps) == (1.0, 1.0, 9.0, 1)
    spend = spent(rounds.announced(made, state, plan)).spent
    assert spend == pytest.approx(cost(made, SIGMA) + ORDER / (2 * 9.0**2))
    gradient = np.linspace(0, 4000.0, PARAMETERS)
    state, _ = rounds.absorb(made, state, plan, make_sums(gradient=gradient))
    point, moment = rounds.broadcast(made, state, RECORDS)
    np.testing.assert_allclose(moment, 0.25 * gradient / 2000.0, rtol=1e-6)
    np.testing.assert_allclose(point, state.server.weights, rtol=1e-6)


@given(counts=st.lists(st.integers(1, 2**40), min_size=1, max_size=4))
def test_the_public_bounds_of_the_records_hold_for_every_silo(counts: list[int]) -> None:
    made = make_settings()
    plan = rounds.plan_training(made, make_state(made), {f"silo-{i}": n for i, n in enumerate(counts)})
    assert plan.min_records <= min(counts) < 2 * plan.min_records
    assert plan.max_records / 2 < max(counts) <= plan.max_records


def test_the_evaluation_is_of_the_served_point_and_sums_both_splits() -> None:
    made = make_settings()
    state = step(made, step(made, make_state(made)))
    plan = rounds.plan_evaluation(made, state, RECORDS)
    assert plan.purpose == "evaluate"
    assert plan.splits == ("validation", "test")
    assert plan.point_hash == rounds.digest(state.server.weights.astype(np.float32))
    assert plan.point_hash != plan_of(made, state).point_hash
    assert {bound.name.split(".")[0] for bound in plan.bounds(made.terms)} == {"validation", "test"}


def test_an_evaluation_spends_nothing() -> None:
    made = make_settings()
    state = step(made, make_state(made))
    after = rounds.announced(made, state, rounds.plan_evaluation(made, state, RECORDS))
    assert after.spent == state.spent
    assert after.epoch == state.epoch + 1


def test_the_broadcast_control_is_the_mean_over_all_records_of_the_federation() -> None:
    made = make_settings()
    state = make_state(made, control_total=np.arange(PARAMETERS) * 6300.0)
    assert rounds.broadcast(made, state, RECORDS)[1].tolist() == list(range(PARAMETERS))


# --- outcomes ---------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(ends=st.lists(st.sampled_from(["train", "empty", "abandoned", "evaluate"]), max_size=12))
def test_an_epoch_number_is_never_used_twice(ends: list[str]) -> None:
    made = make_settings()
    state, seen = make_state(made), []
    for end in ends:
        evaluate = end == "evaluate"
        plan = rounds.plan_evaluation(made, state, RECORDS) if evaluate else plan_of(made, state)
        state = rounds.announced(made, state, plan)
        seen.append(state.epoch)
        if end == "abandoned":
            state = rounds.abandon(state, {})
            continue
        state = rounds.complete(state, HEADS)
        if not evaluate:
            state, _ = rounds.absorb(made, state, plan, make_sums(0 if end == "empty" else 2))
    assert seen == list(range(1, len(ends) + 1))
    assert [outcome.epoch for outcome in state.outcomes][-1:] == seen[-1:]
    expected = ["abandoned" if end == "abandoned" else "completed" for end in ends]
    assert [outcome.status for outcome in state.outcomes][-1:] == expected[-1:]
    assert state.rounds == sum(end in ("train", "empty") for end in ends)
    assert state.server.updates == ends.count("train")


@settings(deadline=None, max_examples=150)
@given(data=st.data(), epochs=st.integers(1, 40))
def test_every_silo_learns_how_its_vectors_ended_from_a_list_that_does_not_grow(
    data: st.DataObject, epochs: int
) -> None:
    """Silos come and go, and vectors are lost on the way: who masks again settles what a full history would tell it."""
    state, silos = make_state(make_settings()), sorted(RECORDS)
    history: list[EpochOutcome] = []
    settled, pending = dict.fromkeys(silos, 0), {silo: set[int]() for silo in silos}
    for epoch in range(1, epochs + 1):
        state = replace(state, epoch=epoch)
        asked = [silo for silo in silos if data.draw(st.booleans())]
        for silo in asked:
            told, all_told = (
                {o.epoch for o in known if o.epoch > settled[silo] and silo in o.survivors} & pending[silo]
                for known in (state.outcomes, history)
            )
            assert told == all_told
            settled[silo], pending[silo] = epoch - 1, {epoch}
        arrived = [silo for silo in asked if data.draw(st.booleans())]
        if arrived and data.draw(st.booleans()):
            state = rounds.complete(state, {silo: HEADS[silo] for silo in arrived})
            history.append(EpochOutcome(epoch, "completed", tuple(arrived)))
        else:
            state = rounds.abandon(state, {silo: HEADS[silo] for silo in arrived})
            history.append(EpochOutcome(epoch, "abandoned", ()))
        assert len(state.outcomes) <= len(silos) + 1
        assert state.outcomes[-1] == history[-1]
        assert set(state.outcomes) <= set(history)


def test_the_heads_of_an_abandoned_epoch_are_remembered() -> None:
    state = replace(make_state(make_settings()), epoch=1)
    assert rounds.abandon(state, HEADS).ledger_heads == HEADS


def test_an_abandoned_epoch_changes_its_number_its_outcome_and_the_spend_and_nothing_else() -> None:
    made = make_settings()
    before = step(made, make_state(made))
    after = rounds.abandon(rounds.announced(made, before, plan_of(made, before)), {})
    assert after.epoch == before.epoch + 1
    assert after.outcomes == (*before.outcomes, EpochOutcome(after.epoch, "abandoned", ()))
    assert len(before.outcomes) == 1, "whose survivors have not masked since"
    assert after.abandoned == 1
    assert spent(after).spent == pytest.approx(spent(before).spent + cost(made, SIGMA))
    assert optimiser(after) == optimiser(before)
    same = {"epoch": before.epoch, "outcomes": before.outcomes, "abandoned": 0, "spent": before.spent}
    assert vars(replace(after, **same)) == vars(before)


def test_a_completed_epoch_ends_the_count_of_abandoned_ones_and_names_its_survivors() -> None:
    made = make_settings()
    state = replace(rounds.announced(made, make_state(made), plan_of(made, make_state(made))), abandoned=2)
    after = rounds.complete(state, {"silo-c": HEADS["silo-c"], "silo-a": HEADS["silo-a"]})
    assert after.abandoned == 0
    assert after.outcomes[-1] == EpochOutcome(1, "completed", ("silo-a", "silo-c"))
    assert after.ledger_heads == {"silo-a": HEADS["silo-a"], "silo-c": HEADS["silo-c"]}


def test_a_round_without_contributor_leaves_the_optimiser_alone() -> None:
    """t_k does not advance, moments, weights and controls keep their bits; the round and its spend are used up."""
    made = make_settings()
    before = step(made, make_state(made))
    plan = plan_of(made, before)
    announced = rounds.complete(rounds.announced(made, before, plan), HEADS)
    after, facts = rounds.absorb(made, announced, plan, make_sums(0))
    assert optimiser(after) == optimiser(before)
    assert (after.rounds, after.empty) == (before.rounds + 1, 1)
    assert after.divergence == before.divergence
    assert after.score_total == 4000.0
    assert (facts.contributors, facts.divergence, facts.update_norm) == (0, None, None)
    assert step(made, after).empty == 0


def test_a_round_takes_the_server_step_with_the_weighted_mean_and_its_known_noise() -> None:
    made = make_settings(rule=ServerUpdate(noise_corrected=True))
    before = step(made, make_state(made))
    plan = plan_of(made, before)
    sums = make_sums()
    after, facts = rounds.absorb(made, before, plan, sums)
    moments = MomentSums(2000.0, 500.0, 20.0, 3000.0)
    mean = sums["update"] / 2000.0
    expected = made.rule.update(before.server, mean, update_noise_variance(moments, PARAMETERS))
    np.testing.assert_array_equal(after.server.weights, expected.weights)
    assert after.server.noise_moment == expected.noise_moment
    assert after.divergence == facts.divergence == divergence(moments, float(mean @ mean), 5 * 0.5)
    assert facts.update_norm == pytest.approx(float(np.linalg.norm(mean)))
    np.testing.assert_array_equal(after.control_total, before.control_total + sums["control"])


def test_without_drift_control_the_control_stays_zero() -> None:
    made = make_settings(control_smoothing=0.0)
    state = make_state(made)
    sums = {name: value for name, value in make_sums().items() if name != "control"}
    after, _ = rounds.absorb(made, state, plan_of(made, state), sums)
    assert not after.control_total.any()


def test_a_lost_score_keeps_the_last_one() -> None:
    made = make_settings()
    state = make_state(made)
    after, _ = rounds.absorb(made, state, plan_of(made, state), make_sums(score=np.array([0.0])))
    assert after.score_total == state.score_total


# --- budget -----------------------------------------------------------------------------------------


def exactly(contributions: int) -> float:
    """A Renyi budget that holds this many contributions, summed as the filter sums them."""
    made = make_settings()
    total = RenyiFilter(ORDER, 1e9)
    for _ in range(contributions):
        total = total.charge(cost(made, SIGMA))
    return total.spent


def test_a_budget_for_k_contributions_is_used_up_by_k_epochs_and_not_before() -> None:
    made = make_settings(make_terms(rdp_budget=exactly(3)), rounds=3, contributions=3)
    state = make_state(made)
    for _ in range(3):
        assert not rounds.exhausted(made, state, RECORDS)
        state = step(made, state)
    assert rounds.exhausted(made, state, RECORDS)
    assert spent(state).fraction == 1.0


def test_an_abandoned_epoch_is_paid_for() -> None:
    made = make_settings(make_terms(rdp_budget=exactly(3)), rounds=3, contributions=3)
    state = make_state(made)
    for _ in range(3):
        state = rounds.abandon(rounds.announced(made, state, plan_of(made, state)), {})
    assert rounds.exhausted(made, state, RECORDS)


def test_with_fewer_contributions_than_rounds_the_run_ends_when_two_rounds_find_nobody() -> None:
    """No silo need have used its share yet: full filters answer coin tails, which shows as empty rounds."""
    made = make_settings(make_terms(rdp_budget=exactly(2)), rounds=10, contributions=2)
    state = step(made, step(made, make_state(made)))
    for _ in range(3):
        assert not rounds.exhausted(made, state, RECORDS)
        state = step(made, state)
    assert spent(state).fraction == 1.0
    state = step(made, state, contributors=0)
    assert not rounds.exhausted(made, state, RECORDS)
    assert not rounds.exhausted(made, step(made, state), RECORDS)
    assert rounds.exhausted(made, step(made, state, contributors=0), RECORDS)


def test_once_an_epoch_does_not_fit_the_bound_is_the_whole_budget() -> None:
    """A silo that sat out the first, dear, epoch can spend more in the later ones than one that did not."""
    made = make_settings(rounds=10, contributions=2)
    dear, cheap = cost(made, SIGMA), cost(made, 1.1 * SIGMA)
    made = replace(made, terms=make_terms(rdp_budget=2 * cheap * (1 + 1e-12)))
    assert dear + cheap > made.terms.rdp_budget
    state = make_state(made)
    plan = plan_of(made, state)
    state = rounds.announced(made, state, plan)
    assert spent(state).spent == dear
    for _ in range(2):
        state = rounds.announced(made, state, replace(plan, noise_multiplier=1.1 * SIGMA))
    late = RenyiFilter(ORDER, made.terms.rdp_budget).charge(cheap).charge(cheap)
    assert dear < late.spent <= spent(state).spent
    assert rounds.epsilon(made, state) >= late.epsilon(made.terms.delta)


def test_a_counted_bound_is_all_contributions_once_an_epoch_does_not_fit() -> None:
    made = make_settings(
        make_terms(accountant="pld", rdp_budget=0.0, contributions=2, sigma_min=SIGMA), rounds=10, contributions=2
    )
    state, plan = make_state(made), plan_of(made, make_state(made))
    for _ in range(4):
        state = rounds.announced(made, state, plan)
    assert state.spent[made.terms.run].fraction == 1.0


def test_two_empty_rounds_by_chance_do_not_end_a_run_with_budget_left() -> None:
    made = make_settings(make_terms(rdp_budget=exactly(5)), rounds=10, contributions=5)
    state = step(made, step(made, make_state(made), contributors=0), contributors=0)
    assert not rounds.exhausted(made, state, RECORDS)


@settings(deadline=None, max_examples=40)
@given(
    events=st.lists(
        st.tuples(
            st.sampled_from(["train", "empty", "abandoned"]),
            st.sampled_from([0.0, 0.1, 1.0, 30.0, 1e4]),
            st.sampled_from([0.0, 0.5, 20.0]),
        ),
        max_size=25,
    ),
    contributions=st.integers(1, 25),
)
def test_the_filter_never_passes_the_budget_whatever_the_run_shows(
    events: list[tuple[str, float, float]], contributions: int
) -> None:
    """Adaptive noise from arbitrary divergences and movements, any mix of outcomes, also past exhaustion."""
    made = make_settings(
        rounds=25, contributions=contributions, schedule=NoiseSchedule("divergence", 6.0, 2.0, 50.0, 1.5)
    )
    state = make_state(made)
    paid = 0.0
    for end, spread, movement in events:
        server = replace(state.server, previous=state.server.weights - movement / math.sqrt(PARAMETERS))
        state = replace(state, divergence=spread, server=server)
        plan = plan_of(made, state)
        assert 2.0 <= plan.noise_multiplier <= 50.0
        before, state = state, rounds.announced(made, state, plan)
        price = cost(made, plan.noise_multiplier)
        if spent(before).admits(price):
            paid += price
            assert spent(state).spent >= spent(before).spent + price
        else:
            assert spent(state).fraction == 1.0
            assert contributions < 25 or rounds.exhausted(made, replace(state, spent=before.spent), RECORDS)
        if end == "abandoned":
            state = rounds.abandon(state, {})
        else:
            state = rounds.complete(state, HEADS)
            state, _ = rounds.absorb(made, state, plan, make_sums(0 if end == "empty" else 2))
        assert spent(state).spent <= spent(state).budget
    assert paid <= spent(state).spent <= order_budget(ORDER, 1.0, 1e-5)
    assert epsilon_at_order(ORDER, spent(state).spent, 1e-5) <= 1.0


# --- the ring ---------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(
    counts=st.lists(st.integers(1, 10**7), min_size=3, max_size=40),
    sigma=st.floats(0.5, 100),
    clip=st.floats(1e-3, 10),
    rate=st.floats(1e-3, 1),
    steps=st.integers(1, 50),
    least=st.floats(0.01, 1),
    smoothing=st.sampled_from([0.0, 0.3, 1.0]),
    gain=st.floats(0, 1),
)
def test_no_sum_of_the_planned_bounds_can_wrap(
    counts: list[int],
    sigma: float,
    clip: float,
    rate: float,
    steps: int,
    least: float,
    smoothing: float,
    gain: float,
) -> None:
    """Everybody at the bound, in every segment, for any accepted plan: the decoded sum is the true sum."""
    terms = make_terms(clip_norm=clip, sampling_rate=rate, steps=steps, min_probability=least)
    made = make_settings(
        terms,
        schedule=NoiseSchedule("constant", sigma, 0.5, 100.0),
        control_smoothing=smoothing,
        control_gain=gain,
    )
    records = {f"silo-{i:02d}": n for i, n in enumerate(counts)}
    parties = len(counts)
    plan = rounds.plan_training(made, make_state(made), records)
    for sign in (1.0, -1.0):
        layout = layout_for(((b.name, b.length, b.bits, b.bound) for b in plan.bounds(made.terms)), parties)
        values = {segment.name: np.full(segment.length, 2 * sign * segment.bound) for segment in layout}
        encoded = encode(layout, values, lambda n: np.full(n, 0.999))
        ring = {name: vector.copy() for name, vector in encoded.values.items()}
        for _ in range(parties - 1):
            for name, vector in encoded.values.items():
                ring[name] += vector
        signed = {name: vector.view(f"<i{vector.itemsize}").astype(np.int64) for name, vector in ring.items()}
        for name, total in decode_sum(layout, signed).items():
            segment = next(segment for segment in layout if segment.name == name)
            np.testing.assert_allclose(total, sign * parties * segment.bound, rtol=1e-6)
            assert parties * segment.top < 2 ** (segment.bits - 1)


@settings(deadline=None, max_examples=100)
@given(records=st.integers(256, 8192), chance=st.floats(0.1, 1), share=st.floats(0.2, 1), gain=st.floats(0, 1))
def test_what_an_honest_silo_sends_fits_its_bounds(records: int, chance: float, share: float, gain: float) -> None:
    """The scalars of a contribution with gradients at the clip norm, controls at the clip norm and typical noise."""
    terms = make_terms(gradient_noise=20.0)
    made = make_settings(terms, control_gain=gain, gain_rule="signal-to-noise")
    plan = replace(plan_of(made, make_state(made)), control_gain=gain)
    bounds = {bound.name: bound.bound for bound in plan.bounds(made.terms)}
    weight = records / chance
    deviation = plan.noise_multiplier * plan.clip_norm / (plan.sampling_rate * records)
    length = plan.step_size * plan.steps
    energy = length**2 * plan.parameters * deviation**2 * share
    norm = length * ((1 + 2 * gain) * plan.clip_norm + math.sqrt(plan.parameters) * deviation)
    assert weight <= bounds["weight"]
    assert weight * energy <= bounds["noise_energy"]
    assert weight**2 * energy <= bounds["weighted_noise_energy"]
    assert weight * norm**2 <= bounds["squared_norm"]
    assert weight * norm <= bounds["update"]
    assert records / math.sqrt(1 + plan.clip_norm**2) <= bounds["score"]
    # Controls are means of gradients with noise, and the difference of two of them is at most twice as long.
    control = plan.clip_norm + math.sqrt(plan.parameters) * deviation
    assert weight * (2 * control) ** 2 <= bounds["control_spread"]
    assert weight * plan.parameters * deviation**2 <= bounds["control_noise"]
    assert (records * plan.clip_norm + 6 * 20.0 * plan.clip_norm) / chance <= bounds["gradient"]
