"""Private keys: for their owner only, never over another file, never from a file that others can read."""

import os
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)

from experiments.provision import keys
from experiments.provision.errors import ProvisionError


def test_a_node_key_is_what_flower_reads() -> None:
    key = keys.new_key()
    # As flwr/supernode/cli/flower_supernode.py and flwr/cli/supernode/register.py do.
    private = load_ssh_private_key(keys.openssh(key), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert isinstance(private.curve, ec.SECP384R1)
    assert load_ssh_public_key(keys.openssh_public(key).encode()) == private.public_key()


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_a_key_is_written_for_its_owner_only_and_never_twice(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "a.key"
    before = os.umask(umask)
    try:
        keys.write_once(path, keys.pkcs8(keys.new_key()))
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    content = path.read_bytes()
    with pytest.raises(ProvisionError, match="never replaced"):
        keys.write_once(path, b"other")
    assert path.read_bytes() == content
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.key"]


def test_a_link_in_a_keys_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "a.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ProvisionError, match="exists already"):
        keys.write_once(tmp_path / "a.key", b"secret")
    assert not (tmp_path / "elsewhere").exists()


def test_a_full_disk_leaves_no_half_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        keys.write_once(tmp_path / "a.key", b"secret")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602])
def test_a_key_that_others_may_use_is_refused_with_the_way_out(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "a.key"
    keys.write_once(path, keys.pkcs8(keys.new_key()))
    path.chmod(mode)
    with pytest.raises(ProvisionError, match=f"mode {mode:04o}.*chmod 600"):
        keys.load_pkcs8(path)
    ssh = tmp_path / "node.key"
    keys.write_once(ssh, keys.openssh(keys.new_key()))
    ssh.chmod(mode)
    with pytest.raises(ProvisionError, match="chmod 600"):
        keys.load_openssh(ssh)


def test_a_passphrase_locks_a_key_and_only_itself_opens_it(tmp_path: Path) -> None:
    key = keys.new_key()
    path, plain = tmp_path / "locked.key", tmp_path / "plain.key"
    keys.write_once(path, keys.pkcs8(key, b"correct horse"))
    keys.write_once(plain, keys.pkcs8(key))
    assert (keys.is_locked(path), keys.is_locked(plain)) == (True, False)
    assert keys.load_pkcs8(path, b"correct horse").private_numbers() == key.private_numbers()
    with pytest.raises(ProvisionError, match="give its passphrase"):
        keys.load_pkcs8(path)
    with pytest.raises(ProvisionError, match="another passphrase") as caught:
        keys.load_pkcs8(path, b"battery staple")
    assert "battery" not in str(caught.value)
    with pytest.raises(ProvisionError, match="it has no passphrase"):
        keys.load_pkcs8(plain, b"correct horse")


def test_what_is_no_key_is_named(tmp_path: Path) -> None:
    other = ed25519.Ed25519PrivateKey.generate()
    pem = other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    ssh = other.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    for number, content in enumerate((b"", b"nonsense", pem, ssh)):
        path = tmp_path / f"{number}.key"
        keys.write_once(path, content)
        with pytest.raises(ProvisionError, match=str(path)):
            keys.load_pkcs8(path)
        with pytest.raises(ProvisionError, match="P-384"):
            keys.load_openssh(path)
    for missing in (tmp_path / "none.key", tmp_path):
        with pytest.raises(ProvisionError, match=str(missing)):
            keys.load_openssh(missing)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ProvisionError, match="not a file"):
        keys.load_openssh(tmp_path / "pipe")


def test_a_folder_in_which_others_may_write_is_refused(tmp_path: Path) -> None:
    keys.private_folder(tmp_path / "a" / "b")
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    (tmp_path / "a" / "b").chmod(0o770)
    with pytest.raises(ProvisionError, match="chmod 700"):
        keys.private_folder(tmp_path / "a" / "b")
