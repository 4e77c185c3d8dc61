"""Runs among silos that are missing, refuse, break or have run out of budget."""

import json
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message

import client_app.local_training
from client_app.errors import Code
from fcfl_strategy.errors import RunError
from privacy.ledger import verify
from secagg.messages import Run
from tests.client_app.federation import Small, conduct, records_of, releases_of
from tests.experiments.watch import TRAIN, UNMASK, Faults, Sums, drop, names

MakeSmall = Callable[..., Small]
ENROL, CLOSE = "query.enrol", "query.close"


@pytest.fixture
def warnings() -> Iterator[list[str]]:
    """Lines of the coordinator's log from warnings on."""
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logger, handler = logging.getLogger("fcfl.coordinator"), Keep()
    before = logger.level
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)
    logger.setLevel(before)


@pytest.fixture
def loud(small: MakeSmall, warnings: list[str]) -> list[str]:
    logging.getLogger("fcfl.coordinator").setLevel(logging.WARNING)
    return warnings


def codes(into: list[tuple[str, int]]) -> Callable[[Message], None]:
    """Observe the refusals: stage and code."""

    def observe(message: Message) -> None:
        if message.metadata.dst_node_id == 1 and message.has_content():
            body = message.content["body"]
            assert isinstance(body, ConfigRecord)
            if "code" in body:
                into.append((message.metadata.message_type, int(str(body["code"]))))

    return observe


def roster(path: Path) -> tuple[str, ...]:
    return Run.from_bytes((path / "journal" / "run").read_bytes()).roster.ids


# --- enrolment ----------------------------------------------------------------------------------------


def test_more_silos_than_nodes_ends_with_how_many_there_were(
    small: MakeSmall, hurry: dict[str, Any], tmp_path: Path
) -> None:
    made = small(3)
    config = made.config(silos=5, **hurry)
    with pytest.raises(RunError, match=r"too few silos: 3 of 5 enrolled within 0\.2 s"):
        conduct(made.grid(config), config, tmp_path / "run")


def test_too_few_enrolments_in_time_end_the_run(small: MakeSmall, hurry: dict[str, Any], tmp_path: Path) -> None:
    made = small(4)
    config = made.config(**hurry)
    faults = Faults({**drop(ENROL, [0], [1]), **drop(ENROL, [0], [3], "error")})
    with pytest.raises(RunError, match="too few silos: 2 of 4") as caught:
        conduct(made.grid(config, fault=faults), config, tmp_path / "run")
    assert "silos' own logs" in str(caught.value)
    assert all(not releases_of(home) for home in made.homes.values())


def test_a_run_that_never_started_takes_nobody_s_budget(
    small: MakeSmall, hurry: dict[str, Any], tmp_path: Path
) -> None:
    # Policies and terms are both at epsilon 1: a second run fits only if the first one left nothing behind.
    made = small(4)
    config = made.config(**hurry)
    with pytest.raises(RunError, match="start a new run"):
        conduct(made.grid(config, fault=Faults(drop(ENROL, [0], [3]))), config, tmp_path / "one")
    for number, home in enumerate(made.homes.values()):
        kinds = [type(record).KIND for record in records_of(home)]
        assert kinds == (["run_opened", "run_closed"] if number < 3 else [])
        assert not list((home.root / "runs").glob("*/keys"))
    again = made.config(**hurry, resume=True)
    with pytest.raises(RunError, match="ended at enrolment"):
        conduct(made.grid(again), again, tmp_path / "one")
    done = conduct(made.grid(config), config, tmp_path / "two")
    assert done.strategy.outcome == "completed"
    # The second one did release: nothing is left for a third.
    with pytest.raises(RunError, match="0 of 4"):
        conduct(made.grid(config), config, tmp_path / "three")


