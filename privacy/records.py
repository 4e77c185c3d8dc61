"""What the ledger says: the bodies of its entries, built and read in one place so that names cannot drift."""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, get_args

from privacy.chain import Entry
from privacy.checks import real, whole
from privacy.conversion import Conversion, order_budget
from privacy.count_filter import Budget, CountFilter
from privacy.errors import PrivacyError
from privacy.filter import RenyiFilter
from privacy.plan import MechanismPlan

Unit = Literal["record", "silo"]
Accountant = Literal["rdp", "pld"]
RECORD_ADJACENCY = "one record replaced by a null record with zero gradient"
SILO_ZERO_ADJACENCY = "one silo replaced by zero"
SILO_REPLACE_ADJACENCY = "one silo replaced by another"
PRIVATE = "private"
SEEDED = "not private: seeded"
TRAINING = "training"
FULL_GRADIENT = "full gradient"
"""Purpose of the ledger's line for a gradient of all records: one release without sampling."""


def _text(name: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise PrivacyError(f"{name} = {value!r}: expected non-empty text")


@dataclass(frozen=True, slots=True)
class _Body:
    KIND: ClassVar[str] = ""
    # Left out of the body at their default, so that ledgers written before they existed stay readable, byte for byte.
    OPTIONAL: ClassVar[frozenset[str]] = frozenset()

    def body(self) -> dict[str, Any]:
        """Return the JSON body."""
        defaults = {f.name: f.default for f in dataclasses.fields(self) if f.name in self.OPTIONAL}
        return {
            name: value
            for name, value in dataclasses.asdict(self).items()
            if name not in defaults or value != defaults[name]
        }

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> Self:
        """Return the record of a body; missing and unknown keys are errors that name them."""
        names = {field.name for field in dataclasses.fields(cls)}
        missing, unknown = sorted(names - set(body) - cls.OPTIONAL), sorted(set(body) - names)
        if missing or unknown:
            raise PrivacyError(f"{cls.KIND}: missing keys {missing}, unknown keys {unknown}")
        return cls(**body)


@dataclass(frozen=True, slots=True)
class RunOpened(_Body):
    """A run may spend: what was agreed before it saw data.

    Guarantee recorded: releases of this run whose Renyi costs at `order` stay within `rdp_budget` are together
    (epsilon, delta)-DP for `adjacency` (default: one record replaced by the null record), unless `status` reads "not
    private: seeded". Feldman and Zrnic 2021. `rdp_budget` must convert to at most `epsilon`. With `accountant` "pld"
    instead: at most `contributions` releases, each no dearer than `sampling_rate`, `noise_multiplier` and `steps`
    say, are together (epsilon, delta)-DP (`CountFilter`) if `check_plan` passes, as it must before the run is opened;
    then `rdp_budget` is 0, so that no Renyi filter admits anything.
    """

    KIND: ClassVar[str] = "run_opened"
    OPTIONAL: ClassVar[frozenset[str]] = frozenset(
        {"accountant", "contributions", "sampling_rate", "noise_multiplier", "steps"}
    )

    run: str
    epsilon: float
    delta: float
    order: float
    rdp_budget: float
    software: str
    status: str = PRIVATE
    unit: Unit = "record"
    adjacency: str = RECORD_ADJACENCY
    conversion: Conversion = "improved"
    accountant: Accountant = "rdp"
    contributions: int = 0
    sampling_rate: float = 0.0
    noise_multiplier: float = 0.0
    steps: int = 0

    def __post_init__(self) -> None:
        """Validate by field name."""
        _text("run", self.run)
        _text("software", self.software)
        real("epsilon", self.epsilon, 0.0, low_open=True)
        if self.status not in (PRIVATE, SEEDED):
            raise PrivacyError(f'status = {self.status!r}: expected "{PRIVATE}" or "{SEEDED}"')
        if self.unit not in get_args(Unit):
            raise PrivacyError(f'unit = {self.unit!r}: expected "record" or "silo"')
        if (self.adjacency == RECORD_ADJACENCY) != (self.unit == "record") or self.adjacency not in (
            RECORD_ADJACENCY,
            SILO_ZERO_ADJACENCY,
            SILO_REPLACE_ADJACENCY,
        ):
            raise PrivacyError(
                f"adjacency = {self.adjacency!r}: expected one of privacy.records that fits unit = {self.unit}"
            )
        if self.unit == "silo" and self.accountant == "pld" and (self.sampling_rate, self.steps) != (1.0, 1):
            raise PrivacyError("sampling_rate, steps: expected 1, since sampling records does not amplify for a silo")
        allowed = order_budget(self.order, self.epsilon, self.delta, self.conversion)
        if real("rdp_budget", self.rdp_budget, 0.0) > allowed * (1 + 1e-12):
            raise PrivacyError(
                f"rdp_budget = {self.rdp_budget!r}: expected at most {allowed!r}, "
                f"what epsilon {self.epsilon:g} allows at order {self.order:g}"
            )
        if self.accountant not in get_args(Accountant):
            raise PrivacyError(f'accountant = {self.accountant!r}: expected "rdp" or "pld"')
        planned = self.contributions, self.sampling_rate, self.noise_multiplier, self.steps
        if self.accountant == "pld":
            real("rdp_budget", self.rdp_budget, 0.0, 0.0)
            self.budget()
        elif any(planned):
            raise PrivacyError('contributions, sampling_rate, noise_multiplier, steps: only with accountant = "pld"')

    @classmethod
    def counted(
        cls, run: str, epsilon: float, delta: float, plan: CountFilter, software: str, status: str = PRIVATE
    ) -> Self:
        """Return the opening of a run under a counted budget; guarantee and adjacency: see `CountFilter`."""
        return cls(
            run,
            epsilon,
            delta,
            plan.order,
            0.0,
            software,
            status,
            accountant="pld",
            contributions=plan.contributions,
            sampling_rate=plan.sampling_rate,
            noise_multiplier=plan.noise_multiplier,
            steps=plan.steps,
        )

    def check_plan(self) -> None:
        """Refuse a counted budget whose planned contributions cost more than `epsilon`.

        Guarantee, adjacency and assumptions: see `CountFilter.check`. Of a Renyi budget the same is checked whenever an
        entry is made; this loads the accountant and takes seconds.

        Raises
        ------
        PrivacyError
            If they cost more.
        """
        if isinstance(budget := self.budget(), CountFilter):
            budget.check(self.epsilon, self.delta)

    @property
    def seeded(self) -> bool:
        """Whether the run is not private because its noise can be reproduced (E21)."""
        return self.status == SEEDED

    def filter(self) -> RenyiFilter:
        """Return the run's empty Renyi filter; guarantee, adjacency and theorem: see `RenyiFilter`.

        Raises
        ------
        PrivacyError
            If the run's budget is counted: then `budget` is its filter.
        """
        if self.accountant == "pld":
            raise PrivacyError(f"run {self.run!r}: its budget is counted, not a Renyi filter; use budget()")
        return RenyiFilter(self.order, self.rdp_budget)

    def budget(self) -> Budget:
        """Return the run's empty filter of either kind; guarantee, adjacency and theorem: see there."""
        if self.accountant == "rdp":
            return self.filter()
        return CountFilter(self.contributions, self.sampling_rate, self.noise_multiplier, self.steps, self.order)


@dataclass(frozen=True, slots=True)
class Release(_Body):
    """One charged contribution, written before anything leaves the silo.

    Guarantee recorded: `rdp` bounds the Renyi divergence of the contribution at the run's order for the run's
    adjacency (one record replaced by the null record), `rdp_total` that of the run so far (rounded up).
    `sampling_rate`, `noise_multiplier` and `steps` are what `verify` recomputes them from (Mironov, Talwar and Zhang
    2019); `noise_multiplier` is the noise divided by the sensitivity of the adjacency, with a `variance_scale` (E9)
    that of the joint vector, so the cost does not depend on it.
    """

    KIND: ClassVar[str] = "release"
    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"variance_scale"})

    run: str
    epoch: int
    sampling_rate: float
    noise_multiplier: float
    clip_norm: float
    steps: int
    records: int
    rdp: float
    rdp_total: float
    purpose: str = TRAINING
    variance_scale: float = 0.0
    nonce: str = ""

    def __post_init__(self) -> None:
        """Validate by field name."""
        _text("run", self.run)
        _text("purpose", self.purpose)
        whole("epoch", self.epoch, 0)
        real("rdp", self.rdp, 0.0)
        real("rdp_total", self.rdp_total, self.rdp)
        _ = self.plan

    @property
    def plan(self) -> MechanismPlan:
        """The plan that was executed."""
        return MechanismPlan(
            self.sampling_rate, self.clip_norm, self.noise_multiplier, self.steps, self.records, self.variance_scale
        )

    @classmethod
    def charge(
        cls,
        run: str,
        epoch: int,
        plan: MechanismPlan,
        before: Budget,
        purpose: str = TRAINING,
        nonce: str = "",
    ) -> tuple[Self, Budget]:
        """Charge a plan to a filter and return the entry to append together with the new filter.

        Guarantee, adjacency, assumptions and theorem: those of the filter and `MechanismPlan`. The order is:
        charge, append (which fsyncs), then release.

        Raises
        ------
        BudgetExceeded
            If the plan does not fit; nothing changes.
        """
        cost = plan.rdp(before.order)
        after = before.charge(plan)
        entry = cls(
            run,
            epoch,
            plan.sampling_rate,
            plan.noise_multiplier,
            plan.clip_norm,
            plan.steps,
            plan.records,
            cost,
            after.spent,
            purpose,
            plan.variance_scale,
            nonce,
        )
        return entry, after


