"""A kit is the authority's word for one silo: the same bytes each time, no secret in it, no change unnoticed."""

import io
import tarfile
from collections.abc import Callable
from datetime import timedelta

import pytest

from client_app.policy import Policy, parse_settings
from experiments.provision import certificates
from experiments.provision import kit as kits
from experiments.provision.errors import ProvisionError
from experiments.provision.keys import new_key
from experiments.provision.template import example_settings
from secagg.pins import PinnedRoster
from tests.experiments.provision.conftest import DECLARED, NOW, Operator


@pytest.fixture
def two(operator: Operator) -> Operator:
    operator.enrol("bank-a", "Bank A, Zürich")
    operator.enrol("bank-b", "Bank B, Oslo")
    return operator


def unpack(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {entry.name: tar.extractfile(entry).read() for entry in tar}  # type: ignore[union-attr]


def pack(files: dict[str, bytes], **odd: object) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            for field, value in odd.items() if name == "ca.crt" else ():
                setattr(entry, field, value)
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def test_a_kit_opens_with_the_fingerprint_of_its_authority(two: Operator) -> None:
    kit = kits.read(two.kit("bank-a"), two.fingerprint.lower().replace("-", " "), NOW, "kit")
    assert (kit.silo, kit.federation, kit.revision) == ("bank-a", "Trial", 2)
    pins = PinnedRoster.parse(kit.files["roster.toml"].decode(), "roster").pins
    assert [(pin.name, pin.comment) for pin in pins] == [("bank-a", "Bank A, Zürich"), ("bank-b", "Bank B, Oslo")]
    assert kit.identity == pins[0].identity


def test_the_same_kit_is_the_same_bytes_and_any_tar_opens_it(two: Operator) -> None:
    assert two.kit("bank-a") == two.kit("bank-a")
    assert two.kit("bank-a") != two.kit("bank-b")
    with tarfile.open(fileobj=io.BytesIO(two.kit("bank-a"))) as tar:
        assert {(entry.mtime, entry.uid, entry.uname, entry.mode) for entry in tar} == {(0, 0, "", 0o644)}


def test_a_kit_holds_no_private_key_and_of_other_silos_only_their_line_in_the_roster(two: Operator) -> None:
    kit = two.kit("bank-a")
    secrets = [
        *(path for name in ("bank-a", "bank-b") for path in two.home(name).glob("*.key")),
        *two.project.root.rglob("*.key"),
    ]
    assert len(secrets) == 6
    for path in secrets:
        # Every line of a PEM body, so that no part of a key under another frame would pass.
        for line in path.read_bytes().splitlines():
            assert line.startswith(b"-----") or line not in kit
    assert b"PRIVATE" not in kit
    files = unpack(kit)
    other = two.project.state().need("bank-b")
    for name, content in files.items():
        assert other.node_key.encode() not in content
        if name != "roster.toml":
            assert b"bank-b" not in content
            assert b"Bank B" not in content
            assert other.identity.encode() not in content
    assert set(files) == {*kits.FILES, kits.MANIFEST, kits.SIGNATURE}


CHANGES: dict[str, Callable[[dict[str, bytes]], None]] = {
    "roster": lambda files: files.update({"roster.toml": files["roster.toml"] + b"\n"}),
    "example": lambda files: files.update({"silo.example.toml": b""}),
    "connection": lambda files: files.update({"connection.toml": files["connection.toml"].replace(b"fl.", b"ev.")}),
    "manifest": lambda files: files.update({"manifest.json": files["manifest.json"].replace(b": 2", b": 9")}),
    "signature": lambda files: files.update({"manifest.sig": files["manifest.sig"][:-1]}),
    "no signature": lambda files: files.update({"manifest.sig": b""}),
    "missing file": lambda files: files.pop("roster.toml") and None,  # type: ignore[func-returns-value]
    "further file": lambda files: files.update({"start.sh": b"rm -rf /"}),
    "way out": lambda files: files.update({"../silo.toml": b"x"}),
}


@pytest.mark.parametrize("what", CHANGES)
def test_whatever_is_changed_in_a_kit_shows(two: Operator, what: str) -> None:
    files = unpack(two.kit("bank-a"))
    CHANGES[what](files)
    with pytest.raises(ProvisionError, match="kit: "):
        kits.read(pack(files), two.fingerprint, NOW, "kit")


def test_a_kit_repacked_without_a_change_still_opens(two: Operator) -> None:
    assert kits.read(pack(unpack(two.kit("bank-a"))), two.fingerprint, NOW, "kit").silo == "bank-a"


@pytest.mark.parametrize(
    "odd", [{"type": tarfile.SYMTYPE, "linkname": "/etc/passwd", "size": 0}, {"type": tarfile.DIRTYPE, "size": 0}]
)
def test_links_and_folders_are_no_part_of_a_kit(two: Operator, odd: dict[str, object]) -> None:
    with pytest.raises(ProvisionError, match=r"ca\.crt.*no part of a kit"):
        kits.read(pack(unpack(two.kit("bank-a")), **odd), two.fingerprint, NOW, "kit")


def test_a_kit_that_is_cut_off_or_no_tar_is_refused(two: Operator) -> None:
    data = two.kit("bank-a")
    for bad in (b"", b"x" * 2000, data[:700], data[:-9000], b"\x1f\x8b" + data):
        with pytest.raises(ProvisionError, match="kit: "):
            kits.read(bad, two.fingerprint, NOW, "kit")


def test_a_kit_of_another_authority_is_refused_with_both_ways_to_go_on(two: Operator) -> None:
    key = new_key()
    evil = certificates.authority(key, "Trial", NOW, 3650)
    forged = kits.build(DECLARED, two.project.state(), "bank-a", evil, key)
    with pytest.raises(ProvisionError, match="not by the one whose fingerprint was given"):
        kits.read(forged, two.fingerprint, NOW, "kit")
    mixed = unpack(forged) | {"ca.crt": certificates.pem(two.project.ca())}
    with pytest.raises(ProvisionError, match="not signed by its authority"):
        kits.read(pack(mixed), two.fingerprint, NOW, "kit")


def test_a_kit_of_an_ended_authority_is_refused(two: Operator) -> None:
    with pytest.raises(ProvisionError, match="not valid now"):
        kits.read(two.kit("bank-a"), two.fingerprint, NOW + timedelta(days=3651), "kit")


def test_only_enrolled_silos_have_a_kit(two: Operator) -> None:
    two.expect("bank-c")
    for name, reason in (("bank-c", "not signed yet"), ("bank-z", "not known here")):
        with pytest.raises(ProvisionError, match=reason):
            two.kit(name)


def test_the_example_settings_are_the_defaults_with_every_key_of_the_policy(two: Operator) -> None:
    text = example_settings("bank-a")
    found = parse_settings(two.root / "silo.toml", text.encode())
    assert found.name == "bank-a"
    assert found.policy == Policy(epsilon=1.0, delta=1e-5)
    assert found.roster == two.root / "roster.toml"
    written = {line.split(" = ")[0] for line in text.splitlines() if " = " in line and not line.startswith("#")}
    assert set(vars(found.policy)) <= written
