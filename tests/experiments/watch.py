"""Faults on chosen messages, and a record of what silos put into a sum and what the coordinator got out."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from numpy.typing import NDArray

import client_app.silo
import secagg.coordinator
from experiments.local_grid import FIRST_NODE_ID, Fault
from fcfl_strategy.strategy import FcflStrategy
from secagg.messages import Announcement
from secagg.ring import EncodedVector
from tests.client_app.federation import Small, name_of

JOIN, TRAIN, UNMASK = "query.join", "train", "query.unmask"


def silo_of(message: Message) -> int:
    """Number of the silo a message of the coordinator goes to."""
    return message.metadata.dst_node_id - FIRST_NODE_ID


def epoch_of(message: Message) -> int:
    group = message.metadata.group_id
    return int(group) if group.isdigit() else -1


@dataclass
class Faults:
    """``kinds[(stage, epoch, silo)]`` says what happens to that message; the rest is delivered."""

    kinds: Mapping[tuple[str, int, int], str]
    met: set[tuple[str, int, int]] = field(default_factory=set)

    def __call__(self, message: Message) -> Fault | None:
        key = (message.metadata.message_type, epoch_of(message), silo_of(message))
        kind = self.kinds.get(key)
        if kind is None:
            return None
        self.met.add(key)
        return Fault(kind, 30.0)  # type: ignore[arg-type]


def drop(
    stage: str, epochs: Iterable[int], silos: Iterable[int], kind: str = "lost"
) -> dict[tuple[str, int, int], str]:
    return {(stage, epoch, silo): kind for epoch in epochs for silo in silos}


@dataclass
class Sums:
    """What every silo encoded, and what the coordinator decoded, by epoch."""

    encoded: dict[int, dict[str, EncodedVector]] = field(default_factory=dict)
    spent: dict[str, list[int]] = field(default_factory=dict)
    decoded: dict[int, tuple[tuple[str, ...], dict[str, NDArray[np.int64]]]] = field(default_factory=dict)
    participants: dict[int, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def watched(cls, patch: pytest.MonkeyPatch) -> "Sums":
        made = cls()
        contribution, aggregate = client_app.silo.contribution, secagg.coordinator.aggregate

        def contributed(sample: Any, silo: str, asked: Any, *args: Any, **more: Any) -> Any:
            result = contribution(sample, silo, asked, *args, **more)
            epoch = asked.announcement.epoch
            made.encoded.setdefault(epoch, {})[silo] = result.encoded
            if result.pending is not None:
                made.spent.setdefault(silo, []).append(epoch)
            return result

        def aggregated(run: Any, announcement: Announcement, publics: Any, masked: Any, replies: Any) -> Any:
            total = aggregate(run, announcement, publics, masked, replies)
            made.decoded[announcement.epoch] = (tuple(sorted(masked)), total)
            made.participants[announcement.epoch] = announcement.ids
            return total

        patch.setattr(client_app.silo, "contribution", contributed)
        patch.setattr(secagg.coordinator, "aggregate", aggregated)
        return made

    def check(self) -> None:
        """Every decoded sum is exactly, integer by integer, that of its survivors' vectors."""
        assert self.decoded
        for epoch, (survivors, total) in self.decoded.items():
            for name, array in total.items():
                expected = sum(self.encoded[epoch][silo].signed(name) for silo in survivors)
                np.testing.assert_array_equal(array, expected, err_msg=f"epoch {epoch}, {name}")


def controls(small: Small, run_id: bytes) -> dict[str, NDArray[np.float64]]:
    """``N_i c_i`` of every silo, as it lies on its disk."""
    found = {}
    for name, home in small.homes.items():
        with np.load(home.root / "runs" / run_id.hex() / "control.npz") as stored:
            found[name] = np.array(stored["weighted"])
    return found


def before_close(patch: pytest.MonkeyPatch, look: Callable[[FcflStrategy], None]) -> None:
    """Call ``look`` when the last epoch is done and the silos still have their files."""
    close = FcflStrategy._close

    def looked(self: FcflStrategy) -> None:
        look(self)
        close(self)

    patch.setattr(FcflStrategy, "_close", looked)


def ledger_epochs(root: Path) -> str:
    return (root / "ledger.jsonl").read_text()


def names(numbers: Iterable[int]) -> tuple[str, ...]:
    return tuple(name_of(number) for number in numbers)
