"""What the silo's ledger says about its budgets, and the entries that change it.

Within a run each budget has the filter that was agreed (a Renyi filter at one ``alpha*``, Feldman and Zrnic 2021, or a
counted one); over budgets and runs the agreed (epsilon, delta) add up (basic composition), whether or not a run used
all of its own.
"""

import secrets
from collections.abc import Sequence
from dataclasses import replace

from client_app.errors import Declined
from privacy.count_filter import Budget
from privacy.errors import BudgetExceeded
from privacy.filter import RenyiFilter
from privacy.ledger import Ledger
from privacy.records import Abstention, Record, Release, RunClosed, RunOpened, parse
from privacy.release import Charge
from privacy.terms import RunTerms

Line = Release | Abstention


class PrivacyBook:
    """An open ledger read as budgets.

    Parameters
    ----------
    ledger : Ledger
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        parsed = (parse(entry.kind, entry.body) for entry in ledger.entries())
        self._records: list[Record] = [record for record in parsed if record is not None]

    def _append(self, record: Record) -> None:
        """Enter a record; it is on disk when this returns."""
        self._ledger.append(record.KIND, record.body())
        self._records.append(record)

    def holds(self, head: tuple[int, bytes]) -> bool:
        """Whether the ledger is at or past a head it once had."""
        count, digest = head
        entries = self._ledger.entries()
        return count == 0 or (count <= len(entries) and bytes.fromhex(entries[count - 1].hash) == digest)

    def granted(self, besides: RunTerms) -> tuple[float, float]:
        """Sums of the (epsilon, delta) agreed for the budgets of all other runs.

        A budget counts in full from its opening on, however much of it was used: where it stopped may depend on
        outputs. One that was closed without any release counts nothing.

        Raises
        ------
        Declined
            If one of them protects something else than this run (a record or a silo, and what takes its place): the
            epsilons of unlike promises have no sum.
        """
        released = {record.run for record in self._records if isinstance(record, Release)}
        left_out = {record.run for record in self._records if isinstance(record, RunClosed)} - released
        left_out |= set(besides.budgets())
        others = [r for r in self._records if isinstance(r, RunOpened) and r.run not in left_out]
        if unlike := sorted({run.adjacency for run in others} - {besides.adjacency}):
            raise Declined(
                f"the ledger holds budgets for the adjacency {', '.join(map(repr, unlike))}, this run is for "
                f"{besides.adjacency!r}: their epsilons do not add up to one total; use one kind of run for a data set"
            )
        return sum(run.epsilon for run in others), sum(run.delta for run in others)

    def open_run(self, terms: RunTerms, software: str) -> None:
        """Enter a run's budgets, once.

        Raises
        ------
        Declined
            If the ledger holds the run under other terms: its filters would not be the ones agreed to now.
        privacy.errors.PrivacyError
            If the contributions that a counted budget plans cost more than its epsilon; then nothing is entered.
        """
        known = {record.run: record for record in self._records if isinstance(record, RunOpened)}
        for opened in terms.openings(software):
            found = known.get(opened.run)
            if found is None:
                opened.check_plan()
                self._append(opened)
            elif replace(found, software=software) != opened:
                raise Declined("the ledger holds this run under other terms")

    def budget(self, run: str) -> Budget:
        """Return a budget with everything charged so far; one that is not open admits nothing."""
        nothing = RenyiFilter(2.0, 0.0)
        spent: Budget = nothing
        for record in self._records:
            if record.run != run:
                continue
            if isinstance(record, RunOpened):
                spent = record.budget()
            elif isinstance(record, Release):
                spent = spent.charge(record.rdp) if isinstance(spent, RenyiFilter) else spent.charge(record.plan)
            elif isinstance(record, RunClosed):
                spent = nothing
        return spent

    def spent(self, terms: RunTerms) -> bool:
        """Whether the run has released anything in training."""
        return any(isinstance(record, Release) and record.run == terms.run for record in self._records)

    def entered(self, terms: RunTerms, epoch: int) -> bool:
        """Whether the epoch is in the ledger, with any release or abstention."""
        runs = set(terms.budgets())
        return any(isinstance(r, Line) and r.run in runs and r.epoch == epoch for r in self._records)

    def admits(self, charges: Sequence[Charge]) -> bool:
        """Whether all of these together still fit their budgets."""
        budgets: dict[str, Budget] = {}
        try:
            for charge in charges:
                before = budgets.get(charge.run) or self.budget(charge.run)
                budgets[charge.run] = before.charge(charge.mechanism)
        except BudgetExceeded:
            return False
        return True

    def lines(
        self, terms: RunTerms, epoch: int, charges: Sequence[Charge], released: Sequence[Charge]
    ) -> tuple[Line, ...]:
        """Return the entries of an epoch: releases, and abstentions for the other charges; nothing is written.

        An epoch without any charge has an abstention too: every vector is in the ledger.

        Each has a fresh nonce, so that the head of the ledger does not tell the coordinator which they are.

        Raises
        ------
        privacy.errors.BudgetExceeded
            If a release does not fit.
        """
        budgets: dict[str, Budget] = {}
        found: list[Line] = []
        for charge in charges:
            nonce = secrets.token_hex(16)
            if charge not in released:
                found.append(Abstention(charge.run, epoch, nonce, charge.purpose))
                continue
            before = budgets.get(charge.run) or self.budget(charge.run)
            line, budgets[charge.run] = Release.charge(
                charge.run, epoch, charge.mechanism, before, charge.purpose, nonce
            )
            found.append(line)
        return tuple(found) or (Abstention(terms.run, epoch, secrets.token_hex(16)),)

    def head_after(self, lines: Sequence[Line]) -> tuple[int, bytes]:
        """Head the ledger will have once ``lines`` are entered."""
        count, digest = self._ledger.head_after((line.KIND, line.body()) for line in lines)
        return count, bytes.fromhex(digest)

    def missing(self, lines: Sequence[Line]) -> tuple[Line, ...]:
        """Those of ``lines`` that are not in the ledger; a crash may have kept the last ones out."""
        return tuple(line for line in lines if line not in self._records)

    def enter(self, lines: Sequence[Line]) -> None:
        """Enter an epoch; it is on disk when this returns."""
        for line in lines:
            self._append(line)

    def close_run(self, terms: RunTerms, reason: str) -> None:
        """Enter the end of a run's budgets, once."""
        closed = {record.run for record in self._records if isinstance(record, RunClosed)}
        for run in terms.budgets():
            if run not in closed:
                self._append(RunClosed(run, reason))

    def closed(self, terms: RunTerms) -> bool:
        """Whether a run has ended."""
        return any(isinstance(record, RunClosed) and record.run == terms.run for record in self._records)
