"""What a silo's ledger leaves of its budget."""

from dataclasses import dataclass
from pathlib import Path

from client_app.policy import SiloSettings
from privacy.audit import LedgerSummary, RunSummary, verify


@dataclass(frozen=True)
class Budget:
    """A verified ledger against the policy.

    Attributes
    ----------
    summary : LedgerSummary
    spent : float
        Sum over the runs of the epsilon of what was released.
    granted : float
        Sum of the epsilon agreed for the runs: a run counts in full, unless it was closed without any release.
    total : float
        The policy's epsilon.
    """

    summary: LedgerSummary
    spent: float
    granted: float
    total: float

    @property
    def left(self) -> float:
        """Epsilon that further runs may ask for."""
        return max(0.0, self.total - self.granted)


def read_budget(home: Path, settings: SiloSettings, public_key: bytes) -> Budget:
    """Verify the ledger against its anchor and the silo's key.

    Raises
    ------
    privacy.errors.PrivacyError
        If it is lost, altered or behind its anchor.
    """
    summary = verify(home / "ledger.jsonl", home / "ledger.anchor", public_key)
    spent = sum(run.epsilon for run in summary.runs)
    granted = sum(run.opened.epsilon for run in summary.runs if counts(run))
    return Budget(summary, spent, granted, settings.policy.epsilon)


def counts(run: RunSummary) -> bool:
    """Whether a run takes its share of the budget."""
    return not (run.closed and run.releases == 0)
