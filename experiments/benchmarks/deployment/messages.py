"""What became of every message, as the SuperLink's own database saw it, whoever answers.

Triggers copy the moments into a table of the benchmark's: a message was sent, taken by a node, its reply begun to
arrive, and was whole at the coordinator.
"""

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

_NOW = "(julianday('now') - 2440587.5) * 86400.0"
WATCH = """
CREATE TABLE watched (
    id TEXT PRIMARY KEY, kind TEXT, epoch TEXT, node INTEGER,
    sent REAL, taken REAL, reply TEXT, begun REAL, whole REAL
);
CREATE INDEX watched_reply ON watched (reply);
CREATE TRIGGER watch_sent AFTER INSERT ON message_ins BEGIN
    INSERT OR IGNORE INTO watched (id, kind, epoch, node, sent)
    VALUES (NEW.message_id, NEW.message_type, NEW.group_id, NEW.dst_node_id, NOW());
END;
CREATE TRIGGER watch_taken AFTER UPDATE OF delivered_at ON message_ins WHEN NEW.delivered_at <> '' BEGIN
    UPDATE watched SET taken = COALESCE(taken, NOW()) WHERE id = NEW.message_id;
END;
CREATE TRIGGER watch_begun AFTER INSERT ON message_res BEGIN
    UPDATE watched SET reply = NEW.message_id, begun = NOW() WHERE id = NEW.reply_to_message_id;
END;
CREATE TRIGGER watch_whole AFTER DELETE ON objects BEGIN
    UPDATE watched SET whole = COALESCE(whole, NOW()) WHERE reply = OLD.object_id;
END;
"""
"""The coordinator confirms a reply once it has all of it; the SuperLink then deletes the reply's objects."""


@dataclass(frozen=True)
class Watched:
    """One message; moments are in seconds since 1970 by the SuperLink's clock.

    Attributes
    ----------
    kind, epoch : str
        Flower's message type, and the group by which the protocol numbers its epochs.
    sent, taken, begun, whole : float
        When the coordinator had sent it, the node took it, the head of the reply arrived, the coordinator had all of
        the reply.
    """

    kind: str
    epoch: str
    sent: float
    taken: float
    begun: float
    whole: float


@dataclass(frozen=True)
class Stages:
    """Seconds of one round; of a stage that silos pass side by side, those of the silo in the middle.

    Attributes
    ----------
    wait : float
        From the announcement of the epoch until the node has taken the message.
    work : float
        From there until the reply begins to arrive: fetching the message, starting a process, training, masking.
    upload : float
        From there until the coordinator has all of the reply.
    slowest : float
        What the last silo took longer than these.
    unmask : float
        From the request for shares until the last reply to it.
    coordinator : float
        The rest: planning, durable writes, unmasking, the step.
    """

    wait: float
    work: float
    upload: float
    slowest: float
    unmask: float
    coordinator: float

    @property
    def total(self) -> float:
        """Seconds of the round."""
        return self.wait + self.work + self.upload + self.slowest + self.unmask + self.coordinator


def watch(database: Path) -> None:
    """Begin to note what happens to messages in a SuperLink's database."""
    with sqlite3.connect(database, timeout=30) as connection:
        connection.executescript(WATCH.replace("NOW()", _NOW))


def watched(database: Path) -> list[Watched]:
    """Return the messages that were answered, in the order in which they were sent."""
    with sqlite3.connect(database, timeout=30) as connection:
        rows = connection.execute(
            "SELECT kind, epoch, sent, taken, begun, whole FROM watched WHERE whole IS NOT NULL ORDER BY sent"
        )
        return [Watched(*row) for row in rows]


def stages(messages: Iterable[Watched], history: Sequence[Mapping[str, Any]]) -> list[Stages]:
    """Split every completed training round of a history into its stages.

    The first round is left out: its silos exchange keys before it, and what they import they import then.
    """
    messages, found = list(messages), []
    for row in history:
        if row["purpose"] != "train" or row["status"] != "completed" or row["epoch"] == 1:
            continue
        trained = [m for m in messages if (m.kind, m.epoch) == ("train", str(row["epoch"]))]
        unmasked = [m for m in messages if (m.kind, m.epoch) == ("query.unmask", str(row["epoch"]))]
        wait, work, upload = (
            median(values)
            for values in zip(*((m.taken - m.sent, m.begun - m.taken, m.whole - m.begun) for m in trained), strict=True)
        )
        training = max(m.whole for m in trained) - min(m.sent for m in trained)
        unmask = max(m.whole for m in unmasked) - min(m.sent for m in unmasked)
        found.append(
            Stages(
                wait,
                work,
                upload,
                training - wait - work - upload,
                unmask,
                row["seconds"] - training - unmask,
            )
        )
    return found
