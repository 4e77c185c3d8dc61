"""``state.json``: who is expected, enrolled and revoked, and the steps from one state to the next.

Pure: a step takes a state and returns the next one, or raises. The file is replaced as a whole, so that no step is ever
half done.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from experiments.provision import names
from experiments.provision.errors import ProvisionError
from experiments.provision.federation import Federation
from experiments.provision.moments import moment, stamp
from experiments.provision.request import Request, node_key_of
from secagg.errors import RosterFileError
from secagg.pins import Pin, identity_of

FORMAT = "fcfl-provision-state/1"
ROSTER_HEADER = """\
# The silos of a federation and their identity keys (Ed25519, hexadecimal), written by 'fcfl provision'. It proves
# nothing by itself: compare fingerprints by telephone or on paper. 'fcfl roster check' shows them.
"""
_OWN = "every silo makes keys of its own"


class Status(StrEnum):
    """Where a silo stands."""

    EXPECTED = "expected"
    ENROLLED = "enrolled"
    REVOKED = "revoked"


@dataclass(frozen=True)
class Member:
    """One silo as the operator knows it.

    Attributes
    ----------
    name : str
    status : Status
    since : str
        When it got that status.
    code_key : str
        Hexadecimal key of the enrolment code; only while expected. Secret.
    code_until : str
        When the code ends.
    identity : str
        Hexadecimal Ed25519 public key; once enrolled.
    node_key : str
        OpenSSH line of the SuperNode's public key; once enrolled.
    request : str
        SHA-256 of the statement that was signed, so that the same request can be told from another one.
    node_id : int
        Id that the SuperLink gave the node, once noted; 0 before.
    """

    name: str
    status: Status
    since: str
    code_key: str = ""
    code_until: str = ""
    identity: str = ""
    node_key: str = ""
    request: str = ""
    node_id: int = 0

    def __repr__(self) -> str:
        return f"Member({self.name!r}, {self.status.value})"


@dataclass(frozen=True)
class State:
    """All members, the hashes of keys that may never come back, and how often the roster or a key changed."""

    revision: int = 0
    members: tuple[Member, ...] = ()
    retired: tuple[str, ...] = ()

    def member(self, name: str) -> Member | None:
        """Return a member, or None."""
        return next((member for member in self.members if member.name == name), None)

    def enrolled(self) -> tuple[Member, ...]:
        """Return the members that are in the roster."""
        return tuple(member for member in self.members if member.status is Status.ENROLLED)

    def need(self, name: str) -> Member:
        """Return an enrolled member.

        Raises
        ------
        ProvisionError
            If there is none, saying what is missing.
        """
        member = self.member(name)
        if member is None:
            raise ProvisionError(f"{name}: not known here; register it with 'fcfl provision add-silo'")
        if member.status is not Status.ENROLLED:
            wanted = "its request is not signed yet" if member.status is Status.EXPECTED else f"since {member.since}"
            raise ProvisionError(f"{name}: {member.status.value} ({wanted}), not enrolled")
        return member

    def expect(self, name: str, key_of_code: bytes, until: datetime, now: datetime) -> "State":
        """Return the state in which a silo may enrol with a code; a new code takes the place of an older one."""
        there = self.member(name)
        if there is not None and there.status is Status.ENROLLED:
            raise ProvisionError(f"{name}: enrolled since {there.since}; 'fcfl provision revoke' it first")
        # The keys of one that was here before stay with its name.
        base = there or Member(name, Status.EXPECTED, stamp(now))
        keyed = replace(base, status=Status.EXPECTED, since=stamp(now), code_key=key_of_code.hex())
        return self._with(replace(keyed, code_until=stamp(until)))

    def admit(self, request: Request, now: datetime, where: str) -> "State":
        """Return the state in which the silo of a verified request is enrolled; the same request again changes nothing.

        Guarantee: a silo gets in only under a name it is expected under, with that name's code, once, and with keys
        that nobody has or had here; an enrolled one can change its node key, signed by the identity on record.

        Raises
        ------
        ProvisionError
            Naming the file and what is wrong.
        """
        digest = hashlib.sha256(request.statement()).hexdigest()
        there = self.member(request.silo)
        if there is None:
            raise ProvisionError(
                f"{where}: no silo {request.silo} is expected; ask who sent this, and register it with 'fcfl provision "
                "add-silo' if it belongs here"
            )
        if there.request == digest and there.status is Status.ENROLLED:
            return self
        if request.replaces and there.status is Status.ENROLLED:
            fresh = self._replacing(there, request, where)
        else:
            fresh = self._enrolling(there, request, now, where)
        self._refuse_known(request, where)
        left = [old for old in (there.identity, there.node_key) if old not in ("", fresh.identity, fresh.node_key)]
        retired = tuple(dict.fromkeys((*self.retired, *map(_mark, left))))
        fresh = replace(fresh, request=digest)
        return replace(self._with(fresh), revision=self.revision + 1, retired=retired)

    def _enrolling(self, there: Member, request: Request, now: datetime, where: str) -> Member:
        if there.status is Status.ENROLLED:
            raise ProvisionError(
                f"{where}: {there.name} is enrolled since {there.since}, with other keys or another request; if it has "
                "lost its keys: 'fcfl provision revoke', then 'add-silo' again; if not, somebody poses as it"
            )
        if there.status is Status.REVOKED:
            raise ProvisionError(f"{where}: {there.name} was revoked on {there.since}; 'add-silo' lets it enrol again")
        if now > moment(there.code_until, f"code of {there.name}"):
            raise ProvisionError(
                f"{where}: the code of {there.name} ended on {there.code_until}; 'fcfl provision add-silo' gives "
                "another"
            )
        if not request.has_code(bytes.fromhex(there.code_key)):
            raise ProvisionError(
                f"{where}: not made with the code that was given for {there.name}; ask {there.name} by telephone "
                "whether it sent this"
            )
        return Member(
            there.name, Status.ENROLLED, stamp(now), identity=request.identity.hex(), node_key=request.node_key
        )

    def _replacing(self, there: Member, request: Request, where: str) -> Member:
        if request.identity.hex() != there.identity:
            raise ProvisionError(
                f"{where}: wants to replace a node key, but the identity that signed it is not {there.name}'s"
            )
        if request.replaces != there.node_key:
            raise ProvisionError(
                f"{where}: replaces a node key that {there.name} does not have here; make a new request"
            )
        # The SuperLink knows the new key by another id.
        return replace(there, node_key=request.node_key, node_id=0)

    def _refuse_known(self, request: Request, where: str) -> None:
        identity = request.identity.hex()
        for member in self.members:
            if member.name != request.silo and identity == member.identity:
                raise ProvisionError(f"{where}: its identity key is that of {member.name}; {_OWN}")
            if request.node_key == member.node_key:
                raise ProvisionError(f"{where}: its node key is that of {member.name}; {_OWN}")
        if {_mark(request.node_key), _mark(identity)} & set(self.retired):
            raise ProvisionError(
                f"{where}: has a key that was revoked or replaced; the silo has to make another (for a node key: 'fcfl "
                "provision csr --new-node-key')"
            )

    def note_node(self, name: str, node_id: int) -> "State":
        """Return the state with the id that the SuperLink gave a silo's node."""
        return self._with(replace(self.need(name), node_id=node_id))

    def revoke(self, name: str, now: datetime, *, stolen: bool = False) -> "State":
        """Return the state without a silo; revoking again changes nothing.

        Its node key never comes back (nor does a SuperLink take it again), its identity only under the same name, and
        not at all if it was stolen.
        """
        there = self.member(name)
        if there is None:
            raise ProvisionError(f"{name}: not known here; 'fcfl provision status' lists the silos")
        gone = [there.node_key, there.identity if stolen else ""]
        retired = tuple(dict.fromkeys((*self.retired, *(_mark(key) for key in gone if key))))
        if there.status is Status.REVOKED:
            return replace(self, retired=retired)
        out = replace(there, status=Status.REVOKED, since=stamp(now), code_key="", code_until="")
        return replace(self._with(out), revision=self.revision + 1, retired=retired)

    def _with(self, member: Member) -> "State":
        others = {old.name: old for old in self.members} | {member.name: member}
        return replace(self, members=tuple(others[name] for name in sorted(others)))

    def roster(self, federation: Federation) -> str:
        """Return the text of ``roster.toml``: all enrolled silos, by name."""
        pins = []
        for member in self.enrolled():
            declared = federation.silo(member.name)
            pins.append(Pin(member.name, bytes.fromhex(member.identity), declared.organisation if declared else ""))
        return ROSTER_HEADER + "".join(pin.render() for pin in pins)

    def render(self) -> bytes:
        """Return the text of ``state.json``."""
        table = {"format": FORMAT, **asdict(self)}
        return (json.dumps(table, indent=2) + "\n").encode()


