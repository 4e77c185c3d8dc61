"""A secure sum of three parties in this process, one of them with the silo's own identity."""

import secrets

import numpy as np

from experiments.silo_check.findings import Finding, failed, ok
from privacy.signing import SigningKey
from secagg import coordinator, ring, signatures, silo
from secagg.graph import commit_nonce, new_nonce
from secagg.messages import PROTOCOL_VERSION, MaskedHeader, MaskedInput, Roster, RosterEntry, Run, default_threshold
from secagg.ring import Layout, Segment

LENGTH = 1000
BOUND = 8.0
PARTIES = ("dry-a", "dry-b", "dry-c")
HEAD = (0, bytes(32))


def check_sum(identity: SigningKey) -> Finding:
    """Sum random vectors under masks and compare with the plain sum.

    The run has a random name and its messages stay in memory: what the identity signs here is of no use elsewhere.
    """
    signers = dict(zip(PARTIES, (identity, SigningKey.generate(), SigningKey.generate()), strict=True))
    keys = {party: silo.new_run_keys() for party in PARTIES}
    run_id = secrets.token_bytes(16)
    enrolments = [
        signatures.enrol(
            run_id,
            party,
            keys[party].encryption_key,
            commit_nonce(run_id, party, new_nonce()),
            1,
            "dry sum",
            signers[party],
        )
        for party in PARTIES
    ]
    roster = Roster(tuple(RosterEntry.of(signatures.check_enrolment(run_id, one)) for one in enrolments))
    run = Run(PROTOCOL_VERSION, run_id, roster, default_threshold(len(PARTIES)))
    made = {party: silo.create_bundle(run, keys[party], party, 1, signer=signers[party]) for party in PARTIES}
    bundles = {party: coordinator.check_bundle(run, bundle, 1) for party, (_, bundle) in made.items()}
    publics = [bundle.public for bundle in bundles.values()]
    layout = Layout((Segment("v", LENGTH, 32, BOUND, ring.finest_step(BOUND, len(PARTIES), 32)),), len(PARTIES))
    announcement = coordinator.announce(run, 1, bundles, layout, b"dry sum")
    noise = np.random.default_rng()
    vectors = {
        party: ring.encode(layout, {"v": noise.uniform(-BOUND, BOUND, LENGTH)}, noise.random) for party in PARTIES
    }
    masked: dict[str, MaskedInput] = {}
    kept = {}
    for party, (epoch, _) in made.items():
        message = silo.mask_input(
            run, keys[party], epoch, party, announcement, publics, vectors[party], HEAD, signer=signers[party]
        )
        masked[party] = coordinator.check_masked(run, announcement, message)
        kept[party] = silo.record_masked(epoch, announcement)
    request = coordinator.unmask_request(run, announcement, list(PARTIES))
    replies = {
        party: coordinator.check_reply(
            run,
            announcement,
            request,
            silo.answer_unmask(
                run,
                keys[party],
                kept[party],
                party,
                announcement,
                publics,
                coordinator.ciphertexts_for(bundles, party),
                request,
                [MaskedHeader.from_bytes(message.header_bytes()) for message in masked.values()],
                signer=signers[party],
            ),
        )
        for party in PARTIES
    }
    total = coordinator.aggregate(run, announcement, publics, masked, replies)["v"]
    plain = {party: vector.signed("v") for party, vector in vectors.items()}
    open_ = any(np.array_equal(ring.to_signed(masked[party].arrays["v"]), plain[party]) for party in PARTIES)
    if open_ or not np.array_equal(total, sum(plain.values())):
        return failed(
            "secure sum", "the sum of three parties in memory is wrong", "install fcfl again; report a defect"
        )
    return ok("secure sum", f"three parties in memory, {LENGTH} values, exact; signed with this silo's identity")
