"""The choice of a method: what it fixes, what it refuses, what reaches the run."""

from typing import Any

import pytest

from fcfl_strategy.adaptive import Adaptive
from fcfl_strategy.fedavg import Averaging
from fcfl_strategy.mime import Mime
from fcfl_strategy.server_rule import ServerRule
from fcfl_strategy.server_update import ServerUpdate
from fcfl_strategy.settings import Settings
from privacy.filter import RenyiFilter
from server_app.config import KEYS, ConfigError, RunConfig
from server_app.methods import METHODS, PARTS, PRESETS, having
from server_app.run_settings import settings_of

EVERY = pytest.mark.parametrize("method", METHODS)
# q = 1 is cheap to calibrate.
CHEAP: dict[str, Any] = {"dp.sampling-rate": 1.0, "rounds": 3}


def config(method: str, **changes: Any) -> RunConfig:
    return RunConfig.from_mapping({"method": method, **changes})


def made(method: str, **changes: Any) -> Settings:
    return settings_of(config(method, **{**CHEAP, **changes}), b"m" * 16)


def others(name: str, fixed: Any) -> list[Any]:
    """Valid values of a key that are neither its default nor what the method fixes; none where there are but two."""
    key = KEYS[name]
    candidates: list[Any] = list(key.choices)
    if not candidates:
        # 0.37 and 3 lie in the range of every number here.
        candidates = {bool: [True, False], int: [3], float: [0.37]}[type(key.default)]
    return [value for value in candidates if value not in (key.default, fixed)]


def test_the_parts_are_keys_of_the_configuration_with_values_in_their_range() -> None:
    assert set(PARTS) <= set(KEYS)
    for one in METHODS.values():
        assert one.has <= set(PARTS)
        assert set(one.lacks) | set(one.defaults) <= set(KEYS)
        assert not set(one.lacks) & (one.has | set(one.defaults))
        assert one.doc
    for name in METHODS:
        for key, value in METHODS[name].lacks.items():
            assert type(value) is type(KEYS[key].default)
    assert {key for key in PARTS if not having(key)} == set(), "a part that no method has"


@EVERY
def test_a_key_that_the_method_does_not_have_is_refused_by_name(method: str) -> None:
    for name, fixed in METHODS[method].lacks.items():
        for value in others(name, fixed):
            with pytest.raises(ConfigError) as caught:
                config(method, **{name: value})
            assert str(caught.value).startswith(f"{name}: method {method} does not have it")
            assert all(able in str(caught.value) for able in having(name))


@EVERY
def test_what_a_method_lacks_is_off_though_flower_passes_every_key_at_its_default(method: str) -> None:
    chosen = config(method, **{name: key.default for name, key in KEYS.items() if name != "method"})
    for name, value in METHODS[method].lacks.items():
        assert chosen.values[name] == value
    assert chosen == config(method)


@EVERY
def test_a_configuration_that_was_settled_is_settled(method: str) -> None:
    """A resumed run reads the stored values."""
    chosen = config(method)
    again = RunConfig.from_mapping(chosen.values)
    assert again == chosen
    assert again.hash == chosen.hash


def test_methods_differ_in_their_hash_and_fcfl_is_the_default() -> None:
    assert len({config(method).hash for method in METHODS}) == len(METHODS)
    assert RunConfig.from_mapping({}) == config("fcfl")


def test_fedprox_has_a_proximal_term_by_itself() -> None:
    assert config("fedprox").real("local.proximal-constant") == 0.1
    assert config("fedprox", **{"local.proximal-constant": 0.7}).real("local.proximal-constant") == 0.7
    assert made("fedprox").proximal_constant == 0.1
    assert made("fedavg").proximal_constant == 0.0


