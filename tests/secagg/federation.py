"""A whole run in memory: the parties of secure aggregation with every message going through bytes."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from secagg import coordinator, ring, signatures, silo
from secagg.graph import commit_nonce, new_nonce
from secagg.messages import (
    Announcement,
    Bundle,
    BundlePublic,
    Enrolment,
    MaskedHeader,
    MaskedInput,
    Roster,
    RosterEntry,
    Run,
    UnmaskRequest,
    UnmaskShares,
    default_threshold,
)
from secagg.ring import EncodedVector, IntArray, Layout, Segment
from secagg.silo import EpochSecrets, RunKeys
from tests.secagg.signers import TestSigner


def seeded(name: str) -> Callable[[int], bytes]:
    """A deterministic, well-mixed byte source for tests."""
    count = 0

    def draw(size: int) -> bytes:
        nonlocal count
        count += 1
        return hashlib.shake_256(f"{name}/{count}".encode()).digest(size)

    return draw


def small_layout(parties: int, length: int = 7) -> Layout:
    return Layout(
        (
            Segment("A", length, 32, 8.0, ring.finest_step(8.0, parties, 32)),
            Segment("C", 3, 64, 1e6, ring.finest_step(1e6, parties, 64)),
        ),
        parties,
    )


def random_vector(layout: Layout, seed: int) -> EncodedVector:
    generator = np.random.default_rng(seed)
    values = {s.name: generator.uniform(-s.bound, s.bound, s.length) for s in layout}
    return ring.encode(layout, values, generator.random)


@dataclass
class Federation:
    n: int
    threshold: int = 0
    tag: str = ""
    keys: dict[str, RunKeys] = field(init=False)
    signers: dict[str, TestSigner] = field(init=False)
    nonces: dict[str, bytes] = field(init=False)
    enrolments: dict[str, Enrolment] = field(init=False)
    run_id: bytes = bytes(range(16))
    run: Run = field(init=False)

    def __post_init__(self) -> None:
        ids = [f"silo-{i:0{max(2, len(str(self.n - 1)))}d}" for i in range(self.n)]
        self.keys = {s: silo.new_run_keys(seeded(f"keys/{self.tag}/{s}")) for s in ids}
        self.signers = {s: TestSigner.of(f"identity/{s}") for s in ids}
        self.nonces = {s: new_nonce(seeded(f"nonce/{self.tag}/{s}")) for s in ids}
        self.enrolments = {s: self.enrol(s) for s in ids}
        roster = Roster(tuple(RosterEntry.of(enrolment) for enrolment in self.enrolments.values()))
        self.run = Run(2, self.run_id, roster, self.threshold or default_threshold(self.n))
        self.run = Run.from_bytes(self.run.to_bytes())
        signatures.check_roster(self.run_id, self.run.roster)

    def enrol(self, s: str) -> Enrolment:
        entropy = seeded(f"salt/{self.tag}/{s}")
        commitment = commit_nonce(self.run_id, s, self.nonces[s])
        key, signer = self.keys[s].encryption_key, self.signers[s]
        made = signatures.enrol(self.run_id, s, key, commitment, 100, "fcfl 0.1", signer, entropy)
        return signatures.check_enrolment(self.run_id, Enrolment.from_bytes(made.to_bytes()))

    def signed(self, public: BundlePublic) -> BundlePublic:
        """The same bundle, signed by whom it names; a silo may say anything about itself."""
        return signatures.sign_bundle(self.run, public, self.signers[public.sender])

    @property
    def ids(self) -> tuple[str, ...]:
        return self.run.roster.ids

    def epoch(self, number: int = 0, members: Iterable[str] | None = None, parties: int = 0) -> "Epoch":
        return Epoch(self, number, tuple(members if members is not None else self.ids), parties or self.n)


@dataclass
class Epoch:
    federation: Federation
    number: int
    members: tuple[str, ...]
    parties: int
    secrets: dict[str, EpochSecrets] = field(init=False, default_factory=dict)
    bundles: dict[str, Bundle] = field(init=False, default_factory=dict)
    headers: dict[str, MaskedHeader] = field(init=False, default_factory=dict)
    context: bytes = b"plan"

    def __post_init__(self) -> None:
        f = self.federation
        for s in self.members:
            secrets, bundle = silo.create_bundle(f.run, f.keys[s], s, self.number, signer=f.signers[s])
            self.secrets[s] = EpochSecrets.from_bytes(secrets.to_bytes())
            self.bundles[s] = Bundle.from_bytes(bundle.to_bytes())
        self.layout = small_layout(self.parties)
        self.inputs = {s: random_vector(self.layout, i) for i, s in enumerate(f.ids)}

    @property
    def publics(self) -> list[BundlePublic]:
        return [bundle.public for bundle in self.bundles.values()]

    def view(self, s: str, announcement: Announcement) -> list[BundlePublic]:
        """The public parts that a silo is sent: everyone's, or its neighbourhood's."""
        near = {s, *self.federation.run.neighbours(s)}
        return [bundle.public for sender, bundle in self.bundles.items() if sender in near]

    def announce(self, context: bytes | None = None) -> Announcement:
        a = coordinator.announce(
            self.federation.run, self.number, self.bundles, self.layout, self.context if context is None else context
        )
        return Announcement.from_bytes(a.to_bytes())

    def mask(self, s: str, announcement: Announcement) -> MaskedInput:
        f = self.federation
        head = (3, bytes(32))
        message = silo.mask_input(
            f.run,
            f.keys[s],
            self.secrets[s],
            s,
            announcement,
            self.view(s, announcement),
            self.inputs[s],
            head,
            signer=f.signers[s],
        )
        self.secrets[s] = silo.record_masked(self.secrets[s], announcement)
        self.headers[s] = MaskedHeader.from_bytes(message.header_bytes())
        message = MaskedInput.from_parts(message.header_bytes(), message.arrays)
        return coordinator.check_masked(f.run, announcement, message)

    def shown(self, request: UnmaskRequest) -> list[MaskedHeader]:
        """The headers of the survivors' vectors; who masked none lies, and signs one all the same."""
        f = self.federation
        found = []
        for s in request.survivors:
            made = self.headers.get(s)
            if made is None or made.announcement_hash != request.announcement_hash:
                made = MaskedHeader(s, request.epoch, request.announcement_hash, (3, bytes(32)), bytes(32))
                signer = f.signers.get(s, f.signers[f.ids[0]])
                made = replace(made, signature=signer.sign(signatures.masked_statement(f.run, made)))
            found.append(made)
        return found

    def answer(self, s: str, announcement: Announcement, request: UnmaskRequest) -> UnmaskShares:
        f = self.federation
        ciphertexts = coordinator.ciphertexts_for(self.bundles, s)
        reply = silo.answer_unmask(
            f.run,
            f.keys[s],
            self.secrets[s],
            s,
            announcement,
            self.view(s, announcement),
            ciphertexts,
            request,
            self.shown(request),
            signer=f.signers[s],
        )
        self.secrets[s] = silo.record_answered(self.secrets[s], request)
        return coordinator.check_reply(f.run, announcement, request, UnmaskShares.from_bytes(reply.to_bytes()))

    def resigned(
        self, announcement: Announcement, masked: Iterable[str], replies: dict[str, UnmaskShares]
    ) -> dict[str, UnmaskShares]:
        """Replies with whatever is in them, signed by their senders: a silo that lies signs its lie."""
        f = self.federation
        request = coordinator.unmask_request(f.run, announcement, list(masked))
        return {s: signatures.sign_shares(f.run, request, r, f.signers[r.sender]) for s, r in replies.items()}

    def collect(
        self, lost_masked: Iterable[str] = (), lost_unmask: Iterable[str] = ()
    ) -> tuple[Announcement, dict[str, MaskedInput], dict[str, UnmaskShares]]:
        announcement = self.announce()
        masked = {s: self.mask(s, announcement) for s in self.members if s not in set(lost_masked)}
        request = coordinator.unmask_request(self.federation.run, announcement, sorted(masked))
        request = UnmaskRequest.from_bytes(request.to_bytes())
        replies = {s: self.answer(s, announcement, request) for s in masked if s not in set(lost_unmask)}
        return announcement, masked, replies

    def aggregate(
        self, announcement: Announcement, masked: dict[str, MaskedInput], replies: dict[str, UnmaskShares]
    ) -> dict[str, IntArray]:
        return coordinator.aggregate(self.federation.run, announcement, self.publics, masked, replies)

    def expected(self, survivors: Iterable[str]) -> dict[str, IntArray]:
        kept = list(survivors)
        return {g.name: np.sum([self.inputs[s].signed(g.name) for s in kept], axis=0) for g in self.layout}
