"""Why a silo does not answer a request."""

from enum import IntEnum


class Code(IntEnum):
    """The only thing the coordinator learns about a refusal.

    ``FAILED`` covers everything that depends on data, files or software, so that the code itself
    says nothing about a record.
    """

    DECLINED = 1
    FAILED = 2


class Declined(Exception):  # noqa: N818 - a decision, not a defect
    """The silo's policy or budget does not allow the request; nothing was spent.

    The text stays in the silo's own log.
    """


class SiloError(ValueError):
    """The silo's own files or settings are wrong; the text stays in the silo's own log."""
