"""One round of our secure aggregation in memory, with every message through its bytes, timed by party."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from privacy.signing import SigningKey
from secagg import coordinator, ring, signatures, silo
from secagg.envelopes import UnmaskCall
from secagg.graph import RegularGraph, commit_nonce
from secagg.graph_parameters import Degree, Rates
from secagg.layout import layout_for
from secagg.messages import (
    Announcement,
    Bundle,
    MaskedInput,
    Roster,
    RosterEntry,
    Run,
    UnmaskShares,
    default_threshold,
)
from secagg.prg import secure_uniforms
from secagg.ring import EncodedVector, Layout
from secagg.silo import EpochSecrets, RunKeys


@dataclass
class Costs:
    """CPU seconds and bytes of a round.

    Attributes
    ----------
    silos
        CPU seconds of every silo that took part to the end.
    server
        CPU seconds of the coordinator.
    up, down
        Bytes a silo sends and receives, set-up of the run not counted.
    values
        Values of a vector.
    """

    silos: dict[str, float] = field(default_factory=dict)
    server: float = 0.0
    up: dict[str, int] = field(default_factory=dict)
    down: dict[str, int] = field(default_factory=dict)
    values: int = 0

    @property
    def total(self) -> float:
        """CPU seconds of all parties."""
        return self.server + sum(self.silos.values())

    @property
    def silo(self) -> float:
        """Median CPU seconds of a silo."""
        return median(self.silos.values())

    @property
    def upload_ratio(self) -> float:
        """Median upload over the size of the values in float32."""
        return median(self.up.values()) / (4 * self.values)

    @property
    def download_ratio(self) -> float:
        """Median download, the values to train from not counted, over the size of the values in float32."""
        return median(self.down.values()) / (4 * self.values)

    @contextmanager
    def at(self, silo_id: str | None) -> Iterator[None]:
        """Count the CPU time of a block for a silo, or for the server."""
        began = time.process_time()
        yield
        spent = time.process_time() - began
        if silo_id is None:
            self.server += spent
        else:
            self.silos[silo_id] = self.silos.get(silo_id, 0.0) + spent


@dataclass(frozen=True)
class Parties:
    """A federation that has enrolled: its run, and every silo's keys."""

    run: Run
    keys: dict[str, RunKeys]
    signers: dict[str, SigningKey]

    @classmethod
    def enrol(cls, n: int, degree: Degree | None = None, rates: Rates | None = None) -> "Parties":
        """Enrol ``n`` silos, on the complete graph or on a regular one of a degree that withstands some rates."""
        ids, run_id = [f"silo-{i:05d}" for i in range(n)], os.urandom(16)
        keys = {s: silo.new_run_keys() for s in ids}
        signers = {s: SigningKey.generate() for s in ids}
        nonces = {s: os.urandom(32) for s in ids}
        entries = []
        for s in ids:
            key, commitment = keys[s].encryption_key, commit_nonce(run_id, s, nonces[s])
            made = signatures.enrol(run_id, s, key, commitment, 1000, "benchmark", signers[s])
            entries.append(RosterEntry.of(made))
        roster = Roster(tuple(entries))
        if degree is None or rates is None:
            return cls(Run(2, run_id, roster, default_threshold(n)), keys, signers)
        graph = RegularGraph.of(degree, rates, [nonces[s] for s in ids])
        return cls(Run(2, run_id, roster, degree.t, 0, graph), keys, signers)


def play(parties: Parties, length: int, lost: int) -> Costs:
    """Play one round and check that it gives exactly the survivors' sum.

    The first ``lost`` silos send no vector. The bundles, which in a run travel with the vectors of the epoch
    before, are counted.
    """
    run, costs = parties.run, Costs(values=length)
    ids = run.roster.ids
    layout = layout_for([("update", length, 32, 8.0)], len(ids))
    secrets: dict[str, EpochSecrets] = {}
    bundles: dict[str, Bundle] = {}
    for s in ids:
        with costs.at(s):
            secrets[s], bundle = silo.create_bundle(run, parties.keys[s], s, 1, signer=parties.signers[s])
            data = bundle.to_bytes()
        costs.up[s] = len(data)
        with costs.at(None):
            bundles[s] = coordinator.check_bundle(run, Bundle.from_bytes(data), 1)
    with costs.at(None):
        announcement = coordinator.announce(run, 1, bundles, layout, b"benchmark")
        announced = announcement.to_bytes()
    expected = np.zeros(length, np.int64)
    masked: dict[str, MaskedInput] = {}
    for s in ids[lost:]:
        with costs.at(None):
            publics, shares = coordinator.view_for(run, announcement, bundles, s)
            sent = [announced, *(public.to_bytes() for public in publics), *shares.values()]
        costs.down[s] = sum(map(len, sent))
        with costs.at(s):
            encoded = _encoded(layout, length)
            read = Announcement.from_bytes(announced)
            message = silo.mask_input(
                run, parties.keys[s], secrets[s], s, read, publics, encoded, (1, bytes(32)), signer=parties.signers[s]
            )
            header = message.header_bytes()
        expected += encoded.signed("update")
        costs.up[s] += len(header) + sum(array.nbytes for array in message.arrays.values())
        with costs.at(None):
            received = MaskedInput.from_parts(header, message.arrays)
            masked[s] = coordinator.check_masked(run, announcement, received)
    with costs.at(None):
        request = coordinator.unmask_request(run, announcement, sorted(masked))
        asked = UnmaskCall.of(request, masked).to_bytes()
    replies: dict[str, UnmaskShares] = {}
    for s in masked:
        publics, shares = coordinator.view_for(run, announcement, bundles, s)
        costs.down[s] += len(asked)
        with costs.at(s):
            call = UnmaskCall.from_bytes(asked)
            answer = silo.answer_unmask(
                run,
                parties.keys[s],
                silo.record_masked(secrets[s], announcement),
                s,
                announcement,
                publics,
                shares,
                call.request,
                call.headers(),
                signer=parties.signers[s],
            )
            data = answer.to_bytes()
        costs.up[s] += len(data)
        with costs.at(None):
            replies[s] = coordinator.check_reply(run, announcement, request, UnmaskShares.from_bytes(data))
    with costs.at(None):
        publics = tuple(bundles[s].public for s in announcement.ids)
        total = coordinator.aggregate(run, announcement, publics, masked, replies)
    if not np.array_equal(total["update"], expected):
        raise RuntimeError("the sum is not the survivors'; this is a defect")
    for s in ids[:lost]:
        del costs.silos[s], costs.up[s]
    return costs


def _encoded(layout: Layout, length: int) -> EncodedVector:
    values = np.linspace(-4.0, 4.0, length)
    return ring.encode(layout, {"update": values}, secure_uniforms())
