"""Any schedule of losses, repeats, damage, lies and restarts gives the survivors' exact sum or nothing.

A state machine drives all parties through epochs, one message or one stage at a time. `make secagg-schedules` runs
thousands of schedules with up to 30 parties; here there are a few. A schedule of 30 parties costs as much as ten of
the small ones, so that one in four is large.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from secagg import coordinator, signatures, silo
from secagg.errors import NotEnoughSurvivors, SecAggError
from secagg.messages import Announcement, Bundle, MaskedInput, UnmaskRequest, UnmaskShares
from secagg.silo import EpochSecrets
from tests.secagg.federation import Epoch, Federation

SCHEDULES = int(os.environ.get("FCFL_SCHEDULES", "25"))
LARGEST = int(os.environ.get("FCFL_PARTIES", "9"))
SMALL = 9
INDEX = st.integers(0, 10_000)
FATES = st.sampled_from(["arrives", "arrives", "arrives", "lost", "twice", "damaged"])


@pytest.fixture(autouse=True, scope="module")
def signatures_checked_once() -> Iterator[None]:
    """Whether a signature holds is a function of its bytes: all parties are in this process and ask the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(signatures, "holds", lru_cache(1 << 14)(signatures.holds))
        yield


federation_of = lru_cache(Federation)


@dataclass
class Given:
    """What one silo has handed to the coordinator about its peers' secrets in an epoch."""

    seeds: set[str] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)


