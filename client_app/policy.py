"""What a silo is willing to do: ``silo.toml``, and the checks of every request against it.

The silo does not trust the coordinator's numbers. Each check declines before any record is touched and
before anything is spent.
"""

import math
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from client_app.errors import Declined, SiloError
from privacy.release import ReleasePlan
from privacy.terms import RunTerms
from secagg.cbor import SILO_ID
from secagg.graph import RegularGraph
from secagg.graph_parameters import SECURITY_BITS

SWITCHES = ("allow_seeded", "allow_metrics", "allow_silo_unit", "allow_unpinned", "allow_semi_honest_graph")
SHARES = ("delta", "max_sampling_rate", "min_probability", "min_corruption")


@dataclass(frozen=True)
class Policy:
    """Limits of one silo, from the ``[policy]`` table of its ``silo.toml``.

    Attributes
    ----------
    epsilon, delta : float
        Total record-level budget of this data set over all runs, by basic composition over runs.
    min_noise_multiplier, max_clip_norm, max_sampling_rate, max_local_steps
        Bounds on ``sigma``, ``C``, ``q``, ``tau``.
    min_cohort : float
        Least expected number of contributors ``tau_sel``.
    min_probability : float
        Least participation probability a plan may force.
    min_enrolment : int
        Smallest roster.
    hidden : tuple of int
        Hidden widths of the model the silo agreed to.
    allow_seeded : bool
        Whether noise may come from an announced seed. Such a run is not private.
    allow_metrics : bool
        Whether exact sums over validation and test records may enter secure sums. They are not
        differentially private; noised ones need no permission, they are paid for.
    allow_silo_unit : bool
        Whether a run may protect this silo as a whole instead of each of its records; the epsilon of the budget then
        means something else.
    allow_unpinned : bool
        Whether to take part without a pinned roster, among silos that only the coordinator vouches for.
    min_corruption : float
        Least share of colluding silos a regular graph of masks has to withstand.
    allow_semi_honest_graph : bool
        Whether a regular graph may rely on a coordinator that shows every silo the same lists.
    """

    epsilon: float
    delta: float
    min_noise_multiplier: float = 0.5
    max_clip_norm: float = 10.0
    max_sampling_rate: float = 0.5
    max_local_steps: int = 50
    min_cohort: float = 8.0
    min_probability: float = 0.01
    min_enrolment: int = 10
    hidden: tuple[int, ...] = (320, 320)
    allow_seeded: bool = False
    allow_metrics: bool = False
    allow_silo_unit: bool = False
    allow_unpinned: bool = False
    min_corruption: float = 0.05
    allow_semi_honest_graph: bool = False


@dataclass(frozen=True)
class SiloSettings:
    """One silo: its name, where its samples are, its policy, and its pinned roster if it has one."""

    name: str
    data: Path
    policy: Policy
    roster: Path | None = None


