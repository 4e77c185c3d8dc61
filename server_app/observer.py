"""The coordinator's ledger and history, kept beside the protocol."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from types import TracebackType
from typing import Any, Self

from fcfl_strategy.rounds import mechanism
from fcfl_strategy.settings import Settings
from privacy.filter import RenyiFilter
from privacy.ledger import Ledger
from privacy.records import PRIVATE, SEEDED, Release, RunClosed, RunOpened, parse
from privacy.release import ReleasePlan
from privacy.signing import SigningKey
from server_app.run_folder import RunFolder

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
        observer = cls(folder, settings, ledger)
        if ledger.head[0] == 1:
            terms = settings.terms
            opened = RunOpened(
                run=observer.run,
                epsilon=terms.epsilon,
                delta=terms.delta,
                order=terms.order,
                rdp_budget=terms.rdp_budget,
                software=f"fcfl {version('fcfl')}",
                status=PRIVATE if terms.noise_seed is None else SEEDED,
            )
            ledger.append(RunOpened.KIND, opened.body())
        return observer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ledger.close()

    @property
    def run(self) -> str:
        """Run id, hexadecimal."""
        return self.settings.terms.run_id.hex()

    @property
    def head(self) -> tuple[int, str]:
        """Count and hash of the last ledger entry."""
        return self.ledger.head

    def _spent(self) -> tuple[RenyiFilter, set[int]]:
        spent, epochs = RenyiFilter(self.settings.terms.order, self.settings.terms.rdp_budget), set()
        for entry in self.ledger.entries():
            record = parse(entry.kind, entry.body)
            if isinstance(record, Release):
                spent = spent.charge(record.rdp)
                epochs.add(record.epoch)
        return spent, epochs

    def announced(self, epoch: int, plan: ReleasePlan) -> None:
        """Charge a training epoch once, before anything is sent."""
        spent, epochs = self._spent()
        what = mechanism(self.settings, plan.noise_multiplier)
        if plan.purpose == "train" and epoch not in epochs and spent.admits(what.rdp(spent.order)):
            self.ledger.append(Release.KIND, Release.charge(self.run, epoch, what, spent)[0].body())

    def finished(self, row: Mapping[str, Any]) -> None:
        """Add a row to the history and log it in one line."""
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

    def close(self, reason: str) -> None:
        """Enter the end of the run, once."""
        if self.ledger.entries()[-1].kind != RunClosed.KIND:
            self.ledger.append(RunClosed.KIND, RunClosed(self.run, reason).body())
