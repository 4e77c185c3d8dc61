"""Independent check of a ledger: chain, signatures, anchor, and every run's spend recomputed through the accountant."""

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

from privacy.accounting import rdp_at
from privacy.anchor import check_anchor, check_anchor_signature, read_anchor
from privacy.chain import OPENING, Entry, check_signatures, key_of, read
from privacy.count_filter import Budget, CountFilter
from privacy.errors import BudgetExceeded, LedgerError, PrivacyError
from privacy.pld import epsilon_of_releases
from privacy.records import Record, Release, RunClosed, RunOpened, parse
from privacy.signing import fingerprint

_RELATIVE, _ABSOLUTE = 1e-9, 1e-12  # another version of the accountant may differ in the last digits


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What one run spent, recomputed.

    Attributes
    ----------
    opened : RunOpened
        What was agreed.
    releases : int
        Charged contributions.
    rdp_spent, epsilon : float
        Renyi spend at the run's order, and its conversion there: the guarantee of the run for its adjacency. With a
        counted budget epsilon is that of the recorded releases' privacy loss distribution, and a guarantee only if
        their number did not depend on outputs; `opened.epsilon`, checked for the planned number, always is.
    fraction : float
        Share of the Renyi budget, or of the contributions, used.
    closed : bool
        Whether the run has ended.
    """

    opened: RunOpened
    releases: int
    rdp_spent: float
    epsilon: float
    fraction: float
    closed: bool


@dataclass(frozen=True, slots=True)
class LedgerSummary:
    """What a whole ledger says.

    Attributes
    ----------
    runs : tuple of RunSummary
        In order of opening.
    count, hash : int, str
        Head of the chain.
    epsilon, delta : float
        Sums over the runs: the guarantee for the data set's lifetime by basic composition (Dwork et al. 2006), if the
        choice of later runs' budgets does not depend on outputs of earlier ones and `one_adjacency` holds.
    private : bool
        False if any run was seeded and has releases: then epsilon and delta promise nothing.
    unknown_kinds : tuple of str
        Kinds of entries that are chained but not understood, hence not accounted here.
    notice : str or None
        A torn last line that was left out.
    signer : str
        Fingerprint of the key that the ledger states and that signed every entry.
    signer_given : bool
        Whether that key is the one `verify` was given. If False, it is only what the file claims.
    anchored : bool
        Whether an anchor was given: without one, entries cut off at the end are not noticed.
    """

    runs: tuple[RunSummary, ...]
    count: int
    hash: str
    epsilon: float
    delta: float
    private: bool
    unknown_kinds: tuple[str, ...]
    notice: str | None
    signer: str
    signer_given: bool = False
    anchored: bool = False

    @property
    def one_adjacency(self) -> bool:
        """Whether all runs with releases have the same adjacency; else epsilon and delta are sums of unlike things."""
        return len({run.opened.adjacency for run in self.runs if run.releases}) <= 1


@dataclass(slots=True)
class _Run:
    opened: RunOpened
    filter: Budget
    releases: int = 0
    closed: bool = False
    used: set[tuple[int, str]] = field(default_factory=set)
    mechanisms: Counter[tuple[float, float]] = field(default_factory=Counter)

    def epsilon(self) -> float:
        """Of what is recorded; guarantee and adjacency: see `RunSummary`."""
        if isinstance(self.filter, CountFilter):
            return epsilon_of_releases(self.mechanisms, self.opened.delta)
        return self.filter.epsilon(self.opened.delta, self.opened.conversion)


def _replay(runs: dict[str, _Run], record: Record) -> None:
    """Apply one record; PrivacyError says what is wrong with it."""
    if isinstance(record, RunOpened):
        if record.run in runs:
            raise PrivacyError(f"run {record.run!r} is opened twice")
        record.check_plan()
        runs[record.run] = _Run(record, record.budget())
        return
    run = runs.get(record.run)
    if run is None or run.closed:
        raise PrivacyError(f"run {record.run!r} is not open")
    if isinstance(record, RunClosed):
        run.closed = True
        return
    key = (record.epoch, record.purpose)
    if key in run.used:
        raise PrivacyError(f"epoch {record.epoch} is used twice for {record.purpose}")
    run.used.add(key)
    if isinstance(record, Release):
        _replay_release(run, record)


def _replay_release(run: _Run, record: Release) -> None:
    if run.opened.unit == "silo" and (record.sampling_rate, record.steps) != (1.0, 1):
        raise PrivacyError("sampling_rate or steps is not 1, but sampling records does not amplify for a silo")
    cost = rdp_at(record.sampling_rate, record.noise_multiplier, record.steps, run.opened.order, by_library=True)
    if not abs(cost - record.rdp) <= _RELATIVE * max(cost, record.rdp) + _ABSOLUTE * record.steps:
        raise PrivacyError(f"rdp is {record.rdp!r}, recomputed {cost!r} at order {run.opened.order:g}")
    try:
        if isinstance(run.filter, CountFilter):
            run.filter = run.filter.charge(record.plan)
        else:
            run.filter = run.filter.charge(record.rdp)
    except BudgetExceeded as error:
        raise PrivacyError(f"the budget is passed: {error}") from None
    if abs(run.filter.spent - record.rdp_total) > _RELATIVE * run.filter.spent:
        raise PrivacyError(f"rdp_total is {record.rdp_total!r}, recomputed {run.filter.spent!r}")
    run.releases += 1
    run.mechanisms[record.sampling_rate, record.noise_multiplier] += record.steps


def summarise(path: Path, entries: list[Entry], notice: str | None = None) -> LedgerSummary:
    """Recompute every run of verified entries, the first of which states the key.

    Guarantee, adjacency, assumptions and theorems: see `verify`.

    Raises
    ------
    LedgerError
        Naming the line.
    """
    runs: dict[str, _Run] = {}
    unknown: dict[str, None] = {}
    for entry in entries[1:]:
        try:
            record = parse(entry.kind, entry.body)
            if record is None:
                unknown[entry.kind] = None
            else:
                _replay(runs, record)
        except PrivacyError as error:
            raise LedgerError(
                f"{path}, line {entry.count}: {error}; the record is wrong: do not rely on this ledger"
            ) from None
    summaries = tuple(
        RunSummary(
            run.opened,
            run.releases,
            run.filter.spent,
            run.epsilon(),
            run.filter.fraction,
            run.closed,
        )
        for run in runs.values()
    )
    spending = [run for run in summaries if run.releases]
    return LedgerSummary(
        runs=summaries,
        count=len(entries),
        hash=entries[-1].hash,
        epsilon=sum(run.epsilon for run in spending),
        delta=sum(run.opened.delta for run in spending),
        private=not any(run.opened.seeded for run in spending),
        unknown_kinds=tuple(unknown),
        notice=notice,
        signer=fingerprint(key_of(entries)),
    )


def verify(path: Path, anchor: Path | None = None, public_key: bytes | None = None) -> LedgerSummary:
    """Check a ledger without changing it, and recompute what every run spent at its alpha* only.

    Guarantee: if this returns, every line is chained (SHA-256) and signed (Ed25519) by the key in `signer`, which is
    `public_key` if that was given; every release's cost is what dp-accounting gives for
    its recorded mechanism at the run's order, no run passed its budget, and each run's epsilon follows from its spend
    at that one order (with a counted budget: from the privacy loss distribution), for the adjacency the run states (by
    default one record replaced by the null record).
    Assumptions: the silo executed what it recorded; the anchor, if given, is authentic. Mironov, Talwar and Zhang
    2019; Feldman and Zrnic 2021, or Zhu, Dong and Wang 2022; conversion as recorded. It takes no lock, so it may run
    beside the silo; a torn last line is left out with a notice.

    Parameters
    ----------
    path : Path
        Ledger.
    anchor : Path, optional
        Anchor file.
    public_key : bytes, optional
        The silo's Ed25519 public key, from a source other than the ledger. Without it the ledger may be anyone's.

    Returns
    -------
    LedgerSummary
        Recomputed figures.

    Raises
    ------
    LedgerError
        Naming the line and what differs.
    """
    anchored = (
        None if anchor is None else read_anchor(anchor)
    )  # before the ledger: a silo writing beside us only adds lines
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read ({error.strerror}); expected a ledger file") from None
    entries, torn = read(path, data)
    if not entries:
        raise LedgerError(
            f"{path}: no complete entry; expected {OPENING} in line 1, so this is no ledger or it was cut"
        )
    signer = key_of(entries)
    if public_key is not None and signer != public_key:
        raise LedgerError(
            f"{path}, line 1: the ledger is of key {fingerprint(signer)}, not of the given {fingerprint(public_key)}; "
            "it is another silo's, or was written anew: do not rely on it"
        )
    if anchor is not None and anchored is not None:
        check_anchor_signature(anchor, anchored, signer)
        check_anchor(path, entries, anchored)
    check_signatures(path, entries, signer)
    notice = f"{path}, line {len(entries) + 1}: left out {torn} bytes of an unfinished entry" if torn else None
    summary = summarise(path, entries, notice)
    return replace(summary, signer_given=public_key is not None, anchored=anchored is not None)
