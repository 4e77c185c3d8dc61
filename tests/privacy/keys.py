"""Keys that the tests sign ledgers with."""

from privacy.signing import SigningKey

KEY, OTHER = SigningKey.generate(), SigningKey.generate()
