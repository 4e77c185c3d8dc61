"""Why a file could not be fetched: one class per kind of answer, each with its exit code."""

from __future__ import annotations

from typing import ClassVar

from data_prep.errors import DataError

__all__ = [
    "FetchError",
    "LimitReachedError",
    "NothingThereError",
    "SourceRefusesError",
    "UnexpectedAnswerError",
    "UnreachableError",
]


class FetchError(DataError):
    """A file that could not be fetched; the one under its name, if any, is as it was.

    Attributes
    ----------
    exit_code : int
        Of the command.
    stops : bool
        Whether the next request to the same source would fare no better, so that none is made.
    """

    exit_code: ClassVar[int] = 2
    stops: ClassVar[bool] = False


class LimitReachedError(FetchError):
    """The source has answered enough for now: wait and run the command again, which goes on where it stopped."""

    exit_code = 3
    stops = True


class SourceRefusesError(FetchError):
    """The source does not serve this program: a key, a browser or the publisher's consent is needed."""

    exit_code = 4
    stops = True


class NothingThereError(FetchError):
    """The source has no such series."""

    exit_code = 5


class UnreachableError(FetchError):
    """No whole answer after all attempts: network, proxy, certificate, or trouble at the source."""

    exit_code = 6
    stops = True


class UnexpectedAnswerError(FetchError):
    """An answer that is not the file it should be."""

    exit_code = 7
