"""A second implementation, from docs/secure-aggregation.md alone, without a line of the room, gets the same bytes."""

import hashlib
import hmac
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cbor2
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import ECB

VECTORS = Path(__file__).parent / "vectors" / "round_of_five.json"
SEGMENTS = (("A", 4, 4), ("C", 2, 8))
KNOWN: dict[str, Any] = json.loads(VECTORS.read_text(encoding="utf-8"))
IDS, T = ("alpha", "bravo", "charlie", "delta", "echo"), 4
SURVIVORS = IDS[:4]
PRIME = 2**256 + 297
SCOPE = [2, bytes(range(16)), 7]
LAYOUT = {
    "segments": [
        {"name": "A", "length": 4, "bits": 32, "bound": 8.0, "step": 2.0**-20},
        {"name": "C", "length": 2, "bits": 64, "bound": 1e6, "step": 2.0**-30},
    ],
    "parties": 5,
}


def cbor(value: object) -> bytes:
    return cbor2.dumps(value, canonical=True)


def packed(entries: dict[str, bytes]) -> list[object]:
    return [" ".join(sorted(entries)), b"".join(entries[silo] for silo in sorted(entries))]


def labelled(label: str, value: object) -> bytes:
    return hashlib.sha256(cbor([b"fcfl-secagg/2/" + label.encode(), value])).digest()


def message(kind: str, **fields: object) -> dict[str, object]:
    return {"type": f"fcfl-secagg/2/{kind}", **fields}


def hkdf(secret: bytes, label: str, *context: object) -> bytes:
    extracted = hmac.digest(bytes(32), secret, "sha256")
    info = cbor([b"fcfl-secagg/2/" + label.encode(), *SCOPE, *context])
    return hmac.digest(extracted, info + b"\x01", "sha256")