@dataclass(frozen=True, slots=True)
class Abstention(_Body):
    """An epoch in which nothing private was released; it costs nothing (adjacency as for the run).

    A silo that hides whether it takes part in an epoch enters as many lines in each: releases, or these. All carry a
    fresh `nonce`, so that neither the count nor the hash of the ledger's head tells which they were.
    """

    KIND: ClassVar[str] = "abstention"
    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"purpose"})

    run: str
    epoch: int
    nonce: str
    purpose: str = TRAINING

    def __post_init__(self) -> None:
        """Validate by field name."""
        _text("run", self.run)
        _text("nonce", self.nonce)
        _text("purpose", self.purpose)
        whole("epoch", self.epoch, 0)


@dataclass(frozen=True, slots=True)
class RunClosed(_Body):
    """A run ended; later releases under its name are errors. No guarantee of its own (adjacency as for the run)."""

    KIND: ClassVar[str] = "run_closed"

    run: str
    reason: str

    def __post_init__(self) -> None:
        """Validate by field name."""
        _text("run", self.run)
        _text("reason", self.reason)


Record = RunOpened | Release | Abstention | RunClosed
_KINDS: dict[str, type[Record]] = {kind.KIND: kind for kind in (RunOpened, Release, Abstention, RunClosed)}


def parse(kind: str, body: Mapping[str, Any]) -> Record | None:
    """Return the record of an entry, or None for a kind this room does not know.

    No guarantee of its own; adjacency does not enter. Bodies are validated by field name.
    """
    found = _KINDS.get(kind)
    return None if found is None else found.from_body(body)


