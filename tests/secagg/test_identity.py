"""Identity keys: only canonical points that one party alone can sign for."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from privacy import signing
from secagg.errors import ProtocolError
from secagg.identity import UNSIGNED, acceptable, fingerprint, holds, identity, on_curve
from tests.secagg.signers import TestSigner

P = 2**255 - 19
EIGHTH = (
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
)
# RFC 8032, section 7.1: private key, public key, message, signature.
KNOWN = [
    (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655"
        "141438e7a100b",
    ),
    (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00"
        "d291612bb0c00",
    ),
]


def encoded(y: int, sign: int) -> bytes:
    return (y | sign << 255).to_bytes(32, "little")


@pytest.mark.parametrize("sign", [0, 1])
@pytest.mark.parametrize("y", [0, 1, P - 1, *(int.from_bytes(bytes.fromhex(text), "little") for text in EIGHTH)])
def test_points_of_low_order_are_refused_with_either_sign(y: int, sign: int) -> None:
    assert not acceptable(encoded(y, sign))
    with pytest.raises(ProtocolError, match="low order"):
        identity(encoded(y, sign), "enrolment.identity_key")


@pytest.mark.parametrize("sign", [0, 1])
@pytest.mark.parametrize("excess", range(19))
def test_no_encoding_beyond_the_field_is_accepted(excess: int, sign: int) -> None:
    assert not acceptable(encoded(P + excess, sign))


def test_bytes_that_are_no_point_of_the_curve_are_told_and_no_signature_holds_under_them() -> None:
    off = [key for y in range(2, 202) if not on_curve(key := encoded(y, 0))]
    assert 60 < len(off) < 140
    assert off[0] == encoded(2, 0)
    assert on_curve(encoded(3, 0)) == on_curve(encoded(3, 1))
    signature = TestSigner.of("a").sign(b"message")
    assert not any(holds(key, b"message", signature) for key in off)


@given(seed=st.binary(min_size=32, max_size=32))
def test_every_real_key_is_accepted(seed: bytes) -> None:
    key = Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
    assert acceptable(key)
    assert on_curve(key)
    assert identity(key, "x") == key


@pytest.mark.parametrize("value", [b"", bytes(31), bytes(33), "00" * 32, None, 5])
def test_other_things_than_32_bytes_are_refused_by_the_path_of_the_field(value: object) -> None:
    with pytest.raises(ProtocolError, match=r"roster-entry\.identity_key"):
        identity(value, "roster-entry.identity_key")


@pytest.mark.parametrize(("key", "message", "signature"), KNOWN)
def test_the_known_signatures_of_rfc_8032_hold_and_no_changed_one_does(key: str, message: str, signature: str) -> None:
    public, said, signed = bytes.fromhex(key), bytes.fromhex(message), bytes.fromhex(signature)
    assert holds(public, said, signed)
    assert not holds(public, said + b"x", signed)
    for position in (0, 31, 32, 63):
        changed = bytearray(signed)
        changed[position] ^= 1
        assert not holds(public, said, bytes(changed))
    assert not holds(public, said, signed[:63])
    # S + L says the same to a careless verifier: a second signature without the key.
    order = 2**252 + 27742317777372353535851937790883648493
    again = signed[:32] + (int.from_bytes(signed[32:], "little") + order).to_bytes(32, "little")
    assert not holds(public, said, again)


def test_what_an_unsigned_message_carries_holds_under_no_key() -> None:
    for name in ("a", "b", "c"):
        assert not holds(TestSigner.of(name).public_key, b"message", UNSIGNED)
    for y in (0, 1, P - 1):
        assert not holds(encoded(y, 0), b"message", UNSIGNED)
        assert not holds(encoded(y, 0), b"message", encoded(1, 0) + bytes(32))


def test_ledgers_and_messages_know_the_same_fingerprints_and_refuse_the_same_points() -> None:
    key = TestSigner.of("a").public_key
    assert fingerprint(key) == signing.fingerprint(key)
    assert signing.usable(key)
    assert not any(acceptable(point) for point in signing._LOW_ORDER)
