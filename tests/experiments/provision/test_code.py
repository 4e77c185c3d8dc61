"""Enrolment codes survive the telephone and catch mistyping; they are never repeated in an error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.provision.code import ALPHABET, code_key, grouped, new_code, short_fingerprint, spelled
from experiments.provision.errors import ProvisionError


def test_a_code_reads_the_same_however_it_is_written_down() -> None:
    code = new_code()
    key = code_key(code, "bank-a", "code")
    spoken = code.lower().replace("-", " ").replace("0", "o").replace("1", "l")
    assert code_key(spoken + "\n", "bank-a", "code") == key
    assert len(key) == 32


def test_a_code_counts_for_one_name_only() -> None:
    code = new_code()
    assert code_key(code, "bank-a", "code") != code_key(code, "bank-b", "code")
    assert new_code() != new_code()


def test_almost_every_single_mistake_is_noticed() -> None:
    code = new_code().replace("-", "")
    wrong = [
        grouped(code[:at] + digit + code[at + 1 :])
        for at in range(len(code))
        for digit in ALPHABET
        if digit != code[at]
    ]
    unnoticed = 0
    messages = []
    for text in wrong:
        try:
            code_key(text, "bank-a", "code")
            unnoticed += 1
        except ProvisionError as error:
            messages.append(str(error))
    # One in 1,024 is expected; this many by chance less than once in a hundred million.
    assert unnoticed < 10
    assert not any(text in message for text, message in zip(wrong, messages, strict=False))
    assert len(set(messages)) == 1


@pytest.mark.parametrize("bad", ["", "ABC", "U" * 20, "0" * 21, "é" * 20])
def test_what_is_no_code_is_refused(bad: str) -> None:
    with pytest.raises(ProvisionError, match=r"code\.txt: mistyped"):
        code_key(bad, "bank-a", "code.txt")


@given(st.binary(min_size=32, max_size=32))
def test_a_short_fingerprint_is_the_first_100_bits_of_the_hash(digest: bytes) -> None:
    text = short_fingerprint(digest).replace("-", "")
    number = 0
    for character in text:
        number = number * 32 + ALPHABET.index(character)
    assert number == int.from_bytes(digest, "big") >> 156
    assert spelled(digest, 20) == text
