"""Shamir: any t shares give the secret back, fewer do not, bad input is refused."""

import contextlib
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg import shamir
from secagg.errors import NotEnoughSurvivors, ProtocolError, SecAggError
from secagg.shamir import PRIME, combine, split


@settings(max_examples=80, deadline=None)
@given(data=st.data(), secret=st.binary(min_size=32, max_size=32), n=st.integers(1, 30))
def test_any_t_shares_give_the_secret_back(data: st.DataObject, secret: bytes, n: int) -> None:
    t = data.draw(st.integers(1, n))
    shares = split(secret, t, n)
    assert {len(share) for share in shares} == {33}
    chosen = data.draw(st.permutations(range(1, n + 1)))[: data.draw(st.integers(t, n))]
    assert combine({x: shares[x - 1] for x in chosen}, t) == secret


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32, bytes(31) + b"\x01", b"\x00" * 5 + b"\x07" * 27])
def test_extreme_secrets_and_leading_zeros_survive(secret: bytes) -> None:
    shares = split(secret, 3, 5)
    assert combine({1: shares[0], 4: shares[3], 5: shares[4]}, 3) == secret


def test_fewer_than_t_shares_are_refused() -> None:
    shares = split(os.urandom(32), 3, 5)
    with pytest.raises(NotEnoughSurvivors):
        combine({1: shares[0], 2: shares[1]}, 3)


def test_t_minus_one_shares_fit_every_secret() -> None:
    shares = split(os.urandom(32), 3, 5)
    known = {1: int.from_bytes(shares[0], "big"), 2: int.from_bytes(shares[1], "big")}
    for guess in (0, 1, 2**256 - 1):
        points = {0: guess, **known}
        weights = shamir.weights_at(3, tuple(points))
        third = sum(w * y for w, y in zip(weights, points.values(), strict=True)) % PRIME
        assert combine({1: shares[0], 2: shares[1], 3: third.to_bytes(33, "big")}, 3) == guess.to_bytes(32, "big")


@pytest.mark.parametrize("t", [2, 3, 7])
def test_one_share_too_few_does_not_give_the_secret(t: int) -> None:
    secret = os.urandom(32)
    shares = dict(enumerate(split(secret, t, t + 3), start=1))
    with contextlib.suppress(SecAggError):
        assert combine(shares, t - 1) != secret


def test_every_single_share_of_a_fixed_secret_is_uniform() -> None:
    many = [split(bytes(32), 2, 3) for _ in range(4000)]
    for x in range(3):
        octets = np.bincount(np.frombuffer(b"".join(shares[x][1:] for shares in many), np.uint8), minlength=256)
        chi_square = ((octets - octets.mean()) ** 2 / octets.mean()).sum()
        assert abs(chi_square - 255) < 6 * (2 * 255) ** 0.5


def test_shares_are_fresh_each_time() -> None:
    secret = os.urandom(32)
    assert not set(split(secret, 3, 5)) & set(split(secret, 3, 5))


@pytest.mark.parametrize("x", [0, -1, 1 << 16])
def test_indices_out_of_range_are_refused(x: int) -> None:
    shares = split(os.urandom(32), 2, 3)
    with pytest.raises(ProtocolError, match="index"):
        combine({x: shares[0], 2: shares[1]}, 2)


@pytest.mark.parametrize("share", [b"", bytes(32), bytes(34), PRIME.to_bytes(33, "big"), b"\xff" * 33])
def test_malformed_shares_are_refused(share: bytes) -> None:
    with pytest.raises(ProtocolError, match="share 2"):
        combine({1: bytes(33), 2: share}, 2)


@pytest.mark.parametrize(("t", "n"), [(0, 3), (4, 3), (1, 1 << 16)])
def test_impossible_thresholds_are_refused(t: int, n: int) -> None:
    with pytest.raises(ProtocolError):
        split(bytes(32), t, n)


def test_secrets_of_another_length_are_refused_without_showing_them() -> None:
    with pytest.raises(ProtocolError) as caught:
        split(b"secret!", 2, 3)
    assert "secret!" not in str(caught.value)


def test_a_wrong_share_never_gives_the_secret_silently_as_right() -> None:
    secret = os.urandom(32)
    shares = split(secret, 3, 3)
    with contextlib.suppress(SecAggError):
        assert combine({1: shares[0], 2: shares[1], 3: (7).to_bytes(33, "big")}, 3) != secret


def test_the_modulus_is_prime() -> None:
    assert all(pow(a, PRIME - 1, PRIME) == 1 for a in (2, 3, 5, 7, 11, 13))
