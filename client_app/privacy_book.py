"""What the silo's ledger says about its budget, and the entries that change it.

Within a run a Renyi filter at the agreed ``alpha*`` decides (Feldman and Zrnic 2021); over runs the agreed
(epsilon, delta) add up (basic composition), whether or not a run used all of its own.
"""

from dataclasses import dataclass, replace
from typing import Any

from client_app.errors import Declined
from privacy.chain import Entry, seal
from privacy.filter import RenyiFilter
from privacy.ledger import Ledger
from privacy.plan import MechanismPlan
from privacy.records import PRIVATE, SEEDED, Record, Release, RunClosed, RunOpened, parse
from privacy.release import RunTerms

VECTOR = "vector"
"""Kind of the entry that every masked vector gets, whether or not it holds a release. Its salt hides which."""


@dataclass(frozen=True)
class PrivacyBook:
    """An open ledger read as budgets."""

    ledger: Ledger

    def _records(self) -> list[Record]:
        parsed = (parse(entry.kind, entry.body) for entry in self.ledger.entries())
        return [record for record in parsed if record is not None]

    def _vectors(self) -> list[Entry]:
        return [entry for entry in self.ledger.entries() if entry.kind == VECTOR]

    @property
    def head(self) -> tuple[int, bytes]:
        """What the silo shows of its ledger: how many vectors it gave, and the hash of the last one's entry.

        The hash commits to every entry before it. The count rises by one with every vector and the hash is salted,
        so that neither tells whether the silo contributed or sat out.
        """
        vectors = self._vectors()
        return (len(vectors), bytes.fromhex(vectors[-1].hash)) if vectors else (0, bytes(32))

    def holds(self, head: tuple[int, bytes]) -> bool:
        """Whether the ledger is at or past a head it once showed."""
        count, digest = head
        vectors = self._vectors()
        return count == 0 or (count <= len(vectors) and bytes.fromhex(vectors[count - 1].hash) == digest)

    def granted(self, besides: bytes) -> tuple[float, float]:
        """Sums of the (epsilon, delta) agreed for all other runs.

        A run counts in full from its opening on, however much of it was used: where it stopped may depend on outputs.
        One that was closed without any release counts nothing.
        """
        records = self._records()
        released = {record.run for record in records if isinstance(record, Release)}
        idle = {record.run for record in records if isinstance(record, RunClosed)} - released
        others = [r for r in records if isinstance(r, RunOpened) and r.run not in idle | {besides.hex()}]
        return sum(run.epsilon for run in others), sum(run.delta for run in others)

    def open_run(self, terms: RunTerms, software: str) -> None:
        """Enter a run's terms, once.

        Raises
        ------
        Declined
            If the ledger holds the run under other terms: its filter would not be the one agreed to now.
        """
        opened = RunOpened(
            run=terms.run_id.hex(),
            epsilon=terms.epsilon,
            delta=terms.delta,
            order=terms.order,
            rdp_budget=terms.rdp_budget,
            software=software,
            status=PRIVATE if terms.noise_seed is None else SEEDED,
        )
        for record in self._records():
            if isinstance(record, RunOpened) and record.run == opened.run:
                if replace(record, software=software) != opened:
                    raise Declined("the ledger holds this run under other terms")
                return
        self.ledger.append(RunOpened.KIND, opened.body())

    def filter(self, terms: RunTerms) -> RenyiFilter:
        """Return the run's filter with everything charged so far; a run that is not open admits nothing."""
        run = terms.run_id.hex()
        spent = RenyiFilter(terms.order, 0.0)
        for record in self._records():
            if record.run != run:
                continue
            if isinstance(record, RunOpened):
                spent = record.filter()
            elif isinstance(record, Release):
                spent = spent.charge(record.rdp)
            else:
                spent = RenyiFilter(terms.order, 0.0)
        return spent

    def charged(self, terms: RunTerms, epoch: int) -> bool:
        """Whether an epoch's release is in the ledger."""
        run = terms.run_id.hex()
        return any(isinstance(r, Release) and r.run == run and r.epoch == epoch for r in self._records())

    def admits(self, terms: RunTerms, mechanism: MechanismPlan) -> bool:
        """Whether one more contribution fits."""
        return self.filter(terms).admits(mechanism.rdp(terms.order))

    def _release(self, terms: RunTerms, epoch: int, mechanism: MechanismPlan) -> Release:
        return Release.charge(terms.run_id.hex(), epoch, mechanism, self.filter(terms))[0]

    def gave(self, terms: RunTerms, epoch: int) -> bool:
        """Whether an epoch's vector is in the ledger."""
        run = terms.run_id.hex()
        return any(entry.body["run"] == run and entry.body["epoch"] == epoch for entry in self._vectors())

    def head_after(
        self, terms: RunTerms, epoch: int, mechanism: MechanismPlan | None, salt: bytes
    ) -> tuple[int, bytes]:
        """`head` as it will be once `enter` was called."""
        count, previous = self.ledger.head
        if mechanism is not None and not self.charged(terms, epoch):
            charge = seal(count + 1, previous, Release.KIND, self._release(terms, epoch, mechanism).body())
            count, previous = charge.count, charge.hash
        entry = seal(count + 1, previous, VECTOR, _vector(terms, epoch, salt))
        return len(self._vectors()) + 1, bytes.fromhex(entry.hash)

    def enter(self, terms: RunTerms, epoch: int, mechanism: MechanismPlan | None, salt: bytes) -> None:
        """Enter an epoch's vector, once, after the charge of the release it holds; both are on disk on return.

        Raises
        ------
        privacy.errors.BudgetExceeded
            If the release does not fit; nothing changes.
        """
        if mechanism is not None:
            self.charge(terms, epoch, mechanism)
        if not self.gave(terms, epoch):
            self.ledger.append(VECTOR, _vector(terms, epoch, salt))

    def charge(self, terms: RunTerms, epoch: int, mechanism: MechanismPlan) -> None:
        """Charge an epoch's release, once; it is on disk when this returns.

        Raises
        ------
        privacy.errors.BudgetExceeded
            If it does not fit; nothing changes.
        """
        if not self.charged(terms, epoch):
            self.ledger.append(Release.KIND, self._release(terms, epoch, mechanism).body())

    def close_run(self, terms: RunTerms, reason: str) -> None:
        """Enter the end of a run, once."""
        run = terms.run_id.hex()
        if not any(isinstance(record, RunClosed) and record.run == run for record in self._records()):
            self.ledger.append(RunClosed.KIND, RunClosed(run, reason).body())

    def closed(self, run_id: bytes) -> bool:
        """Whether a run has ended."""
        return any(isinstance(record, RunClosed) and record.run == run_id.hex() for record in self._records())


def _vector(terms: RunTerms, epoch: int, salt: bytes) -> dict[str, Any]:
    return {"run": terms.run_id.hex(), "epoch": epoch, "salt": salt.hex()}
