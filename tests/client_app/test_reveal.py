"""A silo's part in a regular graph: one nonce, revealed for one roster, and no run with another graph."""

import dataclasses
from collections.abc import Callable

import pytest

from client_app.errors import Declined
from fcfl_strategy.set_up import roster_of
from secagg import signatures
from secagg import silo as protocol
from secagg.envelopes import JoinRequest, RevealRequest
from secagg.errors import ProtocolError, SecAggError
from secagg.graph import GraphNonce, RegularGraph, commit_nonce
from secagg.graph_parameters import Degree, Rates
from secagg.messages import Bundle, Enrolment, Roster, RosterEntry, Run
from tests.client_app.federation import RUN_ID, Desk, same_reply

MakeDesk = Callable[..., Desk]
FIRST, SECOND = "silo-00", "silo-01"
RATES = Rates(0.05, 0.1, active=True)
REGULAR = {"secagg.graph": "regular", "secagg.dropout": 0.1}


def roster(made: Desk) -> Roster:
    body = made.settings.terms.to_bytes()
    found = [Enrolment.from_bytes(made.silo(name).enrol(body).body) for name in made.small.homes]
    return roster_of(made.settings, found)


def nonces(made: Desk, shown: Roster) -> list[bytes]:
    body = RevealRequest(RUN_ID, shown).to_bytes()
    return [GraphNonce.from_bytes(made.silo(name).reveal(body).body).nonce for name in shown.ids]


def regular(made: Desk, rates: Rates = RATES) -> Run:
    shown = roster(made)
    return Run(2, RUN_ID, shown, 6, 0, RegularGraph.of(Degree(6, 6), rates, nonces(made, shown)))


def test_a_silo_reveals_what_it_committed_to_and_always_the_same(desk: MakeDesk) -> None:
    made = desk(12, **REGULAR)
    shown = roster(made)
    request = RevealRequest(RUN_ID, shown).to_bytes()
    first = made.silo(FIRST).reveal(request)
    assert same_reply(made.silo(FIRST).reveal(request), first)
    revealed = GraphNonce.from_bytes(first.body)
    assert commit_nonce(RUN_ID, FIRST, revealed.nonce) == shown.entry(FIRST).nonce_commitment
    run = regular(made)
    bundle = Bundle.from_bytes(made.silo(FIRST).join(JoinRequest(run, 1).to_bytes()).body)
    assert set(bundle.ciphertexts) == set(run.neighbours(FIRST))


def test_a_nonce_is_revealed_for_one_roster_only(desk: MakeDesk) -> None:
    """A coordinator that saw one order cannot exchange a silo of its own and see another."""
    made = desk(12, **REGULAR)
    shown = roster(made)
    made.silo(FIRST).reveal(RevealRequest(RUN_ID, shown).to_bytes())
    entries = list(shown.entries)
    entries[5] = dataclasses.replace(entries[5], nonce_commitment=bytes(32))
    with pytest.raises(Declined, match="another request"):
        made.silo(FIRST).reveal(RevealRequest(RUN_ID, Roster(tuple(entries))).to_bytes())


def test_no_nonce_for_a_roster_with_another_key_or_commitment_under_the_silos_name(desk: MakeDesk) -> None:
    made = desk(12, **REGULAR)
    shown = roster(made)
    key = protocol.new_run_keys().encryption_key
    for change, says in (
        ({"encryption_key": key}, "another key"),
        ({"nonce_commitment": bytes(32)}, "not signed"),
    ):
        entries = (dataclasses.replace(shown.entries[0], **change), *shown.entries[1:])
        with pytest.raises((Declined, ProtocolError), match=says):
            made.silo(FIRST).reveal(RevealRequest(RUN_ID, Roster(entries)).to_bytes())
    with pytest.raises(ProtocolError, match="not in the roster"):
        made.silo(FIRST).reveal(RevealRequest(RUN_ID, Roster(shown.entries[1:])).to_bytes())
    few = Roster(shown.entries[:2])
    with pytest.raises(Declined, match="min_enrolment"):
        made.silo(FIRST).reveal(RevealRequest(RUN_ID, few).to_bytes())


def test_a_run_of_another_roster_than_the_revealed_one_is_declined(desk: MakeDesk) -> None:
    made = desk(12, **REGULAR)
    run = regular(made)
    assert run.graph is not None
    entries = list(run.roster.entries)
    # Even if that silo signs it: the order was drawn for the roster this silo has seen.
    liar, key = entries[5].silo_id, entries[5].encryption_key
    signer = made.silo(liar).home.identity
    changed = signatures.enrol(RUN_ID, liar, key, commit_nonce(RUN_ID, liar, bytes(32)), 100, "fcfl", signer)
    entries[5] = RosterEntry.of(changed)
    chosen = (*run.graph.nonces[:5], bytes(32), *run.graph.nonces[6:])
    graph = dataclasses.replace(run.graph, nonces=chosen)
    other = dataclasses.replace(run, roster=Roster(tuple(entries)), graph=graph)
    with pytest.raises(Declined, match="revealed its nonce for"):
        made.silo(FIRST).join(JoinRequest(other, 1).to_bytes())
    made.silo(FIRST).join(JoinRequest(run, 1).to_bytes())


def test_a_run_with_a_changed_nonce_or_before_the_reveal_is_declined(desk: MakeDesk) -> None:
    made = desk(12, **REGULAR)
    shown = roster(made)
    known = [made.silo(name).home.run(RUN_ID).need("graph-nonce") for name in shown.ids]
    early = Run(2, RUN_ID, shown, 6, 0, RegularGraph.of(Degree(6, 6), RATES, known))
    with pytest.raises(Declined, match="revealed its nonce for"):
        made.silo(FIRST).join(JoinRequest(early, 1).to_bytes())
    body = JoinRequest(early, 1).to_bytes()
    assert body.count(known[5]) == 1
    with pytest.raises(SecAggError, match="silo-05 committed"):
        made.silo(FIRST).join(body.replace(known[5], bytes(32)))


@pytest.mark.parametrize(
    ("rates", "says"),
    [
        (dataclasses.replace(RATES, active=False), "allow_semi_honest_graph"),
        (dataclasses.replace(RATES, corruption=0.0), "corruption"),
        (dataclasses.replace(RATES, security=20), "20 bits of security"),
    ],
)
def test_a_graph_weaker_than_the_policy_is_declined(desk: MakeDesk, rates: Rates, says: str) -> None:
    made = desk(12, **REGULAR)
    with pytest.raises(Declined, match=says):
        made.silo(SECOND).join(JoinRequest(regular(made, rates), 1).to_bytes())


def test_the_nonce_is_erased_with_the_run(desk: MakeDesk) -> None:
    made = desk(12, **REGULAR)
    assert (made.folder(FIRST) / "graph-nonce").exists()
    made.close(FIRST)
    assert not (made.folder(FIRST) / "graph-nonce").exists()