def load_settings(path: Path) -> SiloSettings:
    """Read ``silo.toml``.

    Raises
    ------
    SiloError
        Naming the file and the key, for a missing file, bad TOML, an unknown or missing key,
        a wrong type, a number that is not finite and positive, or a probability above 1.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise SiloError(f"{path}: not found; create the silo first (fcfl silo init)") from None
    except OSError as error:
        raise SiloError(f"{path}: cannot be read ({error.strerror}); check its rights") from None
    return parse_settings(path, content)


def parse_settings(path: Path, content: bytes) -> SiloSettings:
    """Check the content of a ``silo.toml``; ``path`` is where it lies or will lie."""
    try:
        tables = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:  # among them numbers and nesting beyond what Python reads
        raise SiloError(f"{path}: not valid TOML: {error}") from None
    silo, policy = tables.get("silo"), tables.get("policy")
    if set(tables) != {"silo", "policy"} or not (isinstance(silo, dict) and isinstance(policy, dict)):
        raise SiloError(f"{path}: expected the tables [silo] and [policy], and nothing else")
    if odd := {"name", "data"} ^ (set(silo) - {"roster"}):
        raise SiloError(f"{path}: missing or unknown key silo.{min(odd)}; expected name, data and perhaps roster")
    name, data, roster = silo["name"], silo["data"], silo.get("roster")
    if not (isinstance(name, str) and SILO_ID.fullmatch(name)):
        raise SiloError(
            f"{path}: silo.name = {name!r}; expected 1 to 64 letters, digits or ._:@- after a letter or digit"
        )
    if not _is_path(data):
        raise SiloError(f"{path}: silo.data = {data!r}; expected the path of the samples' folder")
    if roster is not None and not _is_path(roster):
        raise SiloError(f"{path}: silo.roster = {roster!r}; expected the path of a roster.toml")
    pins = None if roster is None else (path.parent / roster).resolve()
    return SiloSettings(name, (path.parent / data).resolve(), _policy(path, policy), pins)


def _is_path(value: object) -> bool:
    return isinstance(value, str) and bool(value) and "\0" not in value


def _policy(path: Path, table: dict[str, Any]) -> Policy:
    known = {field.name: field for field in fields(Policy)}
    if unknown := set(table) - set(known):
        raise SiloError(f"{path}: unknown key policy.{min(unknown)}; known keys are {', '.join(sorted(known))}")
    if missing := {"epsilon", "delta"} - set(table):
        raise SiloError(f"{path}: missing key policy.{min(missing)}")
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key in SWITCHES:
            fine = isinstance(value, bool)
        elif key == "hidden":
            fine = isinstance(value, list) and bool(value) and all(type(v) is int and v > 0 for v in value)
            value = tuple(value) if fine else value
        elif known[key].type is int:
            fine = type(value) is int and value > 0
        else:
            fine = type(value) in (int, float) and 0 < value < math.inf and not (key in SHARES and value > 1)
        if not fine:
            raise SiloError(f"{path}: policy.{key} = {value!r}; expected a {_expected(key, known)}")
        values[key] = value
    return Policy(**values)


def _expected(key: str, known: dict[str, Any]) -> str:
    kinds = dict.fromkeys(SWITCHES, "true or false") | dict.fromkeys(SHARES, "number above 0 and at most 1")
    kinds["hidden"] = "list of positive whole numbers"
    return kinds.get(key, "positive whole number" if known[key].type is int else "finite positive number")


def check_terms(policy: Policy, terms: RunTerms, features: int, granted: tuple[float, float]) -> None:
    """Decline a run whose terms exceed the policy.

    Parameters
    ----------
    policy : Policy
    terms : RunTerms
    features : int
        Width of the silo's samples.
    granted : tuple of float
        Sums of (epsilon, delta) of all other runs in the silo's ledger.

    Raises
    ------
    Declined
        Naming the first limit that is exceeded.
    """
    _decline_unless(
        (terms.noise_seed is None or policy.allow_seeded, "the run is seeded and policy.allow_seeded is false"),
        (
            policy.allow_metrics or not terms.metrics or terms.evaluation is not None,
            "the run sums exact metrics and policy.allow_metrics is false",
        ),
        (
            policy.allow_silo_unit or terms.unit == "record",
            "the silo is the unit of privacy and policy.allow_silo_unit is false",
        ),
        (terms.sigma_min >= policy.min_noise_multiplier, f"sigma_min {terms.sigma_min} below the policy's"),
        (
            terms.gradient_noise == 0 or terms.gradient_noise >= policy.min_noise_multiplier,
            f"noise {terms.gradient_noise} of the full-batch gradient below the policy's",
        ),
        (terms.clip_norm <= policy.max_clip_norm, f"clip norm {terms.clip_norm} above the policy's"),
        (terms.sampling_rate <= policy.max_sampling_rate, f"sampling rate {terms.sampling_rate} above the policy's"),
        (terms.steps <= policy.max_local_steps, f"{terms.steps} local steps, more than the policy's"),
        (terms.cohort >= policy.min_cohort, f"expected contributors {terms.cohort} below the policy's"),
        (terms.min_probability >= policy.min_probability, f"least probability {terms.min_probability} too low"),
        (terms.hidden == policy.hidden, f"the model {terms.hidden} is not the one agreed to, {policy.hidden}"),
        (terms.features == features, f"the model takes {terms.features} features, the samples have {features}"),
        (
            granted[0] + terms.total_epsilon <= policy.epsilon * (1 + 1e-12),
            f"epsilon {terms.total_epsilon} on top of {granted[0]} already granted exceeds the total {policy.epsilon}",
        ),
        (
            granted[1] + terms.total_delta <= policy.delta * (1 + 1e-12),
            f"delta {terms.total_delta} on top of {granted[1]} already granted exceeds the total {policy.delta}",
        ),
    )


def check_graph(policy: Policy, graph: RegularGraph) -> None:
    """Decline a regular graph made for less than the policy wants.

    That degree and threshold withstand the rates the graph states was checked when the run was parsed.

    Raises
    ------
    Declined
        Naming the value that is too low.
    """
    _decline_unless(
        (
            graph.active or policy.allow_semi_honest_graph,
            "the graph relies on an honest coordinator and policy.allow_semi_honest_graph is false",
        ),
        (graph.corruption >= policy.min_corruption, f"a graph for a corruption of {graph.corruption} only"),
        (graph.security >= SECURITY_BITS, f"a graph with {graph.security} bits of security; expected {SECURITY_BITS}"),
    )


def check_plan(policy: Policy, terms: RunTerms, plan: ReleasePlan, *, enrolled: int, records: int) -> None:
    """Decline an epoch whose plan leaves the agreed terms or the policy.

    Raises
    ------
    Declined
        Naming the first value that differs.
    """
    _decline_unless(
        (enrolled >= policy.min_enrolment, f"{enrolled} silos enrolled, the policy wants {policy.min_enrolment}"),
        (plan.terms_hash == terms.hash(), "the plan belongs to other terms than this silo agreed to"),
        (
            terms.scaling_noise > 0 or (plan.purpose != "scale" and not plan.scale_hash),
            "the features of this run keep their public scale",
        ),
        (terms.metrics or not plan.splits, "the plan sums metrics, the terms do not"),
        (
            plan.parameters == terms.model.size,
            "the model agreed to has another number of parameters",
        ),
        (plan.sampling_rate == terms.sampling_rate, "the sampling rate is not the agreed one"),
        (plan.clip_norm == terms.clip_norm, "the clip norm is not the agreed one"),
        (plan.steps <= terms.steps, "more local steps than agreed"),
        (terms.sigma_min <= plan.noise_multiplier <= terms.sigma_max, "the noise multiplier is outside the terms"),
        (plan.cohort >= terms.cohort, "fewer expected contributors than agreed"),
        (plan.min_probability >= terms.min_probability, "a lower least probability than agreed"),
        (plan.min_records <= records <= plan.max_records, "the public record bounds do not hold for this silo"),
    )
    if terms.unit == "silo":
        _decline_unless(
            (
                plan.control_smoothing == plan.control_gain == 0,
                "drift control is on, but with the silo as unit only its update may leave it",
            ),
            (plan.score_total == enrolled, "participation is not uniform, as the silo as unit needs it"),
        )


def _decline_unless(*conditions: tuple[bool, str]) -> None:
    for holds, reason in conditions:
        if not holds:
            raise Declined(reason)
