"""The coordinator's ledger and history, kept beside the protocol."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from types import TracebackType
from typing import Any, Self

from fcfl_strategy.rounds import charges, fits
from fcfl_strategy.settings import Settings
from privacy.count_filter import Budget
from privacy.ledger import Ledger
from privacy.records import Release, RunClosed, RunOpened, parse
from privacy.release import ReleasePlan
from privacy.signing import SigningKey
from server_app.metrics import FILE, exposition
from server_app.report.data import ReportError, load_history
from server_app.run_folder import RunFolder, write_atomic

logger = logging.getLogger("fcfl.coordinator")


@dataclass(frozen=True)
class RunObserver:
    """Implements `fcfl_strategy.strategy.Observer`.

    The ledger is an upper bound (as if one silo had contributed in every epoch), never the authority: each
    silo's own ledger decides what that silo may still spend.
    """

    folder: RunFolder
    settings: Settings
    ledger: Ledger

    @classmethod
    def open(cls, folder: RunFolder, settings: Settings) -> Self:
        """Open the run's ledger, or start it with a key made for this run.

        The key lies beside the ledger: it shows that nobody without access to the run folder wrote in it, no more.
        """
        files = folder.path / "ledger.jsonl", folder.path / "ledger.anchor"
        key = folder.path / "identity.key"
        if files[1].exists():
            ledger = Ledger.open(*files, signer=SigningKey.load(key))
        else:
            ledger = Ledger.create(*files, signer=SigningKey.load(key) if key.exists() else SigningKey.create(key))
        known = {entry.body.get("run") for entry in ledger.entries() if entry.kind == RunOpened.KIND}
        for opened in settings.terms.openings(f"fcfl {version('fcfl')}"):
            if opened.run not in known:
                ledger.append(RunOpened.KIND, opened.body())
        return cls(folder, settings, ledger)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ledger.close()

    @property
    def head(self) -> tuple[int, str]:
        """Count and hash of the last ledger entry."""
        return self.ledger.head

    def announced(self, epoch: int, plan: ReleasePlan) -> None:
        """Charge an epoch once, before anything is sent."""
        spent: Mapping[str, Budget] = self.settings.terms.budgets()
        done = set()
        for entry in self.ledger.entries():
            record = parse(entry.kind, entry.body)
            if isinstance(record, Release):
                spent = {**spent, record.run: spent[record.run].charge(record.plan)}
                done.add((record.run, record.epoch, record.purpose))
        for part in charges(self.settings, plan):
            due = [charge for charge in part if (charge.run, epoch, charge.purpose) not in done]
            if fits(spent, due) is None:
                continue
            for charge in due:
                line, after = Release.charge(charge.run, epoch, charge.mechanism, spent[charge.run], charge.purpose)
                self.ledger.append(Release.KIND, line.body())
                spent = {**spent, charge.run: after}

    def finished(self, row: Mapping[str, Any]) -> None:
        """Add a row to the history, log it in one line, and write the metrics for Prometheus anew."""
        self.folder.add_row(row)
        validation = row["validation"] or {}
        logger.info(
            "round %d %s: validation MSE %s, epsilon %.4f, survivors %d of %d, %.1f s",
            row["round"],
            row["status"],
            f"{validation['mse']:.6g}" if validation else "-",
            row["epsilon"],
            row["survivors"],
            row["enrolled"],
            row["seconds"],
        )
        self._write_metrics()

    def _write_metrics(self) -> None:
        path = self.folder.path
        try:
            text = exposition(load_history(path), path.name, time.time())
        except ReportError as error:
            # What watches a run does not stop it.
            logger.warning("%s is not written: %s", FILE, error)
        else:
            write_atomic(path / FILE, [text])

    def close(self, reason: str) -> None:
        """Enter the end of the run, once."""
        closed = {entry.body["run"] for entry in self.ledger.entries() if entry.kind == RunClosed.KIND}
        for run in self.settings.terms.budgets():
            if run not in closed:
                self.ledger.append(RunClosed.KIND, RunClosed(run, reason).body())
