"""Where the coordinator keeps what it must not forget; the server room provides files."""

from typing import Protocol


class Journal(Protocol):
    """Durable named blobs. ``put`` returns only when the data survive a power cut."""

    def put(self, name: str, data: bytes) -> None:
        """Store ``data`` under ``name``, whole or not at all."""

    def get(self, name: str) -> bytes | None:
        """Return what is stored under ``name``, or None."""

    def names(self, prefix: str) -> list[str]:
        """Names that start with ``prefix``, sorted."""

    def erase(self, prefix: str) -> None:
        """Delete all blobs whose name starts with ``prefix``."""
