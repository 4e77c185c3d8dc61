"""A request proves that its maker holds every key, and nothing of it can be changed on the way."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from experiments.provision.code import code_key, new_code
from experiments.provision.errors import ProvisionError
from experiments.provision.keys import new_key, openssh_public
from experiments.provision.request import Request, node_key_of
from privacy.signing import SigningKey

NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
CODE = code_key(new_code(), "bank-a", "code")
IDENTITY, NODE = SigningKey.generate(), new_key()


def request(**changes: str) -> Request:
    return Request.make(
        "bank-a", NOW, IDENTITY, NODE, openssh_public(NODE), key_of_code=CODE, replaces=changes.get("replaces", "")
    )


def test_a_request_reads_back_and_holds() -> None:
    made = request()
    found = Request.parse(made.render(), "request.json")
    assert found == made
    found.verify(NOW, "request.json")
    found.verify(NOW + timedelta(days=30), "request.json")
    assert found.has_code(CODE)
    assert not found.has_code(code_key(new_code(), "bank-a", "code"))
    assert found.fingerprint == made.fingerprint


CHANGES: dict[str, Callable[[Request], Request]] = {
    "name": lambda made: replace(made, silo="bank-b"),
    "identity": lambda made: replace(made, identity=SigningKey.generate().public_key),
    "node key": lambda made: replace(made, node_key=openssh_public(new_key())),
    "replaces": lambda made: replace(made, replaces=openssh_public(new_key())),
    "created": lambda made: replace(made, created=made.created + timedelta(seconds=1)),
    "expires": lambda made: replace(made, expires=made.expires - timedelta(seconds=1)),
    "identity proof": lambda made: replace(made, identity_proof=made.identity_proof[:-1] + b"\0"),
    "node proof": lambda made: replace(made, node_proof=made.node_proof[:-1]),
    "no node proof": lambda made: replace(made, node_proof=b""),
}


@pytest.mark.parametrize("what", CHANGES)
def test_whatever_is_changed_on_the_way_shows(what: str) -> None:
    changed = CHANGES[what](request())
    with pytest.raises(ProvisionError, match=r"request\.json: not signed by"):
        Request.parse(changed.render(), "request.json").verify(NOW, "request.json")


@pytest.mark.parametrize("stolen", ["identity", "node"])
def test_another_silos_public_key_cannot_be_enrolled_without_its_private_half(stolen: str) -> None:
    mine, my_node = SigningKey.generate(), new_key()
    forged = Request.make("bank-a", NOW, mine, my_node, openssh_public(my_node), key_of_code=CODE)
    forged = replace(forged, **({"identity": IDENTITY.public_key} if stolen == "identity" else {}))
    forged = replace(forged, **({"node_key": openssh_public(NODE)} if stolen == "node" else {}))
    said = forged.statement()
    forged = replace(forged, identity_proof=mine.sign(said))
    with pytest.raises(ProvisionError, match=f"not signed by its {stolen} key"):
        forged.verify(NOW, "request")


def test_the_code_does_not_travel_and_counts_for_this_content_only() -> None:
    made = request()
    assert CODE.hex().encode() not in made.render()
    other = Request.make("bank-a", NOW, SigningKey.generate(), NODE, openssh_public(NODE))
    assert not replace(other, code_proof=made.code_proof).has_code(CODE)
    assert not replace(made, code_proof=b"").has_code(CODE)


def test_dates_bound_a_request() -> None:
    made = request()
    with pytest.raises(ProvisionError, match="expired on 2026-04-01"):
        made.verify(NOW + timedelta(days=30, seconds=1), "request")
    with pytest.raises(ProvisionError, match="compare the clocks"):
        made.verify(NOW - timedelta(minutes=11), "request")
    made.verify(NOW - timedelta(minutes=10), "request")
    with pytest.raises(ProvisionError, match="valid for more than 30 days"):
        replace(made, expires=made.expires + timedelta(days=1)).verify(NOW, "request")


def broken(change: Callable[[dict[str, object]], object]) -> bytes:
    table = json.loads(request().render())
    change(table)
    return json.dumps(table).encode()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no enrolment request"),
        (b"\xff", "no enrolment request"),
        (b"[" * 100_000, "no enrolment request"),
        (b"[" * 9_000, "no enrolment request"),
        (b"{}", "no enrolment request"),
        (b" " * (1 << 15), "no enrolment request"),
        (broken(lambda table: table.update(extra=1)), "no enrolment request"),
        (broken(lambda table: table.update(format="fcfl-enrolment-request/2")), "expected fcfl-enrolment-request/1"),
        (broken(lambda table: table.update(silo="../x")), "silo = "),
        (broken(lambda table: table.update(identity="00" * 31)), "64 hexadecimal digits"),
        (broken(lambda table: table.update(identity="01" + "00" * 31)), "low order"),
        (broken(lambda table: table.update(created="yesterday")), "expected a time"),
        (broken(lambda table: table.update(created=5)), "expected a time"),
        (broken(lambda table: table.update(node_key="ssh-ed25519 AAAA")), "P-384"),
        (broken(lambda table: table.update(node_key=7)), "P-384"),
        (broken(lambda table: table.update(replaces=[])), "P-384"),
        (broken(lambda table: table.update(proofs={})), "expected exactly identity, node, code"),
        (broken(lambda table: table.update(proofs={"identity": "zz", "node": "", "code": ""})), "hexadecimal"),
        (broken(lambda table: table.update(proofs={"identity": 1, "node": "", "code": ""})), "hexadecimal"),
    ],
)
def test_a_malformed_request_is_named_and_nothing_else_happens(data: bytes, reason: str) -> None:
    with pytest.raises(ProvisionError, match=reason) as caught:
        Request.parse(data, "request.json")
    assert str(caught.value).startswith("request.json: ")


def test_one_node_key_has_one_spelling() -> None:
    line = openssh_public(NODE)
    assert node_key_of(line + " somebody@somewhere", "key") == line
    p256 = ec.generate_private_key(ec.SECP256R1()).public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    with pytest.raises(ProvisionError, match="P-384"):
        node_key_of(p256.decode(), "key")
