"""Errors of the room: one line each, naming what is wrong, what was expected and the next step."""


class PrivacyError(ValueError):
    """A privacy parameter or state cannot be used; nothing has been released."""


class BudgetExceeded(PrivacyError):  # noqa: N818 - the name is part of the interface
    """A release would pass the privacy budget; nothing has been released."""


class LedgerError(PrivacyError):
    """The ledger or its anchor is missing, damaged, behind or in use; the silo must not release anything."""


class IdentityError(PrivacyError):
    """The identity key is missing, open to others or not the ledger's; the silo must not release anything."""
