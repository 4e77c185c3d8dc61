"""What ``fcfl silo status`` shows: whether the node runs, what each run had and cost, and the last refusal."""

import re
from dataclasses import dataclass
from pathlib import Path

from client_app.home import SiloHome
from client_app.node.status import is_running, read
from experiments.silo_check.budget import Budget, counts, read_budget

# A line of silo.log that says why a message was not answered, see `client_app.app`.
REFUSAL = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),\d+ (?:WARNING|ERROR) ((?:declined|stopped|failed)\b.*)")
LOG_BYTES = 1 << 20


@dataclass(frozen=True)
class RunStatus:
    """One budget of one run.

    Attributes
    ----------
    run : str
    rounds : int
        Contributions.
    epsilon, granted : float
        Spent, and agreed.
    unit : str
        Whose privacy it is: a record's or the silo's.
    closed : bool
    """

    run: str
    rounds: int
    epsilon: float
    granted: float
    unit: str
    closed: bool


@dataclass(frozen=True)
class SiloStatus:
    """A silo as it stands.

    Attributes
    ----------
    silo : str
    running : bool
        Whether a node of this folder runs on this machine.
    answering : bool
        Whether it is answering a message.
    contact, message, message_at : str or None
        When it last had contact; the last message's type and time (UTC).
    runs : tuple of RunStatus
    spent, granted, left, total : float
        Epsilon over all runs; ``left`` is what further runs may ask for.
    private : bool
        False if a run was seeded.
    refusal, refusal_at : str or None
        The last refusal in ``silo.log``.
    """

    silo: str
    running: bool
    answering: bool
    contact: str | None
    message: str | None
    message_at: str | None
    runs: tuple[RunStatus, ...]
    spent: float
    granted: float
    left: float
    total: float
    private: bool
    refusal: str | None
    refusal_at: str | None


def read_status(root: Path) -> SiloStatus:
    """Read the folder; nothing in it is changed.

    Raises
    ------
    client_app.errors.SiloError, privacy.errors.PrivacyError
        If settings, identity or ledger cannot be used.
    """
    home = SiloHome.open(root)
    budget = read_budget(root, home.settings, home.identity.public_key)
    running, said = is_running(root), read(root)
    refused_at, refusal = last_refusal(root / "silo.log")
    return SiloStatus(
        silo=home.settings.name,
        running=running,
        answering=running and said.get("answering") is True,
        contact=_text(said.get("contact")),
        message=_text(said.get("message")),
        message_at=_text(said.get("message_at")),
        runs=_runs(budget),
        spent=budget.spent,
        granted=budget.granted,
        left=budget.left,
        total=budget.total,
        private=budget.summary.private,
        refusal=refusal,
        refusal_at=refused_at,
    )


def last_refusal(log: Path) -> tuple[str | None, str | None]:
    """Time and reason of the last refusal; the reason stays at the silo."""
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - LOG_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return None, None
    for line in reversed(lines):
        if found := REFUSAL.fullmatch(line):
            return found[1], found[2]
    return None, None


def _runs(budget: Budget) -> tuple[RunStatus, ...]:
    return tuple(
        RunStatus(
            run.opened.run,
            run.releases,
            run.epsilon,
            run.opened.epsilon if counts(run) else 0.0,
            run.opened.unit,
            run.closed,
        )
        for run in budget.summary.runs
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
