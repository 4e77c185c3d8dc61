"""What a coalition holds about honest silos' inputs depends on the sums it can form, and on nothing else.

The protocol is run once with its real messages. Every mask it adds is logged as (key, sign); then the masks that the
coalition cannot compute are enumerated over a ring of four elements, so that the distribution of all it sees is exact.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest

from secagg import coordinator, epoch
from secagg.messages import Announcement, UnmaskShares
from secagg.prg import Mask
from tests.secagg.federation import Epoch, Federation

RING = 4
Masks = dict[str, dict[bytes, int]]
View = Counter[tuple[int, ...]]


@dataclass(frozen=True)
class Played:
    """One epoch: the signed masks in every silo's vector, and the keys behind what a party could reconstruct."""

    masks: Masks
    self_keys: dict[str, bytes]
    pair_keys: dict[frozenset[str], bytes]


def play(monkeypatch: pytest.MonkeyPatch, n: int, threshold: int) -> Played:
    """Mask every silo's vector with the real functions and log which keys went in with which sign."""
    made = Epoch(Federation(n, threshold), 1, Federation(n).ids, n)
    announcement = made.announce()
    masks: Masks = {}
    current: list[tuple[bytes, int]] = []

    def logged(total: np.ndarray, masks: Iterable[Mask], name: str) -> None:
        if name == "A":
            current.extend((mask.key, -1 if mask.subtract else 1) for mask in masks)

    with monkeypatch.context() as patch:
        patch.setattr(epoch, "add_masks", logged)
        for s in made.members:
            current.clear()
            made.mask(s, announcement)
            assert len({key for key, _ in current}) == len(current)
            masks[s] = dict(current)
    holders: dict[bytes, list[str]] = {}
    for s, of in masks.items():
        for key in of:
            holders.setdefault(key, []).append(s)
    assert sorted(map(len, holders.values())) == [1] * n + [2] * (n * (n - 1) // 2)
    return Played(
        masks,
        {owners[0]: key for key, owners in holders.items() if len(owners) == 1},
        {frozenset(owners): key for key, owners in holders.items() if len(owners) == 2},
    )


def view(played: Played, inputs: dict[str, int], known: set[bytes]) -> View:
    """Exact distribution of all honest vectors, masked, once the masks under known keys are taken off."""
    hidden = sorted({key for s in inputs for key in played.masks[s]} - known)
    found: View = Counter()
    for values in product(range(RING), repeat=len(hidden)):
        mask = dict(zip(hidden, values, strict=True))
        found[
            tuple(
                (x + sum(sign * mask[key] for key, sign in played.masks[s].items() if key in mask)) % RING
                for s, x in inputs.items()
            )
        ] += 1
    return found


def reconstructed(played: Played, survivors: Iterable[str], lost: Iterable[str]) -> set[bytes]:
    """Keys the coordinator gets by unmasking: own masks of survivors, pair masks of the lost."""
    known = {played.self_keys[s] for s in survivors}
    return known | {key for pair, key in played.pair_keys.items() if pair & set(lost)}


def held_by(played: Played, colluders: Iterable[str]) -> set[bytes]:
    """Keys that colluding silos made themselves."""
    return {key for s in colluders for key in played.masks[s]}


@pytest.mark.parametrize(
    ("n", "colluders", "lost"),
    [
        (4, (), ()),
        (4, (), ("silo-03",)),
        (4, ("silo-00",), ()),
        (5, ("silo-00", "silo-04"), ()),
        (5, ("silo-00",), ("silo-02",)),
    ],
)
def test_a_coalition_learns_the_sum_of_the_honest_survivors_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, n: int, colluders: tuple[str, ...], lost: tuple[str, ...]
) -> None:
    """A semi-honest coordinator with up to t - 1 silos: inputs with the same sum look the same, to the last bit."""
    threshold = 2 * n // 3 + 1
    assert len(colluders) < threshold
    played = play(monkeypatch, n, threshold)
    honest = [s for s in played.masks if s not in (*colluders, *lost)]
    survivors = [s for s in played.masks if s not in lost]
    known = held_by(played, colluders) | reconstructed(played, survivors, lost)
    first = dict.fromkeys(honest, 1)
    moved = first | {honest[0]: 3, honest[1]: 3}  # 3 + 3 = 1 + 1 modulo 4
    other_sum = first | {honest[0]: 2}
    assert view(played, first, known) == view(played, moved, known)
    assert view(played, first, known) != view(played, other_sum, known), "the sum itself is meant to be known"


def test_the_vector_of_a_lost_silo_that_arrives_late_stays_uniform(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its mask key is reconstructed, its own mask never is: whatever it sent, nothing shows."""
    played = play(monkeypatch, 4, 3)
    late = "silo-02"
    known = reconstructed(played, [s for s in played.masks if s != late], [late])
    views = [view(played, {late: x}, known) for x in range(RING)]
    assert all(found == views[0] for found in views)
    assert len(views[0]) == RING


def test_with_both_secrets_of_a_silo_its_input_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test has teeth: what a silo never gives out together would tell everything."""
    played = play(monkeypatch, 4, 3)
    victim = "silo-01"
    known = reconstructed(played, list(played.masks), [victim])
    assert all(view(played, {victim: x}, known) == Counter({(x,): 1}) for x in range(RING))


def test_silos_that_were_shown_two_announcements_hold_masks_that_do_not_cancel() -> None:
    """The coordinator gets noise instead of a sum, however it splits the silos."""
    made = Epoch(Federation(5), 1, Federation(5).ids, 5)
    one, two = made.announce(b"one plan"), made.announce(b"another plan")
    masked = {s: made.mask(s, one if i < 3 else two) for i, s in enumerate(made.members)}
    total = sum(message.arrays["A"].astype(np.uint64) for message in masked.values()) % 2**32
    assert not np.array_equal(total, made.expected(made.members)["A"].astype(np.uint64) % 2**32)
    # Nor do the silos hand over shares for an announcement they did not mask for.
    for s, message in masked.items():
        other = two if message.announcement_hash == one.digest() else one
        request = coordinator.unmask_request(made.federation.run, other, list(made.members))
        with pytest.raises(Exception, match="announcement"):
            made.answer(s, other, request)


@pytest.mark.parametrize(("n", "colluders"), [(7, 0), (10, 2), (13, 4)])
def test_two_lists_of_survivors_never_give_both_secrets_of_an_honest_silo(n: int, colluders: int) -> None:
    """An active coordinator with n_C silos shows each honest silo whichever list it likes; 2t > N + n_C forbids it."""
    federation = Federation(n, max(2 * n // 3 + 1, (n + colluders) // 2 + 1))
    t = federation.run.threshold
    assert 2 * t > n + colluders
    honest = n - colluders
    for told_alive in range(honest + 1):
        # Every honest silo answers one list; colluders give both shares of everybody.
        seeds, keys = told_alive + colluders, honest - told_alive + colluders
        assert seeds < t or keys < t


def shares_of(announcement: Announcement, replies: dict[str, UnmaskShares], owner: str) -> tuple[int, int]:
    seeds = sum(owner in reply.self_mask_shares for reply in replies.values())
    return seeds, sum(owner in reply.mask_key_shares for reply in replies.values())


def test_the_coordinator_holds_no_share_of_what_it_need_not_open() -> None:
    made = Epoch(Federation(6), 1, Federation(6).ids, 6)
    announcement, _, replies = made.collect(lost_masked=["silo-03"])
    for owner in made.members:
        seeds, keys = shares_of(announcement, replies, owner)
        assert (seeds, keys) == ((0, 5) if owner == "silo-03" else (5, 0))
