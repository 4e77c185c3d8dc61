"""A silo shares secrets with the silos of its roster.toml and with nobody else."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import client_app.silo
from client_app.errors import Declined, SiloError
from client_app.home import SiloHome
from client_app.pinned_roster import load
from experiments.silos import write_roster
from privacy.signing import SigningKey
from secagg import signatures
from secagg import silo as protocol
from secagg.coordinator import ciphertexts_for
from secagg.envelopes import JoinRequest, MaskRequest
from secagg.errors import ProtocolError
from secagg.messages import Roster, RosterEntry
from tests.client_app.federation import RUN_ID, Desk, Small, make_light, quiet, records_of, silo_toml

MakeDesk = Callable[..., Desk]
FIRST, SECOND, THIRD = "silo-00", "silo-01", "silo-02"


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Small:
    make_light(monkeypatch)
    quiet()
    return Small.make(tmp_path / "federation", 3)


def roster_file(small: Small) -> Path:
    return small.root / "silos" / "roster.toml"


def enrol(small: Small, name: str = FIRST) -> None:
    made = Desk(small, small.config())
    made.silo(name).enrol(made.settings.terms.to_bytes())


def with_toml(small: Small, **given: Any) -> None:
    """Write silo 0's silo.toml anew."""
    home = small.homes[FIRST]
    (home.root / "silo.toml").write_text(silo_toml(FIRST, home.settings.data, **given))


def test_without_a_roster_a_silo_declines_before_anything_is_granted(small: Small) -> None:
    with_toml(small, roster="")
    with pytest.raises(Declined, match=r"no pinned roster.*allow_unpinned is false"):
        enrol(small)
    assert records_of(small.homes[FIRST]) == []
    assert not (small.homes[FIRST].root / "runs").exists()


def test_a_silo_that_allows_it_takes_part_unpinned(small: Small) -> None:
    with_toml(small, roster="", allow_unpinned=True)
    roster_file(small).write_text(roster_file(small).read_text() + "\n# unused by silo 0\n")
    made = Desk(small, small.config())
    made.enrol()
    made.contribute(made.ask(1), FIRST)


def test_a_lost_or_damaged_roster_stops_the_silo_and_grants_nothing(small: Small) -> None:
    good = roster_file(small).read_bytes()
    for content, reason in (
        (None, "not found"),
        (b"\xff", "UTF-8"),
        (b"[[silo]]\n", "missing key name"),
        (b"", "does not list silo-00"),
        (good.replace(small.homes[FIRST].identity.public_key.hex().encode(), b"ab" * 32), r"silo-00|mistyped"),
    ):
        roster_file(small).unlink(missing_ok=True)
        if content is not None:
            roster_file(small).write_bytes(content)
        with pytest.raises(SiloError, match=rf"roster\.toml.*({reason})"):
            enrol(small)
    assert records_of(small.homes[FIRST]) == []


def test_a_roster_that_lists_this_silo_with_another_key_stops_it(small: Small) -> None:
    impostor = dataclasses.replace(small.homes[FIRST], identity=SigningKey.generate())
    write_roster(roster_file(small), [impostor, small.homes[SECOND], small.homes[THIRD]])
    with pytest.raises(SiloError, match="does not list silo-00"):
        enrol(small)


@pytest.mark.parametrize("change", ["absent", "another key"])
def test_a_run_with_a_silo_that_is_not_pinned_is_declined_by_its_name(small: Small, change: str) -> None:
    made = Desk(small, small.config())
    made.enrol()
    others = [small.homes[FIRST], small.homes[SECOND]]
    if change == "another key":
        others.append(dataclasses.replace(small.homes[THIRD], identity=SigningKey.generate()))
    write_roster(roster_file(small), others)
    with pytest.raises(ProtocolError, match=f"{THIRD}: .*roster"):
        made.join(FIRST, 1)
    assert not (made.folder(FIRST) / "1.bundle").exists()


def test_a_roster_that_pins_more_silos_than_take_part_is_fine(small: Small, tmp_path: Path) -> None:
    absent = Small.make(tmp_path / "more", 1, names=["bank-z"]).homes[FIRST]
    write_roster(roster_file(small), [*small.homes.values(), absent])
    made = Desk(small, small.config())
    made.enrol()
    made.ask(1)


