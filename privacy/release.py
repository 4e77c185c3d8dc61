"""What a silo is asked to release: the terms of a run and the plan of one epoch.

Both sides read the same canonical bytes: the coordinator writes them, binds them into the masks through
the announcement, and the silo checks them against its own policy before any record is touched.
"""

import dataclasses
import hashlib
import math
import types
import typing
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import cbor2

from privacy.errors import PrivacyError

MAX_EVALUATION_RECORDS = 2**24
"""Public bound on the records of a silo's validation or test split."""

MAX_SQUARED_ERROR = 1.0
"""Public bound on one squared error in raw log-return units; larger errors saturate."""

TAIL = 12.0
"""Gaussian noise beyond this many standard deviations saturates (probability below 1e-32 a value)."""

METRICS = ("count", "sse", "sae", "hits", "sse_zero", "count_optimal", "sse_optimal")
"""Sums over the records of a split: number, squared and absolute error of the model, directional hits,
squared error of the zero forecast, and, where the data know it, of the optimal forecast."""


@dataclass(frozen=True)
class Bound:
    """Public bound of one segment of the masked vector.

    Attributes
    ----------
    name : str
    length : int
    bits : int
        Width of the ring, 32 or 64.
    bound : float
        Largest absolute value a silo may put in; larger ones saturate.
    """

    name: str
    length: int
    bits: int
    bound: float


