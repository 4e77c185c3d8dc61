"""Whole runs over a regular graph: every silo reveals its nonce once, and losses leave exact sums or nothing."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fcfl_strategy.errors import RunError
from secagg.graph_parameters import Degree
from secagg.messages import Run
from server_app.config import ConfigError
from server_app.run_folder import FileJournal
from tests.client_app.federation import Conducted, Small, conduct, records_of
from tests.experiments.watch import JOIN, TRAIN, UNMASK, Faults, Sums, drop, names

MakeSmall = Callable[..., Small]
REVEAL = "query.reveal"
N = 12
REGULAR: dict[str, Any] = {"secagg.graph": "regular", "secagg.dropout": 0.1}


def run_of(done: Conducted) -> Run:
    return done.strategy._federation.run


@pytest.mark.parametrize(("stage", "active"), [(JOIN, True), (TRAIN, True), (UNMASK, False)])
def test_one_lost_silo_of_twelve_leaves_the_others_exact_sum(
    small: MakeSmall, hurry: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stage: str, active: bool
) -> None:
    made, sums = small(N, allow_semi_honest_graph=not active), Sums.watched(monkeypatch)
    config = made.config(**REGULAR, **hurry | {"deadline.unmask": 2.0}, **{"secagg.active": active})
    number = 1 if stage == JOIN else 2
    faults = Faults(drop(stage, [number], [4]))
    done = conduct(made.grid(config, fault=faults), config, tmp_path / "run")
    assert done.strategy.outcome == "completed"
    assert len(faults.met) == 1
    run = run_of(done)
    assert run.graph is not None
    assert Degree(run.graph.degree, run.threshold) == (Degree(6, 6) if active else Degree(6, 2))
    assert run.minimum == N - 1
    sums.check()
    everyone, rest = names(range(N)), names(i for i in range(N) if i != 4)
    assert {e: s for e, (s, _) in sums.decoded.items()} == {
        e: rest if e == number and stage != UNMASK else everyone for e in (1, 2, 3)
    }


def test_more_losses_than_stated_abandon_the_epoch_and_only_that(
    small: MakeSmall, hurry: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made, sums = small(N), Sums.watched(monkeypatch)
    config = made.config(**REGULAR, **hurry | {"deadline.unmask": 2.0})
    done = conduct(made.grid(config, fault=Faults(drop(TRAIN, [2], [4, 7]))), config, tmp_path / "run")
    # What the abandoned epoch spent stays spent: the second of two rounds is out of budget.
    assert [row["status"] for row in done.history] == ["completed", "abandoned", "completed"]
    assert set(sums.decoded) == {1, 3}
    sums.check()


def test_a_silo_that_does_not_reveal_ends_the_set_up_and_every_silo_closes_the_run(
    small: MakeSmall, hurry: dict[str, Any], tmp_path: Path
) -> None:
    made = small(N)
    config = made.config(**REGULAR, **hurry)
    with pytest.raises(RunError, match="silo-05 and 0 more of 12 silos did not reveal"):
        conduct(made.grid(config, fault=Faults(drop(REVEAL, [0], [5]))), config, tmp_path / "run")
    for home in made.homes.values():
        assert [type(record).__name__ for record in records_of(home)] == ["RunOpened", "RunClosed"]


def test_a_coordinator_that_crashes_after_the_reveal_gets_the_same_graph(
    small: MakeSmall, hurry: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made, lost = small(N), []  # type: ignore[var-annotated]
    put = FileJournal.put

    def failing(self: FileJournal, name: str, data: bytes) -> None:
        if name == "run" and not lost:
            lost.append(data)
            raise KeyboardInterrupt
        put(self, name, data)

    monkeypatch.setattr(FileJournal, "put", failing)
    given = {**REGULAR, **hurry, "run-dir": str(tmp_path / "run")}
    config = made.config(**given)
    with pytest.raises(KeyboardInterrupt):
        conduct(made.grid(config), config, tmp_path / "run")
    config = made.config(**given, resume=True)
    done = conduct(made.grid(config), config, tmp_path / "run")
    assert done.strategy.outcome == "completed"
    assert run_of(done).to_bytes() == lost[0]


@pytest.mark.parametrize(
    ("settings", "says"),
    [({"secagg.active": False}, "allow_semi_honest_graph"), ({"secagg.corruption": 0.01}, "corruption of 0.01")],
)
def test_silos_decline_a_graph_weaker_than_their_policy(
    small: MakeSmall, hurry: dict[str, Any], tmp_path: Path, settings: dict[str, Any], says: str
) -> None:
    made = small(N)
    config = made.config(**REGULAR, **settings, **hurry)
    logging.getLogger("fcfl.silo").setLevel(logging.INFO)
    with pytest.raises(RunError, match="too few survivors"):
        conduct(made.grid(config), config, tmp_path / "run")
    for home in made.homes.values():
        assert says in (home.root / "silo.log").read_text(encoding="utf-8")


def test_auto_is_complete_for_few_silos_and_regular_is_refused_where_there_is_none(
    small: MakeSmall, hurry: dict[str, Any], tmp_path: Path
) -> None:
    made = small(4)
    config = made.config(**{"secagg.graph": "auto"}, **hurry)
    done = conduct(made.grid(config), config, tmp_path / "run")
    assert run_of(done).graph is None
    with pytest.raises(ConfigError, match=r"secagg\.graph: no regular graph of 4 silos"):
        made.config(**REGULAR)
    with pytest.raises(ConfigError, match=r"secagg\.colluders"):
        made.config(**{**REGULAR, "silos": 12, "secagg.colluders": 2})