def public(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def exchange(private: bytes, peer: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(peer))


def entropy(silo: int) -> Callable[[int], bytes]:
    requests = iter(range(1, 1000))
    return lambda size: hashlib.shake_256(f"fcfl-secagg/vectors/{silo}/{next(requests)}".encode()).digest(size)


def share(secret: bytes, draw: Callable[[int], bytes]) -> list[bytes]:
    drawn = [int.from_bytes(draw(49), "big") % PRIME for _ in range(T - 1)]
    powers = [*drawn, int.from_bytes(secret, "big")]
    return [
        (sum(c * x ** (T - 1 - i) for i, c in enumerate(powers)) % PRIME).to_bytes(33, "big")
        for x in range(1, len(IDS) + 1)
    ]


def mask(key: bytes, name: str, length: int, width: int) -> list[int]:
    subkey = hmac.digest(key, cbor([b"fcfl-secagg/2/segment", name]) + b"\x01", "sha256")
    block = Cipher(AES256(subkey), ECB()).encryptor()
    stream = b"".join(block.update(i.to_bytes(16, "big")) for i in range(8))
    return [int.from_bytes(stream[i * width : (i + 1) * width], "little") for i in range(length)]


class Silo:
    def __init__(self, position: int) -> None:
        self.id = IDS[position]
        self.draw = entropy(position)
        self.encryption = self.draw(32)
        seed = hashlib.shake_256(f"fcfl-secagg/vectors/{position}/identity".encode()).digest(32)
        self.identity = Ed25519PrivateKey.from_private_bytes(seed)

    def sign(self, label: str, *said: object) -> bytes:
        return self.identity.sign(cbor([b"fcfl-secagg/2/sign-" + label.encode(), 2, SCOPE[1], *said]))

    def enrol(self) -> None:
        commitment = labelled("graph-nonce-commitment", [2, SCOPE[1], self.id, self.draw(32)])
        salt = self.draw(32)
        keys = [self.identity.public_key().public_bytes_raw(), public(self.encryption), commitment]
        details = labelled("enrolment-details", [1000, "fcfl", salt])
        signature = self.sign("enrolment", self.id, *keys, details)
        common = {
            "silo_id": self.id,
            "identity_key": keys[0],
            "encryption_key": keys[1],
            "nonce_commitment": commitment,
        }
        self.enrolment = message("enrolment", **common, records=1000, software="fcfl", salt=salt, signature=signature)
        self.entry = message("roster-entry", **common, details=details, signature=signature)

    def make_bundle(self, others: list["Silo"], roster_hash: bytes) -> None:
        self.mask_private, self.seed = self.draw(32), self.draw(32)
        self.mask_key = public(self.mask_private)
        self.mask_shares, self.seed_shares = share(self.mask_private, self.draw), share(self.seed, self.draw)
        self.ciphertexts = {}
        for position, peer in enumerate(others):
            if peer is self:
                continue
            nonce, keys = self.draw(12), [public(self.encryption), public(peer.encryption)]
            key = hkdf(exchange(self.encryption, keys[1]), "share-encryption", self.id, peer.id, *keys)
            bound = cbor([b"fcfl-secagg/2/share-associated-data", *SCOPE, self.id, peer.id, self.mask_key])
            pair = self.mask_shares[position] + self.seed_shares[position]
            self.ciphertexts[peer.id] = nonce + AESGCM(key).encrypt(nonce, pair, bound)
        commitment = labelled("seed-commitment", [*SCOPE, self.id, self.seed])
        named = [self.id, 7, self.mask_key, commitment, labelled("ciphertexts", packed(self.ciphertexts))]
        self.bundle_hash = labelled("bundle-hash", named)
        fields = dict(zip(("sender", "epoch", "mask_key", "seed_commitment", "ciphertext_hash"), named, strict=True))
        signature = self.sign("bundle", roster_hash, 7, self.id, *named[2:])
        self.bundle = message(
            "bundle",
            public=message("bundle-public", **fields, signature=signature),
            ciphertexts=packed(self.ciphertexts),
        )

    def masked(self, others: list["Silo"], digest: bytes, name: str, length: int, width: int) -> bytes:
        total = list(KNOWN["encoded"][name])
        keys = [(1, hkdf(self.seed, "self-mask", self.id, self.mask_key, digest))]
        for peer in others:
            if peer is not self:
                one, two = sorted((self, peer), key=lambda silo: silo.id)
                context = [one.id, two.id, one.mask_key, two.mask_key, digest]
                key = hkdf(exchange(self.mask_private, peer.mask_key), "pairwise-mask", *context)
                keys.append((1 if self is one else -1, key))
        for sign, key in keys:
            total = [value + sign * word for value, word in zip(total, mask(key, name, length, width), strict=True)]
        return b"".join((value % (1 << 8 * width)).to_bytes(width, "little") for value in total)

    def vouched(self, others: list["Silo"], digest: bytes) -> tuple[bytes, bytes]:
        """The hash of the masked arrays, and the signature over them and the announcement."""
        vector = {name: self.masked(others, digest, name, length, width) for name, length, width in SEGMENTS}
        arrays_hash = labelled("masked-arrays", {name: hashlib.sha256(data).digest() for name, data in vector.items()})
        return arrays_hash, self.sign("masked-input", 7, self.id, digest, [0, bytes(32)], arrays_hash)


def test_a_second_implementation_gets_the_same_bytes() -> None:
    silos = [Silo(i) for i in range(len(IDS))]
    for s in silos:
        s.enrol()
    assert cbor(silos[0].enrolment).hex() == KNOWN["enrolment_alpha"]
    roster = message("roster", entries=[s.entry for s in silos])
    run = message("run", version=2, run_id=SCOPE[1], roster=roster, threshold=T, max_colluders=0)
    assert cbor(run).hex() == KNOWN["run"]
    roster_hash = labelled("roster-hash", cbor(roster))
    assert roster_hash.hex() == KNOWN["roster_hash"]
    for s in silos:
        s.make_bundle(silos, roster_hash)
    assert cbor(silos[0].bundle).hex() == KNOWN["bundle_alpha"]
    assert silos[0].bundle_hash.hex() == KNOWN["bundle_hash_alpha"]

    announcement = message(
        "announcement", version=2, run_id=SCOPE[1], epoch=7, roster_hash=roster_hash,
        participants=[[s.id, s.bundle_hash] for s in silos], layout=LAYOUT,
        outcomes=[message("epoch-outcome", epoch=6, status="completed", survivors=list(IDS))],
        ledger_heads={"alpha": b"head"}, context=b"plan",
    )  # fmt: skip
    assert cbor(announcement).hex() == KNOWN["announcement"]
    digest = labelled("announcement-hash", cbor(announcement))
    assert digest.hex() == KNOWN["announcement_hash"]
    for s in silos:
        for name, length, width in SEGMENTS:
            assert s.masked(silos, digest, name, length, width).hex() == KNOWN["masked"][s.id][name]

    alpha = silos[0]
    arrays_hash, signature = alpha.vouched(silos, digest)
    head = message(
        "masked-input", sender="alpha", epoch=7, announcement_hash=digest, ledger_head=[0, bytes(32)],
        arrays_hash=arrays_hash, signature=signature,
    )  # fmt: skip
    assert cbor(head).hex() == KNOWN["masked_header_alpha"]
    request = message("unmask-request", run_id=SCOPE[1], epoch=7, announcement_hash=digest, survivors=list(SURVIVORS))
    assert cbor(request).hex() == KNOWN["unmask_request"]
    rows = [[[0, bytes(32)], *s.vouched(silos, digest)] for s in silos if s.id in SURVIVORS]
    assert cbor(message("unmask-call", request=request, vectors=rows)).hex() == KNOWN["unmask_call"]
    shares = packed({s.id: s.seed_shares[0] for s in silos if s.id in SURVIVORS})
    lost = packed({s.id: s.mask_shares[0] for s in silos if s.id not in SURVIVORS})
    request_hash = labelled("unmask-request-hash", cbor(request))
    reply = message(
        "unmask-shares", sender="alpha", epoch=7, self_mask_shares=shares, mask_key_shares=lost,
        signature=alpha.sign("unmask-shares", 7, "alpha", request_hash, shares, lost),
    )  # fmt: skip
    assert cbor(reply).hex() == KNOWN["unmask_shares_alpha"]
    assert KNOWN["sum"] == {name: [4 * value for value in KNOWN["encoded"][name]] for name in ("A", "C")}


@pytest.mark.parametrize(("name", "width"), [("A", 4), ("C", 8)])
def test_the_known_masked_vectors_differ_from_their_common_input(name: str, width: int) -> None:
    plain = b"".join((v % (1 << 8 * width)).to_bytes(width, "little") for v in KNOWN["encoded"][name]).hex()
    assert len({plain, *(arrays[name] for arrays in KNOWN["masked"].values())}) == 6
