"""Keys: the RFCs' vectors through our functions, agreement, and separation of everything that differs."""

import dataclasses
import hashlib
import hmac
import os
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from secagg import keys
from secagg.cbor import encode
from secagg.errors import ProtocolError
from secagg.keys import Envelope, Scope

LOW_ORDER = [
    "00" * 32,
    "01" + "00" * 31,
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
    "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
    "ec" + "ff" * 30 + "7f",
    "ed" + "ff" * 30 + "7f",
    "ee" + "ff" * 30 + "7f",
]
# The same, their neighbours, and all of them with the bit that X25519 ignores.
NEAR = [
    ((int.from_bytes(bytes.fromhex(point), "little") + step) % (1 << 255) | top << 255).to_bytes(32, "little")
    for point in LOW_ORDER
    for step in (-2, -1, 0, 1, 2)
    for top in (0, 1)
]
SCOPE = Scope(1, bytes(16), 5)
A, B = os.urandom(32), os.urandom(32)
PK_A, PK_B = keys.public_key(A), keys.public_key(B)
PRIVATE_A, PRIVATE_B = X25519PrivateKey.from_private_bytes(A), X25519PrivateKey.from_private_bytes(B)
DIGEST = hashlib.sha256(b"announcement").digest()


def test_x25519_is_that_of_rfc_7748() -> None:
    alice = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
    bob = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    public_a = bytes.fromhex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")
    public_b = bytes.fromhex("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f")
    shared = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
    assert keys.public_key(alice) == public_a
    assert keys.public_key(bob) == public_b
    assert keys.agree(X25519PrivateKey.from_private_bytes(alice), public_b, "bob") == shared
    assert keys.agree(X25519PrivateKey.from_private_bytes(bob), public_a, "alice") == shared
    scalar = bytes.fromhex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4")
    point = bytes.fromhex("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c")
    result = bytes.fromhex("c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552")
    assert keys.agree(X25519PrivateKey.from_private_bytes(scalar), point, "x") == result


def test_hkdf_is_that_of_rfc_5869() -> None:
    okm = keys.hkdf(b"\x0b" * 22, bytes.fromhex("f0f1f2f3f4f5f6f7f8f9"), bytes(range(13)), 42)
    expected = "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    assert okm == bytes.fromhex(expected)
    no_salt = "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"
    assert keys.hkdf(b"\x0b" * 22, b"", None, 42) == bytes.fromhex(no_salt)


@pytest.mark.parametrize("point", LOW_ORDER)
def test_keys_of_low_order_are_refused_by_name(point: str) -> None:
    with pytest.raises(ProtocolError, match="silo-07"):
        keys.agree(PRIVATE_A, bytes.fromhex(point), "silo-07")
    with pytest.raises(ProtocolError, match="silo-07"):
        keys.check_public_key(bytes.fromhex(point), "silo-07")


@given(st.binary(min_size=32, max_size=32) | st.sampled_from(NEAR))
def test_a_key_is_refused_where_it_enters_exactly_if_agreeing_with_it_would_fail(key: bytes) -> None:
    def refused(act: Callable[[], object]) -> bool:
        try:
            act()
        except ProtocolError:
            return True
        return False

    assert refused(lambda: keys.check_public_key(key, "a")) == refused(lambda: keys.agree(PRIVATE_A, key, "a"))


def test_malformed_keys_are_refused() -> None:
    with pytest.raises(ProtocolError, match="silo-07"):
        keys.agree(PRIVATE_A, bytes(31), "silo-07")


def test_both_ends_of_a_pair_derive_the_documented_key() -> None:
    one = keys.pair_key(SCOPE, PRIVATE_A, ("a", PK_A), ("b", PK_B), DIGEST)
    other = keys.pair_key(SCOPE, PRIVATE_B, ("b", PK_B), ("a", PK_A), DIGEST)
    info = encode([b"fcfl-secagg/2/pairwise-mask", 1, bytes(16), 5, "a", "b", PK_A, PK_B, DIGEST])
    extracted = hmac.new(bytes(32), keys.agree(PRIVATE_A, PK_B, "b"), hashlib.sha256).digest()
    assert one == other == hmac.new(extracted, info + b"\x01", hashlib.sha256).digest()


