"""When to ask again: exponential back-off with jitter, and what the server asks for."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite

__all__ = ["RETRIED", "Policy", "back_off", "retry_after"]

RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses that may be gone at the next attempt."""


@dataclass(frozen=True)
class Policy:
    """How a source is asked.

    Attributes
    ----------
    attempts : int
        Most attempts for one file.
    delay : float
        Least seconds between two requests.
    timeout : float
        Most seconds of silence from the server.
    deadline : float
        Most seconds for one attempt.
    back_off : float
        Upper end of the first wait, in seconds; it doubles with every attempt.
    longest_wait : float
        Longest wait between two attempts, in seconds; a server that wants more is left alone.
    """

    attempts: int = 5
    delay: float = 1.0
    timeout: float = 30.0
    deadline: float = 1800.0
    back_off: float = 2.0
    longest_wait: float = 120.0


def back_off(policy: Policy, failed: int, jitter: float) -> float:
    """Return the seconds to wait after some failed attempts.

    Parameters
    ----------
    policy : Policy
        With the first and the longest wait.
    failed : int
        Failed attempts so far, at least 1.
    jitter : float
        Uniform in [0, 1): the wait is drawn from the upper half of its range, so that clients do not march in step.
    """
    highest = min(policy.longest_wait, policy.back_off * 2.0 ** min(failed - 1, 32))
    return highest * (0.5 + 0.5 * jitter)


def retry_after(value: str | None, now: datetime) -> float | None:
    """Read a `Retry-After` header (RFC 9110, 10.2.3): seconds or a date.

    Returns
    -------
    float or None
        Seconds from `now`, at least 0; None where the header is missing or means nothing.
    """
    if value is None:
        return None
    try:
        seconds = float(value) if not value.strip().endswith("GMT") else None
        if seconds is None:
            date = parsedate_to_datetime(value)
            seconds = (date.replace(tzinfo=date.tzinfo or UTC) - now).total_seconds()
    except (ValueError, OverflowError, TypeError):
        return None
    return max(0.0, seconds) if isfinite(seconds) else None
