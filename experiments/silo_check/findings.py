"""What a check found."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How it stands; a warning does not keep the silo from a run."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True)
class Finding:
    """One row.

    Attributes
    ----------
    check : str
        What was looked at.
    level : Level
    text : str
        What was found; no data, no secret.
    advice : str
        What to do about it; empty if nothing.
    """

    check: str
    level: Level
    text: str
    advice: str = ""


def ok(check: str, text: str) -> Finding:
    """Nothing to do."""
    return Finding(check, Level.OK, text)


def warning(check: str, text: str, advice: str) -> Finding:
    """Works, but should be looked at."""
    return Finding(check, Level.WARNING, text, advice)


def failed(check: str, text: str, advice: str = "") -> Finding:
    """Keeps the silo from a run; the text of an error of this project says itself what to do."""
    return Finding(check, Level.FAILED, text, advice)


def guarded(check: str, look: Callable[[], Finding], *expected: type[Exception]) -> Finding:
    """Look, and make a row of an expected error too.

    The text of any other error may depend on data, so that only its type is shown.
    """
    try:
        return look()
    except expected as error:
        return failed(check, str(error))
    except OSError as error:
        return failed(
            check, f"{error.filename or 'a file'}: {error.strerror}", "check the path, its rights and the disk"
        )
    except Exception as error:  # noqa: BLE001 - see above
        return failed(check, f"{type(error).__name__}, which was not foreseen", "report this as a defect")


def exit_code(findings: Iterable[Finding]) -> int:
    """0 if all is well, 1 with warnings, 2 with failures."""
    levels = {finding.level for finding in findings}
    return 2 if Level.FAILED in levels else int(Level.WARNING in levels)
