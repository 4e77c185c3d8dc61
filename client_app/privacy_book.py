"""What the silo's ledger says about its budget, and the entries that change it.

Within a run a Renyi filter at the agreed ``alpha*`` decides (Feldman and Zrnic 2021); over runs the agreed
(epsilon, delta) add up (basic composition), whether or not a run used all of its own.
"""

import secrets
from dataclasses import dataclass, replace

from client_app.errors import Declined
from privacy.filter import RenyiFilter
from privacy.ledger import Ledger
from privacy.plan import MechanismPlan
from privacy.records import PRIVATE, SEEDED, Abstention, Record, Release, RunClosed, RunOpened, parse
from privacy.release import RunTerms

Line = Release | Abstention


@dataclass(frozen=True)
class PrivacyBook:
    """An open ledger read as budgets."""

    ledger: Ledger

    def _records(self) -> list[Record]:
        parsed = (parse(entry.kind, entry.body) for entry in self.ledger.entries())
        return [record for record in parsed if record is not None]

    def holds(self, head: tuple[int, bytes]) -> bool:
        """Whether the ledger is at or past a head it once had."""
        count, digest = head
        entries = self.ledger.entries()
        return count == 0 or (count <= len(entries) and bytes.fromhex(entries[count - 1].hash) == digest)

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
            elif isinstance(record, RunClosed):
                spent = RenyiFilter(terms.order, 0.0)
        return spent

    def entered(self, terms: RunTerms, epoch: int) -> bool:
        """Whether the epoch is in the ledger, as a release or as an abstention."""
        run = terms.run_id.hex()
        return any(isinstance(r, Line) and r.run == run and r.epoch == epoch for r in self._records())

    def admits(self, terms: RunTerms, mechanism: MechanismPlan) -> bool:
        """Whether one more contribution fits."""
        return self.filter(terms).admits(mechanism.rdp(terms.order))

    def line(self, terms: RunTerms, epoch: int, mechanism: MechanismPlan | None) -> Line:
        """Return the entry of an epoch: a release of ``mechanism``, or an abstention; nothing is written.

        Either has a fresh nonce, so that the head of the ledger does not tell the coordinator which it is.

        Raises
        ------
        privacy.errors.BudgetExceeded
            If the release does not fit.
        """
        run, nonce = terms.run_id.hex(), secrets.token_hex(16)
        if mechanism is None:
            return Abstention(run, epoch, nonce)
        return Release.charge(run, epoch, mechanism, self.filter(terms), nonce=nonce)[0]

    def head_after(self, line: Line) -> tuple[int, bytes]:
        """Head the ledger will have once ``line`` is entered."""
        count, digest = self.ledger.head_after(line.KIND, line.body())
        return count, bytes.fromhex(digest)

    def enter(self, line: Line) -> None:
        """Enter an epoch; it is on disk when this returns."""
        self.ledger.append(line.KIND, line.body())

    def close_run(self, terms: RunTerms, reason: str) -> None:
        """Enter the end of a run, once."""
        run = terms.run_id.hex()
        if not any(isinstance(record, RunClosed) and record.run == run for record in self._records()):
            self.ledger.append(RunClosed.KIND, RunClosed(run, reason).body())

    def closed(self, run_id: bytes) -> bool:
        """Whether a run has ended."""
        return any(isinstance(record, RunClosed) and record.run == run_id.hex() for record in self._records())
