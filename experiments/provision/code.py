"""Enrolment codes: 90 random bits that an institution is told beforehand, by another way than its request travels.

A code shows that a request comes from whom the operator spoke to. It is used once, and never travels itself: the
request carries an HMAC (RFC 2104) under a key derived from it.
"""

import hashlib
import hmac
import secrets

from experiments.provision.errors import ProvisionError

# Crockford's alphabet: no I, L, O, U, so that a code can be read over the telephone.
ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_RANDOM, _CHECK, _GROUP = 18, 2, 5
_READ = str.maketrans({"O": "0", "I": "1", "L": "1", "-": "", " ": ""})
_KEY_LABEL = b"fcfl-provision/1/code-key"
_SHORT = 20


def grouped(text: str, size: int = _GROUP) -> str:
    """Return the text in groups joined by hyphens."""
    return "-".join(text[at : at + size] for at in range(0, len(text), size))


def spelled(digest: bytes, length: int) -> str:
    """Return the first ``length`` base-32 digits (5 bits each) of a digest."""
    number = int.from_bytes(digest, "big") >> (8 * len(digest) - 5 * length)
    return "".join(ALPHABET[number >> shift & 31] for shift in range(5 * (length - 1), -1, -5))


def short_fingerprint(digest: bytes) -> str:
    """Return 100 bits of a hash in a form for people to compare: who wants another one to match needs 2^100 tries."""
    return grouped(spelled(digest, _SHORT))


def new_code() -> str:
    """Return a fresh code from the operating system's CSPRNG, with two digits that catch mistyping."""
    body = "".join(secrets.choice(ALPHABET) for _ in range(_RANDOM))
    return grouped(body + _check_digits(body))


def code_key(code: str, silo: str, where: str) -> bytes:
    """Return the 32-byte key that a code stands for, for one silo's name.

    Raises
    ------
    ProvisionError
        If the code is mistyped; it is not repeated in the message.
    """
    text = code.strip().upper().translate(_READ)
    body, check = text[:_RANDOM], text[_RANDOM:]
    if len(text) != _RANDOM + _CHECK or set(text) - set(ALPHABET) or check != _check_digits(body):
        raise ProvisionError(
            f"{where}: mistyped; expected the code of 20 letters and digits that the federation's operator gave"
        )
    return hmac.digest(body.encode(), _KEY_LABEL + b"\0" + silo.encode(), "sha256")


def _check_digits(body: str) -> str:
    return spelled(hashlib.sha256(body.encode()).digest(), _CHECK)
