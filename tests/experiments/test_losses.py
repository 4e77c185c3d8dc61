"""Whole runs with messages lost at every stage: exact sums of the survivors, or nothing at all changes."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from fcfl_strategy import checkpoint, rounds
from fcfl_strategy.errors import RunError
from fcfl_strategy.exchange import Answer
from fcfl_strategy.secure_epoch import SecureEpoch
from fcfl_strategy.strategy import FcflStrategy
from server_app.run_folder import FileJournal
from tests.client_app.federation import Small, conduct, releases_of
from tests.experiments.watch import (
    JOIN,
    TRAIN,
    UNMASK,
    Faults,
    Sums,
    before_close,
    controls,
    drop,
    epoch_of,
    names,
    silo_of,
)

MakeSmall = Callable[..., Small]


def threshold(n: int) -> int:
    return math.floor(2 * n / 3) + 1


def invariant(small: Small, monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Check ``c_total == sum_i N_i c_i`` with float equality before the silos erase their controls."""
    seen: list[np.ndarray] = []

    def look(strategy: FcflStrategy) -> None:
        total = strategy._state.control_total
        np.testing.assert_array_equal(sum(controls(small, strategy.settings.terms.run_id).values()), total)
        seen.append(total)

    before_close(monkeypatch, look)
    return seen


STAGES = [
    (JOIN, 1, "lost"),
    (JOIN, 1, "reply_lost"),
    (TRAIN, 1, "lost"),
    (TRAIN, 2, "error"),
    (TRAIN, 2, "reply_lost"),
    (TRAIN, 1, "delay"),
    (UNMASK, 2, "lost"),
    (UNMASK, 1, "reply_lost"),
]


@pytest.mark.parametrize(
    ("n", "lost", "stage", "epoch", "kind"),
    [(5, 1, *stage) for stage in STAGES[::2]] + [(6, 1, *STAGES[4])] + [(7, 2, *stage) for stage in STAGES[1::2]],
)
def test_with_up_to_n_minus_t_silos_lost_a_round_gives_exactly_the_survivors_sum(
    small: MakeSmall,
    hurry: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    n: int,
    lost: int,
    stage: str,
    epoch: int,
    kind: str,
) -> None:
    assert lost == n - threshold(n)
    made, sums = small(n), Sums.watched(monkeypatch)
    gone = range(n - lost, n)
    faults = Faults(drop(stage, [epoch], gone, kind))
    seen = invariant(made, monkeypatch)
    config = made.config(**hurry)
    done = conduct(made.grid(config, fault=faults), config, tmp_path / "run")
    assert done.strategy.outcome == "completed"
    assert len(faults.met) == lost
    sums.check()
    everyone, rest = names(range(n)), names(range(n - lost))
    assert list(sums.decoded) == [1, 2, 3]
    for number, (survivors, _) in sums.decoded.items():
        assert survivors == (rest if number == epoch and stage != UNMASK else everyone)
        assert sums.participants[number] == (rest if number == epoch and stage == JOIN else everyone)
    assert seen[0].any()
    # What was computed is charged, whether it arrived or not, and nothing else is.
    for name, home in made.homes.items():
        assert [release.epoch for release in releases_of(home)] == sums.spent[name]


