"""A silo's folder: settings, ledger, and per run the outbox, secrets and control variate.

Every file is written to a temporary name, fsynced, renamed, and its folder fsynced, so that after a
power cut a file is either whole or absent. All are readable by the owner only.

Layout::

    silo.toml, silo.lock, silo.log
    identity.key, identity.pub   Ed25519 key pair: signs the ledger; the key is secret and never replaced
    ledger.jsonl, ledger.anchor
    peers.heads                  highest ledger head each other silo has signed
    runs/<run id>/terms        terms the silo agreed to
                  keys         share-encryption key of the run (secret)
                  graph-nonce  part in the order of a regular graph (secret until revealed)
                  run          roster, threshold and graph
                  heads        highest ledger heads of the other silos, in this run and before it
                  control.npz  committed control variate
                  control.lost generation of the controls when it was found missing
                  samples      fingerprint of the samples the silo enrolled with
                  dropped      last epoch whose bundle made way for a later one
                  <epoch>.bundle    mask key and self-mask seed (secret), and the bundle that goes with them
                  <stage>.<epoch>.reply   outbox: reply, request where `unmask` needs it, pending control change
"""

import fcntl
import hashlib
import io
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cbor2
import numpy as np
from numpy.typing import NDArray

from client_app.drift_control import Control, Pending
from client_app.errors import ControlLost, Declined, SiloError
from client_app.policy import SiloSettings, load_settings, parse_settings
from privacy.ledger import Ledger
from privacy.records import Abstention, Release, parse
from privacy.signing import SigningKey

NEVER_REPLACED = ("silo.toml", "identity.key", "identity.pub", "ledger.jsonl", "ledger.anchor")

logger = logging.getLogger("fcfl.silo")


@dataclass(frozen=True)
class Reply:
    """One answer of the silo, and what it must remember with it.

    Attributes
    ----------
    body : bytes
        The answer's message.
    arrays : mapping of str to ndarray
        Ring arrays that go with it.
    request : bytes
        The request itself, where a later stage needs it; stays at the silo.
    pending : Pending or None
        Control change that waits for the epoch's outcome; stays at the silo.
    lines : tuple of Release or Abstention
        The ledger entries that go with the reply; stay at the silo.
    """

    body: bytes
    arrays: Mapping[str, NDArray[np.unsignedinteger]]
    request: bytes = b""
    pending: Pending | None = None
    lines: tuple[Release | Abstention, ...] = ()


def write_atomic(path: Path, data: bytes) -> None:
    """Write ``data`` so that ``path`` is either the old or the new whole, also after a power cut."""
    temporary = path.with_name(path.name + ".tmp")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@dataclass(frozen=True)