def parse(data: bytes, where: str) -> State:
    """Read a ``state.json``.

    Raises
    ------
    ProvisionError
        If the file is damaged; it is never mended here.
    """
    try:
        table: Any = json.loads(data.decode())
        if table.pop("format") != FORMAT:
            raise ValueError("another format")
        members = tuple(_member(dict(entry), where) for entry in table.pop("members"))
        state = State(members=members, retired=tuple(map(str, table.pop("retired"))), **table)
        if type(state.revision) is not int or [m.name for m in members] != sorted({m.name for m in members}):
            raise ValueError("revision or order of the members")
    except (ValueError, KeyError, TypeError, AttributeError, RosterFileError) as error:
        raise ProvisionError(
            f"{where}: damaged or edited ({type(error).__name__}); restore it from a backup of the project folder"
        ) from None
    return state


def _member(entry: dict[str, Any], where: str) -> Member:
    member = Member(**{**entry, "status": Status(entry["status"])})
    names.silo_name(member.name, where)
    moment(member.since, where)
    if member.status is Status.EXPECTED:
        moment(member.code_until, where)
        if len(bytes.fromhex(member.code_key)) != 32:
            raise ValueError("code key")
    if member.status is Status.ENROLLED:
        identity_of(member.identity, where)
        node_key_of(member.node_key, where)
    return member


def _mark(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()
