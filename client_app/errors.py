"""Why a silo does not answer a request."""

from enum import IntEnum


class Code(IntEnum):
    """The only thing the coordinator learns about a refusal.

    ``FAILED`` covers everything that depends on data, files or software, so that the code itself
    says nothing about a record. ``CONTROL_LOST`` asks for a reset of all controls.
    """

    DECLINED = 1
    FAILED = 2
    CONTROL_LOST = 3


class Declined(Exception):  # noqa: N818 - a decision, not a defect
    """The silo's policy or budget does not allow the request; nothing was spent.

    The text stays in the silo's own log.
    """


class ControlLost(Exception):  # noqa: N818 - a state, not a defect
    """The silo's control variate is gone; it goes on once the coordinator has announced a reset of all controls."""


class SiloError(ValueError):
    """The silo's own files or settings are wrong; the text stays in the silo's own log."""
