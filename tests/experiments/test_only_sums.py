"""In a whole run the coordinator receives nothing from which a single silo's vector could be told."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import cbor2
import numpy as np
import pytest
import scipy.stats
from flwr.app import ConfigRecord, Message
from flwr.common.constant import SUPERLINK_NODE_ID
from numpy.typing import NDArray

import secagg.coordinator
import secagg.silo
from fcfl_strategy import checkpoint
from secagg.arrays import dump, load
from secagg.envelopes import MaskReply
from secagg.epoch import apply_masks, pair_masks, scope_of, self_mask
from secagg.messages import (
    Announcement,
    Bundle,
    BundlePublic,
    Enrolment,
    MaskedInput,
    Run,
    UnmaskRequest,
    UnmaskShares,
)
from secagg.prg import Mask
from secagg.ring import to_signed
from server_app.run_folder import FileJournal
from tests.client_app.federation import Small, conduct, make_light, quiet
from tests.experiments.watch import TRAIN, UNMASK, Faults, Sums, drop

N, T, LOST = 5, 4, {1: "silo-04", 2: "silo-03"}
# Of about 60 tests of uniformity per run, none may fall below by chance.
LEAST_P = 1e-7

Vectors = Mapping[str, NDArray[Any]]


@dataclass
class Held:
    """All that reached the coordinator from silos, and all it wrote down."""

    replies: list[tuple[str, Message]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    journal: list[tuple[str, bytes]] = field(default_factory=list)
    reconstructed: set[str] = field(default_factory=set)
    secrets: dict[tuple[str, int], Any] = field(default_factory=dict)
    run_keys: set[bytes] = field(default_factory=set)
    run: Run | None = None

    def bodies(self, stage: str) -> Iterator[tuple[bytes, dict[str, NDArray[Any]]]]:
        for kind, message in self.replies:
            if kind == stage:
                record = message.content.get("arrays")
                yield bytes(message.content["body"]["data"]), dict(load(record["data"])) if record else {}

    def masked(self) -> Iterator[tuple[MaskedInput, Bundle]]:
        for body, arrays in self.bodies(TRAIN):
            reply = MaskReply.from_bytes(body)
            yield MaskedInput.from_parts(reply.header.to_bytes(), arrays), reply.bundle

    def announcements(self) -> dict[int, Announcement]:
        return {
            made.epoch: made
            for name, data in self.journal
            if name.endswith(".announcement")
            for made in [Announcement.from_bytes(data)]
        }

    def publics(self) -> dict[int, dict[str, BundlePublic]]:
        found: dict[int, dict[str, BundlePublic]] = {}
        for body, _ in self.bodies("query.join"):
            public = Bundle.from_bytes(body).public
            found.setdefault(public.epoch, {})[public.sender] = public
        for _, bundle in self.masked():
            found.setdefault(bundle.public.epoch, {})[bundle.public.sender] = bundle.public
        return found

    def everything(self) -> bytes:
        parts = [data for _, data in self.journal]
        for _, message in self.replies:
            parts += [bytes(record.get("data", b"")) for record in message.content.values()]
        return b"|".join(parts)


@dataclass
class Watched:
    held: Held
    sums: Sums
    small: Small


def watched_run(small: Small, patch: pytest.MonkeyPatch, path: Path, **settings: Any) -> Watched:
    """Conduct a run with a silo lost after its bundle in epoch 1, another in epoch 2, and record everything."""
    held, sums = Held(), Sums.watched(patch)
    create, recover, put = secagg.silo.create_bundle, secagg.coordinator.recover, FileJournal.put

    def created(run: Run, keys: Any, silo_id: str, epoch: int, **rest: Any) -> Any:
        secrets, bundle = create(run, keys, silo_id, epoch, **rest)
        held.secrets[(silo_id, epoch)] = secrets
        held.run_keys.add(keys.private)
        held.run = run
        return secrets, bundle

    def recovered(what: str, *rest: Any) -> bytes:
        held.reconstructed.add(what)
        return recover(what, *rest)

    def kept(self: FileJournal, name: str, data: bytes) -> None:
        held.journal.append((name, data))
        put(self, name, data)

    def observe(message: Message) -> None:
        if message.has_error():
            held.errors.append(message.error.reason)
        elif message.metadata.dst_node_id == SUPERLINK_NODE_ID:
            held.replies.append((message.metadata.message_type, message))

    patch.setattr(secagg.silo, "create_bundle", created)
    patch.setattr(secagg.coordinator, "recover", recovered)
    patch.setattr(FileJournal, "put", kept)
    faults = Faults({**drop(TRAIN, [1], [4]), **drop(TRAIN, [2], [3], "error")})
    config = small.config(**{"deadline.train": 0.1, "deadline.unmask": 5.0, "deadline.enrol": 5.0}, **settings)
    conduct(small.grid(config, fault=faults, observe=observe), config, path)
    return Watched(held, sums, small)


# --- the inspection -------------------------------------------------------------------------------------


def uniformity(values: NDArray[Any]) -> float:
    """p-value of the top byte of ring elements against the uniform distribution."""
    top = (values >> (8 * values.dtype.itemsize - 8)).astype(np.uint8)
    bins = 256 if len(top) >= 5 * 256 else 16
    counts = np.bincount(top // (256 // bins), minlength=bins)
    return float(scipy.stats.chisquare(counts).pvalue)


def resembles(given: NDArray[Any], truth: NDArray[Any]) -> bool:
    """Whether ring elements equal a true vector, or correlate with it more than chance allows."""
    if np.array_equal(given, truth):
        return True
    if len(truth) < 100 or not truth.any():
        return False
    one, other = to_signed(given).astype(float), to_signed(truth).astype(float)
    return abs(np.corrcoef(one, other)[0, 1]) * np.sqrt(len(truth)) > 6.0


def inspect(arrays: Vectors, truths: Mapping[str, Vectors], where: str) -> list[str]:
    """What is wrong with one vector the coordinator holds or can compute: nothing, if it is properly masked."""
    found = []
    for name, given in arrays.items():
        # A vector of zeros is a silo's true vector as well (coin tails).
        if not given.any():
            found.append(f"{where}, {name}: zeros")
        if len(given) >= 100 and uniformity(given) < LEAST_P:
            found.append(f"{where}, {name}: not uniform")
        found += [f"{where}, {name}: resembles {silo}" for silo, t in truths.items() if resembles(given, t[name])]
    return found


def opposite(masks: Iterable[Mask]) -> list[Mask]:
    return [replace(mask, subtract=not mask.subtract) for mask in masks]


def stripped(held: Held, message: MaskedInput, secrets: Mapping[tuple[str, str], bytes]) -> Vectors:
    """Take off one survivor's vector every mask that these secrets (kind, owner) open."""
    assert held.run is not None
    announcement, publics = held.announcements()[message.epoch], held.publics()[message.epoch]
    scope, digest = scope_of(held.run, message.epoch), announcement.digest()
    arrays = {name: array.copy() for name, array in message.arrays.items()}
    own = publics[message.sender]
    if seed := secrets.get(("seed", message.sender)):
        apply_masks(arrays, [self_mask(scope, own, seed, digest, subtract=True)])
    own_key = secrets.get(("mask key", message.sender))
    for peer in announcement.ids:
        if peer == message.sender:
            continue
        if own_key is not None:
            apply_masks(arrays, opposite(pair_masks(scope, own_key, own, [publics[peer]], digest)))
        elif peer_key := secrets.get(("mask key", peer)):
            apply_masks(arrays, pair_masks(scope, peer_key, publics[peer], [own], digest))
    return arrays


