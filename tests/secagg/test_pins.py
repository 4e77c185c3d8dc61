"""roster.toml: what is wrong in it is named, and a run must fit it exactly."""

import contextlib
import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.errors import ProtocolError, RosterFileError
from secagg.identity import on_curve
from secagg.pins import HEADER, Pin, PinnedRoster
from tests.secagg.federation import Federation
from tests.secagg.signers import TestSigner

A, B = (TestSigner.of(name).public_key for name in "ab")
GOOD = HEADER + Pin("bank-a", A, "Bank A, Zürich").render() + Pin("bank-b", B).render()
FED = Federation(4)


def parse(text: str) -> PinnedRoster:
    return PinnedRoster.parse(text, "roster.toml")


def test_what_is_rendered_is_read_again() -> None:
    roster = parse(GOOD)
    assert roster.pins == (Pin("bank-a", A, "Bank A, Zürich"), Pin("bank-b", B))
    assert roster.identity("bank-b") == B
    assert roster.identity("bank-c") is None
    assert parse(HEADER).pins == ()


@given(comment=st.text(max_size=50).filter(lambda text: not text or text.isprintable()))
def test_any_printable_comment_survives(comment: str) -> None:
    assert parse(Pin("bank-a", A, comment).render()).pins == (Pin("bank-a", A, comment),)


LOW = "01" + "00" * 31
OFF = next(key for y in range(2, 99) if not on_curve(key := y.to_bytes(32, "little"))).hex()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[[silo]\n", r"not valid TOML.*line 1"),
        ("x = 1\n" + GOOD, "tables"),
        ("silo = 5", "tables"),
        ("silo = [5]", r"number 1: expected a table"),
        ('[[silo]]\nname = "bank-a"', r"number 1: missing key identity"),
        (f'[[silo]]\nidentity = "{A.hex()}"', r"number 1: missing key name"),
        (GOOD + 'key = "x"', r"number 2: unknown key 'key'"),
        (GOOD.replace("bank-b", "bank b"), r"number 2: name = 'bank b'"),
        (GOOD.replace("bank-b", "bank-a"), r"number 2 \(bank-a\): the name is that of number 1"),
        (GOOD.replace(B.hex(), A.hex()), r"number 2 \(bank-b\): the identity is that of number 1 \(bank-a\)"),
        (GOOD.replace(B.hex(), A.hex().upper()), r"the identity is that of number 1"),
        (GOOD.replace(B.hex(), B.hex()[:-2]), r"number 2 \(bank-b\): identity.*64 hexadecimal"),
        (GOOD.replace(B.hex(), "zz" * 32), r"bank-b.*64 hexadecimal"),
        (GOOD.replace(f'"{B.hex()}"', "5"), r"bank-b.*64 hexadecimal"),
        (GOOD.replace(B.hex(), LOW), r"bank-b.*low order"),
        (GOOD.replace(B.hex(), "ee" + "ff" * 30 + "7f"), r"bank-b.*not canonical"),
        (GOOD.replace(B.hex(), OFF), r"bank-b.*mistyped"),
        (GOOD.replace("Bank A, Zürich", "a\\tb"), r"bank-a.*comment"),
        ("#" * ((1 << 22) + 1), "longer"),
        ("x = " + "[" * 5000, "not valid TOML"),
    ],
)
def test_what_is_wrong_is_named_with_the_file_and_the_entry(text: str, reason: str) -> None:
    with pytest.raises(RosterFileError, match=reason) as caught:
        parse(text)
    assert str(caught.value).startswith("roster.toml: ")
    assert "\n" not in str(caught.value)


@given(text=st.text(max_size=200))
def test_any_text_is_a_roster_or_refused(text: str) -> None:
    with contextlib.suppress(RosterFileError):
        assert isinstance(parse(text), PinnedRoster)


def test_every_silo_of_a_run_must_be_pinned_with_exactly_its_key() -> None:
    pins = tuple(Pin(s, signer.public_key) for s, signer in FED.signers.items())
    entries = FED.run.roster.entries
    more = PinnedRoster("roster.toml", (*pins, Pin("bank-z", A)))
    more.check(entries)
    more.check(entries[:2])
    with pytest.raises(ProtocolError, match=r"silo-03: not in roster\.toml"):
        PinnedRoster("roster.toml", pins[:3]).check(entries)
    with pytest.raises(ProtocolError, match=r"silo-02: roster\.toml lists another identity key"):
        PinnedRoster("roster.toml", (*pins[:2], Pin("silo-02", A), pins[3])).check(entries)
    renamed = [dataclasses.replace(entries[0], silo_id="silo-99"), *entries[1:]]
    with pytest.raises(ProtocolError, match="silo-99"):
        more.check(renamed)