class _Wire:
    """Canonical encoding (RFC 8949 section 4.2) with strict decoding, for flat frozen dataclasses."""

    label: ClassVar[str]

    def to_bytes(self) -> bytes:
        """Return the canonical encoding."""
        return cbor2.dumps(dataclasses.asdict(self), canonical=True)  # type: ignore[call-overload]

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode and validate.

        Raises
        ------
        PrivacyError
            If the bytes are not exactly one value of this type; the message names the field.
        """
        try:
            values = cbor2.loads(data)
        except Exception as error:
            raise PrivacyError(f"{cls.label}: not canonical CBOR; the peer speaks another protocol") from error
        fields = typing.get_type_hints(cls)
        fields.pop("label", None)
        if not isinstance(values, dict) or set(values) != set(fields):
            raise PrivacyError(
                f"{cls.label}: expected exactly the fields {sorted(fields)}; check the software versions"
            )
        made = cls(**{name: _checked(cls.label, name, kind, values[name]) for name, kind in fields.items()})
        if made.to_bytes() != data:
            raise PrivacyError(f"{cls.label}: the encoding is not canonical; the peer speaks another protocol")
        return made


def _checked(label: str, name: str, kind: Any, value: Any) -> Any:
    """Return ``value`` as ``kind`` or raise an error that names the field."""
    if isinstance(kind, types.UnionType):
        if value is None:
            return None
        kind = next(part for part in typing.get_args(kind) if part is not types.NoneType)
    if typing.get_origin(kind) is tuple:
        inner = typing.get_args(kind)[0]
        if isinstance(value, list):
            return tuple(_checked(label, name, inner, item) for item in value)
    elif kind is float:
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    elif type(value) is kind:
        return value
    raise PrivacyError(f"{label}.{name}: expected {getattr(kind, '__name__', kind)}, got {type(value).__name__}")


def _require(label: str, **conditions: bool) -> None:
    for name, holds in conditions.items():
        if not holds:
            raise PrivacyError(f"{label}.{name}: out of range; correct the setting of that name")


@dataclass(frozen=True)
class RunTerms(_Wire):
    """What a silo agrees to at enrolment; constant for the run.

    Attributes
    ----------
    run_id : bytes
        16 random bytes.
    epsilon, delta : float
        The run's budget for a silo's data set, record-level (errata E25).
    order, rdp_budget : float
        ``alpha*`` of the Renyi filter and its budget (errata E14).
    unit : str
        ``record``.
    sampling_rate, clip_norm : float
        ``q`` and ``C``.
    sigma_min, sigma_max : float
        Range of the noise multiplier.
    steps : int
        ``tau``, the most local steps of a round.
    cohort, min_probability : float
        Expected contributors ``tau_sel`` and least participation probability.
    features : int
    hidden : tuple of int
        Input width and hidden widths of the model.
    noise_seed : int or None
        Set only in seeded runs, which are not private; a silo refuses unless its policy allows it.
    metrics : bool
        Whether epochs may sum metrics over validation and test records, which are not differentially private
        (errata E22); a silo refuses unless its policy allows it.
    config_hash : bytes
        SHA-256 of the whole run configuration.
    """

    label: ClassVar[str] = "run terms"
    run_id: bytes
    epsilon: float
    delta: float
    order: float
    rdp_budget: float
    unit: str
    sampling_rate: float
    clip_norm: float
    sigma_min: float
    sigma_max: float
    steps: int
    cohort: float
    min_probability: float
    features: int
    hidden: tuple[int, ...]
    noise_seed: int | None
    metrics: bool
    config_hash: bytes

    def __post_init__(self) -> None:
        _require(
            self.label,
            run_id=len(self.run_id) == 16,
            epsilon=0 < self.epsilon < math.inf,
            delta=0 < self.delta < 1,
            order=1 < self.order <= 10_000,
            rdp_budget=0 < self.rdp_budget < math.inf,
            unit=self.unit == "record",
            sampling_rate=0 < self.sampling_rate <= 1,
            clip_norm=0 < self.clip_norm < math.inf,
            sigma_min=0 < self.sigma_min < math.inf,
            sigma_max=self.sigma_min <= self.sigma_max < math.inf,
            steps=0 < self.steps <= 10_000,
            cohort=0 < self.cohort < math.inf,
            min_probability=0 < self.min_probability <= 1,
            features=0 < self.features <= 100_000,
            hidden=0 < len(self.hidden) <= 16 and all(0 < width <= 100_000 for width in self.hidden),
            config_hash=len(self.config_hash) == 32,
        )

    def hash(self) -> bytes:
        """SHA-256 of the canonical encoding; every plan of the run carries it."""
        return hashlib.sha256(self.to_bytes()).digest()


@dataclass(frozen=True)
class ReleasePlan(_Wire):
    """Public plan of one epoch: everything that determines what a silo computes and releases.

    Attributes
    ----------
    purpose : str
        ``train`` or ``evaluate``.
    round : int
        Optimisation step ``k``, counted from 1.
    parameters : int
        ``p``.
    sampling_rate, clip_norm, noise_multiplier, steps
        ``q``, ``C``, ``sigma_k``, ``tau`` of the DP-SGD mechanism.
    step_size : float
        ``eta_0``.
    proximal : float
        ``mu`` of eq. 13.
    drift_budget : float
        ``d_max`` on ``||w_i - y||^2``; 0 switches it off.
    control_smoothing, control_gain : float
        ``xi`` of errata E7 (0 switches drift control off) and the factor on ``c - c_i``.
    cohort, score_total, min_probability, drift_penalty : float
        ``tau_sel``, ``Z``, ``p_min`` and ``beta`` of errata E10.
    min_records, max_records : int
        Public bounds on the enrolled ``N_i``, rounded outwards to powers of two.
    splits : tuple of str
        Splits whose metrics are summed in this epoch.
    point_hash, control_hash : bytes
        SHA-256 of the broadcast ``y`` and ``c`` (little-endian float32).
    terms_hash : bytes
        `RunTerms.hash` of the run, and with it the hash of the configuration.
    """

    label: ClassVar[str] = "release plan"
    purpose: str
    round: int
    parameters: int
    sampling_rate: float
    clip_norm: float
    noise_multiplier: float
    steps: int
    step_size: float
    proximal: float
    drift_budget: float
    control_smoothing: float
    control_gain: float
    cohort: float
    score_total: float
    min_probability: float
    drift_penalty: float
    min_records: int
    max_records: int
    splits: tuple[str, ...]
    point_hash: bytes
    control_hash: bytes
    terms_hash: bytes

    def __post_init__(self) -> None:
        _require(
            self.label,
            purpose=self.purpose in ("train", "evaluate"),
            round=self.round >= 0,
            parameters=0 < self.parameters <= 2**31,
            sampling_rate=0 < self.sampling_rate <= 1,
            clip_norm=0 < self.clip_norm < math.inf,
            noise_multiplier=0 < self.noise_multiplier < math.inf,
            steps=0 < self.steps <= 10_000,
            step_size=0 < self.step_size < math.inf,
            proximal=0 <= self.proximal < math.inf,
            drift_budget=0 <= self.drift_budget < math.inf,
            control_smoothing=0 <= self.control_smoothing <= 1,
            control_gain=0 <= self.control_gain <= 1,
            cohort=0 < self.cohort < math.inf,
            score_total=0 < self.score_total < math.inf,
            min_probability=0 < self.min_probability <= 1,
            drift_penalty=0 <= self.drift_penalty < math.inf,
            min_records=0 < self.min_records <= self.max_records,
            max_records=self.max_records <= 2**40,
            splits=set(self.splits) <= {"validation", "test"} and len(set(self.splits)) == len(self.splits),
            point_hash=len(self.point_hash) == 32,
            control_hash=len(self.control_hash) == 32,
            terms_hash=len(self.terms_hash) == 32,
        )

    def bounds(self) -> tuple[Bound, ...]:
        """Return the segments of this epoch's masked vector with their public bounds.

        The bound of ``update`` is on the weighted value ``omega_i Delta_i`` (spec of the layout:
        ``docs/secure-aggregation.md``). With ``n_i = N_i`` the noise of ``n_i g`` is ``sigma C / q`` for every
        silo, and a coordinate of ``n_i g`` without noise is at most ``2 n_i C`` unless a Poisson batch
        is twice its mean.
        """
        found = []
        if self.purpose == "train":
            weight = self.max_records / self.min_probability
            length = self.step_size * self.steps
            swing = 1 + 2 * self.control_gain
            noise = TAIL * self.noise_multiplier * self.clip_norm / self.sampling_rate
            gradient = 2 * self.max_records * self.clip_norm + noise
            norm = swing * length * (2 * self.clip_norm + noise * math.sqrt(self.parameters) / self.min_records)
            found.append(Bound("update", self.parameters, 32, length * swing * gradient / self.min_probability))
            if self.control_smoothing > 0:
                found.append(Bound("control", self.parameters, 32, 2 * self.control_smoothing * gradient))
            found += [
                Bound("weight", 1, 64, weight),
                Bound("squared_norm", 1, 64, weight * norm**2),
                Bound("noise_energy", 1, 64, weight * norm**2),
                Bound("weighted_noise_energy", 1, 64, weight**2 * norm**2),
                Bound("score", 1, 64, float(self.max_records)),
                Bound("contributors", 1, 64, 1.0),
            ]
        scale = {"sse": MAX_SQUARED_ERROR, "sse_zero": MAX_SQUARED_ERROR, "sse_optimal": MAX_SQUARED_ERROR}
        found += [
            Bound(f"{split}.{metric}", 1, 64, MAX_EVALUATION_RECORDS * scale.get(metric, 1.0))
            for split in self.splits
            for metric in METRICS
        ]
        return tuple(found)