class Schedules(RuleBasedStateMachine):
    """Rules are single messages; the coordinator and the silos may restart between any two."""

    federation: Federation
    epoch: Epoch
    sizes = st.integers(5, min(SMALL, LARGEST))

    @initialize(data=st.data())
    def enrol(self, data: st.DataObject) -> None:
        self.federation = federation_of(data.draw(self.sizes, label="parties"))
        self.number = 0
        self.sums = 0
        self.begin([])

    def begin(self, late: list[str]) -> None:
        """A new epoch: bundles of all silos but the late ones reach the coordinator in time."""
        self.number += 1
        members = [s for s in self.federation.ids if s not in late]
        self.epoch = Epoch(self.federation, self.number, tuple(members), self.federation.n)
        self.announcement: Announcement | None = None
        self.request: UnmaskRequest | None = None
        self.masked: dict[str, MaskedInput] = {}
        self.outbox: dict[str, MaskedInput] = {}
        self.replies: dict[str, UnmaskShares] = {}
        self.given = {s: Given() for s in members}
        self.answers: dict[str, UnmaskShares] = {}

    def pick(self, index: int) -> str:
        return self.epoch.members[index % len(self.epoch.members)]

    # --- the stages ---

    @precondition(lambda self: self.announcement is None)
    @rule()
    def announce(self) -> None:
        threshold = self.federation.run.threshold
        if len(self.epoch.members) < threshold:
            with pytest.raises(NotEnoughSurvivors):
                self.epoch.announce()
            self.begin([])
            return
        self.announcement = self.epoch.announce()

    @precondition(lambda self: self.announcement is not None and self.request is None)
    @rule(index=INDEX, fate=FATES)
    def send_masked(self, index: int, fate: str) -> None:
        s = self.pick(index)
        if s in self.outbox:
            with pytest.raises(SecAggError):  # a second vector under the same secrets
                self.epoch.mask(s, self.announcement)
        else:
            self.outbox[s] = self.epoch.mask(s, self.announcement)
        self.deliver_masked(s, fate)

    @precondition(lambda self: self.announcement is not None and self.request is None)
    @rule(lost=st.sets(INDEX, max_size=4))
    def the_others_send_masked(self, lost: set[int]) -> None:
        gone = {self.pick(index) for index in lost}
        for s in self.epoch.members:
            if s not in self.outbox and s not in gone:
                self.outbox[s] = self.epoch.mask(s, self.announcement)
                self.deliver_masked(s, "arrives")

    def deliver_masked(self, s: str, fate: str) -> None:
        message = self.outbox[s]
        if fate == "lost":
            return
        if fate == "damaged":
            arrays = {name: array[:-1] for name, array in message.arrays.items()}
            with pytest.raises(SecAggError):
                coordinator.check_masked(
                    self.federation.run,
                    self.announcement,
                    MaskedInput.from_parts(message.header_bytes(), arrays),
                )
            return
        for _ in range(1 + (fate == "twice")):
            self.masked[s] = coordinator.check_masked(self.federation.run, self.announcement, message)

    @precondition(lambda self: self.announcement is not None and self.request is None)
    @rule()
    def fix_survivors(self) -> None:
        run = self.federation.run
        if len(self.masked) < run.threshold:
            with pytest.raises(NotEnoughSurvivors):
                coordinator.unmask_request(run, self.announcement, sorted(self.masked))
            return
        self.request = coordinator.unmask_request(run, self.announcement, sorted(self.masked))

    @precondition(lambda self: self.request is not None)
    @rule(index=INDEX, fate=FATES)
    def send_shares(self, index: int, fate: str) -> None:
        self.send_one(index, fate)

    def send_one(self, index: int, fate: str) -> None:
        s = self.pick(index)
        if s not in self.request.survivors:
            with pytest.raises(SecAggError):  # a lost silo is not asked, and does not answer if it is
                self.epoch.answer(s, self.announcement, self.request)
            return
        answer = self.epoch.answer(s, self.announcement, self.request)
        assert self.answers.setdefault(s, answer).to_bytes() == answer.to_bytes(), "identical bytes every time"
        self.given[s].seeds |= set(answer.self_mask_shares)
        self.given[s].keys |= set(answer.mask_key_shares)
        if fate in ("arrives", "twice"):
            self.replies[s] = answer

    @precondition(lambda self: self.request is not None)
    @rule(lost=st.sets(INDEX, max_size=4))
    def the_others_send_shares(self, lost: set[int]) -> None:
        gone = {self.pick(index) for index in lost}
        for index, s in enumerate(self.epoch.members):
            if s in self.request.survivors and s not in self.answers and s not in gone:
                self.send_one(index, "arrives")

    # --- lies and restarts ---

    @precondition(lambda self: self.request is not None and len(self.request.survivors) > self.federation.run.threshold)
    @rule(index=INDEX, other=INDEX)
    def ask_again_with_another_list(self, index: int, other: int) -> None:
        s = self.request.survivors[index % len(self.request.survivors)]
        dropped = self.request.survivors[other % len(self.request.survivors)]
        if s == dropped or s not in self.answers:
            return
        lie = coordinator.unmask_request(
            self.federation.run, self.announcement, [p for p in self.request.survivors if p != dropped]
        )
        with pytest.raises(SecAggError):
            self.epoch.answer(s, self.announcement, lie)

    @precondition(lambda self: self.announcement is not None)
    @rule(index=INDEX)
    def show_another_announcement(self, index: int) -> None:
        s = self.pick(index)
        other = self.epoch.announce(context=b"another plan")
        if s in self.outbox:
            with pytest.raises(SecAggError):
                self.epoch.mask(s, other)
            with pytest.raises(SecAggError):
                coordinator.check_masked(self.federation.run, other, self.outbox[s])

    @rule(index=INDEX)
    def restart_silo(self, index: int) -> None:
        """Everything a silo knows comes back from what it stored."""
        s = self.pick(index)
        self.epoch.secrets[s] = EpochSecrets.from_bytes(self.epoch.secrets[s].to_bytes())
        self.federation.keys[s] = silo.RunKeys.from_bytes(self.federation.keys[s].to_bytes())

    @rule()
    def restart_coordinator(self) -> None:
        """Everything the coordinator knows comes back from what it stored."""
        self.epoch.bundles = {s: Bundle.from_bytes(b.to_bytes()) for s, b in self.epoch.bundles.items()}
        if self.announcement is not None:
            self.announcement = Announcement.from_bytes(self.announcement.to_bytes())
        if self.request is not None:
            self.request = UnmaskRequest.from_bytes(self.request.to_bytes())
        self.masked = {s: MaskedInput.from_parts(m.header_bytes(), m.arrays) for s, m in self.masked.items()}
        self.replies = {s: UnmaskShares.from_bytes(r.to_bytes()) for s, r in self.replies.items()}

    # --- the end of an epoch ---

    @precondition(lambda self: self.request is not None)
    @rule(late=st.lists(INDEX, max_size=3))
    def finish(self, late: list[int]) -> None:
        survivors = self.request.survivors
        masked = {s: self.masked[s] for s in survivors}
        if len(self.replies) < self.federation.run.threshold:
            with pytest.raises(SecAggError):
                self.epoch.aggregate(self.announcement, masked, self.replies)
        else:
            total = self.epoch.aggregate(self.announcement, masked, self.replies)
            for name, expected in self.epoch.expected(survivors).items():
                np.testing.assert_array_equal(total[name], expected)
            self.sums += 1
        self.begin(sorted({self.federation.ids[i % self.federation.n] for i in late}))

    @precondition(lambda self: self.announcement is not None)
    @rule()
    def abandon(self) -> None:
        self.begin([])

    @invariant()
    def no_silo_ever_gave_both_secrets_of_one_peer(self) -> None:
        for given in getattr(self, "given", {}).values():
            assert not given.seeds & given.keys

    def teardown(self) -> None:
        """Liveness: whatever happened, an epoch without faults completes."""
        if not hasattr(self, "federation"):
            return
        self.begin([])
        announcement, masked, replies = self.epoch.collect()
        total = self.epoch.aggregate(announcement, masked, replies)
        for name, expected in self.epoch.expected(masked).items():
            np.testing.assert_array_equal(total[name], expected)


class LargeSchedules(Schedules):
    """The same with more parties."""

    sizes = st.integers(SMALL + 1, max(SMALL + 1, LARGEST))


def _settings(examples: int) -> settings:
    return settings(
        max_examples=examples, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
    )


TestSchedules = Schedules.TestCase
TestSchedules.settings = _settings(SCHEDULES - SCHEDULES // 4 if LARGEST > SMALL else SCHEDULES)
if LARGEST > SMALL:
    TestLargeSchedules = LargeSchedules.TestCase
    TestLargeSchedules.settings = _settings(SCHEDULES // 4)
