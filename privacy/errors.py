"""Errors of the privacy room."""


class PrivacyError(ValueError):
    """A setting, message or file would break a privacy promise."""
