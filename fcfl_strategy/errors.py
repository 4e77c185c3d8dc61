"""Why a run ends without a result."""


class RunError(RuntimeError):
    """The run cannot go on; the message says what is missing and what to do next."""
