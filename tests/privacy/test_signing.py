"""Identity keys: made once, readable by their owner only, never shown, and refused with a sentence that helps."""

import copy
import os
import pickle
import stat
import traceback
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from privacy import signing
from privacy.errors import IdentityError
from privacy.signing import SigningKey, fingerprint, read_public_key, signed_by, usable

IDENTITY_POINT = b"\x01" + bytes(31)


def pem(private: Ed25519PrivateKey | X25519PrivateKey, password: bytes = b"") -> bytes:
    protection = BestAvailableEncryption(password) if password else NoEncryption()
    return private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, protection)


def secrets_of(path: Path) -> list[str]:
    """The private key in every form it could be printed in."""
    private = load_pem_private_key(path.read_bytes(), None)
    assert isinstance(private, Ed25519PrivateKey)
    raw = private.private_bytes_raw()
    return [raw.hex(), repr(raw)[2:-1], str(list(raw))[1:-1], path.read_text().splitlines()[1]]


def test_a_key_is_whole_durable_and_its_owners_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (synced.append(handle), real(handle))[1])
    old = os.umask(0)
    try:
        made = SigningKey.create(tmp_path / "identity.key")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "identity.key").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "identity.pub").stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["identity.key", "identity.pub"]
    assert len(synced) == 4, "each file and its folder"
    assert SigningKey.load(tmp_path / "identity.key") == made
    assert read_public_key(tmp_path / "identity.pub") == made.public_key
    assert signed_by(made.public_key, b"label message", made.sign(b"label message"))


@pytest.mark.parametrize("there", ["identity.key", "identity.pub", "identity.key.new"])
def test_no_key_replaces_another(tmp_path: Path, there: str) -> None:
    (tmp_path / there).write_bytes(b"kept")
    with pytest.raises(IdentityError, match=rf"{there}: exists already"):
        SigningKey.create(tmp_path / "identity.key")
    assert [path.name for path in tmp_path.iterdir()] == [there]
    assert (tmp_path / there).read_bytes() == b"kept"


def test_of_two_that_make_a_key_at_once_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one makes its key after this one has looked, before or while this one writes."""
    path, real, made = tmp_path / "identity.key", signing.write_fresh, []

    def late(fresh: Path, data: bytes, extra: int) -> None:
        monkeypatch.setattr(signing, "write_fresh", real)
        made.append(SigningKey.create(path))
        real(fresh, data, extra)

    monkeypatch.setattr(signing, "write_fresh", late)
    with pytest.raises(IdentityError, match=r"identity\.key: exists already"):
        SigningKey.create(path)
    assert SigningKey.load(path) == made[0]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["identity.key", "identity.pub"]

    other = tmp_path / "other.key"

    def meanwhile(fresh: Path, data: bytes, extra: int) -> None:
        fresh.write_bytes(b"another process is writing this")
        real(fresh, data, extra)

    monkeypatch.setattr(signing, "write_fresh", meanwhile)
    with pytest.raises(IdentityError, match=r"cannot be written \(File exists\)"):
        SigningKey.create(other)
    assert not other.exists()


@pytest.mark.parametrize("when", range(1, 5))
def test_a_power_cut_leaves_a_whole_key_or_none(tmp_path: Path, when: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter(range(1, 100))

    def fail(_: int) -> None:
        if next(calls) == when:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(IdentityError, match=r"identity\.key: cannot be written \(Input/output error\)"):
        SigningKey.create(tmp_path / "identity.key")
    if (tmp_path / "identity.key").exists():
        SigningKey.load(tmp_path / "identity.key")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o610, 0o644, 0o602])
def test_a_key_that_others_may_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "identity.key"
    SigningKey.create(path)
    path.chmod(mode)
    with pytest.raises(IdentityError, match=f"identity.key: others .*mode 0{mode:o}.*chmod 600"):
        SigningKey.load(path)
    path.chmod(0o400)
    SigningKey.load(path)


def test_a_lost_key_is_named_and_not_made_again(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    with pytest.raises(IdentityError, match=r"identity\.key: the identity key is missing; restore it from its backup"):
        SigningKey.load(path)
    assert list(tmp_path.iterdir()) == []
    path.mkdir()
    with pytest.raises(IdentityError, match="not a file"):
        SigningKey.load(path)
    path.rmdir()
    os.mkfifo(path, 0o600)
    with pytest.raises(IdentityError, match="not a file"):
        SigningKey.load(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 32,
        b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
        pem(X25519PrivateKey.generate()),
        pem(Ed25519PrivateKey.generate(), b"password"),
        pem(Ed25519PrivateKey.generate())[:-40],
    ],
    ids=["empty", "zeros", "no key", "another kind", "encrypted", "cut off"],
)
def test_what_is_no_key_is_refused_without_showing_it(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "identity.key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(IdentityError, match="not an unencrypted Ed25519 private key") as caught:
        SigningKey.load(path)
    shown = "".join(traceback.format_exception(caught.value))
    assert not any(line in shown for line in content.decode("latin-1").splitlines()[1:-1] if len(line) > 8)


def test_the_private_half_is_never_shown(tmp_path: Path) -> None:
    key = SigningKey.create(tmp_path / "identity.key")
    shown = [repr(key), str(key), f"{key!r}", repr(vars(SigningKey))]
    for take in (pickle.dumps, copy.deepcopy):
        try:
            shown.append(repr(take(key)))
        except TypeError as error:
            shown.append(repr(error))
    with pytest.raises(AttributeError) as caught:
        key.private  # type: ignore[attr-defined]  # noqa: B018
    shown.append("".join(traceback.format_exception(caught.value)))
    for secret in secrets_of(tmp_path / "identity.key"):
        assert not any(secret in text for text in shown)
    assert key.public_key.hex() not in secrets_of(tmp_path / "identity.key")


def test_a_public_key_file_is_checked(tmp_path: Path) -> None:
    key = SigningKey.create(tmp_path / "identity.key")
    with pytest.raises(IdentityError, match=r"identity\.key: not an Ed25519 public key") as caught:
        read_public_key(tmp_path / "identity.key")
    assert not any(secret in str(caught.value) for secret in secrets_of(tmp_path / "identity.key"))
    with pytest.raises(IdentityError, match=r"none: cannot be read"):
        read_public_key(tmp_path / "none")
    assert fingerprint(key.public_key) == key.fingerprint
    assert key.fingerprint.startswith("SHA256:")


def test_keys_anyone_can_sign_for_are_refused() -> None:
    """Without the list, the neutral point as public key and as R with S = 0 signs every message."""
    forged = IDENTITY_POINT + bytes(32)
    Ed25519PublicKey.from_public_bytes(IDENTITY_POINT).verify(forged, b"any message")
    assert not signed_by(IDENTITY_POINT, b"any message", forged)
    for point in signing._LOW_ORDER:
        assert not usable(point)
        assert not usable(point[:31] + bytes([point[31] | 0x80]))
    assert not usable(bytes(31))
    assert not signed_by(b"\x02" + bytes(31), b"any message", forged), "no point of the curve"


def test_known_answer() -> None:
    """RFC 8032, section 7.1, test 2."""
    private = Ed25519PrivateKey.from_private_bytes(
        bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb")
    )
    key = SigningKey._of(private, "memory")
    assert key.public_key.hex() == "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"
    assert key.sign(b"\x72").hex() == (
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
    )
