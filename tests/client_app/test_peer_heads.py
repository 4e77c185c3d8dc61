"""A silo remembers the ledger heads its peers signed, and gives no share for a peer whose ledger fell back."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import cbor2
import pytest

import client_app.peer_heads
from client_app.errors import Declined, SiloError
from client_app.home import Reply
from client_app.peer_heads import FELL_BACK, begin, remember
from secagg.errors import ProtocolError
from secagg.messages import MAX_ENTRIES, EpochOutcome, MaskedHeader
from tests.client_app.federation import Asked, Desk, masked_of

MakeDesk = Callable[..., Desk]
FIRST, SECOND = "silo-00", "silo-01"
LEDGER = ("ledger.jsonl", "ledger.anchor")


def copied(made: Desk, name: str) -> dict[Path, bytes]:
    root = made.small.homes[name].root
    return {root / file: (root / file).read_bytes() for file in LEDGER}


def put_back(copies: dict[Path, bytes]) -> None:
    for path, data in copies.items():
        path.write_bytes(data)


def masked(made: Desk, epoch: int) -> tuple[Asked, dict[str, Reply]]:
    """An epoch up to its vectors, announced by a coordinator that shows no heads."""
    outcomes = tuple(EpochOutcome(e, "completed", tuple(made.small.homes)) for e in range(1, epoch))
    asked = made.ask(epoch, outcomes=outcomes)
    return asked, {name: made.contribute(asked, name) for name in made.small.homes}


def header(made: Desk, name: str, count: int, digest: bytes) -> MaskedHeader:
    return MaskedHeader(name, 1, bytes(32), (count, digest), bytes(32))


def test_a_silo_whose_ledger_was_put_back_is_not_unmasked_even_if_the_coordinator_keeps_quiet(desk: MakeDesk) -> None:
    made = desk(4, rounds=5)
    names, copies = sorted(made.small.homes), copied(made, FIRST)
    asked, _ = masked(made, 1)
    for name in names:
        made.unmask(asked, name, names)
    put_back(copies)
    asked, replies = masked(made, 2)
    before, now = (masked_of(reply).ledger_head[0] for reply in (replies[FIRST], replies[SECOND]))
    assert before < now, "it spent again what it had spent, and its ledger has as many entries as after epoch 1"
    for name in names[1:]:
        with pytest.raises(Declined, match=f"{FIRST}: its ledger has"):
            made.unmask(asked, name, names)
        assert not (made.folder(name) / "unmask.2.reply").exists()
    # Without it the others' sum is opened.
    for name in names[1:]:
        made.unmask(asked, name, names[1:])


def test_the_memory_outlives_the_run(desk: MakeDesk) -> None:
    made = desk(rounds=5)
    names = sorted(made.small.homes)
    asked, _ = masked(made, 1)
    made.unmask(asked, SECOND, names)
    made.close(SECOND)
    home = made.small.homes[SECOND]
    good, later = home.run(b"1" * 16), home.run(b"2" * 16)
    begin(home, good)
    begin(home, later)
    count, digest = asked.masked[FIRST].ledger_head
    remember(home, good, made.run.roster, [header(made, FIRST, count + 1, bytes(32))])
    with pytest.raises(Declined, match=f"longer one, with {count}"):
        remember(home, later, made.run.roster, [header(made, FIRST, count - 1, digest)])


def test_runs_side_by_side_have_heads_in_no_order(desk: MakeDesk) -> None:
    made = desk()
    home, roster = made.small.homes[SECOND], made.run.roster
    one, two = home.run(b"1" * 16), home.run(b"2" * 16)
    begin(home, one)
    begin(home, two)
    remember(home, two, roster, [header(made, FIRST, 9, b"9" * 32)])
    remember(home, one, roster, [header(made, FIRST, 8, b"8" * 32)])
    remember(home, one, roster, [header(made, FIRST, 8, b"8" * 32)])  # the request of a silo cut off before it answered
    begin(home, one)  # asked to join once more
    third = home.run(b"3" * 16)
    begin(home, third)
    with pytest.raises(Declined, match="with 9"):
        remember(home, third, roster, [header(made, FIRST, 8, b"8" * 32)])
    with pytest.raises(Declined, match="with 8"):
        remember(home, one, roster, [header(made, FIRST, 7, b"7" * 32)])


def test_a_silo_that_fell_back_is_not_trusted_again_however_long_its_ledger_grows(desk: MakeDesk) -> None:
    made = desk()
    home, roster = made.small.homes[SECOND], made.run.roster
    folder = home.run(b"1" * 16)
    remember(home, folder, roster, [header(made, FIRST, 9, b"9" * 32)])
    for count in (8, 9, 10, 1000):
        with pytest.raises(Declined, match=f"{FIRST}: its ledger has {count} entries"):
            remember(home, folder, roster, [header(made, FIRST, count, b"x" * 32)])
    later = home.run(b"2" * 16)
    begin(home, later)
    with pytest.raises(Declined, match=FIRST):
        remember(home, later, roster, [header(made, FIRST, 1000, b"x" * 32)])
    for path in (home.root / client_app.peer_heads.FILE, later.path / client_app.peer_heads.IN_RUN):
        path.unlink()
    remember(home, later, roster, [header(made, FIRST, 1000, b"x" * 32)])


def test_two_copies_of_a_silo_show_by_their_heads(desk: MakeDesk) -> None:
    """As many entries, another hash: the ledgers went on apart."""
    made = desk()
    home, roster = made.small.homes[SECOND], made.run.roster
    folder = home.run(b"1" * 16)
    remember(home, folder, roster, [header(made, FIRST, 9, b"a" * 32), header(made, SECOND, 3, bytes(32))])
    with pytest.raises(Declined, match="running twice"):
        remember(home, folder, roster, [header(made, FIRST, 9, b"b" * 32)])


def test_a_head_counts_only_once_its_signature_was_checked(desk: MakeDesk) -> None:
    made = desk(rounds=5)
    names = sorted(made.small.homes)
    asked, _ = masked(made, 1)
    asked.masked[FIRST] = dataclasses.replace(asked.masked[FIRST], ledger_head=(1 << 40, bytes(32)))
    with pytest.raises(Exception, match=f"{FIRST}: its masked input is not signed"):
        made.unmask(asked, SECOND, names)
    assert not (made.small.homes[SECOND].root / client_app.peer_heads.FILE).exists()


@pytest.mark.parametrize("damage", [b"", b"\xff", cbor2.dumps([1]), cbor2.dumps({b"k": 1}), cbor2.dumps({b"k": [1]})])
def test_a_damaged_memory_stops_the_silo_by_the_file_s_name(desk: MakeDesk, damage: bytes) -> None:
    made = desk()
    home = made.small.homes[SECOND]
    (home.root / client_app.peer_heads.FILE).write_bytes(damage)
    with pytest.raises(SiloError, match=r"peers\.heads: damaged"):
        begin(home, home.run(b"4" * 16))


def test_no_head_a_silo_can_sign_is_what_peers_note_of_one_that_fell_back(desk: MakeDesk) -> None:
    made = desk(4, rounds=5)
    header(made, FIRST, MAX_ENTRIES, bytes(32))
    for count in (MAX_ENTRIES + 1, FELL_BACK):
        with pytest.raises(ProtocolError, match="ledger_head"):
            header(made, FIRST, count, bytes(32))
