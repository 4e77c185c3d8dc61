"""The one error of the room: names the file or option, what was expected and the next step; never a secret."""


class ProvisionError(ValueError):
    """Something of a project, a request or a kit cannot be used; nothing was changed."""
