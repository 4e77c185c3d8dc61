"""Enrolments, rosters and runs: what is refused before anything secret exists."""

import dataclasses
from typing import Any

import pytest

from secagg.errors import ProtocolError
from secagg.messages import Roster, RosterEntry, Run, default_threshold
from tests.secagg.federation import Federation
from tests.secagg.signers import TestSigner

FED = Federation(4)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "ä", "-a", "a\n", "../x"])
def test_odd_silo_ids_are_refused(name: str) -> None:
    with pytest.raises(ProtocolError, match="silo_id"):
        dataclasses.replace(FED.run.roster.entries[0], silo_id=name)


def test_enrolment_refuses_a_key_that_would_stop_the_others() -> None:
    with pytest.raises(ProtocolError, match="silo-00"):
        dataclasses.replace(FED.enrolments["silo-00"], encryption_key=bytes(32))
    assert RosterEntry.of(FED.enrolments["silo-00"]) == FED.run.roster.entries[0]


def test_rosters_are_sorted_distinct_and_not_alone() -> None:
    one, two = FED.run.roster.entries[:2]
    for entries in (
        (),
        (one,),
        (two, one),
        (one, one),
        (one, dataclasses.replace(two, encryption_key=one.encryption_key)),
        (one, dataclasses.replace(two, identity_key=one.identity_key)),
    ):
        with pytest.raises(ProtocolError, match="roster"):
            Roster(entries)
    assert Roster((one, two)).index(two.silo_id) == 1
    with pytest.raises(ProtocolError, match="stranger"):
        Roster((one, two)).index("stranger")


def test_the_roster_hash_depends_on_every_entry() -> None:
    roster = FED.run.roster
    other = TestSigner.of("another").public_key
    changes: list[dict[str, Any]] = [{"identity_key": other}, {"details": bytes(32)}, {"signature": bytes(64)}]
    for change in changes:
        changed = Roster((dataclasses.replace(roster.entries[0], **change), *roster.entries[1:]))
        assert roster.hash() != changed.hash()
    assert len(roster.hash()) == 32


def test_the_default_threshold_withstands_a_third_of_colluders() -> None:
    assert [default_threshold(n) for n in (3, 4, 5, 6, 9, 20)] == [3, 3, 4, 5, 7, 14]
    for n in range(2, 200):
        assert 2 * default_threshold(n) > n + (n - 1) // 3
    assert FED.run.roster.threshold == 3


@pytest.mark.parametrize(("threshold", "colluders"), [(2, 0), (0, 0), (5, 0), (3, 2), (4, 4)])
def test_runs_whose_threshold_allows_both_secrets_of_a_peer_are_refused(threshold: int, colluders: int) -> None:
    with pytest.raises(ProtocolError, match="threshold"):
        Run(2, bytes(16), FED.run.roster, threshold, colluders)
    Run(2, bytes(16), FED.run.roster, 3, 1)


def test_other_protocol_versions_are_refused() -> None:
    with pytest.raises(ProtocolError, match="version"):
        dataclasses.replace(FED.run, version=1)
