"""Keys that the tests sign ledgers with, and a ledger signed with one."""

from pathlib import Path

from privacy.chain import Entry, read
from privacy.ledger import Ledger
from privacy.plan import MechanismPlan
from privacy.records import Release, RunOpened
from privacy.signing import SigningKey

KEY, OTHER = SigningKey.generate(), SigningKey.generate()
OPENED = RunOpened("run-1", 1.0, 1e-5, 17.0, 0.5, "fcfl 0.1.0")
PLAN = MechanismPlan(0.1, 1.0, 4.0, 5, 1000)


def three_releases(folder: Path) -> tuple[Path, Path]:
    """Ledger and anchor of a run with three releases: four entries after the first, by KEY."""
    files = folder / "ledger.jsonl", folder / "ledger.anchor"
    with Ledger.create(*files, signer=KEY) as ledger:
        ledger.append(OPENED.KIND, OPENED.body())
        current = OPENED.filter()
        for epoch in range(3):
            made, current = Release.charge(OPENED.run, epoch, PLAN, current)
            ledger.append(made.KIND, made.body())
    return files


def entries_of(path: Path) -> list[Entry]:
    return read(path, path.read_bytes())[0]
