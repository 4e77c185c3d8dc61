"""Times as files carry them: UTC, whole seconds, ``2026-01-31T12:00:00Z``."""

from datetime import UTC, datetime, timedelta

from experiments.provision.errors import ProvisionError

# How far the clocks of a silo and the operator may be apart.
SKEW = timedelta(minutes=10)
_FORM = "%Y-%m-%dT%H:%M:%SZ"


def now() -> datetime:
    """Return the time, in UTC and whole seconds."""
    return datetime.now(UTC).replace(microsecond=0)


def stamp(when: datetime) -> str:
    """Return the text of a time."""
    return when.astimezone(UTC).strftime(_FORM)


def moment(text: object, where: str) -> datetime:
    """Return the time a text stands for.

    Raises
    ------
    ProvisionError
        If it is written in another form.
    """
    try:
        if isinstance(text, str) and len(text) == 20:
            return datetime.strptime(text, _FORM).replace(tzinfo=UTC)
    except ValueError:
        pass
    raise ProvisionError(f"{where} = {ascii(text)[:40]}; expected a time as 2026-01-31T12:00:00Z")
