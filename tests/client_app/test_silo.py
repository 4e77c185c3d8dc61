"""Outbox, ledger and secrets of a silo: what is sent once is charged once, and never sent differently."""

import dataclasses
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cbor2
import numpy as np
import pytest
from numpy.typing import NDArray

import client_app.home
import client_app.local_training
import client_app.silo
from client_app.contribution import Sample
from client_app.errors import ControlLost, Declined, SiloError
from client_app.home import Reply, SiloHome
from fcfl_strategy import rounds
from privacy.errors import BudgetExceeded, IdentityError, LedgerError, PrivacyError
from privacy.ledger import Ledger, verify
from privacy.records import Release, RunClosed, RunOpened
from privacy.signing import SigningKey
from secagg import silo as protocol
from secagg.envelopes import JoinRequest, MaskRequest, UnmaskCall
from secagg.errors import SecAggError
from secagg.messages import Bundle, Enrolment, EpochOutcome, Roster
from tests.client_app.federation import (
    PARAMETERS,
    RUN_ID,
    Asked,
    Desk,
    Small,
    masked_of,
    records_of,
    releases_of,
    same_reply,
)

MakeDesk = Callable[..., Desk]
FIRST, SECOND = "silo-00", "silo-01"
REFUSALS = (Declined, SecAggError, BudgetExceeded)


class PowerCut(BaseException):
    """Ends the process: nothing catches it."""


@contextmanager
def power_cut_at(monkeypatch: pytest.MonkeyPatch, number: int, *, after: bool) -> Iterator[list[str]]:
    """Cut the power before (or right after) the ``number``-th durable write; gives the writes that were begun."""
    begun: list[str] = []
    write, append = client_app.home.write_atomic, Ledger.append

    def cut(name: str, act: Callable[[], object]) -> object:
        begun.append(name)
        if len(begun) == number and not after:
            raise PowerCut
        result = act()
        if len(begun) == number:
            raise PowerCut
        return result

    with monkeypatch.context() as patch:
        patch.setattr(client_app.home, "write_atomic", lambda path, data: cut(path.name, lambda: write(path, data)))
        patch.setattr(
            Ledger, "append", lambda self, kind, body: cut(f"ledger:{kind}", lambda: append(self, kind, body))
        )
        yield begun


def head_of(desk: Desk, name: str) -> tuple[int, bytes]:
    with desk.small.homes[name].ledger() as ledger:
        count, digest = ledger.head
        return count, bytes.fromhex(digest)


# --- the outbox ---------------------------------------------------------------------------------------


def test_an_identical_request_gets_identical_bytes_and_spends_nothing(desk: MakeDesk) -> None:
    made = desk()
    terms = made.settings.terms.to_bytes()
    enrolled = made.silo(FIRST).enrol(terms)
    assert same_reply(made.silo(FIRST).enrol(terms), enrolled)
    assert made.join(FIRST, 1) == made.join(FIRST, 1)
    asked = made.ask(1)
    first = {name: made.contribute(asked, name) for name in made.small.homes}
    head = head_of(made, FIRST)
    # Every call opens the silo from its folder: this is a new process each time.
    for _ in range(2):
        assert same_reply(made.contribute(asked, FIRST), first[FIRST])
    assert head_of(made, FIRST) == head
    assert len(releases_of(made.small.homes[FIRST])) == 1
    survivors = sorted(first)
    assert made.unmask(asked, FIRST, survivors) == made.unmask(asked, FIRST, survivors)


def test_the_reply_states_the_ledger_head_that_its_charge_made(desk: MakeDesk) -> None:
    made = desk()
    asked = made.ask(1)
    assert masked_of(made.contribute(asked, FIRST)).ledger_head == head_of(made, FIRST)
    kinds = [type(record) for record in records_of(made.small.homes[FIRST])]
    assert kinds == [RunOpened, Release]


def test_the_ledger_head_does_not_tell_who_contributed(desk: MakeDesk) -> None:
    made = desk(6, **{"participation.cohort": 3.0, "participation.min-probability": 0.1, "noise-seed": 7})
    _, replies = completed(made, 1)
    contributors = {name for name in replies if releases_of(made.small.homes[name])}
    assert 0 < len(contributors) < 6
    assert {masked_of(reply).ledger_head[0] for reply in replies.values()} == {3}
    nonces = set()
    for name in replies:
        with made.small.homes[name].ledger() as ledger:
            last = ledger.entries()[-1]
        nonces.add(last.body["nonce"])
        # Without the nonce, the hash could be compared with that of every guess.
        assert last.kind == ("release" if name in contributors else "abstention")
        assert len(bytes.fromhex(last.body["nonce"])) == 16
        assert masked_of(replies[name]).ledger_head[1].hex() == last.hash
    assert len(nonces) == 6


def test_other_terms_under_a_used_run_id_are_declined(desk: MakeDesk) -> None:
    made = desk()
    other = dataclasses.replace(made.settings.terms, epsilon=1.5)
    with pytest.raises(Declined, match="another request"):
        made.silo(FIRST).enrol(other.to_bytes())
    assert len(records_of(made.small.homes[FIRST])) == 1