def given_secrets(held: Held, epoch: int) -> dict[tuple[str, str], bytes]:
    """The secrets that the shares the coordinator holds for an epoch give: by counting them, at least t each."""
    shares: dict[tuple[str, str], int] = {}
    for body, _ in held.bodies(UNMASK):
        reply = UnmaskShares.from_bytes(body)
        if reply.epoch == epoch:
            for kind, table in (("seed", reply.self_mask_shares), ("mask key", reply.mask_key_shares)):
                for owner in table:
                    shares[(kind, owner)] = shares.get((kind, owner), 0) + 1
    assert held.run is not None
    enough = [key for key, count in shares.items() if count >= held.run.threshold]
    values = {"seed": lambda s: s.seed, "mask key": lambda s: s.mask_private}
    return {(kind, owner): values[kind](held.secrets[(owner, epoch)]) for kind, owner in enough}


def leaks(run: Watched) -> list[str]:
    """Inspect every vector the coordinator was sent, and what it can make of each with the shares it was given."""
    found = []
    for message, _ in run.held.masked():
        truths = {silo: encoded.values for silo, encoded in run.sums.encoded[message.epoch].items()}
        where = f"epoch {message.epoch}, {message.sender}"
        found += inspect(message.arrays, truths, f"{where} as sent")
        survivors, _ = run.sums.decoded.get(message.epoch, ((), {}))
        if message.sender in survivors:
            every = given_secrets(run.held, message.epoch)
            seeds = {key: value for key, value in every.items() if key[0] == "seed"}
            for secrets in (seeds, every):
                found += inspect(stripped(run.held, message, secrets), truths, f"{where} stripped")
    return found


