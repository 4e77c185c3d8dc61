"""Recovery: the committed secret or an error, never a guess."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.errors import NotEnoughSurvivors, ProtocolError
from secagg.recover import Holders, recover
from secagg.shamir import split


@settings(max_examples=60, deadline=None)
@given(data=st.data(), n=st.integers(2, 16))
def test_up_to_as_many_wrong_shares_as_spare_ones_are_found_and_left_out(data: st.DataObject, n: int) -> None:
    t = data.draw(st.integers(max(1, n - 4), n))
    secret = os.urandom(32)
    shares = dict(enumerate(split(secret, t, n), start=1))
    liars = set(data.draw(st.permutations(range(1, n + 1)))[: data.draw(st.integers(0, n - t))])
    for x in liars:
        shares[x] = b"\x00" + os.urandom(32)
    holders = Holders()
    assert recover("seed of x", shares, t, lambda s: s == secret, holders) == secret
    assert holders.suspects == (liars if liars & set(range(1, t + 1)) else set()), (
        "looked for only when one was in the way"
    )


def test_more_wrong_shares_are_an_error_that_names_the_secret() -> None:
    secret = os.urandom(32)
    shares = dict(enumerate(split(secret, 3, 5), start=1))
    shares |= dict.fromkeys((1, 2, 3), bytes(33))
    with pytest.raises(ProtocolError, match="seed of x"):
        recover("seed of x", shares, 3, lambda s: s == secret, Holders())


def test_malformed_shares_do_not_count() -> None:
    secret = os.urandom(32)
    shares = dict(enumerate(split(secret, 3, 5), start=1))
    assert recover("seed of x", shares | {1: b"\xff" * 33, 2: b""}, 3, lambda s: s == secret, Holders()) == secret
    with pytest.raises(NotEnoughSurvivors, match=r"seed of x: 2 shares, 3"):
        recover("seed of x", shares | {1: b"\xff" * 33, 2: b"", 4: b"x"}, 3, lambda s: s == secret, Holders())


def test_a_suspect_is_tried_last_for_the_next_secret() -> None:
    secret = os.urandom(32)
    shares = dict(enumerate(split(secret, 3, 5), start=1)) | {1: b"\x00" * 33}
    attempts: list[bytes] = []

    def accept(candidate: bytes) -> bool:
        attempts.append(candidate)
        return candidate == secret

    recover("seed of x", shares, 3, accept, Holders({1}))
    assert len(attempts) == 1


def test_the_work_a_liar_can_cause_is_bounded() -> None:
    shares = dict(enumerate(split(os.urandom(32), 60, 90), start=1))
    attempts: list[bytes] = []

    def refuse(candidate: bytes) -> bool:
        attempts.append(candidate)
        return False

    with pytest.raises(ProtocolError):
        recover("seed of x", shares, 60, refuse, Holders())
    assert len(attempts) <= (1 << 20) // 60**2


def test_holders_that_gave_a_secret_give_the_next_one_unless_one_of_them_lies_this_time() -> None:
    first, second = os.urandom(32), os.urandom(32)
    holders = Holders()
    given = dict(reversed(list(enumerate(split(first, 3, 6), start=1))))
    assert recover("seed of x", given, 3, lambda s: s == first, holders) == first
    assert holders.usual == (6, 5, 4), "the first that are given"
    shares = dict(enumerate(split(second, 3, 6), start=1))
    attempts: list[bytes] = []

    def accept(candidate: bytes) -> bool:
        attempts.append(candidate)
        return candidate == second

    assert recover("seed of y", shares, 3, accept, holders) == second
    assert len(attempts) == 1
    assert holders.usual == (6, 5, 4)
    for wrong in (b"", b"\xff" * 33, bytes(33)):
        assert recover("seed of y", shares | {5: wrong}, 3, accept, holders) == second
        assert 5 not in holders.usual
        holders.usual = (6, 5, 4)
    del shares[6]
    assert recover("seed of y", shares, 3, accept, holders) == second