def test_a_counted_budget_that_costs_more_than_it_says_is_not_opened(desk: MakeDesk, tmp_path: Path) -> None:
    """The coordinator plans it, so the silo prices the planned contributions itself."""
    made = desk(small=Small.make(tmp_path / "wide", 3, epsilon=2.0, delta=1e-4))
    terms = dataclasses.replace(
        made.settings.terms,
        run_id=bytes(16),
        epsilon=0.5,
        accountant="pld",
        rdp_budget=0.0,
        contributions=100_000,
    )
    with pytest.raises(PrivacyError, match=r"epsilon is 0\.5, recomputed .* of 100000 planned contributions"):
        made.silo(FIRST).enrol(terms.to_bytes())
    assert terms.run not in {record.run for record in records_of(made.small.homes[FIRST])}
    assert not made.small.homes[FIRST].run(terms.run_id).path.exists()


def test_a_second_announcement_of_an_epoch_is_declined_and_spends_nothing(desk: MakeDesk) -> None:
    made = desk()
    made.contribute(made.ask(1), FIRST)
    other = made.ask(1, plan=dataclasses.replace(made.plan(), step_size=0.25))
    with pytest.raises(Declined, match="another request"):
        made.contribute(other, FIRST)
    assert len(releases_of(made.small.homes[FIRST])) == 1


def test_a_second_list_of_survivors_is_declined(desk: MakeDesk) -> None:
    made = desk(4)
    asked = made.ask(1)
    for name in made.small.homes:
        made.contribute(asked, name)
    made.unmask(asked, FIRST, sorted(made.small.homes))
    with pytest.raises(Declined, match="another request"):
        made.unmask(asked, FIRST, sorted(made.small.homes)[:3])


def test_shares_are_given_only_after_a_vector_was(desk: MakeDesk) -> None:
    made = desk()
    asked = made.ask(1)
    with pytest.raises(Declined, match="sent no vector"):
        made.unmask(asked, FIRST, sorted(made.small.homes))


def test_another_roster_for_a_run_is_declined(desk: MakeDesk) -> None:
    made = desk()
    made.join(FIRST, 1)
    other = dataclasses.replace(made.run, threshold=made.run.threshold - 1)
    with pytest.raises(Declined, match="never changes"):
        made.silo(FIRST).join(JoinRequest(other, 1).to_bytes())


def test_a_roster_with_another_key_under_this_name_is_declined(desk: MakeDesk) -> None:
    made = desk()
    entries = list(made.run.roster.entries)
    entries[0] = dataclasses.replace(entries[0], encryption_key=protocol.new_run_keys().encryption_key)
    other = dataclasses.replace(made.run, roster=dataclasses.replace(made.run.roster, entries=tuple(entries)))
    with pytest.raises(Declined, match="another key"):
        made.silo(FIRST).join(JoinRequest(other, 1).to_bytes())


@pytest.mark.parametrize("threshold", [1, 2])
def test_a_threshold_below_two_thirds_is_declined(desk: MakeDesk, threshold: int) -> None:
    made = desk(4)
    with pytest.raises((Declined, SecAggError)):
        made.silo(FIRST).join(JoinRequest(dataclasses.replace(made.run, threshold=threshold), 1).to_bytes())


# --- an epoch that is over ----------------------------------------------------------------------------


def completed(made: Desk, epoch: int, **more: object) -> tuple[Asked, dict[str, Reply]]:
    asked = made.ask(epoch, **more)
    return asked, {name: made.contribute(asked, name) for name in made.small.homes}


def outcome(epoch: int, made: Desk) -> EpochOutcome:
    return EpochOutcome(epoch, "completed", tuple(sorted(made.small.homes)))


def test_an_epoch_that_is_over_gives_no_second_bundle_and_no_free_second_release(desk: MakeDesk) -> None:
    made = desk(rounds=5)
    first, _ = completed(made, 1)
    completed(made, 2, outcomes=(outcome(1, made),))
    with pytest.raises(Declined, match="over"):
        made.join(FIRST, 1)
    # Not even if the other silos play along and the request is the old one.
    with pytest.raises(Declined, match="over"):
        made.contribute(first, FIRST)
    assert [release.epoch for release in releases_of(made.small.homes[FIRST])] == [1, 2]


def test_an_epoch_that_was_skipped_is_never_gone_back_to(desk: MakeDesk) -> None:
    made = desk(rounds=9)
    completed(made, 5)
    for epoch in (1, 4):
        with pytest.raises(Declined, match="over"):
            made.join(FIRST, epoch)


def test_a_charged_epoch_without_its_reply_is_declined(desk: MakeDesk) -> None:
    made = desk()
    asked, _ = completed(made, 1)
    (made.folder(FIRST) / "contribute.1.reply").unlink()
    with pytest.raises(Declined, match="free"):
        made.contribute(asked, FIRST)
    assert len(releases_of(made.small.homes[FIRST])) == 1


def test_an_epoch_without_a_release_has_no_second_vector_either(desk: MakeDesk) -> None:
    made = desk()
    asked, _ = completed(made, 1, plan=made.plan("evaluate"))
    (made.folder(FIRST) / "contribute.1.reply").unlink()
    with pytest.raises(Declined, match="free"):
        made.contribute(asked, FIRST)


@pytest.mark.parametrize("step_size", [3e38, 1e39, 1e45, 1e100])
def test_values_that_overflow_are_sent_and_charged(desk: MakeDesk, step_size: float) -> None:
    """A refusal would be a free look at the noised gradient: which step overflows depends on it."""
    made = desk()
    plan = dataclasses.replace(made.plan(), step_size=step_size, drift_budget=0.0)
    asked, replies = completed(made, 1, plan=plan)
    assert made.sum_of(asked, replies)["contributors"][0] == 3
    completed(made, 2, outcomes=(outcome(1, made),))
    assert [release.epoch for release in releases_of(made.small.homes[FIRST])] == [1, 2]