# --- the run ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    root = tmp_path_factory.mktemp("watched")
    with pytest.MonkeyPatch.context() as patch:
        make_light(patch, (40,))
        quiet()
        return watched_run(Small.make(root, N, hidden=[40]), patch, root / "run")


def test_the_coordinator_sees_only_sums(watched: Watched) -> None:
    held, sums = watched.held, watched.sums
    assert leaks(watched) == []
    sums.check()
    lost = {epoch: set(sums.participants[epoch]) - set(sums.decoded[epoch][0]) for epoch in sums.decoded}
    assert lost == {1: {"silo-04"}, 2: {"silo-03"}, 3: set()}

    # Exactly the content that the protocol allows, in its strict encoding.
    assert held.errors == ["node is offline"]
    assert {kind for kind, _ in held.replies} == {"query.enrol", "query.join", "train", "query.unmask", "query.close"}
    for kind, message in held.replies:
        assert set(message.content) <= {"body", "arrays"}
        for record in message.content.values():
            assert isinstance(record, ConfigRecord)
            assert list(record) == ["data"]
        assert ("arrays" in message.content) == (kind == TRAIN)
        if kind == TRAIN:
            data = message.content["arrays"]["data"]
            assert dump(load(data)) == data
    for body, _ in held.bodies("query.enrol"):
        Enrolment.from_bytes(body)
    for body, _ in held.bodies("query.join"):
        Bundle.from_bytes(body)
    assert {body for body, _ in held.bodies("query.close")} == {b""}
    announced = held.announcements()
    for masked, bundle in held.masked():
        secagg.coordinator.check_masked(held.run, announced[masked.epoch], masked)
        secagg.coordinator.check_bundle(held.run, bundle, masked.epoch + 1)

    # What it wrote down is that, and the state that follows from sums.
    readers: dict[str, Callable[[bytes], Any]] = {
        "run": Run.from_bytes,
        "enrolment": Enrolment.from_bytes,
        "checkpoint": checkpoint.load,
        "announcement": Announcement.from_bytes,
        "survivors": UnmaskRequest.from_bytes,
        "bundle": Bundle.from_bytes,
        "masked": cbor2.loads,
    }
    for name, data in held.journal:
        readers[next(part for part in name.split(".") if not part.isdigit())](data)
    sent = {(m.sender, m.epoch): {n: a.tobytes() for n, a in m.arrays.items()} for m, _ in held.masked()}
    for name, data in held.journal:
        if ".masked." in name:
            header, arrays = cbor2.loads(data)
            header = MaskedInput.from_parts(header, {})
            assert {n: a for n, (_, a) in arrays.items()} == sent[(header.sender, header.epoch)]