@pytest.mark.parametrize(
    "change",
    [
        {"scope": Scope(2, bytes(16), 5)},
        {"scope": Scope(1, b"\x01" * 16, 5)},
        {"scope": Scope(1, bytes(16), 6)},
        {"own": ("c", PK_A)},
        {"peer": ("a2", PK_B)},
        {"announcement_hash": bytes(32)},
    ],
)
def test_a_pair_key_depends_on_everything_it_is_bound_to(change: dict[str, Any]) -> None:
    base: dict[str, Any] = {
        "scope": SCOPE, "private": PRIVATE_A, "own": ("a", PK_A), "peer": ("b", PK_B), "announcement_hash": DIGEST
    }  # fmt: skip
    assert keys.pair_key(**base) != keys.pair_key(**{**base, **change})


def test_self_mask_key_commitment_and_pair_key_are_separate_and_bound() -> None:
    derived = {
        keys.self_mask_key(SCOPE, "a", PK_A, A, DIGEST),
        keys.self_mask_key(Scope(1, bytes(16), 6), "a", PK_A, A, DIGEST),
        keys.self_mask_key(SCOPE, "b", PK_A, A, DIGEST),
        keys.self_mask_key(SCOPE, "a", PK_B, A, DIGEST),
        keys.self_mask_key(SCOPE, "a", PK_A, B, DIGEST),
        keys.self_mask_key(SCOPE, "a", PK_A, A, bytes(32)),
        keys.commit_seed(SCOPE, "a", A),
        keys.commit_seed(SCOPE, "b", A),
        keys.commit_seed(SCOPE, "a", B),
        keys.commit_seed(Scope(1, bytes(16), 6), "a", A),
    }
    assert len(derived) == 10


ENVELOPE = Envelope(SCOPE, "a", "b", PK_A, PK_B, sender_mask_key=bytes(32))
SHARES = (b"\x00" + os.urandom(32), b"\x00" + os.urandom(32))


def test_sealed_shares_open_for_the_receiver_only() -> None:
    sealed = keys.seal_shares(ENVELOPE, PRIVATE_A, *SHARES)
    assert len(sealed) == 94
    assert keys.open_shares(ENVELOPE, PRIVATE_B, sealed) == SHARES
    assert keys.open_shares(ENVELOPE, X25519PrivateKey.generate(), sealed) is None


@pytest.mark.parametrize(
    "change",
    [
        {"scope": Scope(1, bytes(16), 6)},
        {"scope": Scope(1, b"\x01" * 16, 5)},
        {"sender": "c"},
        {"receiver": "c"},
        {"sender_mask_key": b"\x01" * 32},
        {"receiver_key": PK_A},
    ],
)
def test_shares_sealed_for_one_purpose_do_not_open_for_another(change: dict[str, Any]) -> None:
    sealed = keys.seal_shares(ENVELOPE, PRIVATE_A, *SHARES)
    assert keys.open_shares(dataclasses.replace(ENVELOPE, **change), PRIVATE_B, sealed) is None


def test_a_ciphertext_does_not_open_in_the_other_direction() -> None:
    sealed = keys.seal_shares(ENVELOPE, PRIVATE_A, *SHARES)
    back = Envelope(SCOPE, "b", "a", PK_B, PK_A, sender_mask_key=bytes(32))
    assert keys.open_shares(back, PRIVATE_A, sealed) is None


@pytest.mark.parametrize("position", [0, 11, 12, 50, 93])
def test_altered_or_short_ciphertexts_do_not_open(position: int) -> None:
    sealed = keys.seal_shares(ENVELOPE, PRIVATE_A, *SHARES)
    altered = sealed[:position] + bytes([sealed[position] ^ 1]) + sealed[position + 1 :]
    assert keys.open_shares(ENVELOPE, PRIVATE_B, altered) is None
    assert keys.open_shares(ENVELOPE, PRIVATE_B, sealed[:position]) is None


def test_sealing_twice_uses_two_nonces() -> None:
    one, two = (keys.seal_shares(ENVELOPE, PRIVATE_A, *SHARES) for _ in range(2))
    assert one[:12] != two[:12]


def test_kept_agreements_open_what_the_bare_key_sealed_and_refuse_what_it_refuses() -> None:
    kept = keys.Agreements(PRIVATE_B)
    for _ in range(2):
        sealed = keys.seal_shares(ENVELOPE, PRIVATE_A, *SHARES)
        assert keys.open_shares(ENVELOPE, kept, sealed) == SHARES
        with pytest.raises(ProtocolError, match="mallory"):
            keys.agree(kept, bytes(32), "mallory")