RULES: dict[str, ServerRule] = {
    "fcfl": ServerUpdate(),
    "fedavg": Averaging(),
    "fedprox": Averaging(),
    "scaffold": Averaging(),
    "mime": Mime(1.0, 0.5),
    "fednova": Averaging(),
    "fedavgm": Averaging(1.0, 0.5),
    "fedadam": Adaptive("adam", 0.01, 0.5, 0.99, 1e-3),
    "fedyogi": Adaptive("yogi", 0.01, 0.5, 0.99, 1e-3),
}


@EVERY
def test_a_method_takes_its_own_server_step_and_leaves_the_plan_as_it_is(method: str) -> None:
    settings, reference = made(method), made("fcfl")
    assert settings.rule == RULES[method]
    shared = ("epsilon", "delta", "sampling_rate", "clip_norm", "steps", "cohort", "min_probability")
    for name in shared:
        assert getattr(settings.terms, name) == getattr(reference.terms, name)
    if method != "mime":
        assert settings.terms.sigma_min == reference.terms.sigma_min, "the same noise for all"
    assert (settings.control_smoothing > 0) == (method in ("fcfl", "scaffold"))
    assert (settings.drift_budget > 0) == (method in ("fcfl", "fednova"))
    assert settings.normalised == (method in ("fcfl", "fednova"))


def test_scaffold_replaces_its_controls_and_corrects_by_all_of_their_difference() -> None:
    settings = made("scaffold")
    assert (settings.control_smoothing, settings.control_gain, settings.gain_rule) == (1.0, 1.0, "constant")


@pytest.mark.parametrize("share", [0.05, 0.2, 0.4])
@pytest.mark.parametrize("contributions", [1, 3])
def test_mime_s_gradients_and_its_steps_fit_one_budget_together(share: float, contributions: int) -> None:
    changes = {"mime.gradient-share": share, "dp.contributions": contributions}
    settings = made("mime", **changes, **{"dp.scaling-share": 0.1})
    terms = settings.terms
    assert terms.sigma_min > made("fcfl", **{"dp.contributions": contributions}).terms.sigma_min
    spent = RenyiFilter(terms.order, terms.rdp_budget).charge(terms.order / (2 * terms.scaling_noise**2))
    for _ in range(contributions):
        spent = spent.charge(terms.mechanism(terms.sigma_min, terms.steps, 1).rdp(terms.order))
        spent = spent.charge(terms.order / (2 * terms.gradient_noise**2))
    assert spent.fraction <= 1.0
    assert spent.fraction == pytest.approx(1.0, abs=2e-3)


@pytest.mark.parametrize("method", ["scaffold", "mime"])
def test_with_the_silo_as_unit_only_methods_whose_update_is_all_they_send_are_allowed(method: str) -> None:
    with pytest.raises(ConfigError, match=rf"method: {method} sends more than its update"):
        config(method, **{"dp.unit": "silo"})
    assert config("fedadam", **{"dp.unit": "silo"}).text("dp.unit") == "silo"


def test_a_counted_budget_cannot_price_mime() -> None:
    with pytest.raises(ConfigError, match=r"dp\.accountant: pld cannot price"):
        config("mime", **{"dp.accountant": "pld"})


def test_a_measured_gain_needs_a_control() -> None:
    with pytest.raises(ConfigError, match=r"drift\.gain-rule: there is no control"):
        config("fcfl", **{"drift.gain-rule": "signal-to-noise", "drift.smoothing": 0.0})


def test_the_preset_of_the_paper_is_the_literal_step() -> None:
    """E3: momentum 0.9 and 0.999, lookahead 0.8, raw preconditioner, a trust region that never binds."""
    settings = settings_of(RunConfig.from_mapping({**PRESETS["paper"], **CHEAP}), b"m" * 16)
    assert settings.rule == ServerUpdate(
        momentum=0.9, second_moment=0.999, step_size=1.0, lookahead=0.8, preconditioner="raw", trust_region=1e8
    )
    assert settings.schedule.kind == "divergence"
    assert settings.control_gain == 1.0
