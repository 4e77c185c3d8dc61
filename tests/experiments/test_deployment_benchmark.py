"""The benchmark of rounds over a real SuperLink: what it notes, and how it splits a round. Never its timings."""

import io
import sqlite3
import time
from pathlib import Path

import pytest
from flwr.supercore.state.schema.linkstate_models import LinkStateBase
from flwr.supercore.state.schema.objectstore_models import ObjectStoreBase
from rich.console import Console
from sqlalchemy import create_engine

from experiments.benchmarks.deployment import __main__ as benchmark
from experiments.benchmarks.deployment.federation import Measured
from experiments.benchmarks.deployment.messages import Watched, stages, watch, watched


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """The tables of a SuperLink of the installed Flower."""
    engine = create_engine(f"sqlite:///{tmp_path / 'state.db'}")
    for base in (LinkStateBase, ObjectStoreBase):
        base.metadata.create_all(engine)
    engine.dispose()
    return tmp_path / "state.db"


def test_the_moments_of_a_message_are_noted_and_stay_when_flower_deletes_it(database: Path) -> None:
    watch(database)
    before = time.time()
    with sqlite3.connect(database) as link:
        for number in (1, 2):
            link.execute(
                "INSERT INTO message_ins (message_id, group_id, dst_node_id, delivered_at, message_type) "
                "VALUES (?, '3', 7, '', 'train')",
                (f"m{number}",),
            )
        link.execute("UPDATE message_ins SET delivered_at = 'now' WHERE message_id = 'm1'")
        link.execute("INSERT INTO message_res (message_id, reply_to_message_id, delivered_at) VALUES ('r', 'm1', '')")
        link.execute("INSERT INTO objects (object_id, is_available, ref_count) VALUES ('r', 1, 0)")
        link.execute("DELETE FROM objects WHERE object_id = 'r'")
        link.execute("DELETE FROM message_ins")
    (found,) = watched(database)
    assert (found.kind, found.epoch) == ("train", "3")
    # SQLite's clock counts milliseconds.
    assert before - 0.01 <= found.sent <= found.taken <= found.begun <= found.whole <= time.time() + 0.01


def row(epoch: int, seconds: float, status: str = "completed", purpose: str = "train") -> dict[str, object]:
    return {"epoch": epoch, "purpose": purpose, "status": status, "seconds": seconds}


MESSAGES = [
    Watched("train", "2", 0.0, 1.0, 3.0, 4.0),
    Watched("train", "2", 0.0, 2.0, 5.0, 5.5),
    Watched("train", "2", 0.5, 2.5, 6.5, 9.0),
    Watched("query.unmask", "2", 10.0, 10.2, 10.4, 11.0),
    Watched("query.unmask", "2", 10.1, 10.2, 12.4, 13.0),
    Watched("query.join", "3", 10.0, 20.0, 30.0, 40.0),
    Watched("train", "4", 50.0, 51.0, 52.0, 53.0),
]


def test_a_round_is_the_sum_of_its_stages_and_only_completed_rounds_after_the_first_count() -> None:
    history = [row(1, 99.0), row(2, 15.0), row(3, 5.0, purpose="evaluate"), row(4, 5.0, status="abandoned")]
    (found,) = stages(MESSAGES, history)
    assert (found.wait, found.work, found.upload) == (2.0, 3.0, 1.0)
    assert found.slowest == pytest.approx(9.0 - 6.0)
    assert found.unmask == pytest.approx(3.0)
    assert found.coordinator == pytest.approx(15.0 - 9.0 - 3.0)
    assert found.total == pytest.approx(15.0)


def test_the_table_shows_every_stage_of_both_kinds_and_their_ratio() -> None:
    one = Measured(MESSAGES, [row(1, 9.0), row(2, 30.0)], 70.0, 7.0)
    other = Measured(MESSAGES, [row(1, 9.0), row(2, 15.0)], 7.0, 3.5)
    console = Console(file=io.StringIO(), width=120)
    benchmark.report({"flower": one, "fcfl": other}, 4, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(words in text for words in benchmark.WORDS.values())
    (costs,) = (line.split() for line in text.splitlines() if line.startswith("CPU of a message, at the silo"))
    assert costs[-5:] == ["10.00", "s", "1.00", "s", "10.0"]
    assert "medians of 1 rounds" in text


@pytest.mark.parametrize("given", [["--silos", "2"], ["--rounds", "1"], ["--only", "other"]])
def test_bad_arguments_are_refused(given: list[str]) -> None:
    with pytest.raises(SystemExit):
        benchmark.main(given)