def test_metrics_stay_off_where_no_silo_consents(
    small: MakeSmall, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made, sums = small(4, allow_metrics=False), Sums.watched(monkeypatch)
    config = made.config(**{"eval.metrics": False, "eval.final": False})
    done = conduct(made.grid(config), config, tmp_path / "run")
    assert done.strategy.outcome == "completed"
    sums.check()
    assert not [name for _, total in sums.decoded.values() for name in total if "." in name]
    assert {row["validation"] for row in done.history} == {None}


def test_more_silos_than_asked_for_all_take_part(small: MakeSmall, tmp_path: Path) -> None:
    made = small(5)
    config = made.config(silos=3, **{"participation.cohort": 3.0, "participation.min-probability": 0.5})
    conduct(made.grid(config), config, tmp_path / "run")
    assert roster(tmp_path / "run") == names(range(5))


def test_of_two_nodes_with_one_name_the_second_is_left_out(
    small: MakeSmall, loud: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made, sums = small(4, names=["a", "b", "b", "c"]), Sums.watched(monkeypatch)
    config = made.config(silos=3, **{"participation.cohort": 3.0})
    conduct(made.grid(config), config, tmp_path / "run")
    assert "two nodes enrol as b; the second is left out" in loud
    assert roster(tmp_path / "run") == ("a", "b", "c")
    assert releases_of(made.homes["silo-01"])
    # The second opened the run in its own ledger and is told that it is over.
    assert [type(record).KIND for record in records_of(made.homes["silo-02"])] == ["run_opened", "run_closed"]
    sums.check()


def test_a_copy_of_a_silo_that_enrols_beside_it_is_left_out_and_one_in_its_place_is_not_unmasked(
    small: MakeSmall, loud: list[str], tmp_path: Path
) -> None:
    made = small(4, epsilon=9.0, delta=1e-3)
    first, copy = made.homes["silo-00"].root, made.homes["silo-03"].root
    shutil.rmtree(copy)
    shutil.copytree(first, copy)
    config = made.config(silos=3, **{"participation.cohort": 3.0})
    conduct(made.grid(config), config, tmp_path / "run")
    assert "two nodes enrol as silo-00; the second is left out" in loud
    shutil.rmtree(first)
    copy.rename(first)
    again = conduct(made.grid(config, nodes=3), config, tmp_path / "again")
    assert {row["status"] for row in again.history} == {"abandoned"}
    for name in names(range(1, 3)):
        assert "silo-00: its ledger has" in (made.homes[name].root / "silo.log").read_text()


def test_two_nodes_with_one_name_do_not_count_twice(small: MakeSmall, hurry: dict[str, Any], tmp_path: Path) -> None:
    made = small(4, names=["a", "b", "b", "c"])
    config = made.config(**hurry)
    with pytest.raises(RunError, match="too few silos: 3 of 4"):
        conduct(made.grid(config), config, tmp_path / "run")


def test_a_resumed_run_finds_the_silo_it_knows_behind_another_of_its_name(
    small: MakeSmall, hurry: dict[str, Any], tmp_path: Path
) -> None:
    made = small(4, names=["a", "b", "b", "c"])
    settings = {"silos": 3, "participation.cohort": 3.0} | hurry | {"deadline.enrol": 2.0, "dp.contributions": 1}
    config = made.config(**settings)
    with pytest.raises(RunError, match="survivors"):
        conduct(made.grid(config, fault=Faults(drop(TRAIN, range(1, 9), [0]))), config, tmp_path / "run")
    again = made.config(**settings, resume=True)

    def late(message: Message) -> Any:
        from experiments.local_grid import Fault

        first = message.metadata.message_type == ENROL and message.metadata.dst_node_id == 1001
        return Fault("delay", 0.1) if first else None

    done = conduct(made.grid(again, fault=late), again, tmp_path / "run")
    assert done.history[-1]["survivors"] == 3


def test_a_silo_without_training_records_is_left_out_and_named(
    small: MakeSmall, loud: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made, sums = small(5, records=[80, 90, 100, 110, 0]), Sums.watched(monkeypatch)
    config = made.config(silos=4, **{"participation.cohort": 4.0})
    done = conduct(made.grid(config), config, tmp_path / "run")
    assert "silo-04 enrolled without records; it is left out" in loud
    assert roster(tmp_path / "run") == names(range(4))
    assert done.strategy.outcome == "completed"
    assert not releases_of(made.homes["silo-04"])
    sums.check()


def test_a_single_record_is_enough_to_take_part(small: MakeSmall, tmp_path: Path) -> None:
    made = small(4, records=[1, 90, 5000, 3])
    config = made.config()
    assert conduct(made.grid(config), config, tmp_path / "run").strategy.outcome == "completed"


# --- silos that refuse or break -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ({"epsilon": 0.99}, "epsilon 1.0 on top of 0"),
        ({"delta": 9e-6}, "delta 1e-05 on top of 0"),
        ({"allow_seeded": False}, "seeded"),
        ({"min_cohort": 5.5}, "expected contributors"),
        ({"hidden": [320, 320]}, "model"),
    ],
)
def test_a_silo_whose_policy_declines_gives_code_1_and_spends_nothing(
    small: MakeSmall, hurry: dict[str, Any], tmp_path: Path, policy: dict[str, Any], says: str
) -> None:
    made = small(5, policies={2: policy})
    refusals: list[tuple[str, int]] = []
    config = made.config(**hurry, **{"noise-seed": 5})
    with pytest.raises(RunError, match="too few silos: 4 of 5"):
        conduct(made.grid(config, observe=codes(refusals)), config, tmp_path / "run")
    assert refusals == [(ENROL, Code.DECLINED)]
    home = made.homes["silo-02"]
    assert records_of(home) == []
    assert says in (home.root / "silo.log").read_text()
    assert not list((home.root / "runs").glob("*/keys"))


def test_a_roster_smaller_than_a_policy_wants_loses_that_silo_and_spends_nothing_there(
    small: MakeSmall, hurry: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made, sums = small(5, policies={4: {"min_enrolment": 6}}), Sums.watched(monkeypatch)
    refusals: list[tuple[str, int]] = []
    config = made.config(**hurry)
    done = conduct(made.grid(config, observe=codes(refusals)), config, tmp_path / "run")
    assert done.strategy.outcome == "completed"
    assert set(refusals) == {("query.join", Code.DECLINED)}
    assert not releases_of(made.homes["silo-04"])
    sums.check()


def test_a_silo_that_breaks_in_training_is_lost_with_code_2_and_charged(
    small: MakeSmall, hurry: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made, sums, refusals = small(5), Sums.watched(monkeypatch), []  # type: ignore[var-annotated]
    train = client_app.local_training.train_locally

    def broken(model: Any, features: np.ndarray, *args: Any) -> Any:
        if len(features) == 120:
            raise FloatingPointError("feature 7 of record 3 is 1e38")
        return train(model, features, *args)

    monkeypatch.setattr(client_app.local_training, "train_locally", broken)
    config = made.config(**hurry)
    done = conduct(made.grid(config, observe=codes(refusals)), config, tmp_path / "run")
    assert done.strategy.outcome == "completed"
    assert refusals == [(TRAIN, Code.FAILED)] * 2
    sums.check()
    # It still takes part in the final evaluation, which trains nothing.
    assert [survivors for survivors, _ in sums.decoded.values()] == [
        ("silo-00", "silo-01", "silo-03", "silo-04"),
        ("silo-00", "silo-01", "silo-03", "silo-04"),
        names(range(5)),
    ]
    # That it broke may depend on its records, and the coordinator sees that it did.
    assert [release.epoch for release in releases_of(made.homes["silo-02"])] == [1, 2]
    assert "feature 7 of record 3" in (made.homes["silo-02"].root / "silo.log").read_text()
    written = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert b"feature 7" not in written


def test_silos_that_do_not_confirm_the_end_are_counted(
    small: MakeSmall, loud: list[str], hurry: dict[str, Any], tmp_path: Path
) -> None:
    made = small(4)
    config = made.config(**hurry, rounds=1)

    def deaf(message: Message) -> Any:
        from experiments.local_grid import Fault

        return Fault("lost") if message.metadata.message_type == CLOSE and message.metadata.dst_node_id < 1002 else None

    assert conduct(made.grid(config, fault=deaf), config, tmp_path / "run").strategy.outcome == "completed"
    assert "2 silos did not confirm the end of the run" in loud


# --- budgets ------------------------------------------------------------------------------------------


def check_budgets(made: Small, path: Path, epsilon: float) -> None:
    """No row and no ledger is above the target, and every ledger verifies."""
    for line in (path / "history.jsonl").read_text().splitlines():
        row = json.loads(line)
        assert 0 <= row["epsilon"] <= epsilon
        assert 0 <= row["budget_fraction"] <= 1
    for root in [path, *(home.root for home in made.homes.values())]:
        summary = verify(root / "ledger.jsonl", root / "ledger.anchor")
        for run in summary.runs:
            assert run.epsilon <= epsilon


def test_abandoned_epochs_spend_and_the_run_ends_when_the_budget_does(
    small: MakeSmall, hurry: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made, sums = small(5), Sums.watched(monkeypatch)
    config = made.config(**hurry, rounds=3)
    done = conduct(made.grid(config, fault=Faults(drop(UNMASK, [1], [3, 4]))), config, tmp_path / "run")
    assert done.strategy.outcome == "budget exhausted"
    assert done.strategy.rounds_done == 2
    assert [(row["purpose"], row["status"]) for row in done.history] == [
        ("train", "abandoned"),
        ("train", "completed"),
        ("train", "completed"),
        ("evaluate", "completed"),
    ]
    for home in made.homes.values():
        assert [release.epoch for release in releases_of(home)] == [1, 2, 3]
    assert 1 not in sums.decoded
    sums.check()
    check_budgets(made, tmp_path / "run", 1.0)


@pytest.mark.parametrize("schedule", ["constant", "divergence"])
def test_epsilon_never_passes_the_target_with_fewer_contributions_than_rounds(
    small: MakeSmall, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, schedule: str
) -> None:
    made, sums = small(4), Sums.watched(monkeypatch)
    settings: dict[str, Any] = {"rounds": 6, "dp.contributions": 2, "dp.schedule": schedule, "dp.sensitivity": 0.5}
    settings |= {"participation.cohort": 2.0, "participation.min-probability": 0.3, "dp.epsilon": 0.7}
    config = made.config(**settings)
    done = conduct(made.grid(config), config, tmp_path / "run")
    assert done.strategy.outcome in ("completed", "budget exhausted")
    check_budgets(made, tmp_path / "run", 0.7)
    budget = done.strategy.settings.terms.rdp_budget
    for name, home in made.homes.items():
        assert [release.epoch for release in releases_of(home)] == sums.spent.get(name, [])
        assert all(release.rdp_total <= budget for release in releases_of(home))
    sums.check()


def test_a_second_run_on_the_same_silos_is_declined_once_their_total_is_granted(
    small: MakeSmall, hurry: dict[str, Any], tmp_path: Path
) -> None:
    made = small(3, epsilon=1.5, delta=2e-5)
    config = made.config(**hurry, rounds=1)
    conduct(made.grid(config), config, tmp_path / "one")
    before = {name: records_of(home) for name, home in made.homes.items()}
    refusals: list[tuple[str, int]] = []
    with pytest.raises(RunError, match="too few silos: 0 of 3"):
        conduct(made.grid(config, observe=codes(refusals)), config, tmp_path / "two")
    assert refusals == [(ENROL, Code.DECLINED)] * 3
    assert {name: records_of(home) for name, home in made.homes.items()} == before
    half = made.config(**hurry, rounds=1, **{"dp.epsilon": 0.5})
    assert conduct(made.grid(half), half, tmp_path / "three").strategy.outcome == "completed"


def test_a_seeded_run_repeats_bit_for_bit_and_says_that_it_is_not_private(small: MakeSmall, tmp_path: Path) -> None:
    weights = []
    for number, seed in enumerate((7, 7, 8, -1)):
        made = Small.make(tmp_path / str(number), 3)
        config = made.config(rounds=1, **{"noise-seed": seed, "participation.cohort": 2.0})
        done = conduct(made.grid(config), config, tmp_path / str(number) / "run")
        weights.append(done.strategy._weights()["weights"].numpy())
        status = {record.status for home in made.homes.values() for record in records_of(home)[:1]}
        assert status == ({"not private: seeded"} if seed >= 0 else {"private"})
    np.testing.assert_array_equal(weights[0], weights[1])
    for one, other in ((0, 2), (0, 3), (2, 3)):
        assert not np.array_equal(weights[one], weights[other])