def test_a_contribution_that_fails_is_charged_and_not_tried_again(
    desk: MakeDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = desk()
    asked = made.ask(1)

    def fail(*_: object, **__: object) -> None:
        raise ValueError("something about the data")

    with monkeypatch.context() as patch:
        patch.setattr(client_app.local_training, "train_locally", fail)
        with pytest.raises(ValueError, match="about the data"):
            made.contribute(asked, FIRST)
    assert [release.epoch for release in releases_of(made.small.homes[FIRST])] == [1]
    other = made.ask(1, plan=dataclasses.replace(made.plan(), step_size=0.25))
    for request in (asked, other):
        with pytest.raises(Declined, match="free"):
            made.contribute(request, FIRST)


def test_a_request_that_no_vector_can_be_masked_for_is_refused_before_it_costs_anything(desk: MakeDesk) -> None:
    """Nothing is computed for it either: a coordinator cannot watch how long that takes."""
    made = desk()
    asked = made.ask(1)
    whole = MaskRequest.from_bytes(asked.bodies[FIRST])
    torn = dataclasses.replace(whole, publics=whole.publics[:-1])
    for _ in range(2):
        with pytest.raises(SecAggError, match="is missing"):
            made.silo(FIRST).contribute(torn.to_bytes(), asked.arrays)
        assert releases_of(made.small.homes[FIRST]) == []
    made.contribute(asked, FIRST)
    assert [release.epoch for release in releases_of(made.small.homes[FIRST])] == [1]


def test_an_epoch_for_which_the_silo_has_no_secrets_settles_none_before_it(desk: MakeDesk) -> None:
    made = desk()
    completed(made, 1)
    asked = made.ask(2, outcomes=(outcome(1, made),))
    (made.folder(FIRST) / "2.bundle").rename(made.folder(FIRST) / "elsewhere")
    with pytest.raises(Declined, match="not there"):
        made.contribute(asked, FIRST)
    assert made.small.homes[FIRST].run(RUN_ID).settled() == 0
    assert (made.folder(FIRST) / "1.bundle").exists()
    (made.folder(FIRST) / "elsewhere").rename(made.folder(FIRST) / "2.bundle")
    made.contribute(asked, FIRST)
    assert [release.epoch for release in releases_of(made.small.homes[FIRST])] == [1, 2]


def test_secrets_of_earlier_epochs_are_erased_when_a_later_one_is_announced(desk: MakeDesk) -> None:
    made = desk()
    asked, _ = completed(made, 1)
    made.unmask(asked, FIRST, sorted(made.small.homes))
    bundle = made.folder(FIRST) / "1.bundle"
    secrets = protocol.EpochSecrets.from_bytes(cbor2.loads(bundle.read_bytes())[0])
    completed(made, 2, outcomes=(outcome(1, made),))
    left = {path.name for path in made.folder(FIRST).iterdir()}
    assert not {name for name in left if ".1" in name or name.startswith("1.")}
    assert {"2.bundle", "3.bundle", "contribute.2.reply", "enrol.0.reply"} <= left
    for path in made.folder(FIRST).iterdir():
        data = path.read_bytes()
        assert secrets.mask_private not in data
        assert secrets.seed not in data
    with pytest.raises(Declined):
        made.unmask(asked, FIRST, sorted(made.small.homes)[:3])


def test_after_the_end_no_secret_is_left_and_nothing_is_answered(desk: MakeDesk) -> None:
    made = desk()
    asked, _ = completed(made, 1)
    keys = (made.folder(FIRST) / "keys").read_bytes()
    for _ in range(2):  # a repeated end is no error
        made.close(FIRST)
    assert [path.name for path in made.folder(FIRST).iterdir()] == ["terms"]
    everything = b"".join(p.read_bytes() for p in made.small.homes[FIRST].root.rglob("*") if p.is_file())
    assert cbor2.loads(keys)["private"] not in everything
    assert isinstance(records_of(made.small.homes[FIRST])[-1], RunClosed)
    with pytest.raises(Declined):
        made.contribute(asked, FIRST)
    with pytest.raises(Declined):
        made.join(FIRST, 2)
    with pytest.raises(Declined, match="closed"):
        made.silo(FIRST).enrol(made.settings.terms.to_bytes())


# --- crashes ------------------------------------------------------------------------------------------


def durable_writes(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> list[str]:
    with power_cut_at(monkeypatch, 10**6, after=False) as begun:
        act()
    return begun


def test_a_power_cut_at_any_write_of_a_contribution_loses_nothing_and_doubles_nothing(
    desk: MakeDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = desk(rounds=40)
    others = [name for name in made.small.homes if name != FIRST]
    outcomes: tuple[EpochOutcome, ...] = ()
    epoch, number, seen = 1, 0, set()
    while True:
        # Each epoch cuts the power at the next write, before it and after it, until a contribution needs fewer.
        number, after = number + (epoch % 2), epoch % 2 == 0
        asked = made.ask(epoch, outcomes=outcomes)
        replies = {name: made.contribute(asked, name) for name in others}
        finished = False
        with power_cut_at(monkeypatch, number, after=after) as begun:
            try:
                made.contribute(asked, FIRST)
                finished = True
            except PowerCut:
                seen.add((begun[-1].replace(str(epoch + 1), "next").replace(str(epoch), "this"), after))
        replies[FIRST] = made.contribute(asked, FIRST)
        assert same_reply(made.contribute(asked, FIRST), replies[FIRST])
        charged = releases_of(made.small.homes[FIRST])
        assert [release.epoch for release in charged] == list(range(1, epoch + 1))
        assert masked_of(replies[FIRST]).ledger_head == head_of(made, FIRST)
        # The vector that is sent fits the secrets that are kept, so the sum opens and counts three contributors.
        assert made.sum_of(asked, replies)["contributors"][0] == 3
        outcomes += (outcome(epoch, made),)
        if finished:
            break
        epoch += 1
    stages = {name for name, _ in seen}
    assert stages == {"control.npz", "next.bundle", "contribute.this.reply", "this.bundle", "ledger:release"}
    assert {(name, after) for name in stages for after in (False, True)} == seen


def test_a_power_cut_at_any_write_of_an_enrolment_opens_the_run_once(
    desk: MakeDesk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = desk()
    count = 0
    for number in range(1, 9):
        terms = dataclasses.replace(made.settings.terms, run_id=bytes([number] * 16))
        home = Small.make(tmp_path / str(number), 1).homes[FIRST]
        made.small.homes[FIRST] = home
        with power_cut_at(monkeypatch, number, after=True):
            try:
                made.silo(FIRST).enrol(terms.to_bytes())
            except PowerCut:
                count += 1
        first = made.silo(FIRST).enrol(terms.to_bytes())
        assert same_reply(made.silo(FIRST).enrol(terms.to_bytes()), first)
        assert [type(record) for record in records_of(home)] == [RunOpened]
    assert count == 6


def test_after_a_power_cut_a_run_id_keeps_the_terms_the_ledger_has(
    desk: MakeDesk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = desk()
    made.small.homes[FIRST] = home = Small.make(tmp_path / "rich", 1, epsilon=9.0).homes[FIRST]
    terms = made.settings.terms
    with power_cut_at(monkeypatch, 1, after=True) as begun, pytest.raises(PowerCut):
        made.silo(FIRST).enrol(terms.to_bytes())
    assert begun == ["ledger:run_opened"]
    for change in ({"epsilon": 2.0}, {"rdp_budget": terms.rdp_budget / 2}):
        with pytest.raises(Declined, match="other terms"):
            made.silo(FIRST).enrol(dataclasses.replace(terms, **change).to_bytes())
    made.silo(FIRST).enrol(terms.to_bytes())
    assert len(records_of(home)) == 1


def test_a_silo_whose_outbox_is_lost_still_gives_no_second_answer(desk: MakeDesk) -> None:
    made = desk(4)
    asked = made.ask(1)
    for name in made.small.homes:
        made.contribute(asked, name)
    everyone = sorted(made.small.homes)
    first = made.unmask(asked, FIRST, everyone)
    (made.folder(FIRST) / "unmask.1.reply").unlink()
    with pytest.raises(SecAggError, match="another unmask request was already answered"):
        made.unmask(asked, FIRST, everyone[:3])
    assert made.unmask(asked, FIRST, everyone) == first


def test_a_silo_whose_outbox_is_lost_still_masks_no_second_vector(desk: MakeDesk) -> None:
    made = desk()
    asked = made.ask(1)
    made.contribute(asked, FIRST)
    (made.folder(FIRST) / "contribute.1.reply").unlink()
    secrets = protocol.EpochSecrets.from_bytes(cbor2.loads((made.folder(FIRST) / "1.bundle").read_bytes())[0])
    assert secrets.masked == asked.announcement.digest()
    with pytest.raises(Declined, match="in the ledger and its reply is gone"):
        made.contribute(asked, FIRST)
    # Even with a ledger that does not know of the epoch.
    with made.small.homes[FIRST].ledger() as ledger:
        count = len(ledger.entries())
    assert count == 3
    with pytest.raises(Declined, match="sent no vector"):
        made.unmask(asked, FIRST, sorted(made.small.homes))


def test_a_silo_cut_off_before_it_noted_its_answer_notes_it_before_the_repeat_leaves(
    desk: MakeDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = desk(4)
    asked = made.ask(1)
    with power_cut_at(monkeypatch, 3, after=True) as begun, pytest.raises(PowerCut):
        made.contribute(asked, FIRST)
    assert begun[-1] == "contribute.1.reply"
    # The vector has not left, so there is nothing to unmask.
    with pytest.raises(SecAggError, match="no vector was masked"):
        made.unmask(asked, FIRST, sorted(made.small.homes))
    for name in made.small.homes:
        made.contribute(asked, name)
    everyone = sorted(made.small.homes)
    with power_cut_at(monkeypatch, 1, after=True), pytest.raises(PowerCut):
        made.unmask(asked, FIRST, everyone)
    made.unmask(asked, FIRST, everyone)
    (made.folder(FIRST) / "unmask.1.reply").unlink()
    with pytest.raises(SecAggError, match="already answered"):
        made.unmask(asked, FIRST, everyone[:3])


def test_a_stored_reply_whose_ledger_went_on_stays_unsent(desk: MakeDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    made = desk()
    asked = made.ask(1)
    with power_cut_at(monkeypatch, 5, after=False) as begun, pytest.raises(PowerCut):
        made.contribute(asked, FIRST)
    assert begun[-1] == "ledger:release"
    with made.small.homes[FIRST].ledger() as ledger:
        ledger.append("note", {"text": "another run"})
    with pytest.raises(Declined, match="unsent"):
        made.contribute(asked, FIRST)
    assert releases_of(made.small.homes[FIRST]) == []


# --- budget and ledger --------------------------------------------------------------------------------


def test_the_scalars_are_the_sums_the_divergence_is_made_of(desk: MakeDesk) -> None:
    made = desk()
    plan = made.plan()
    asked, replies = completed(made, 1, plan=plan)
    sums = made.sum_of(asked, replies)
    # With p_i = 1 the weight is N_i, and one step of eta_0 has the noise eta_0 sigma C / (q N_i) in each coordinate.
    counts = np.array(list(made.records.values()), dtype=float)
    scale = plan.step_size * plan.noise_multiplier * plan.clip_norm / plan.sampling_rate
    energies = plan.parameters * (scale / counts) ** 2
    assert sums["weight"][0] == pytest.approx(counts.sum())
    assert sums["noise_energy"][0] == pytest.approx(counts @ energies)
    assert sums["weighted_noise_energy"][0] == pytest.approx(counts**2 @ energies)


def test_a_silo_out_of_budget_sends_zeros_and_charges_nothing(desk: MakeDesk) -> None:
    made = desk(rounds=2)
    outcomes: tuple[EpochOutcome, ...] = ()
    for epoch in (1, 2, 3):
        asked, replies = completed(made, epoch, outcomes=outcomes)
        sums = made.sum_of(asked, replies)
        outcomes += (outcome(epoch, made),)
        if epoch < 3:
            assert sums["contributors"][0] == 3
    assert sums["contributors"][0] == 0
    for name, values in sums.items():
        if name not in ("score",) and not name.startswith("validation."):
            assert not np.any(values), name
    assert sums["score"][0] == pytest.approx(sum(made.records.values()) / np.sqrt(2))
    assert [release.epoch for release in releases_of(made.small.homes[FIRST])] == [1, 2]
    spent = made.settings.terms
    assert releases_of(made.small.homes[FIRST])[-1].rdp_total <= spent.rdp_budget


def test_an_evaluation_spends_nothing_and_sums_only_metrics(desk: MakeDesk) -> None:
    made = desk()
    made.state = dataclasses.replace(made.state)
    plan = made.plan("evaluate")
    asked, replies = completed(made, 1, plan=plan)
    sums = made.sum_of(asked, replies)
    assert {name.split(".")[0] for name in sums} == {"validation", "test"}
    assert sums["test.count"][0] == 3 * 16
    assert releases_of(made.small.homes[FIRST]) == []
    assert masked_of(replies[FIRST]).ledger_head == head_of(made, FIRST)


@pytest.mark.parametrize("loss", ["ledger.jsonl", "ledger.anchor", "both", "truncated", "edited"])
def test_a_silo_with_a_lost_or_altered_ledger_stops_and_never_starts_from_zero(desk: MakeDesk, loss: str) -> None:
    made = desk()
    asked = made.ask(1)
    made.contribute(asked, FIRST)
    root = made.small.homes[FIRST].root
    ledger, anchor = root / "ledger.jsonl", root / "ledger.anchor"
    if loss in ("ledger.jsonl", "both"):
        ledger.unlink()
    if loss in ("ledger.anchor", "both"):
        anchor.unlink()
    if loss == "truncated":
        ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:2]))
    if loss == "edited":
        ledger.write_bytes(ledger.read_bytes().replace(b'"steps":1', b'"steps":0'))
    before = {path: path.read_bytes() for path in (ledger, anchor) if path.exists()}
    with pytest.raises(LedgerError):
        made.contribute(asked, FIRST)
    with pytest.raises(LedgerError):
        made.silo(FIRST).enrol(dataclasses.replace(made.settings.terms, run_id=b"n" * 16).to_bytes())
    assert {path: path.read_bytes() for path in (ledger, anchor) if path.exists()} == before


@pytest.mark.parametrize("loss", ["lost", "readable", "another", "damaged"])
def test_a_silo_without_its_key_stops_and_never_makes_one(desk: MakeDesk, loss: str) -> None:
    made = desk()
    asked = made.ask(1)
    root = made.small.homes[FIRST].root
    key = root / "identity.key"
    if loss == "lost":
        key.unlink()
    elif loss == "readable":
        key.chmod(0o640)
    elif loss == "another":
        key.write_bytes((made.small.homes[SECOND].root / "identity.key").read_bytes())
    else:
        key.write_bytes(key.read_bytes()[:40])
    before = {path: path.read_bytes() for path in root.iterdir() if path.is_file()}
    with pytest.raises(IdentityError, match=r"identity\.key.*(restore|chmod 600)"):
        SiloHome.open(root).ledger()
    with pytest.raises(SiloError, match="never replaced"):
        SiloHome.create(root, (root / "silo.toml").read_text())
    assert {path: path.read_bytes() for path in root.iterdir() if path.is_file()} == before
    if loss != "another":
        return
    exchanged = dataclasses.replace(made.silo(FIRST), home=SiloHome.open(root))
    with pytest.raises(IdentityError):
        exchanged.contribute(asked.bodies[FIRST], asked.arrays)


def test_a_silo_enrols_with_the_key_that_signs_its_ledger(desk: MakeDesk) -> None:
    made = desk()
    home = made.small.homes[FIRST]
    enrolled = home.run(RUN_ID).reply("enrol", 0)
    assert enrolled is not None
    assert Enrolment.from_bytes(enrolled.body).identity_key == home.identity.public_key
    assert made.run.roster.entry(FIRST).identity_key == home.identity.public_key
    assert len({entry.identity_key for entry in made.run.roster.entries}) == len(made.run.roster.entries)
    files = home.root / "ledger.jsonl", home.root / "ledger.anchor"
    assert verify(*files, home.identity.public_key).signer_given


def test_a_roster_with_another_identity_under_the_silos_name_is_declined(desk: MakeDesk) -> None:
    made = desk()
    entries = tuple(
        dataclasses.replace(entry, identity_key=SigningKey.generate().public_key) if entry.silo_id == FIRST else entry
        for entry in made.run.roster.entries
    )
    run = dataclasses.replace(made.run, roster=Roster(entries))
    with pytest.raises(Declined, match="another key under this silo's name"):
        made.silo(FIRST).join(JoinRequest(run, 1).to_bytes())


def test_a_ledger_restored_together_with_its_anchor_is_caught_by_the_head_others_remember(desk: MakeDesk) -> None:
    made = desk(rounds=5)
    root = made.small.homes[FIRST].root
    copies = {name: (root / name).read_bytes() for name in ("ledger.jsonl", "ledger.anchor")}
    _, replies = completed(made, 1)
    heads = {
        name: masked_of(reply).ledger_head[0].to_bytes(8, "big") + masked_of(reply).ledger_head[1]
        for name, reply in replies.items()
    }
    for name, data in copies.items():
        (root / name).write_bytes(data)
    second = made.ask(2, outcomes=(outcome(1, made),), heads=heads)
    with pytest.raises(Declined, match="behind a head"):
        made.contribute(second, FIRST)
    made.contribute(second, SECOND)


def test_a_ledger_that_went_on_with_another_run_is_not_behind(desk: MakeDesk) -> None:
    made = desk(rounds=5)
    _, replies = completed(made, 1)
    with made.small.homes[FIRST].ledger() as ledger:
        ledger.append("note", {"text": "another run"})
    head = masked_of(replies[FIRST]).ledger_head
    heads = {FIRST: head[0].to_bytes(8, "big") + head[1]}
    made.contribute(made.ask(2, outcomes=(outcome(1, made),), heads=heads), FIRST)


def test_the_coordinator_keeps_the_highest_head(desk: MakeDesk) -> None:
    made = desk()
    late, early = (5).to_bytes(8, "big") + b"l" * 32, (4).to_bytes(8, "big") + b"z" * 32
    state = rounds.complete(dataclasses.replace(made.state, ledger_heads={FIRST: late}), {FIRST: early, SECOND: early})
    assert state.ledger_heads == {FIRST: late, SECOND: early}


# --- what the silo refuses ----------------------------------------------------------------------------


def changed(arrays: Mapping[str, NDArray[np.float32]], **change: object) -> dict[str, NDArray[np.float32]]:
    merged = {**arrays, **change}
    return {name: value for name, value in merged.items() if value is not None}


def test_a_vector_from_the_coordinator_that_is_not_the_announced_one_is_declined(desk: MakeDesk) -> None:
    made = desk()
    asked = made.ask(1)
    point = asked.arrays["point"]
    poisoned = point.copy()
    poisoned[3] = np.nan
    for bad in (None, point[:-1], point.astype(np.float64), point + np.float32(1e-3), poisoned, point[None, :]):
        with pytest.raises(Declined, match="point"):
            made.silo(FIRST).contribute(asked.bodies[FIRST], changed(asked.arrays, point=bad))
    with pytest.raises(Declined, match="control"):
        made.silo(FIRST).contribute(asked.bodies[FIRST], changed(asked.arrays, control=None))
    assert releases_of(made.small.homes[FIRST]) == []
    made.contribute(asked, FIRST)


def test_a_point_that_is_not_finite_is_declined_even_if_it_is_the_announced_one(desk: MakeDesk) -> None:
    made = desk()
    point = made.ask(1).arrays["point"].copy()
    point[0] = np.nan
    asked = made.ask(1, plan=dataclasses.replace(made.plan(), point_hash=rounds.digest(point)))
    with pytest.raises(Declined, match="not finite"):
        made.silo(FIRST).contribute(asked.bodies[FIRST], changed(asked.arrays, point=point))


def test_a_ring_coarser_than_the_plan_s_bounds_is_declined(desk: MakeDesk) -> None:
    made = desk()
    asked = made.ask(1)
    announcement = asked.announcement
    layout = announcement.layout
    segment = dataclasses.replace(layout.segments[0], bound=layout.segments[0].bound / 2)
    other = dataclasses.replace(layout, segments=(segment, *layout.segments[1:]))
    request = MaskRequest.from_bytes(asked.bodies[FIRST])
    body = dataclasses.replace(request, announcement=dataclasses.replace(announcement, layout=other)).to_bytes()
    with pytest.raises(Declined, match="ring layout"):
        made.silo(FIRST).contribute(body, asked.arrays)


def test_a_plan_of_other_terms_is_declined_before_anything_is_spent(desk: MakeDesk) -> None:
    made = desk()
    for change in ({"terms_hash": bytes(32)}, {"noise_multiplier": made.settings.terms.sigma_min * 0.9}):
        asked = made.ask(1, plan=dataclasses.replace(made.plan(), **change))
        with pytest.raises(Declined):
            made.contribute(asked, FIRST)
    assert releases_of(made.small.homes[FIRST]) == []
    assert not (made.folder(FIRST) / "contribute.1.reply").exists()


def test_unmasking_for_fewer_than_the_threshold_or_without_this_silo_is_declined(desk: MakeDesk) -> None:
    made = desk(4)
    asked, _ = completed(made, 1)
    names = sorted(made.small.homes)
    call = made.call(asked, names)
    for kept in (slice(2), slice(1, None)):
        request = dataclasses.replace(call.request, survivors=call.request.survivors[kept])
        body = UnmaskCall(request, call.vectors[kept]).to_bytes()
        with pytest.raises(SecAggError):
            made.silo(FIRST).unmask(body)


# --- outcomes -----------------------------------------------------------------------------------------


def control_of(made: Desk, name: str) -> NDArray[np.float64]:
    with np.load(made.folder(name) / "control.npz") as stored:
        return np.array(stored["weighted"])


def test_a_control_change_waits_for_the_outcome_of_its_epoch(desk: MakeDesk) -> None:
    made = desk(4, rounds=9)
    asked, replies = completed(made, 1)
    sums = made.sum_of(asked, replies)
    assert not control_of(made, FIRST).any()
    everyone = tuple(sorted(made.small.homes))
    made.ask(2)
    second = made.ask(2, outcomes=(EpochOutcome(1, "completed", everyone[1:]),))
    for name in everyone:
        made.contribute(second, name)
    # The one the outcome leaves out drops its change, the others commit exactly what they sent.
    assert not control_of(made, FIRST).any()
    pending = masked_of(replies[FIRST])
    assert pending.sender == FIRST
    kept = sum(control_of(made, name) for name in everyone)
    assert kept.any()
    assert not np.array_equal(kept, sums["control"])


def test_a_reply_that_never_left_changes_no_control_whatever_is_announced(
    desk: MakeDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = desk()
    asked = made.ask(1)
    with power_cut_at(monkeypatch, 5, after=False) as begun, pytest.raises(PowerCut):
        made.contribute(asked, FIRST)
    assert begun[-1] == "ledger:release"
    claimed = EpochOutcome(1, "completed", tuple(sorted(made.small.homes)))
    made.contribute(made.ask(2, outcomes=(claimed,)), FIRST)
    home = made.small.homes[FIRST]
    control = home.run(RUN_ID).control(made.plan().parameters)
    assert [release.epoch for release in releases_of(home)] == [2]
    assert not control.weighted.any()
    assert not control.measured


def test_a_step_is_corrected_towards_the_mean_of_the_controls(desk: MakeDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    made = desk(**{"drift.gain": 0.5})
    first, replies = completed(made, 1)
    made.state = dataclasses.replace(made.state, control_total=made.sum_of(first, replies)["control"])
    train, seen = client_app.local_training.train_locally, []

    def watched(*args: Any) -> object:
        seen.append(args[6])
        return train(*args)

    monkeypatch.setattr(client_app.local_training, "train_locally", watched)
    second = made.ask(2, outcomes=(outcome(1, made),))
    made.contribute(second, FIRST)
    own = made.small.homes[FIRST].run(RUN_ID).control(made.plan().parameters).weighted / made.records[FIRST]
    assert np.abs(own).max() > 0
    np.testing.assert_allclose(seen[0], 0.5 * (second.arrays["control"] - own), rtol=1e-5, atol=1e-7)


def test_settling_twice_changes_nothing(desk: MakeDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    made = desk(rounds=9)
    asked, replies = completed(made, 1)
    total = made.sum_of(asked, replies)["control"]
    second = made.ask(2, outcomes=(outcome(1, made),))
    # The power goes right after the control is committed: the repeated request must not add the change again.
    with power_cut_at(monkeypatch, 1, after=True) as begun, pytest.raises(PowerCut):
        made.contribute(second, FIRST)
    assert begun == ["control.npz"]
    for name in made.small.homes:
        made.contribute(second, name)
    np.testing.assert_array_equal(sum(control_of(made, name) for name in made.small.homes), total)


def test_an_outcome_is_settled_after_missed_epochs_too(desk: MakeDesk) -> None:
    made = desk(rounds=9)
    _, _ = completed(made, 1)
    everyone = tuple(sorted(made.small.homes))
    missed = (
        EpochOutcome(1, "completed", everyone),
        EpochOutcome(2, "abandoned", ()),
        EpochOutcome(3, "completed", everyone[1:]),
    )
    made.contribute(made.ask(4, outcomes=missed), FIRST)
    assert control_of(made, FIRST).any()


# --- files --------------------------------------------------------------------------------------------


def test_every_file_of_a_silo_is_for_its_owner_only(desk: MakeDesk) -> None:
    old = os.umask(0o000)
    try:
        made = desk()
        completed(made, 1)
        files = [path for path in made.small.homes[FIRST].root.rglob("*") if path.is_file()]
        assert {"keys", "2.bundle", "ledger.jsonl", "contribute.1.reply"} <= {path.name for path in files}
        for path in files:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    finally:
        os.umask(old)


def test_bundles_of_a_run_never_repeat_a_secret(desk: MakeDesk) -> None:
    made = desk()
    bundles: list[Bundle] = [made.join(name, epoch) for name in made.small.homes for epoch in (1, 2, 3)]
    assert len({bundle.public.mask_key for bundle in bundles}) == 9
    assert len({bundle.public.seed_commitment for bundle in bundles}) == 9


def test_joins_for_far_epochs_keep_a_bounded_number_of_bundles_and_no_second_one_of_an_epoch(
    desk: MakeDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_app.silo, "MAX_BUNDLES", 4)
    made = desk()
    first = [made.join(FIRST, epoch) for epoch in (1, 2, 3, 4)]
    assert [made.join(FIRST, epoch) for epoch in (1, 2, 3, 4)] == first
    for epoch in range(10, 60, 10):
        made.join(FIRST, epoch)
    kept = sorted(int(path.name.split(".")[0]) for path in made.folder(FIRST).glob("*.bundle"))
    assert kept == [20, 30, 40, 50]
    for epoch in (1, 4, 10):
        with pytest.raises(Declined, match=f"epoch {epoch}: over"):
            made.join(FIRST, epoch)
    with pytest.raises(Declined, match="epoch 15: 4 bundles of later epochs"):
        made.join(FIRST, 15)
    assert made.join(FIRST, 20) == made.join(FIRST, 20)


def test_a_silo_that_missed_many_epochs_takes_part_in_the_next(desk: MakeDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_app.silo, "MAX_BUNDLES", 4)
    made = desk(rounds=5)
    for epoch in range(1, 9):
        made.join(FIRST, epoch)
    completed(made, 9)


def test_a_run_counts_in_full_unless_it_was_closed_without_a_release(desk: MakeDesk) -> None:
    made = desk()
    second = dataclasses.replace(made.settings.terms, run_id=b"2" * 16)
    # Open, it may still release.
    with pytest.raises(Declined, match="epsilon"):
        made.silo(SECOND).enrol(second.to_bytes())
    made.contribute(made.ask(1), FIRST)
    for name in (FIRST, SECOND):
        made.close(name)
    made.silo(SECOND).enrol(second.to_bytes())
    with pytest.raises(Declined, match="epsilon"):
        made.silo(FIRST).enrol(second.to_bytes())


def test_two_runs_share_nothing_but_the_budget(desk: MakeDesk) -> None:
    made = desk()
    made.contribute(made.ask(1), FIRST)
    other = dataclasses.replace(made.settings.terms, run_id=b"o" * 16)
    with pytest.raises(Declined, match="epsilon"):
        made.silo(FIRST).enrol(other.to_bytes())
    root = made.small.homes[FIRST].root
    (root / "silo.toml").write_text(
        (root / "silo.toml").read_text().replace("epsilon = 1.0", "epsilon = 2.0").replace("1e-05", "2e-05")
    )
    one = made.silo(FIRST).enrol(other.to_bytes())
    assert cbor2.loads(one.body)["encryption_key"] != made.run.roster.entry(FIRST).encryption_key
    assert [record.run for record in records_of(made.small.homes[FIRST])] == [RUN_ID.hex()] * 2 + [(b"o" * 16).hex()]
    shutil.rmtree(made.folder(FIRST))


def test_samples_that_change_during_a_run_are_refused(desk: MakeDesk) -> None:
    made = desk()
    asked = made.ask(1)
    silo = made.silo(FIRST)
    train = silo.sample.shard.train
    fewer = dataclasses.replace(train, features=train.features[:-1], targets=train.targets[:-1])
    other = dataclasses.replace(silo, sample=Sample(dataclasses.replace(silo.sample.shard, train=fewer)))
    edited = {**silo.sample.shard.manifest["arrays"], "train.targets.npy": {"sha256": "0" * 64}}
    manifest = {**silo.sample.shard.manifest, "arrays": edited}
    replaced = dataclasses.replace(silo, sample=Sample(dataclasses.replace(silo.sample.shard, manifest=manifest)))
    for changed in (other, replaced):
        with pytest.raises(SiloError, match="samples changed"):
            changed.contribute(asked.bodies[FIRST], asked.arrays)
    assert releases_of(silo.home) == []


def test_one_process_at_a_time_answers_for_a_silo(desk: MakeDesk) -> None:
    home = desk().silo(FIRST).home
    with home.alone(), pytest.raises(SiloError, match="another process"), home.alone():
        pass
    with home.alone():
        pass


def test_a_silo_that_lost_its_control_waits_for_a_reset_of_all_and_spends_nothing_before(desk: MakeDesk) -> None:
    made = desk()
    completed(made, 1)
    assert releases_of(made.small.homes[FIRST])
    (made.folder(FIRST) / "control.npz").unlink()
    for epoch in (2, 3):
        asked = made.ask(epoch)
        with pytest.raises(ControlLost, match="control"):
            made.contribute(asked, FIRST)
    assert [release.epoch for release in releases_of(made.small.homes[FIRST])] == [1]
    made.state = rounds.reset_controls(made.state)
    made.contribute(made.ask(4), FIRST)
    assert [release.epoch for release in releases_of(made.small.homes[FIRST])] == [1, 4]
    assert made.small.homes[FIRST].run(RUN_ID).control(PARAMETERS).generation == 1


def test_a_reset_drops_what_was_to_be_settled_and_is_never_undone(desk: MakeDesk) -> None:
    made = desk(rounds=5)
    completed(made, 1)
    completed(made, 2, outcomes=(outcome(1, made),))
    folder = made.small.homes[SECOND].run(RUN_ID)
    assert folder.control(PARAMETERS).weighted.any()
    before, made.state = made.state, rounds.reset_controls(made.state)
    made.contribute(made.ask(3, outcomes=(outcome(1, made), outcome(2, made))), SECOND)
    control = folder.control(PARAMETERS)
    assert not control.weighted.any()
    assert (control.generation, control.settled, control.drift) == (1, 2, 0.0)
    made.state = before
    with pytest.raises(Declined, match="reset"):
        made.contribute(made.ask(4, outcomes=(outcome(1, made), outcome(2, made))), SECOND)
