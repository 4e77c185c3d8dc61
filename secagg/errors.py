"""Errors of secure aggregation.

Every message names the peer and the field, says what was expected and what to do next. None carries a key, a share, a
mask or a value of a model: messages end up in logs that leave the silo.
"""


class SecAggError(ValueError):
    """Anything secure aggregation refuses."""


class ProtocolError(SecAggError):
    """A message, a key or a view of the epoch was refused: malformed, inconsistent with the run, or out of turn."""


class NotEnoughSurvivors(SecAggError):  # noqa: N818 - the name states the condition a caller handles: abandon the epoch
    """Fewer than the threshold are left; the epoch has to be abandoned, nothing was revealed."""


class RosterFileError(SecAggError):
    """A pinned roster is malformed, or its file cannot be used; names the file and the entry."""


class RingError(SecAggError):
    """Values or a layout that the ring cannot carry exactly."""