def test_a_silo_that_loses_its_control_misses_an_epoch_and_all_begin_again_with_the_exact_mean(
    small: MakeSmall, hurry: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made, sums = small(5), Sums.watched(monkeypatch)
    seen, states = invariant(made, monkeypatch), []

    def losing(message: Message) -> None:
        if (message.metadata.message_type, epoch_of(message), silo_of(message)) == (TRAIN, 2, 3):
            (path,) = made.homes["silo-03"].root.glob("runs/*/control.npz")
            path.unlink()

    config = made.config(**hurry, rounds=4)
    grid = made.grid(config, fault=losing)
    done = conduct(grid, config, tmp_path / "run", lambda strategy: states.append(strategy))
    assert done.strategy.outcome == "completed"
    assert [row["survivors"] for row in done.history] == [5, 4, 5, 5, 5]
    assert done.strategy._state.generation == 1
    sums.check()
    assert seen[0].any(), "controls grew again after the reset"
    assert [release.epoch for release in releases_of(made.homes["silo-03"])] == [1, 3, 4]


def test_a_vector_that_comes_after_the_survivors_are_fixed_changes_nothing(
    small: MakeSmall, hurry: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made, sums, late = small(5), Sums.watched(monkeypatch), []  # type: ignore[var-annotated]
    receive, fix = SecureEpoch.receive_masked, SecureEpoch.fix_survivors

    def held_back(self: SecureEpoch, answer: Answer) -> None:
        if self.number == 1 and self.federation.silos[answer.node] == "silo-04":
            late.append(answer)
        else:
            receive(self, answer)

    def fixed(self: SecureEpoch) -> Any:
        result = fix(self)
        if self.number == 1:
            receive(self, late[0])
        return result

    monkeypatch.setattr(SecureEpoch, "receive_masked", held_back)
    monkeypatch.setattr(SecureEpoch, "fix_survivors", fixed)
    config = made.config(**hurry)
    assert conduct(made.grid(config), config, tmp_path / "run").strategy.outcome == "completed"
    assert sums.decoded[1][0] == names(range(4))
    sums.check()


def test_a_latecomer_joins_again_and_contributes(
    small: MakeSmall, hurry: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made, sums = small(5), Sums.watched(monkeypatch)
    seen = invariant(made, monkeypatch)
    sent: list[tuple[str, int, int]] = []

    def observe(message: Message) -> None:
        if message.metadata.dst_node_id >= 1000:
            sent.append((message.metadata.message_type, epoch_of(message), silo_of(message)))

    # Silo 4 misses epochs 1 and 2 entirely, its vector of epoch 4 is lost on the way back.
    faults = Faults({**drop(JOIN, [1, 2], [4]), **drop(TRAIN, [4], [4], "reply_lost")})
    config = made.config(**hurry, rounds=6)
    done = conduct(made.grid(config, fault=faults, observe=observe), config, tmp_path / "run")
    assert done.strategy.outcome == "completed"
    sums.check()
    joins = [(epoch, silo) for kind, epoch, silo in sent if kind == JOIN]
    # All before the first epoch, then only who gave no bundle for the next one.
    assert joins == [(1, 0), (1, 1), (1, 2), (1, 3), (1, 4), (2, 4), (3, 4), (5, 4)]
    assert [epoch for epoch, (survivors, _) in sums.decoded.items() if "silo-04" in survivors] == [3, 5, 6, 7]
    assert sums.spent["silo-04"] == [3, 4, 5, 6]
    assert seen[0].any()


@pytest.mark.parametrize("seed", range(2))
def test_under_random_losses_everywhere_sums_controls_and_ledgers_agree(
    small: MakeSmall, hurry: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seed: int
) -> None:
    n, planned = 6, 5
    made, sums = small(n), Sums.watched(monkeypatch)
    seen = invariant(made, monkeypatch)
    draw = np.random.default_rng(seed)
    kinds = ["lost", "reply_lost", "error", "delay"]
    faults = Faults(
        {
            (stage, epoch, silo): str(draw.choice(kinds))
            for stage in (JOIN, TRAIN, UNMASK)
            for epoch in range(1, planned + 1)
            for silo in range(n)
            if draw.random() < 0.07
        }
    )
    settings = {"rounds": planned, "participation.cohort": 3.0, "participation.min-probability": 0.2}
    settings |= {"max-abandoned": 50, "dp.contributions": 3, "noise-seed": seed}
    config = made.config(**hurry, **settings)
    done = conduct(made.grid(config, fault=faults), config, tmp_path / "run")
    sums.check()
    assert len(seen) == 1
    rows = done.history
    assert [row["epoch"] for row in rows] == list(range(1, len(rows) + 1))
    for row in rows:
        if row["status"] != "abandoned":
            survivors, _ = sums.decoded[row["epoch"]]
            assert row["survivors"] == len(survivors) >= threshold(n)
        assert row["epsilon"] <= 1.0
    for name, home in made.homes.items():
        assert [release.epoch for release in releases_of(home)] == sums.spent.get(name, [])
        assert len(sums.spent.get(name, [])) <= 3


def test_the_score_of_every_survivor_is_in_the_sum_whatever_its_coin(
    small: MakeSmall, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made, sums = small(5), Sums.watched(monkeypatch)
    settings = {"participation.cohort": 1.5, "participation.min-probability": 0.05, "noise-seed": 3, "rounds": 4}
    config = made.config(**settings)
    conduct(made.grid(config), config, tmp_path / "run")
    for epoch, (survivors, total) in sums.decoded.items():
        if "score" in total:
            heads = [silo for silo in survivors if epoch in sums.spent.get(silo, [])]
            for silo in survivors:
                encoded = sums.encoded[epoch][silo]
                assert encoded.signed("score")[0] > 0
                assert bool(encoded.signed("contributors")[0]) == (silo in heads)
                if silo not in heads:
                    assert not encoded.signed("update").any()
                    assert not encoded.signed("control").any()
    assert any(len(sums.spent.get(name, [])) < 4 for name in made.homes)


@pytest.mark.parametrize("stage", [JOIN, TRAIN, UNMASK])
def test_with_more_silos_lost_nothing_changes_and_the_run_says_so_at_last(
    small: MakeSmall, hurry: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stage: str
) -> None:
    made, sums = small(5), Sums.watched(monkeypatch)
    absorbed: list[int] = []
    absorb = rounds.absorb

    def counted(*args: Any) -> Any:
        absorbed.append(args[1].epoch)
        return absorb(*args)

    monkeypatch.setattr(rounds, "absorb", counted)
    # Two of five are away, one more than may be: from the start where bundles are lost, else after a good epoch.
    config = made.config(**hurry, rounds=3, **{"dp.contributions": 1})
    path = tmp_path / "run"
    away = drop(stage, range(1 if stage == JOIN else 2, 99), [3, 4])
    states: list[Any] = []
    put = FileJournal.put

    def kept(self: FileJournal, name: str, data: bytes) -> None:
        if name == "checkpoint":
            states.append(checkpoint.load(data))
        put(self, name, data)

    monkeypatch.setattr(FileJournal, "put", kept)
    with pytest.raises(RunError, match="too few survivors in 3 epochs in a row: at least 4 of 5") as caught:
        conduct(made.grid(config, fault=Faults(away)), config, path)
    assert "resume" in str(caught.value)
    good = 0 if stage == JOIN else 1
    assert absorbed == [1] * good
    assert [state.epoch for state in states] == list(range(1, good + 4))
    assert [state.abandoned for state in states] == [0] * good + [1, 2, 3]
    for state in states[good:]:
        assert state.rounds == good
        assert state.server.updates == good
        np.testing.assert_array_equal(state.server.weights, states[max(good - 1, 0)].server.weights)
        np.testing.assert_array_equal(state.server.first_moment, states[max(good - 1, 0)].server.first_moment)
        np.testing.assert_array_equal(state.control_total, states[max(good - 1, 0)].control_total)
    # Only what some silo may still need: the completed epoch, and the last one.
    assert [outcome.status for outcome in states[-1].outcomes] == ["completed"] * good + ["abandoned"]
    statuses = [json.loads(line)["status"] for line in (path / "history.jsonl").read_text().splitlines()]
    assert statuses == ["completed"] * good + ["abandoned"] * 3
    sums.check() if good else None

    # Once the silos are back, the run that gave up goes on where it was.
    again = made.config(**hurry, rounds=3, **{"dp.contributions": 1}, resume=True)
    seen = invariant(made, monkeypatch)
    done = conduct(made.grid(again), again, path)
    assert done.strategy.outcome in ("completed", "budget exhausted")
    assert done.history[good + 3]["status"] in ("completed", "empty")
    assert len(seen) == 1