def filter_of(entries: Iterable[Entry], run: str) -> Budget:
    """Return the filter of an open run as its ledger left it, so that a restarted silo goes on where it stopped.

    Guarantee: the spend is the rounded-up sum of the recorded costs, so a run's filter survives restarts (Feldman and
    Zrnic 2021; adjacency as the run states, by default one record replaced by the null record). Assumptions: the
    entries come from an open `Ledger`, whose chain and anchor were checked; costs are taken as recorded, because
    recomputing them is `verify`'s work and needs the accountant.

    Parameters
    ----------
    entries : iterable of Entry
        The ledger's entries in order.
    run : str
        The run.

    Returns
    -------
    RenyiFilter or CountFilter
        With everything the run spent.

    Raises
    ------
    PrivacyError
        If the run was never opened, is opened twice or is closed.
    BudgetExceeded
        If the recorded releases pass the budget.
    """
    current: Budget | None = None
    for entry in entries:
        record = parse(entry.kind, entry.body)
        if record is None or record.run != run:
            continue
        if isinstance(record, RunOpened):
            if current is not None:
                raise PrivacyError(f"run {run!r} is opened twice; expected one opening entry")
            current = record.budget()
        elif current is None or isinstance(record, RunClosed):
            raise PrivacyError(f"run {run!r} is not open; open a new run under a new name")
        elif isinstance(record, Release):
            current = current.charge(record.rdp) if isinstance(current, RenyiFilter) else current.charge(record.plan)
    if current is None:
        raise PrivacyError(f"run {run!r} is not open; append its RunOpened first")
    return current
