"""Why a run ends without a result."""


class SumError(ValueError):
    """A secure sum cannot come from silos that follow the protocol; the epoch is abandoned."""


class RunError(RuntimeError):
    """The run cannot go on; the message says what is missing and what to do next."""
