"""How the node's work can end."""


class NodeError(Exception):
    """The node cannot go on; the text says what to do."""


class MessageLost(Exception):  # noqa: N818 - a state, not a defect
    """One message cannot be taken or answered; the text says why, and the node goes on."""


class Stopped(Exception):  # noqa: N818 - a state, not a defect
    """The node is being stopped while it waits."""
