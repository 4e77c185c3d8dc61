"""Known answers of a whole round of five: any other implementation must get these, and this one must not drift.

Everything follows from the documentation's definitions and the inputs below; the entropy of silo i is the sequence
SHAKE-256(f"fcfl-secagg/vectors/{i}/{k}") for the k-th request, k from 1, and its Ed25519 private key
SHAKE-256(f"fcfl-secagg/vectors/{i}/identity"). To write the file again after a deliberate change:
python -c "from tests.secagg.test_vectors import write; write()"
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from secagg import coordinator, ring, signatures, silo
from secagg.envelopes import UnmaskCall
from secagg.graph import commit_nonce
from secagg.messages import EpochOutcome, Roster, RosterEntry, Run
from secagg.ring import Layout, Segment
from tests.secagg.federation import seeded
from tests.secagg.signers import TestSigner

VECTORS = Path(__file__).parent / "vectors" / "round_of_five.json"


def compute() -> dict[str, Any]:
    ids = ("alpha", "bravo", "charlie", "delta", "echo")
    entropy = {s: seeded(f"fcfl-secagg/vectors/{i}") for i, s in enumerate(ids)}
    keys = {s: silo.new_run_keys(entropy[s]) for s in ids}
    signers = {s: TestSigner.of(f"fcfl-secagg/vectors/{i}/identity") for i, s in enumerate(ids)}
    enrolments = {
        s: signatures.enrol(
            bytes(range(16)),
            s,
            keys[s].encryption_key,
            commit_nonce(bytes(range(16)), s, entropy[s](32)),
            1000,
            "fcfl",
            signers[s],
            entropy[s],
        )
        for s in ids
    }
    roster = Roster(tuple(RosterEntry.of(enrolment) for enrolment in enrolments.values()))
    run = Run(2, bytes(range(16)), roster, 4)
    made = {s: silo.create_bundle(run, keys[s], s, 7, entropy[s], signer=signers[s]) for s in ids}
    bundles = {s: bundle for s, (_, bundle) in made.items()}
    layout = Layout((Segment("A", 4, 32, 8.0, 2.0**-20), Segment("C", 2, 64, 1e6, 2.0**-30)), 5)
    outcomes = (EpochOutcome(6, "completed", ids),)
    announcement = coordinator.announce(run, 7, bundles, layout, b"plan", outcomes, {"alpha": b"head"})
    values = {"A": np.array([1.0, -1.0, 8.0, 0.0]), "C": np.array([1e6, -0.5])}
    encoded = ring.encode(layout, values, lambda n: np.full(n, 0.5))
    publics = [bundle.public for bundle in bundles.values()]
    masked = {
        s: silo.mask_input(
            run, keys[s], made[s][0], s, announcement, publics, encoded, (0, bytes(32)), signer=signers[s]
        )
        for s in ids
    }
    survivors = ids[:4]  # the vector of echo is lost
    request = coordinator.unmask_request(run, announcement, survivors)
    call = UnmaskCall.of(request, masked)
    replies = {
        s: silo.answer_unmask(
            run, keys[s], silo.record_masked(made[s][0], announcement), s, announcement, publics,
            coordinator.ciphertexts_for(bundles, s), request, call.headers(), signer=signers[s],
        )
        for s in survivors
    }  # fmt: skip
    received = {s: masked[s] for s in survivors}
    total = coordinator.aggregate(run, announcement, publics, received, replies)
    return {
        "enrolment_alpha": enrolments["alpha"].to_bytes().hex(),
        "run": run.to_bytes().hex(),
        "roster_hash": roster.hash().hex(),
        "bundle_alpha": bundles["alpha"].to_bytes().hex(),
        "bundle_hash_alpha": bundles["alpha"].public.hash().hex(),
        "announcement": announcement.to_bytes().hex(),
        "announcement_hash": announcement.digest().hex(),
        "encoded": {name: encoded.signed(name).tolist() for name in ("A", "C")},
        "masked_header_alpha": masked["alpha"].header_bytes().hex(),
        "masked": {s: {name: array.tobytes().hex() for name, array in m.arrays.items()} for s, m in masked.items()},
        "unmask_request": request.to_bytes().hex(),
        "unmask_call": call.to_bytes().hex(),
        "unmask_shares_alpha": replies["alpha"].to_bytes().hex(),
        "sum": {name: array.tolist() for name, array in total.items()},
    }


def write() -> None:
    VECTORS.write_text(json.dumps(compute(), indent=1) + "\n", encoding="utf-8")


def test_version_two_gives_its_known_answers() -> None:
    assert compute() == json.loads(VECTORS.read_text(encoding="utf-8"))
