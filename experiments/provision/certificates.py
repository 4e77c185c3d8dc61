"""X.509 certificates of the federation (RFC 5280): its authority, and the servers that speak TLS for the coordinator.

ECDSA on P-384 with SHA-384 throughout: TLS 1.3 knows no pair of P-384 and another hash (RFC 8446, 4.2.3).
"""

from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from experiments.provision.code import short_fingerprint
from experiments.provision.errors import ProvisionError
from experiments.provision.federation import Server
from experiments.provision.moments import SKEW
from experiments.provision.names import MAX_NAME, Address

Key = ec.EllipticCurvePrivateKey
PublicKey = ec.EllipticCurvePublicKey


def authority(key: Key, name: str, now: datetime, days: int) -> x509.Certificate:
    """Return the self-signed certificate of a federation's authority.

    It may sign server certificates only one level down (path length 0), and the manifests of start-up kits. No name
    constraints: nobody trusts it for anything but this federation's server, and a moved server would need another
    authority, which every silo would have to compare anew.
    """
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    public = key.public_key()
    builder = _builder(subject, subject, public, now, now + timedelta(days=days))
    return (
        builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        # Absent in many self-signed certificates; verifiers that are strict about RFC 5280 do not mind it.
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
        .sign(key, hashes.SHA384())
    )


def server_certificate(
    authority_key: Key, issuer: x509.Certificate, public: PublicKey, server: Server, now: datetime, days: int
) -> x509.Certificate:
    """Return the certificate of one server.

    Every name is a subject alternative name, which is where clients look (RFC 6125, 6.4.4). The subject repeats the
    host only where its 64 characters hold it whole: a shortened one could be another host's.

    Raises
    ------
    ProvisionError
        If the authority's own certificate ends too soon.
    """
    until = min(now + timedelta(days=days), issuer.not_valid_after_utc)
    if until <= now:
        raise ProvisionError(
            f"the authority ended on {issuer.not_valid_after_utc:%Y-%m-%d}; make another one (docs/provisioning.md, "
            '"Another authority")'
        )
    fits = len(server.host) <= MAX_NAME
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, server.host)] if fits else [])
    return (
        _builder(issuer.subject, subject, public, now, until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(_alternative_names(server)), critical=not fits)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA384())
    )


def covers(certificate: x509.Certificate, server: Server) -> bool:
    """Whether a certificate names exactly what is declared for a server."""
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return set(found) == set(_alternative_names(server))


def names_of(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return the names and addresses of a certificate, for people."""
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return tuple(str(entry.value) for entry in found)


def fingerprint(certificate: x509.Certificate) -> str:
    """Return what people compare of a certificate: 100 bits of the SHA-256 of its DER."""
    return short_fingerprint(certificate.fingerprint(hashes.SHA256()))


def pem(certificate: x509.Certificate) -> bytes:
    """Return a certificate's file."""
    return certificate.public_bytes(Encoding.PEM)


def read(data: bytes, where: str) -> x509.Certificate:
    """Read one certificate in PEM.

    Raises
    ------
    ProvisionError
        If the file holds none, or more than one.
    """
    try:
        found = x509.load_pem_x509_certificates(data)
    except ValueError:
        found = []
    if len(found) != 1:
        raise ProvisionError(f"{where}: expected one certificate in PEM; restore the file from a backup")
    return found[0]


def belongs(certificate: x509.Certificate, key: Key) -> bool:
    """Whether a private key is the one of a certificate."""
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    return certificate.public_key().public_bytes(*form) == key.public_key().public_bytes(*form)


def _builder(
    issuer: x509.Name, subject: x509.Name, public: PublicKey, now: datetime, until: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        # A silo whose clock is a little late has to accept it at once.
        .not_valid_before(now - SKEW)
        .not_valid_after(until)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative_names(server: Server) -> list[x509.GeneralName]:
    addresses: tuple[Address, ...] = server.addresses
    hosts = (server.host, *server.names) if server.host not in {str(entry) for entry in addresses} else server.names
    return [*map(x509.DNSName, hosts), *map(x509.IPAddress, addresses)]
