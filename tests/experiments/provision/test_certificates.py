"""Certificates that TLS accepts for exactly the declared names, and for nothing else."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from experiments.provision import certificates
from experiments.provision.errors import ProvisionError
from experiments.provision.federation import Server
from experiments.provision.keys import new_key, pkcs8
from tests.experiments.provision.handshake import client, shake

NOW = datetime.now(UTC).replace(microsecond=0)
LONG = ".".join(["coordinator-of-the-federation"] * 5) + ".example.org"
KEY = new_key()
CA = certificates.authority(KEY, "Trial", NOW, 3650)


def write(folder: Path, server: Server, *, now: datetime = NOW, days: int = 397, issuer: x509.Certificate = CA) -> Path:
    own = new_key()
    held = certificates.server_certificate(KEY, issuer, own.public_key(), server, now, days)
    folder.mkdir(exist_ok=True)
    (folder / "server.key").write_bytes(pkcs8(own))
    (folder / "server.crt").write_bytes(certificates.pem(held))
    return folder


def load(folder: Path) -> x509.Certificate:
    return certificates.read((folder / "server.crt").read_bytes(), "server.crt")


@pytest.mark.parametrize("strict", [False, True])
def test_every_declared_name_and_address_passes_tls_with_host_name_verification(tmp_path: Path, strict: bool) -> None:
    server = Server.of(LONG, 443, ["superlink", "bücher.example"], ["127.0.0.1", "2001:db8::7"], "server")
    folder = write(tmp_path / "server", server)
    for host in (LONG, LONG.upper(), "superlink", "xn--bcher-kva.example", "127.0.0.1", "2001:db8::7"):
        assert shake(client(certificates.pem(CA), strict=strict), folder, host) == "TLSv1.3"


@pytest.mark.parametrize("host", ["example.org", "a.fl.example.org", "127.0.0.2", "fl.example.or"])
def test_another_name_is_refused_by_tls(tmp_path: Path, host: str) -> None:
    folder = write(tmp_path / "server", Server.of("fl.example.org", 443, [], ["127.0.0.1"], "server"))
    with pytest.raises(ssl.SSLCertVerificationError, match=r"mismatch|not valid for"):
        shake(client(certificates.pem(CA)), folder, host)


def test_another_authority_with_the_same_name_is_refused_by_tls(tmp_path: Path) -> None:
    folder = write(tmp_path / "server", Server.of("fl.example.org", 443, [], [], "server"))
    other = certificates.authority(new_key(), "Trial", NOW, 3650)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(client(certificates.pem(other)), folder, "fl.example.org")


def test_an_ended_certificate_is_refused_by_tls(tmp_path: Path) -> None:
    past = NOW - timedelta(days=30)
    issuer = certificates.authority(KEY, "Trial", past, 3650)
    folder = write(tmp_path / "server", Server.of("localhost", 443, [], [], "s"), now=past, days=29, issuer=issuer)
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        shake(client(certificates.pem(issuer)), folder, "localhost")


def test_with_two_authorities_in_one_file_servers_of_both_are_accepted(tmp_path: Path) -> None:
    key = new_key()
    fresh, own = certificates.authority(key, "Trial", NOW, 3650), new_key()
    server = Server.of("localhost", 443, [], [], "server")
    old = write(tmp_path / "old", server)
    new = tmp_path / "new"
    new.mkdir()
    held = certificates.server_certificate(key, fresh, own.public_key(), server, NOW, 397)
    (new / "server.key").write_bytes(pkcs8(own))
    (new / "server.crt").write_bytes(certificates.pem(held))
    both = certificates.pem(CA), certificates.pem(fresh)
    for folder in (old, new):
        assert shake(client(*both), folder, "localhost")


def test_the_subject_repeats_a_host_only_where_64_characters_hold_it_whole(tmp_path: Path) -> None:
    assert len(LONG) > 64
    held = load(write(tmp_path / "long", Server.of(LONG, 443, [], [], "server")))
    assert list(held.subject) == []
    names = held.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert names.critical
    assert names.value.get_values_for_type(x509.DNSName) == [LONG]
    short = "a" * 60 + ".org"
    assert len(short) == 64
    held = load(write(tmp_path / "short", Server.of(short, 443, [], [], "server")))
    assert [entry.value for entry in held.subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == [short]


def test_server_certificates_can_only_speak_for_servers_and_sign_nothing(tmp_path: Path) -> None:
    held = load(write(tmp_path / "server", Server.of("fl.example.org", 443, [], [], "server")))
    found = held.extensions
    assert not found.get_extension_for_class(x509.BasicConstraints).value.ca
    assert list(found.get_extension_for_class(x509.ExtendedKeyUsage).value) == [ExtendedKeyUsageOID.SERVER_AUTH]
    usage = found.get_extension_for_class(x509.KeyUsage)
    assert usage.critical
    assert usage.value.digital_signature
    assert not usage.value.key_cert_sign
    limits = CA.extensions.get_extension_for_class(x509.BasicConstraints)
    assert limits.critical
    assert limits.value == x509.BasicConstraints(ca=True, path_length=0)
    for certificate in (held, CA):
        assert certificate.signature_hash_algorithm is not None
        assert certificate.signature_hash_algorithm.name == "sha384"
        key = certificate.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        assert key.curve.name == "secp384r1"


def test_serials_are_random_and_the_validity_ends_with_the_authority(tmp_path: Path) -> None:
    server = Server.of("fl.example.org", 443, [], [], "server")
    first, second = (load(write(tmp_path / name, server)) for name in "ab")
    assert first.serial_number != second.serial_number
    assert first.serial_number.bit_length() > 100
    assert first.not_valid_before_utc == NOW - timedelta(minutes=10)
    assert first.not_valid_after_utc == NOW + timedelta(days=397)
    late = CA.not_valid_after_utc - timedelta(days=3)
    held = certificates.server_certificate(KEY, CA, new_key().public_key(), server, late, 397)
    assert held.not_valid_after_utc == CA.not_valid_after_utc
    with pytest.raises(ProvisionError, match="Another authority"):
        certificates.server_certificate(KEY, CA, new_key().public_key(), server, CA.not_valid_after_utc, 397)


def test_a_certificate_covers_exactly_the_declared_names_in_any_order(tmp_path: Path) -> None:
    held = load(write(tmp_path / "s", Server.of("a.org", 443, ["b.org"], ["127.0.0.1"], "server")))
    assert certificates.covers(held, Server.of("b.org", 444, ["a.org"], ["127.0.0.1"], "server"))
    for other in (
        Server.of("a.org", 443, [], ["127.0.0.1"], "server"),
        Server.of("a.org", 443, ["b.org"], [], "server"),
        Server.of("a.org", 443, ["b.org", "c.org"], ["127.0.0.1"], "server"),
    ):
        assert not certificates.covers(held, other)


def test_a_file_with_no_or_two_certificates_is_refused() -> None:
    for data in (b"", b"nonsense", certificates.pem(CA) * 2):
        with pytest.raises(ProvisionError, match=r"ca\.crt: expected one certificate"):
            certificates.read(data, "ca.crt")