def test_no_silo_s_secrets_of_both_kinds_come_together(watched: Watched) -> None:
    held, sums = watched.held, watched.sums
    for epoch, (survivors, _) in sums.decoded.items():
        shares: dict[tuple[str, str], int] = {}
        for body, _ in held.bodies(UNMASK):
            reply = UnmaskShares.from_bytes(body)
            if reply.epoch == epoch:
                for owner in reply.self_mask_shares:
                    shares[("seed", owner)] = shares.get(("seed", owner), 0) + 1
                for owner in reply.mask_key_shares:
                    shares[("mask key", owner)] = shares.get(("mask key", owner), 0) + 1
        for silo in sums.participants[epoch]:
            wanted, other = ("seed", "mask key") if silo in survivors else ("mask key", "seed")
            assert shares[(wanted, silo)] >= T
            assert shares.get((other, silo), 0) == 0
    assert held.reconstructed == {
        *(f"self-mask seed of {silo}" for survivors, _ in sums.decoded.values() for silo in survivors),
        "mask key of silo-04",
        "mask key of silo-03",
    }


def test_no_secret_travels_or_is_written_down_in_clear(watched: Watched) -> None:
    held, everything = watched.held, watched.held.everything()
    assert len(held.secrets) >= 3 * N
    for key in held.run_keys:
        assert key not in everything
    for secrets in held.secrets.values():
        assert secrets.mask_private not in everything
        assert secrets.seed not in everything


def test_the_samples_leave_in_no_form(watched: Watched) -> None:
    everything = watched.held.everything()
    for home in watched.small.homes.values():
        for path in home.settings.data.glob("*.npy"):
            values = np.load(path)
            if values.dtype.kind == "f":
                for chunk in (values.ravel()[:4], values.ravel()[-4:]):
                    assert chunk.astype("<f4").tobytes() not in everything
                    assert chunk.astype("<f8").tobytes() not in everything
        assert str(home.settings.data).encode() not in everything


# --- the inspection can fail ----------------------------------------------------------------------------


def test_the_inspection_flags_vectors_that_are_not_masked(
    small: Callable[..., Small], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module in (secagg.silo, secagg.coordinator):
        monkeypatch.setattr(module, "apply_masks", lambda *args, **more: None)
    found = leaks(watched_run(small(N), monkeypatch, tmp_path / "run"))
    for silo in ("silo-00", "silo-01", "silo-02"):
        assert f"epoch 1, {silo} as sent, update: not uniform" in found
        assert f"epoch 1, {silo} as sent, update: resembles {silo}" in found
        assert f"epoch 1, {silo} as sent, score: resembles {silo}" in found


def test_the_inspection_flags_vectors_with_a_self_mask_only(
    small: Callable[..., Small], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # The sums come out right, yet every survivor's seed is reconstructed.
    for module in (secagg.silo, secagg.coordinator):
        monkeypatch.setattr(module, "pair_masks", lambda *args, **more: [])
    run = watched_run(small(N), monkeypatch, tmp_path / "run")
    run.sums.check()
    found = leaks(run)
    assert "epoch 1, silo-00 stripped, update: resembles silo-00" in found
    assert not [finding for finding in found if "as sent" in finding]


def test_the_stripping_opens_a_vector_once_both_secrets_are_there(watched: Watched) -> None:
    held = watched.held
    for message, _ in held.masked():
        secrets = given_secrets(held, message.epoch)
        own = held.secrets[(message.sender, message.epoch)]
        bare = stripped(held, message, {**secrets, ("mask key", message.sender): own.mask_private})
        for name, array in bare.items():
            np.testing.assert_array_equal(array, watched.sums.encoded[message.epoch][message.sender].values[name])


def test_a_correlation_that_chance_does_not_give_is_flagged() -> None:
    draw = np.random.default_rng(0)
    truth = draw.integers(-1000, 1000, 20_000).astype(np.int32).view(np.uint32)
    noise = draw.integers(-(2**31), 2**31, 20_000).astype(np.int32)
    assert not resembles(noise.view(np.uint32), truth)
    assert resembles((noise // 10 + to_signed(truth).astype(np.int32) * 20_000).view(np.uint32), truth)
    assert uniformity(noise.view(np.uint32)) > LEAST_P
    assert uniformity((noise // 2).view(np.uint32)) < LEAST_P
