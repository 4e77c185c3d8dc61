"""The coordinator's ledger: every announced training epoch once, and nothing that verify would not accept."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import dp_accounting
import pytest

from fcfl_strategy import rounds
from fcfl_strategy.settings import Settings
from privacy.errors import IdentityError, LedgerError
from privacy.ledger import verify
from privacy.release import ReleasePlan
from privacy.signing import SigningKey
from server_app.config import RunConfig
from server_app.observer import RunObserver
from server_app.run_folder import RunFolder
from tests.fcfl_strategy.made import ORDER, RECORDS, SIGMA, cost, make_settings, make_state, make_terms, spent
from tests.server_app.report.conftest import epoch, metrics

MADE = make_settings()
PLAN = rounds.plan_training(MADE, make_state(MADE), RECORDS)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", RunConfig.from_mapping({}), MADE.terms.to_bytes())


def charged(folder: RunFolder, epochs: list[tuple[int, ReleasePlan]], made: Settings = MADE) -> Any:
    with RunObserver.open(folder, made) as observer:
        for epoch, plan in epochs:
            observer.announced(epoch, plan)
    (run,) = verify(folder.path / "ledger.jsonl", folder.path / "ledger.anchor").runs
    return run


def test_an_epoch_is_charged_once_however_often_it_is_announced(folder: RunFolder) -> None:
    assert charged(folder, [(1, PLAN), (1, PLAN), (2, PLAN)]).releases == 2
    assert charged(folder, [(1, PLAN), (2, PLAN), (3, PLAN)]).releases == 3


def test_an_evaluation_is_not_charged(folder: RunFolder) -> None:
    plan = rounds.plan_evaluation(MADE, make_state(MADE), RECORDS)
    assert charged(folder, [(1, plan)]).releases == 0


def test_the_ledgers_epsilon_is_dp_accountings_at_the_one_order(folder: RunFolder) -> None:
    other = replace(PLAN, noise_multiplier=6.5)
    run = charged(folder, [(1, PLAN), (2, other), (3, PLAN)])
    accountant = dp_accounting.rdp.RdpAccountant([ORDER], dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    for sigma, times in ((SIGMA, 2), (6.5, 1)):
        step = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(sigma))
        accountant.compose(dp_accounting.SelfComposedDpEvent(step, 5), times)
    assert run.epsilon == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-9)
    assert run.opened.order == ORDER


def test_the_state_and_the_ledger_agree_on_the_spend(folder: RunFolder) -> None:
    state = make_state(MADE)
    with RunObserver.open(folder, MADE) as observer:
        for _ in range(3):
            plan = rounds.plan_training(MADE, state, RECORDS)
            state = rounds.announced(MADE, state, plan)
            observer.announced(state.epoch, plan)
            state = rounds.abandon(state, {})
    (run,) = verify(folder.path / "ledger.jsonl").runs
    assert run.rdp_spent == spent(state).spent
    assert run.epsilon == spent(state).epsilon(1e-5)


def test_what_does_not_fit_the_budget_is_not_charged(folder: RunFolder) -> None:
    """Full filters answer coin tails; the ledger stays one that verify accepts."""
    price = cost(MADE, SIGMA)
    run = charged(folder, [(epoch, PLAN) for epoch in range(1, 40)])
    assert run.releases == int(MADE.terms.rdp_budget // price)
    assert run.epsilon <= 1.0


@pytest.mark.parametrize(("seed", "status"), [(None, "private"), (7, "not private: seeded")])
def test_a_run_opens_with_its_terms_once(folder: RunFolder, seed: int | None, status: str) -> None:
    made = make_settings(make_terms(noise_seed=seed))
    for _ in range(2):
        run = charged(folder, [], made)
    assert run.opened.run == (b"r" * 16).hex()
    assert (run.opened.epsilon, run.opened.delta, run.opened.order) == (1.0, 1e-5, ORDER)
    assert run.opened.rdp_budget == made.terms.rdp_budget
    assert run.opened.status == status


def test_a_run_is_closed_once_and_then_takes_nothing(folder: RunFolder) -> None:
    with RunObserver.open(folder, MADE) as observer:
        observer.announced(1, PLAN)
        observer.close("completed")
        observer.close("completed")
        head = observer.head
    assert head[0] == 4
    (run,) = verify(folder.path / "ledger.jsonl", folder.path / "ledger.anchor").runs
    assert run.closed
    assert run.releases == 1


def test_two_coordinators_cannot_conduct_one_run(folder: RunFolder) -> None:
    with RunObserver.open(folder, MADE), pytest.raises(LedgerError, match=r"held by another process"):
        RunObserver.open(folder, MADE)
    with RunObserver.open(folder, MADE):
        pass


def test_the_ledger_is_signed_with_a_key_made_for_the_run(folder: RunFolder) -> None:
    """Made once: a run that is resumed without it stops, and a crash before the ledger was begun loses nothing."""
    key = SigningKey.create(folder.path / "identity.key")
    charged(folder, [(1, PLAN)])
    assert verify(folder.path / "ledger.jsonl", folder.path / "ledger.anchor", key.public_key).signer_given
    (folder.path / "identity.key").unlink()
    with pytest.raises(IdentityError, match=r"identity\.key: the identity key is missing"):
        RunObserver.open(folder, MADE)
    assert not (folder.path / "identity.key").exists()


def test_an_edited_ledger_stops_the_run(folder: RunFolder) -> None:
    charged(folder, [(1, PLAN), (2, PLAN)])
    path = folder.path / "ledger.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"epoch":2', b'"epoch":1'))
    with pytest.raises(LedgerError, match=r"ledger\.jsonl, line 4"):
        RunObserver.open(folder, MADE)


def test_a_finished_epoch_is_a_row_and_a_line_of_the_log(folder: RunFolder, caplog: pytest.LogCaptureFixture) -> None:
    row = epoch(1, 1, validation=metrics(1.25e-4), epsilon=0.7, contributors=3, survivors=3, enrolled=4, seconds=2.0)
    caplog.set_level(logging.INFO, "fcfl.coordinator")
    with RunObserver.open(folder, MADE) as observer:
        observer.finished(row)
        observer.finished({**row, "epoch": 2, "status": "abandoned", "contributors": None, "validation": None})
    assert [line["epoch"] for line in folder.history()] == [1, 2]
    assert caplog.messages == [
        "round 1 completed: validation MSE 0.000125, epsilon 0.7000, survivors 3 of 4, 2.0 s",
        "round 1 abandoned: validation MSE -, epsilon 0.7000, survivors 3 of 4, 2.0 s",
    ]
