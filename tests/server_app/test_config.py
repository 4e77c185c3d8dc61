"""Every setting: its default, its type, its range, its part in the hash."""

import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.messages import default_threshold
from server_app.config import KEYS, ConfigError, Key, RunConfig

ROOT = Path(__file__).resolve().parents[2]
LOCAL = ("run-dir", "resume", "simulation-root", "roster-file")
# What some values need besides themselves.
OFF = {"drift.smoothing": 0.0, "drift.gain": 0.0}
BESIDES: dict[str, dict[str, Any]] = {
    "dp.unit": OFF,
    "eval.metrics": {"eval.final": False},
    "silos": {"participation.cohort": 1.0},
    "rounds": {"dp.contributions": 0},
    "dp.contributions": {"rounds": 100_000},
    "secagg.colluders": {"silos": 1000},
    "dp.sigma-min": {"dp.sigma-max": 1e4},
    "dp.sigma-max": {"dp.sigma-min": 1e-9},
    "participation.cohort": {"silos": 1000},
    "server.preconditioner": {"server.trust-region": 1.0},
    "adaptive.step-size": {"method": "fedadam"},
    "adaptive.tau": {"method": "fedyogi"},
    "mime.gradient-share": {"method": "mime"},
}


def flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in table.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return found


def number(key: Key) -> bool:
    return type(key.default) in (int, float)


NUMBERS = [name for name, key in KEYS.items() if number(key)]
REALS = [name for name in NUMBERS if type(KEYS[name].default) is float]
WHOLES = [name for name in NUMBERS if type(KEYS[name].default) is int]


def outside(key: Key) -> list[float]:
    """Values just outside of the range of a number."""
    kind = type(key.default)
    values: list[float] = []
    if key.above > -math.inf:
        values += [kind(key.above), -kind(1)]
    if key.low > -math.inf:
        values.append(kind(key.low) - kind(1))
    if key.high < math.inf:
        values.append(math.nextafter(key.high, math.inf) if kind is float else kind(key.high) + 1)
    return values


def refusal(settings: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_mapping(settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_defaults_of_the_app_are_the_ones_of_the_table() -> None:
    """Flower reads pyproject.toml, the command line this table; types count too (1 is not 1.0)."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"]["app"]["config"]
    found = flat(table)
    assert found == {name: key.default for name, key in KEYS.items()}
    assert {name: type(value) for name, value in found.items()} == {n: type(k.default) for n, k in KEYS.items()}


def test_the_defaults_are_valid_and_complete() -> None:
    assert dict(RunConfig.from_mapping({}).values) == {name: key.default for name, key in KEYS.items()}


@pytest.mark.parametrize("name", KEYS)
def test_every_setting_is_explained_in_one_line(name: str) -> None:
    assert KEYS[name].doc
    assert "\n" not in KEYS[name].doc


@pytest.mark.parametrize("name", ["epsilon", "dp.Epsilon", "", "dp", "dp.epsilon "])
def test_an_unknown_setting_is_named(name: str) -> None:
    assert refusal({name: 1.0}).startswith(f"{name}: unknown setting")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize("name", KEYS)
def test_what_is_no_finite_number_is_refused_by_name(name: str, value: float) -> None:
    assert refusal({name: value}).startswith(f"{name}: expected")


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_out_of_range_is_refused_by_name(name: str) -> None:
    assert outside(KEYS[name]), "a number without any bound"
    for value in outside(KEYS[name]):
        assert refusal({**BESIDES.get(name, {}), name: value}).startswith(f"{name}: expected"), value


@pytest.mark.parametrize("name", NUMBERS)
def test_a_negative_number_is_refused_by_name(name: str) -> None:
    """Only the noise seed has a negative value, -1, and it means the operating system's generator."""
    kind = type(KEYS[name].default)
    for value in (kind(-2), kind(-(10**9))):
        assert refusal({**BESIDES.get(name, {}), name: value}).startswith(f"{name}: expected")


@pytest.mark.parametrize("name", NUMBERS)
def test_the_ends_of_a_range_are_allowed(name: str) -> None:
    key, kind = KEYS[name], type(KEYS[name].default)
    ends = [kind(end) for end in (key.low, key.high) if math.isfinite(end)]
    for value in ends:
        RunConfig.from_mapping({**BESIDES.get(name, {}), name: value})


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize("name", NUMBERS)
def test_a_switch_is_no_number(name: str, value: bool) -> None:  # noqa: FBT001, RUF100
    assert refusal({name: value}).startswith(f"{name}: expected a")


@pytest.mark.parametrize("value", ["1", "", None, [1], {"a": 1}, 1j], ids=repr)
@pytest.mark.parametrize("name", NUMBERS)
def test_another_type_is_no_number(name: str, value: object) -> None:
    assert refusal({name: value}).startswith(f"{name}: expected a")


@pytest.mark.parametrize("name", WHOLES)
def test_a_fraction_is_no_whole_number(name: str) -> None:
    for value in (1.5, float(KEYS[name].default)):
        assert refusal({name: value}).startswith(f"{name}: expected a whole number")


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_whole_number_beyond_any_float_is_refused_by_name(name: str, sign: int) -> None:
    assert refusal({**BESIDES.get(name, {}), name: sign * 10**400}).startswith(f"{name}: expected")


@pytest.mark.parametrize("name", [name for name in REALS if KEYS[name].high >= 1])
def test_a_whole_number_stands_for_the_number(name: str) -> None:
    """A person writes rho = 1 where the type is a float; the hash must not tell 1 from 1.0."""
    whole = next(v for v in (1, 0) if KEYS[name].low <= v <= KEYS[name].high and v > KEYS[name].above)
    given_ = {**BESIDES.get(name, {}), name: whole}
    config = RunConfig.from_mapping(given_)
    assert type(config.values[name]) is float
    assert config.hash == RunConfig.from_mapping({**given_, name: float(whole)}).hash


@pytest.mark.parametrize("name", [name for name, key in KEYS.items() if isinstance(key.default, bool)])
@pytest.mark.parametrize("value", [0, 1, "true", None, 1.0], ids=repr)
def test_only_true_and_false_are_switches(name: str, value: object) -> None:
    assert refusal({name: value}).startswith(f"{name}: expected true or false")


@pytest.mark.parametrize("name", [name for name, key in KEYS.items() if isinstance(key.default, str)])
def test_only_text_is_text_and_a_choice_is_one_of_its_choices(name: str) -> None:
    for value in (1, 1.0, True, None, ["a"]):
        assert refusal({name: value}).startswith(f"{name}: expected text")
    if KEYS[name].choices:
        assert refusal({name: "nonsense"}).startswith(f"{name}: expected one of {KEYS[name].choices[0]}")
        for choice in KEYS[name].choices:
            RunConfig.from_mapping({**BESIDES.get(name, {}), name: choice})


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"dp.sigma-min": 5.0, "dp.sigma-max": 4.0}, "dp.sigma-min"),
        ({"silos": 4}, "participation.cohort"),
        ({"rounds": 3, "dp.contributions": 4}, "dp.contributions"),
        ({"server.preconditioner": "raw"}, "server.trust-region"),
        ({"silos": 20, "secagg.colluders": 7}, "secagg.colluders"),
        ({"eval.epsilon": 1.0, "eval.metrics": False, "eval.final": False}, "eval.epsilon"),
        ({"dp.accountant": "pld", "dp.schedule": "divergence"}, "dp.accountant"),
        ({"dp.accountant": "pld", "local.backtracks": 2}, "local.backtracks"),
        ({"dp.unit": "silo"}, "drift.smoothing"),
        ({"dp.unit": "silo", "drift.smoothing": 0.0}, "drift.gain"),
        ({"dp.unit": "silo", **OFF, "dp.variance-scale": 0.5}, "dp.variance-scale"),
        ({"dp.unit": "silo", **OFF, "local.backtracks": 2}, "local.backtracks"),
        ({"dp.unit": "silo", **OFF, "participation.drift-penalty": 0.1}, "participation.drift-penalty"),
        ({"dp.unit": "silo", **OFF, "dp.schedule": "divergence"}, "dp.schedule"),
        ({"dp.unit": "silo", **OFF, "eval.epsilon": 1.0}, "eval.epsilon"),
    ],
)
def test_settings_that_contradict_each_other_are_refused_by_name(settings: dict[str, Any], name: str) -> None:
    assert refusal(settings).startswith(f"{name}: ")


