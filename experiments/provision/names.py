"""Host names, addresses and texts of a federation: what is accepted, and in which form it goes into a certificate."""

import ipaddress
import re
from ipaddress import IPv4Address, IPv6Address

import idna

from experiments.provision.errors import ProvisionError
from secagg.cbor import SILO_ID
from secagg.pins import MAX_COMMENT

Address = IPv4Address | IPv6Address
# X.520 bounds common and organisation names (ub-common-name and ub-organization-name of RFC 5280, appendix A.1).
MAX_NAME = 64
MAX_HOST = 253
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def host_name(text: object, where: str) -> str:
    """Return a DNS name in the form certificates carry and clients look for: lower case, A-labels (RFC 5280, 7.2).

    Non-ASCII names are encoded as Flower's HTTP client encodes them (IDNA 2008, RFC 5891).

    Raises
    ------
    ProvisionError
        For wildcards, underscores, addresses, and names or labels that are too long.
    """
    name = text.strip().rstrip(".").lower() if isinstance(text, str) else ""
    if not name.isascii():
        try:
            name = idna.encode(name).decode("ascii")
        except idna.IDNAError as error:
            raise ProvisionError(
                f"{where} = {ascii(text)[:120]}; no valid international domain name: {error}"
            ) from None
    labels = name.split(".")
    if not name or len(name) > MAX_HOST or not all(_LABEL.fullmatch(label) for label in labels):
        raise ProvisionError(
            f"{where} = {ascii(text)[:120]}; expected a host name: labels of 1 to 63 letters, digits and hyphens, at "
            f"most {MAX_HOST} characters, no wildcard"
        )
    if labels[-1].isdigit():
        raise ProvisionError(f"{where} = {name}; that is an address, give it as an address (--ip)")
    return name


def address(text: object, where: str) -> Address:
    """Return an IPv4 or IPv6 address without a zone.

    Raises
    ------
    ProvisionError
        If the text is no single address.
    """
    try:
        found = ipaddress.ip_address(text) if isinstance(text, str) else None
    except ValueError:
        found = None
    if found is None or getattr(found, "scope_id", None):
        raise ProvisionError(f"{where} = {ascii(text)[:120]}; expected one IPv4 or IPv6 address")
    return found


def silo_name(text: object, where: str) -> str:
    """Return the name of a silo, in the alphabet of rosters."""
    if not (isinstance(text, str) and SILO_ID.fullmatch(text)):
        raise ProvisionError(
            f"{where} = {ascii(text)[:80]}; expected 1 to 64 letters, digits or ._:@- after a letter or digit"
        )
    return text


def federation_name(text: object, where: str) -> str:
    """Return the name of a federation; it is the subject of its authority's certificate."""
    if not (isinstance(text, str) and text.strip() and text.isprintable() and len(text.encode()) <= MAX_NAME):
        raise ProvisionError(f"{where} = {ascii(text)[:120]}; expected 1 to {MAX_NAME} bytes of printable text")
    return text


def organisation(text: object, where: str) -> str:
    """Return the name of an institution; it is the comment of its silo in the roster."""
    if not (isinstance(text, str) and len(text) <= MAX_COMMENT and (not text or text.isprintable())):
        raise ProvisionError(f"{where} = {ascii(text)[:120]}; expected at most {MAX_COMMENT} printable characters")
    return text