def test_a_silo_taken_out_of_the_roster_is_out_in_the_midst_of_a_run(small: Small) -> None:
    made = Desk(small, small.config())
    made.enrol()
    asked = made.ask(1)
    write_roster(roster_file(small), [small.homes[FIRST], small.homes[SECOND]])
    for act in (lambda: made.contribute(asked, FIRST), lambda: made.join(FIRST, 2)):
        with pytest.raises(ProtocolError, match=f"{THIRD}: not in"):
            act()
    assert len(records_of(small.homes[FIRST])) == 1, "nothing was charged"


def test_a_share_encryption_key_that_the_coordinator_put_in_is_declined(small: Small) -> None:
    """The coordinator poses as silo 2 towards silo 0: it could open the shares that silo 0 makes for silo 2."""
    made = Desk(small, small.config())
    made.enrol()
    for signer in (small.homes[SECOND].identity, SigningKey.generate()):
        mine = protocol.new_run_keys().encryption_key
        entry = RosterEntry.of(signatures.enrol(RUN_ID, THIRD, mine, bytes(32), 100, "x", signer))
        for forged in (entry, dataclasses.replace(made.run.roster.entry(THIRD), encryption_key=mine)):
            entries = tuple(forged if e.silo_id == THIRD else e for e in made.run.roster.entries)
            if signer is small.homes[SECOND].identity and forged is entry:
                with pytest.raises(ProtocolError, match="same identity key"):
                    Roster(entries)
                continue
            run = dataclasses.replace(made.run, roster=Roster(entries))
            with pytest.raises(ProtocolError, match=THIRD):
                made.silo(FIRST).join(JoinRequest(run, 1).to_bytes())
    assert not (made.folder(FIRST) / "run").exists()
    made.join(FIRST, 1)


def test_a_mask_key_that_the_coordinator_put_in_is_declined_before_a_record_is_touched(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a mask key of its own for silo 2 in a consistent announcement it could take off that pair's mask."""
    trained: list[object] = []
    monkeypatch.setattr(client_app.silo, "contribution", lambda *args, **more: trained.append(args))
    made = Desk(small, small.config())
    made.enrol()
    asked = made.ask(1)
    theirs = asked.bundles[THIRD].public
    key = protocol.new_run_keys().encryption_key
    forged = [
        dataclasses.replace(theirs, mask_key=key),
        dataclasses.replace(theirs, mask_key=asked.bundles[SECOND].public.mask_key),
        dataclasses.replace(theirs, signature=bytes(64)),
    ]
    swapped = dataclasses.replace(theirs, mask_key=key)
    statement = signatures.bundle_statement(made.run, swapped)
    forged.append(dataclasses.replace(swapped, signature=SigningKey.generate().sign(statement)))
    for public in forged:
        publics = tuple(public if p is theirs else p for p in (asked.bundles[n].public for n in asked.announcement.ids))
        participants = tuple((p.sender, p.hash()) for p in publics)
        announcement = dataclasses.replace(asked.announcement, participants=participants)
        body = MaskRequest(announcement, publics, ciphertexts_for(asked.bundles, FIRST)).to_bytes()
        with pytest.raises(ProtocolError, match=f"{THIRD}: its bundle is not signed"):
            made.silo(FIRST).contribute(body, asked.arrays)
    assert trained == []
    assert len(records_of(small.homes[FIRST])) == 1


def test_a_roster_is_read_with_its_name_in_every_error(tmp_path: Path) -> None:
    with pytest.raises(SiloError, match=r"nowhere\.toml: not found.*fcfl roster"):
        load(tmp_path / "nowhere.toml")
    with pytest.raises(SiloError, match=str(tmp_path)):
        load(tmp_path)


def test_the_roster_of_a_silo_is_looked_for_beside_its_settings(small: Small) -> None:
    home = SiloHome.open(small.homes[FIRST].root)
    assert home.settings.roster == roster_file(small).resolve()