class SiloHome:
    """The folder of one silo, and the identity that signs for it."""

    root: Path
    settings: SiloSettings
    identity: SigningKey

    @classmethod
    def create(cls, root: Path, settings: str) -> "SiloHome":
        """Make a new silo folder from the text of its ``silo.toml``, with an identity and an empty ledger.

        Raises
        ------
        SiloError
            If the folder holds a silo or the rest of one (a ledger or an identity is never replaced), or a setting is
            wrong; then nothing is left behind.
        """
        if there := [name for name in NEVER_REPLACED if (root / name).exists()]:
            raise SiloError(
                f"{root}: already holds a silo ({', '.join(there)}); its identity and its ledger are never replaced. "
                "If files are missing restore them from a copy, or choose another folder if nothing ever left this one"
            )
        parse_settings(root / "silo.toml", settings.encode())
        root.mkdir(parents=True, exist_ok=True)
        identity = SigningKey.create(root / "identity.key")
        Ledger.create(root / "ledger.jsonl", root / "ledger.anchor", signer=identity).close()
        write_atomic(root / "silo.toml", settings.encode())
        return cls.open(root)

    @classmethod
    def open(cls, root: Path) -> "SiloHome":
        """Open an existing silo folder.

        Raises
        ------
        SiloError
            Naming what is wrong with ``silo.toml``.
        privacy.errors.IdentityError
            If the identity key is lost, damaged or readable by others; a new one is never made here.
        """
        return cls(root, load_settings(root / "silo.toml"), SigningKey.load(root / "identity.key"))

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the silo: a second process that answers at the same time would make second bundles and vectors.

        Raises
        ------
        SiloError
            If another process holds it.
        """
        handle = os.open(self.root / "silo.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise SiloError(f"{self.root}: another process answers for this silo; stop it") from None
        try:
            yield
        finally:
            os.close(handle)

    def ledger(self) -> Ledger:
        """Open the ledger.

        Raises
        ------
        privacy.errors.LedgerError
            If it is lost, altered or behind its anchor.
        privacy.errors.IdentityError
            If it is not signed by this silo's identity.
        """
        return Ledger.open(self.root / "ledger.jsonl", self.root / "ledger.anchor", signer=self.identity)

    def run(self, run_id: bytes) -> "RunFolder":
        """Return the folder of a run; it is made with the first file, so that unknown runs leave nothing."""
        return RunFolder(self.root / "runs" / run_id.hex())


@dataclass(frozen=True)
class RunFolder:
    """What a silo keeps of one run."""

    path: Path

    def put(self, name: str, data: bytes) -> None:
        """Store ``data`` durably."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomic(self.path / name, data)

    def get(self, name: str) -> bytes | None:
        """Return what was stored, or None."""
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            return None

    def need(self, name: str) -> bytes:
        """Return what was stored, or decline: the coordinator skipped a stage."""
        data = self.get(name)
        if data is None:
            raise Declined(f"{name}: not there; the coordinator skipped a stage")
        return data

    def answered(self, stage: str, epoch: int, request: bytes) -> Reply | None:
        """Return the stored reply to the identical request.

        Raises
        ------
        Declined
            If a different request was answered under the same (run, epoch, stage).
        """
        stored = self.get(_reply_name(stage, epoch))
        if stored is None:
            return None
        fields = cbor2.loads(stored)
        if fields["digest"] != hashlib.sha256(request).digest():
            raise Declined(f"{stage} of epoch {epoch}: another request was answered already")
        return _reply(fields)

    def reply(self, stage: str, epoch: int) -> Reply | None:
        """Return the stored reply of a stage, whatever the request was."""
        stored = self.get(_reply_name(stage, epoch))
        return None if stored is None else _reply(cbor2.loads(stored))

    def answer(self, stage: str, epoch: int, request: bytes, reply: Reply) -> Reply:
        """Store the reply, whole or not at all, before it may leave."""
        pending = reply.pending
        fields = {
            "digest": hashlib.sha256(request).digest(),
            "body": reply.body,
            "arrays": {name: (array.dtype.str, array.tobytes()) for name, array in reply.arrays.items()},
            "request": reply.request,
            "pending": pending and _pending(pending),
            "lines": [(line.KIND, line.body()) for line in reply.lines],
        }
        self.put(_reply_name(stage, epoch), cbor2.dumps(fields))
        return reply

    def has_control(self) -> bool:
        """Whether a control was ever committed; every contribution leaves one."""
        return (self.path / "control.npz").exists()

    def control(self, parameters: int) -> Control:
        """Return the committed control; zero before the first contribution."""
        data = self.get("control.npz")
        if data is None:
            return Control(np.zeros(parameters))
        with np.load(io.BytesIO(data)) as stored:
            return Control(
                stored["weighted"],
                int(stored["settled"]),
                float(stored["drift"]),
                float(stored["direction"]),
                float(stored["variance"]),
                bool(stored["measured"]),
                int(stored["generation"]),
                float(stored["noise_energy"]),
            )

    def check_control(self, generation: int, *, released: bool) -> None:
        """Make sure that a control is there, or that the coordinator has reset all of them since it was missed.

        Raises
        ------
        ControlLost
            If the silo has released something in this run and has no control.
        """
        if self.has_control() or not released:
            return
        missed = self.get("control.lost")
        if missed is None:
            self.put("control.lost", str(generation).encode())
        if missed is None or int(missed) >= generation:
            raise ControlLost("control.npz is lost; waiting for the coordinator to reset all controls")
        logger.warning("control.npz was lost; all controls were reset, going on from zero")

    def settled(self) -> int:
        """Return the last epoch that is over for this silo; 0 before the first is."""
        data = self.get("control.npz")
        if data is None:
            return 0
        with np.load(io.BytesIO(data)) as stored:
            return int(stored["settled"])

    def dropped(self) -> int:
        """Return the last epoch whose bundle made way for a later one; 0 before there is one."""
        return int(self.get("dropped") or b"0")

    def make_way(self, epoch: int, limit: int) -> None:
        """Keep at most ``limit`` bundles with the one of ``epoch``, by dropping those of the earliest epochs for good.

        Raises
        ------
        Declined
            If the epoch is before all that are kept.
        """
        held = sorted(int(path.name.split(".")[0]) for path in self.path.glob("*.bundle"))
        if len(held) < limit:
            return
        if epoch < held[0]:
            raise Declined(f"epoch {epoch}: {len(held)} bundles of later epochs are kept; ask for a later epoch")
        over = held[: len(held) - limit + 1]
        # First that they are gone, then the deed: no bundle of these epochs is ever made again.
        self.put("dropped", str(over[-1]).encode())
        for earlier in over:
            (self.path / f"{earlier}.bundle").unlink()

    def put_control(self, control: Control) -> None:
        """Commit the control."""
        self.put("control.npz", _packed(**vars(control)))
        (self.path / "control.lost").unlink(missing_ok=True)

    def erase_before(self, epoch: int) -> None:
        """Delete the secrets, replies and pending changes of the epochs before ``epoch`` (enrolment is epoch 0)."""
        for path in self.path.iterdir():
            parts = path.name.split(".")
            number = next((part for part in parts if part.isdigit()), None)
            if number is not None and 0 < int(number) < epoch:
                path.unlink()

    def erase_secrets(self) -> None:
        """Delete everything but the terms, at the end of a run."""
        for path in self.path.iterdir():
            if path.name != "terms":
                path.unlink()


def _reply_name(stage: str, epoch: int) -> str:
    return f"{stage}.{epoch}.reply"


def _pending(pending: Pending) -> tuple[bytes | float, ...]:
    return pending.change.tobytes(), pending.drift, pending.direction, pending.variance, pending.noise_energy


def _reply(fields: Mapping[str, Any]) -> Reply:
    arrays = {name: np.frombuffer(data, dtype=dtype) for name, (dtype, data) in fields["arrays"].items()}
    pending = fields["pending"]
    if pending is not None:
        pending = Pending(np.frombuffer(pending[0], dtype=np.float64), *pending[1:])
    lines = []
    for kind, body in fields["lines"]:
        line = parse(kind, body)
        if not isinstance(line, Release | Abstention):
            raise SiloError("outbox: a stored reply holds another ledger entry than its own; the file was altered")
        lines.append(line)
    return Reply(fields["body"], arrays, fields["request"], pending, tuple(lines))


def _packed(**arrays: object) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()
