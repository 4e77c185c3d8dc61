"""``silo.toml`` is read strictly, and every limit in it declines on its own."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from client_app.errors import Declined, SiloError
from client_app.policy import SWITCHES, Policy, check_plan, check_terms, load_settings
from privacy.errors import PrivacyError
from privacy.mlp import Mlp
from privacy.records import SILO_ZERO_ADJACENCY
from privacy.release import ReleasePlan
from privacy.terms import RunTerms
from tests.client_app.terms import plan_of, terms_of

SILO = '[silo]\nname = "bank"\ndata = "samples"\n'
POLICY = "[policy]\nepsilon = 1.0\ndelta = 1e-5\n"
POLICY_OF_THE_TESTS = Policy(
    epsilon=1.0,
    delta=1e-5,
    min_noise_multiplier=0.5,
    max_clip_norm=2.0,
    max_sampling_rate=0.5,
    max_local_steps=10,
    min_cohort=8.0,
    min_probability=0.05,
    min_enrolment=10,
)


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "silo.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_complete_file_gives_name_data_and_policy(tmp_path: Path) -> None:
    text = SILO + POLICY + "min_cohort = 3\nhidden = [32, 16]\nallow_seeded = true\nmin_enrolment = 5\n"
    settings = load_settings(written(tmp_path, text))
    assert settings.name == "bank"
    assert settings.data == (tmp_path / "samples").resolve()
    assert settings.policy == Policy(1.0, 1e-5, min_cohort=3, hidden=(32, 16), allow_seeded=True, min_enrolment=5)


def test_what_is_left_out_takes_the_cautious_default(tmp_path: Path) -> None:
    policy = load_settings(written(tmp_path, SILO + POLICY)).policy
    assert policy == Policy(1.0, 1e-5)
    assert not policy.allow_seeded
    assert policy.min_cohort == 8.0


NUMBERS = [f.name for f in dataclasses.fields(Policy) if f.name not in ("hidden", *SWITCHES)]
BAD_NUMBERS = ["nan", "inf", "-inf", "-1.0", "0", "0.0", '"1"', "true", "[1]"]


@pytest.mark.parametrize("bad", BAD_NUMBERS)
@pytest.mark.parametrize("key", NUMBERS)
def test_a_bad_number_names_file_and_key(tmp_path: Path, key: str, bad: str) -> None:
    lines = {"epsilon": "1.0", "delta": "1e-5"} | {key: bad}
    text = SILO + "[policy]\n" + "".join(f"{name} = {value}\n" for name, value in lines.items())
    path = written(tmp_path, text)
    with pytest.raises(SiloError) as caught:
        load_settings(path)
    assert str(path) in str(caught.value)
    assert f"policy.{key}" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (SILO + POLICY + "epsilonn = 1.0\n", "policy.epsilonn"),
        (SILO + "[policy]\ndelta = 1e-5\n", "policy.epsilon"),
        (SILO + "[policy]\nepsilon = 1.0\n", "policy.delta"),
        (SILO + POLICY + "max_local_steps = 5.0\n", "policy.max_local_steps"),
        (SILO + POLICY + "min_enrolment = 2.5\n", "policy.min_enrolment"),
        (SILO + POLICY + "allow_seeded = 1\n", "policy.allow_seeded"),
        (SILO + POLICY + 'allow_seeded = "true"\n', "policy.allow_seeded"),
        (SILO + "[policy]\nepsilon = 1.0\ndelta = 5\n", "policy.delta = 5; expected a number above 0 and at most 1"),
        (SILO + POLICY + "max_sampling_rate = 7.0\n", "policy.max_sampling_rate"),
        (SILO + POLICY + "min_probability = 1.5\n", "policy.min_probability"),
        (SILO + POLICY + f"min_enrolment = {'9' * 5000}\n", "TOML"),
        (SILO + POLICY + f"hidden = {'[' * 3000}{']' * 3000}\n", "TOML"),
        (SILO + POLICY + "hidden = []\n", "policy.hidden"),
        (SILO + POLICY + "hidden = 320\n", "policy.hidden"),
        (SILO + POLICY + "hidden = [320, 0]\n", "policy.hidden"),
        (SILO + POLICY + "hidden = [320.0]\n", "policy.hidden"),
        (SILO + POLICY + "hidden = [true]\n", "policy.hidden"),
        (SILO + POLICY + "epsilon = 2.0\n", "TOML"),
        (SILO + "[policy\n", "TOML"),
        (b"\xff\xfe[silo]\n", "TOML"),
        (SILO, "[policy]"),
        (POLICY, "[silo]"),
        ("", "[silo]"),
        (SILO + POLICY + "[other]\n", "[silo] and [policy]"),
        ("silo = 3\npolicy = 4\n", "[silo]"),
        ('[silo]\nname = "bank"\n' + POLICY, "silo.data"),
        ('[silo]\ndata = "samples"\n' + POLICY, "silo.name"),
        (SILO + 'password = "x"\n' + POLICY, "silo.password"),
        ('[silo]\nname = 3\ndata = "samples"\n' + POLICY, "silo.name"),
        ('[silo]\nname = ""\ndata = "samples"\n' + POLICY, "silo.name"),
        ('[silo]\nname = "Bank A"\ndata = "samples"\n' + POLICY, "silo.name"),
        (f'[silo]\nname = "{"b" * 65}"\ndata = "samples"\n' + POLICY, "silo.name"),
        ('[silo]\nname = "bank"\ndata = 7\n' + POLICY, "silo.data"),
        ('[silo]\nname = "bank"\ndata = ""\n' + POLICY, "silo.data"),
    ],
)
def test_a_bad_file_names_itself_and_the_key(tmp_path: Path, text: str | bytes, says: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(SiloError) as caught:
        load_settings(path)
    assert str(path) in str(caught.value)
    assert says in str(caught.value)


def test_a_whole_number_beyond_float_range_is_no_crash(tmp_path: Path) -> None:
    assert load_settings(written(tmp_path, SILO + POLICY + f"max_local_steps = {10**400}\n"))
    assert load_settings(written(tmp_path, SILO + POLICY + f"max_clip_norm = {10**400}\n"))


def test_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(SiloError, match="fcfl silo init"):
        load_settings(tmp_path / "silo.toml")


def test_a_folder_in_its_place_is_named(tmp_path: Path) -> None:
    with pytest.raises(SiloError, match="cannot be read"):
        load_settings(tmp_path)


def checked(terms: RunTerms, granted: tuple[float, float] = (0.0, 0.0), features: int = 52) -> None:
    check_terms(POLICY_OF_THE_TESTS, terms, features, granted)


def test_terms_within_every_limit_pass() -> None:
    checked(terms_of())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"noise_seed": 0}, "allow_seeded"),
        ({"metrics": True}, "allow_metrics"),
        ({"sigma_min": 0.49}, "sigma_min"),
        ({"gradient_noise": 0.49}, "full-batch gradient"),
        ({"clip_norm": 2.1}, "clip norm"),
        ({"sampling_rate": 0.51}, "sampling rate"),
        ({"steps": 11}, "local steps"),
        ({"cohort": 7.9}, "expected contributors"),
        ({"min_probability": 0.04}, "least probability"),
        ({"hidden": (320, 321)}, "model"),
        ({"features": 51}, "features"),
        ({"epsilon": 1.001}, "epsilon"),
        ({"delta": 1.1e-5}, "delta"),
    ],
)
def test_each_limit_of_the_terms_declines_alone(change: dict[str, Any], says: str) -> None:
    with pytest.raises(Declined, match=says):
        checked(dataclasses.replace(terms_of(), **change))


@pytest.mark.parametrize(
    "change",
    [
        {"sigma_min": 0.5},
        {"gradient_noise": 0.5},
        {"clip_norm": 2.0},
        {"sampling_rate": 0.5},
        {"steps": 10},
        {"cohort": 8.0},
        {"min_probability": 0.05},
        {"epsilon": 1.0, "delta": 1e-5},
    ],
)
def test_each_limit_itself_is_allowed(change: dict[str, Any]) -> None:
    checked(dataclasses.replace(terms_of(), **change))


@pytest.mark.parametrize("order", [1.0, 1e5, 1e9, 1e300])
def test_an_order_whose_cost_takes_forever_is_refused_at_once(order: float) -> None:
    with pytest.raises(PrivacyError, match="order"):
        terms_of(order=order)


def test_a_seeded_run_passes_where_the_silo_says_so() -> None:
    policy = dataclasses.replace(POLICY_OF_THE_TESTS, allow_seeded=True)
    check_terms(policy, dataclasses.replace(terms_of(), noise_seed=7), 52, (0.0, 0.0))


def test_what_other_runs_were_granted_counts() -> None:
    terms = dataclasses.replace(terms_of(), epsilon=0.4, delta=4e-6)
    checked(terms, granted=(0.6, 6e-6))
    with pytest.raises(Declined, match="epsilon"):
        checked(terms, granted=(0.601, 6e-6))
    with pytest.raises(Declined, match="delta"):
        checked(terms, granted=(0.6, 6.1e-6))


def test_three_tenths_fit_into_three_tenths() -> None:
    policy = dataclasses.replace(POLICY_OF_THE_TESTS, epsilon=0.3)
    terms = terms_of(epsilon=0.1, order=400.0, rdp_budget=0.001)
    check_terms(policy, terms, 52, (0.1 + 0.1, 2e-6))


def fitting_plan() -> ReleasePlan:
    terms = terms_of()
    return plan_of(terms, parameters=Mlp(terms.features, terms.hidden).size)


def checked_plan(plan: ReleasePlan, *, enrolled: int = 10, records: int = 100) -> None:
    check_plan(POLICY_OF_THE_TESTS, terms_of(), plan, enrolled=enrolled, records=records)


def test_a_plan_within_the_terms_passes() -> None:
    checked_plan(fitting_plan())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"terms_hash": bytes(32)}, "other terms"),
        ({"parameters": 5}, "number of parameters"),
        ({"sampling_rate": 0.05}, "sampling rate"),
        ({"sampling_rate": 0.2}, "sampling rate"),
        ({"clip_norm": 0.5}, "clip norm"),
        ({"clip_norm": 1.5}, "clip norm"),
        ({"steps": 6}, "local steps"),
        ({"noise_multiplier": 0.99}, "noise multiplier"),
        ({"noise_multiplier": 4.1}, "noise multiplier"),
        ({"cohort": 8.9}, "contributors"),
        ({"min_probability": 0.09}, "least probability"),
        ({"min_records": 101}, "record bounds"),
        ({"max_records": 99}, "record bounds"),
    ],
)
def test_each_value_of_a_plan_outside_the_terms_declines_alone(change: dict[str, Any], says: str) -> None:
    with pytest.raises(Declined, match=says):
        checked_plan(dataclasses.replace(fitting_plan(), **change))


def test_too_small_a_roster_declines() -> None:
    with pytest.raises(Declined, match="enrolled"):
        checked_plan(fitting_plan(), enrolled=9)


@pytest.mark.parametrize(
    "change", [{"steps": 1}, {"noise_multiplier": 1.0}, {"noise_multiplier": 4.0}, {"cohort": 9.0}]
)
def test_a_plan_may_ask_for_less_than_agreed(change: dict[str, Any]) -> None:
    checked_plan(dataclasses.replace(fitting_plan(), **change))


@pytest.mark.parametrize("change", [{"purpose": "scale"}, {"scale_hash": bytes(32)}])
def test_features_keep_their_public_scale_unless_the_terms_agreed_to_a_release(change: dict[str, Any]) -> None:
    plan = dataclasses.replace(fitting_plan(), **change)
    with pytest.raises(Declined, match="public scale"):
        checked_plan(plan)
    terms = terms_of(scaling_noise=20.0)
    agreed = dataclasses.replace(plan, terms_hash=terms.hash())
    check_plan(POLICY_OF_THE_TESTS, terms, agreed, enrolled=10, records=100)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, None),
        ({"control_smoothing": 0.1}, "drift control"),
        ({"control_gain": 0.1}, "drift control"),
        ({"score_total": 9.0}, "not uniform"),
    ],
)
def test_with_the_silo_as_unit_only_a_uniform_coin_and_an_update_are_agreed_to(
    change: dict[str, Any], says: str | None
) -> None:
    terms = terms_of(adjacency=SILO_ZERO_ADJACENCY)
    alone = {"control_smoothing": 0.0, "control_gain": 0.0, "score_total": 10.0}
    size = Mlp(terms.features, terms.hidden).size
    plan = plan_of(terms, parameters=size, **(alone | change))
    if says is None:
        check_plan(POLICY_OF_THE_TESTS, terms, plan, enrolled=10, records=100)
        return
    with pytest.raises(Declined, match=says):
        check_plan(POLICY_OF_THE_TESTS, terms, plan, enrolled=10, records=100)
