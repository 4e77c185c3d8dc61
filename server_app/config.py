"""The run configuration: every key with its default and range, validated once at start.

Flower reads the defaults from ``[tool.flwr.app.config]`` of ``pyproject.toml``; a test asserts that they are
the ones of this table.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

from privacy.errors import PrivacyError
from privacy.metric import MAX_EXPONENT, Metric
from privacy.mlp import FEATURES, HIDDEN, Mlp
from secagg.errors import SecAggError
from secagg.graph_parameters import KINDS, Rates, choose
from server_app.methods import METHODS, Value, having


class ConfigError(ValueError):
    """A setting is unknown, missing, of the wrong type or out of range; the message names the key."""


@dataclass(frozen=True)
class Key:
    """One setting.

    Attributes
    ----------
    default : bool, int, float or str
        Also fixes the type.
    doc : str
        One line for people.
    low, high : float
        Inclusive range of a number.
    above : float
        Exclusive lower bound.
    choices : tuple of str
        Allowed texts; empty for free text.
    """

    default: Value
    doc: str
    low: float = -math.inf
    high: float = math.inf
    above: float = -math.inf
    choices: tuple[str, ...] = ()


KEYS: Mapping[str, Key] = {
    "run-dir": Key("", "folder of the coordinator's files; empty: runs/<run id> in the working folder"),
    "resume": Key(False, "continue the run in run-dir instead of starting one"),
    "simulation-root": Key("", "folder of the silos' folders, for the simulation engine only"),
    "roster-file": Key("", "roster.toml with the only silos that may enrol, as the coordinator sees it; empty: any"),
    "method": Key("fcfl", "method of the run; docs/methods.md says which keys each has", choices=tuple(METHODS)),
    "silos": Key(20, "silos that must enrol", low=3, high=1000),
    "rounds": Key(15, "optimisation rounds K", low=1, high=100_000),
    "model-seed": Key(2025, "public seed of the initial model", low=0, high=2**31),
    "noise-seed": Key(
        -1, "seed of all silo randomness, for experiments only (not private); -1: OS CSPRNG", low=-1, high=2**63 - 1
    ),
    "dp.unit": Key(
        "record", "unit of privacy; with silo, one silo replaced by zero or another", choices=("record", "silo")
    ),
    "dp.neighbour": Key("zero", "what takes a silo's place with dp.unit silo", choices=("zero", "replace")),
    "dp.accountant": Key(
        "rdp",
        "rdp: Renyi filter; pld: counted contributions of constant noise; paper: eq. 26 and its orders",
        choices=("rdp", "pld", "paper"),
    ),
    "dp.epsilon": Key(1.0, "target epsilon", above=0, high=1000),
    "dp.delta": Key(1e-5, "target delta", above=0, high=0.5),
    "dp.sampling-rate": Key(0.1, "Poisson sampling rate q per step", above=0, high=1),
    "dp.clip-norm": Key(1.0, "per-example clip norm C", above=0, high=1e6),
    "dp.contributions": Key(0, "contributions per silo the noise is calibrated for; 0: rounds", low=0, high=100_000),
    "dp.variance-scale": Key(
        0.0, "s C of the privatised gradient variance; costs 1 + (s C)^2 in noise variance; 0: off", low=0, high=10
    ),
    "dp.scaling-share": Key(
        0.0, "share of the budget for means and deviations of the features; 0: public scales", low=0, high=0.5
    ),
    "dp.schedule": Key("constant", "noise multiplier over rounds", choices=("constant", "divergence")),
    "dp.sensitivity": Key(0.0, "rho of eq. 25", low=0, high=1e6),
    "dp.sigma-min": Key(0.5, "least noise multiplier", above=0, high=1e4),
    "dp.sigma-max": Key(100.0, "largest noise multiplier", above=0, high=1e4),
    "local.steps": Key(5, "local steps tau", low=1, high=1000),
    "local.step-size": Key(0.5, "client step eta_0", above=0, high=1e4),
    "local.step-decay": Key(0.0, "share of the client step lost over the run, linearly; 0: constant", low=0, high=1),
    "local.normalise": Key(True, "rescale updates to tau steps of eta_0, whatever steps were taken (FedNova)"),
    "local.adaptive-step": Key(True, "let a silo shorten its step to the drift budget; off: the budget only cuts tau"),
    "local.drift-budget": Key(4.0, "d_max as a multiple of the median noise energy; 0: off", low=0, high=1e9),
    "local.backtracks": Key(0, "private looks at the loss for backtracking a round; 0: off", low=0, high=100),
    "local.loss-bound": Key(0.1, "clip of a loss difference in backtracking, in scaled units", above=0, high=1e6),
    "local.proximal": Key(0.0, "lambda_0 of mu = lambda_0 D_hat", low=0, high=1e9),
    "local.proximal-max": Key(10.0, "bound on lambda_0 D_hat", low=0, high=1e9),
    "local.proximal-constant": Key(0.0, "mu besides lambda_0 D_hat; with fedprox 0 stands for 0.1", low=0, high=1e9),
    "drift.smoothing": Key(0.3, "xi of the drift control; 0: off", low=0, high=1),
    "drift.gain": Key(0.5, "factor on c - c_i, or its bound", low=0, high=1),
    "drift.gain-rule": Key(
        "constant",
        "signal-to-noise: D / (D + V), from the controls' measured spread and their known noise V",
        choices=("constant", "signal-to-noise"),
    ),
    "metric.exponents": Key(
        "", "client metric: powers of two that scale hidden layers and output, such as '3 0 -1'; empty: all 0"
    ),
    "metric.damping": Key(
        0.0,
        "client metric: lambda of the input factors (A / lambda + I)^(-1/2) of inner layers; 0: off",
        low=0,
        high=1e6,
    ),
    "server.momentum": Key(0.5, "beta_1", low=0, high=0.9999),
    "server.second-moment": Key(0.99, "beta_2", low=0, high=0.999999),
    "server.step-size": Key(1.0, "eta_s", above=0, high=1e4),
    "server.lookahead": Key(0.3, "eta_m of the Nesterov point", low=0, high=0.9999),
    "server.interpolation": Key(1.0, "rho of Algorithm 1; 1: off", above=0, high=1),
    "server.bias-correction": Key(True, "divide the moments by 1 - beta^t"),
    "server.preconditioner": Key("normalised", "diagonal preconditioner", choices=("none", "normalised", "raw")),
    "server.noise-corrected": Key(False, "subtract the known noise variance from v"),
    "server.jitter": Key(1e-8, "epsilon_p", above=0, high=1),
    "server.shrinkage": Key(False, "shrink each layer's step by its known share of noise (James-Stein)"),
    "server.trust-region": Key(0.0, "largest step relative to the RMS of the weights; 0: off", low=0, high=1e9),
    "server.averaging": Key(
        0.0,
        "decay a of the served average of iterates, over about 1 / (1 - a) rounds; 0: off",
        low=0,
        high=0.9999,
    ),
    "adaptive.step-size": Key(0.01, "eta of FedAdam and FedYogi, in units of a weight", above=0, high=1e4),
    "adaptive.tau": Key(1e-3, "tau of FedAdam and FedYogi, an update that counts as small", above=0, high=1e4),
    "mime.gradient-share": Key(0.2, "share of the budget for MIME's gradients of all records", low=0.001, high=0.45),
    "participation.cohort": Key(10.0, "expected contributors tau_sel", above=0, high=1000),
    "participation.scores": Key(
        "importance", "what p_i is in proportion to: eq. 23, or nothing", choices=("importance", "uniform")
    ),
    "participation.min-probability": Key(0.1, "least participation probability p_min", above=0, high=1),
    "participation.drift-penalty": Key(0.0, "beta of eq. 23", low=0, high=1e9),
    "secagg.colluders": Key(0, "silos n_C that may collude with the coordinator", low=0, high=333),
    "secagg.graph": Key(
        "complete", "who masks with whom; auto: regular above 100 silos where that halves the work", choices=KINDS
    ),
    "secagg.dropout": Key(
        0.05, "share of the silos that may be missing in an epoch of a regular graph", low=0, high=0.5
    ),
    "secagg.corruption": Key(
        0.05, "share of the silos that may collude with the coordinator in a regular graph", low=0, high=0.5
    ),
    "secagg.active": Key(True, "a regular graph also withstands a coordinator that shows the silos different lists"),
    "eval.metrics": Key(True, "sum validation metrics; exact sums, not differentially private, unless eval.epsilon"),
    "eval.epsilon": Key(0.0, "budget of noised metrics, beside dp.epsilon; 0: exact sums", low=0, high=1000),
    "eval.loss-bound": Key(
        0.0025, "bound on a squared error of a log return in noised metrics, (5 %)^2", above=0, high=1e6
    ),
    "eval.every": Key(1, "rounds from one validation to the next", low=1, high=100_000),
    "eval.final": Key(True, "evaluate the served model on validation and test at the end"),
    "deadline.enrol": Key(180.0, "seconds to wait for enrolment", above=0, high=1e6),
    "deadline.train": Key(600.0, "seconds to wait for masked vectors", above=0, high=1e6),
    "deadline.unmask": Key(120.0, "seconds to wait for shares", above=0, high=1e6),
    "deadline.poll": Key(0.2, "seconds between two looks for replies", above=0, high=60),
    "max-abandoned": Key(3, "consecutive abandoned epochs before the run gives up", low=1, high=1000),
}


@dataclass(frozen=True)
class RunConfig:
    """A complete, validated configuration."""

    values: Mapping[str, Value]

    @classmethod
    def from_mapping(cls, given: Mapping[str, object]) -> "RunConfig":
        """Validate settings; what is not given takes its default.

        Raises
        ------
        ConfigError
            Naming the key, for an unknown key, a wrong type, NaN, an infinity or a value out of range.
        """
        for name in given:
            if name not in KEYS:
                raise ConfigError(f"{name}: unknown setting; known settings are {', '.join(KEYS)}")
        values = {name: _checked(name, key, given.get(name, key.default)) for name, key in KEYS.items()}
        config = cls({**values, **_of_method(values)})
        config._check_together()
        return config

    def _check_together(self) -> None:
        if self.real("dp.sigma-min") > self.real("dp.sigma-max"):
            raise ConfigError("dp.sigma-min: larger than dp.sigma-max; lower it")
        if self.real("participation.cohort") > self.whole("silos"):
            raise ConfigError(
                f"participation.cohort: {self.real('participation.cohort'):g} contributors expected of "
                f"{self.whole('silos')} silos; lower it, or raise silos"
            )
        if self.whole("secagg.colluders") > self.whole("silos") // 3:
            raise ConfigError(
                f"secagg.colluders: at most {self.whole('silos') // 3} of {self.whole('silos')} silos; with more, two "
                "thirds of the silos would be no safe threshold; lower it, or raise silos"
            )
        self._check_graph()
        _ = self.exponents
        if self.whole("dp.contributions") > self.whole("rounds"):
            raise ConfigError("dp.contributions: more than rounds; a silo contributes at most once a round")
        if self.flag("eval.final") and not self.flag("eval.metrics"):
            raise ConfigError("eval.final: needs eval.metrics; switch both off, or both on")
        if self.real("eval.epsilon") > 0 and not self.flag("eval.metrics"):
            raise ConfigError("eval.epsilon: no metrics are summed; set it to 0, or switch eval.metrics on")
        if self.text("dp.accountant") == "pld" and self.text("dp.schedule") != "constant":
            raise ConfigError(
                "dp.accountant: pld needs dp.schedule constant, because it cannot price noise that depends on outputs; "
                "use rdp"
            )
        if self.text("dp.accountant") == "pld":
            for name in ("local.backtracks", "dp.scaling-share"):
                if self.real(name) > 0:
                    raise ConfigError(f"{name}: a counted budget cannot price it; set it to 0, or use rdp")
            if self.text("method") == "mime":
                raise ConfigError("dp.accountant: pld cannot price the gradients of method mime; use rdp")
        if self.text("drift.gain-rule") != "constant" and self.real("drift.smoothing") == 0:
            raise ConfigError("drift.gain-rule: there is no control to measure; set drift.smoothing above 0")
        if self.text("dp.unit") == "silo":
            self._check_silo_unit()
        if self.text("server.preconditioner") == "raw" and self.real("server.trust-region") == 0:
            raise ConfigError("server.trust-region: must be above 0 with server.preconditioner 'raw' (1.0 is usual)")

    def _check_graph(self) -> None:
        """Refuse a regular graph that could not be made even if exactly the expected silos enrol."""
        rates = Rates(self.real("secagg.corruption"), self.real("secagg.dropout"), self.flag("secagg.active"))
        try:
            degree = choose(self.text("secagg.graph"), silos := self.whole("silos"), rates)
        except SecAggError as error:
            raise ConfigError(f"secagg.graph: {error}") from None
        if degree is not None and self.whole("secagg.colluders") > rates.corrupt(silos):
            raise ConfigError("secagg.colluders: more than secagg.corruption of the silos; raise secagg.corruption")

    def _check_silo_unit(self) -> None:
        """With the silo as unit only its update may leave it (errata E6)."""
        if not METHODS[self.text("method")].update_only:
            raise ConfigError(f"method: {self.text('method')} sends more than its update; dp.unit silo needs another")
        off = ("drift.smoothing", "drift.gain", "participation.drift-penalty")
        for name in (*off, "dp.variance-scale", "dp.scaling-share", "local.backtracks"):
            if self.real(name) > 0:
                raise ConfigError(f"{name}: must be 0 with dp.unit silo, where only the update may leave a silo")
        if self.real("eval.epsilon") > 0:
            raise ConfigError("eval.epsilon: must be 0 with dp.unit silo; its noise protects one record, not a silo")
        if self.text("dp.schedule") != "constant":
            raise ConfigError("dp.schedule: must be constant with dp.unit silo, where the divergence is not known")

    def real(self, name: str) -> float:
        """Return a number."""
        return float(self.values[name])

    def whole(self, name: str) -> int:
        """Return a whole number."""
        return int(self.values[name])

    def text(self, name: str) -> str:
        """Return a text."""
        return str(self.values[name])

    def flag(self, name: str) -> bool:
        """Return a switch."""
        return bool(self.values[name])

    @property
    def exponents(self) -> tuple[int, ...]:
        """Powers of two of the client metric.

        Raises
        ------
        ConfigError
            If the text is not a list of whole numbers, none or one for each linear map.
        """
        text = self.text("metric.exponents")
        try:
            found = tuple(int(part) for part in text.split())
            Mlp(FEATURES, HIDDEN, Metric(found))
        except (ValueError, PrivacyError):
            raise ConfigError(
                f"metric.exponents: expected {len(HIDDEN) + 1} whole numbers from {-MAX_EXPONENT} to {MAX_EXPONENT} "
                f"separated by blanks, one for each hidden layer and one for the output, or none; got {text!r}"
            ) from None
        return found

    @property
    def hash(self) -> str:
        """SHA-256 of the canonical JSON of all settings that shape the run (not where its files lie)."""
        local = ("run-dir", "resume", "simulation-root", "roster-file")
        shaping = {name: value for name, value in self.values.items() if name not in local}
        return hashlib.sha256(json.dumps(shaping, sort_keys=True).encode()).hexdigest()


def _of_method(values: Mapping[str, Value]) -> Mapping[str, Value]:
    """Return the values that the method brings: of keys it lacks, and its own defaults.

    Flower passes all keys, so a key at its default counts as not set.
    """
    name = str(values["method"])
    method = METHODS[name]
    for key, value in method.lacks.items():
        if values[key] not in (KEYS[key].default, value):
            raise ConfigError(
                f"{key}: method {name} does not have it; leave it out, or choose a method that has it "
                f"({', '.join(having(key))})"
            )
    own = {key: value for key, value in method.defaults.items() if values[key] == KEYS[key].default}
    return {**method.lacks, **own}


def _checked(name: str, key: Key, value: object) -> Value:
    kind = type(key.default)
    if kind is float and type(value) is int:
        # A whole number too large for a float is out of every range.
        value = float(value) if abs(value) < 2**1023 else math.inf if value > 0 else -math.inf
    if type(value) is not kind:
        kinds = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
        raise ConfigError(f"{name}: expected {kinds[kind]}, got {value!r}")
    if isinstance(value, str):
        if key.choices and value not in key.choices:
            raise ConfigError(f"{name}: expected one of {', '.join(key.choices)}, got {value!r}")
        return value
    assert isinstance(value, bool | int | float)
    if isinstance(value, bool):
        return value
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{name}: expected a finite number, got {value!r}")
    if not (key.low <= value <= key.high and value > key.above):
        lower = f"above {key.above:g}" if key.above > -math.inf else f"at least {key.low:g}"
        upper = f" and at most {key.high:g}" if key.high < math.inf else ""
        raise ConfigError(f"{name}: expected {lower}{upper}, got {value!r}")
    return value