@pytest.mark.parametrize("text", ["1 2", "a b c", "1 2 3 4", "11 0 0", "1.5 0 0", "1,0,0"])
def test_exponents_of_the_metric_are_three_whole_numbers_or_none(text: str) -> None:
    assert "expected 3 whole numbers from -10 to 10" in refusal({"metric.exponents": text})
    assert RunConfig.from_mapping({"metric.exponents": " 3  0 -1 "}).exponents == (3, 0, -1)


def test_colluders_that_are_allowed_leave_the_threshold_safe_however_many_silos_enrol() -> None:
    for silos in range(3, 200):
        for enrolled in range(silos, silos + 7):
            assert 2 * default_threshold(enrolled) > enrolled + silos // 3


def other(name: str, key: Key) -> object:
    """An allowed value that is not the default."""
    if name == "metric.exponents":
        return "1 0 0"
    if isinstance(key.default, bool):
        return not key.default
    if isinstance(key.default, str):
        return next((choice for choice in key.choices if choice != key.default), "elsewhere")
    candidates = [key.default * 2, key.default / 2, 1, 0.5, 2, 100, 0.25]
    kind = type(key.default)
    return next(
        kind(value)
        for value in candidates
        if kind(value) != key.default and key.low <= kind(value) <= key.high and kind(value) > key.above
    )


@pytest.mark.parametrize("name", KEYS)
def test_the_hash_follows_every_setting_that_shapes_the_run_and_no_other(name: str) -> None:
    besides = BESIDES.get(name, {})
    before = RunConfig.from_mapping(besides).hash
    after = RunConfig.from_mapping({**besides, name: other(name, KEYS[name])}).hash
    assert (after == before) == (name in LOCAL)


def test_the_hash_does_not_depend_on_the_order_or_on_what_is_left_to_the_default() -> None:
    first = RunConfig.from_mapping({"rounds": 7, "silos": 12})
    second = RunConfig.from_mapping({"silos": 12, "dp.epsilon": 1.0, "rounds": 7})
    assert first.hash == second.hash
    assert len(bytes.fromhex(first.hash)) == 32


anything = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers())


@given(settings=st.dictionaries(st.sampled_from(sorted(KEYS)), anything, max_size=4))
def test_whatever_is_given_is_accepted_or_refused_by_name(settings: dict[str, Any]) -> None:
    message = ""
    try:
        config = RunConfig.from_mapping(settings)
    except ConfigError as error:
        message = str(error)
    if message:
        assert message.split(":")[0] in KEYS
        return
    assert set(config.values) == set(KEYS)
    assert all(type(config.values[name]) is type(key.default) for name, key in KEYS.items())
