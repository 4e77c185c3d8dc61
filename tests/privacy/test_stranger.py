"""A stranger needs the ledger, its anchor, the public key and docs/privacy.md, and nothing of this project."""

import hashlib
import json
from pathlib import Path
from typing import Any

import dp_accounting
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from privacy.ledger import Ledger, verify
from privacy.plan import MechanismPlan
from privacy.records import SEEDED, Release, RunOpened
from tests.privacy.signed import KEY, entries_of, three_releases


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return three_releases(tmp_path)


def stranger(path: Path, anchor: Path, public_key: bytes) -> dict[str, tuple[float, float, str]]:
    """Check a ledger and recompute every run's epsilon from docs/privacy.md alone, with nothing of this project."""
    key, domain = Ed25519PublicKey.from_public_bytes(public_key), b"fcfl/privacy/ledger/v2"
    previous, signature = bytes(32), bytes(64)
    runs: dict[str, tuple[dict[str, Any], dp_accounting.rdp.RdpAccountant]] = {}
    for number, text in enumerate(path.read_text().splitlines(), start=1):
        line = json.loads(text)
        content = {name: line[name] for name in ("body", "count", "kind")}
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
        digest = hashlib.sha256(domain + b"\0" + previous + signature + canonical).digest()
        signature = bytes.fromhex(line["signature"])
        key.verify(signature, domain + b"/entry\0" + number.to_bytes(8, "big") + digest)
        assert (line["count"], line["previous"], line["hash"]) == (number, previous.hex(), digest.hex())
        previous, body = digest, line["body"]
        if number == 1:
            assert body["public_key"] == public_key.hex()
        if line["kind"] == "run_opened":
            assert body["adjacency"] == "one record replaced by a null record with zero gradient"
            assert (body.get("accountant", "rdp"), body["conversion"]) == ("rdp", "improved")
            accountant = dp_accounting.rdp.RdpAccountant(
                [body["order"]], dp_accounting.NeighboringRelation.REPLACE_SPECIAL
            )
            runs[body["run"]] = body, accountant
        if line["kind"] == "release":
            step = dp_accounting.PoissonSampledDpEvent(
                body["sampling_rate"], dp_accounting.GaussianDpEvent(body["noise_multiplier"])
            )
            runs[body["run"]][1].compose(step, body["steps"])
    head = json.loads(anchor.read_text())
    message = domain + b"/anchor\0" + head["count"].to_bytes(8, "big") + bytes.fromhex(head["hash"])
    key.verify(bytes.fromhex(head["signature"]), message)
    assert head["hash"] == previous.hex()
    return {
        run: (accountant.get_epsilon(body["delta"]), body["epsilon"], f"{body['status']}, {body['software']}")
        for run, (body, accountant) in runs.items()
    }


def test_a_stranger_recomputes_epsilon_from_the_file_alone(files: tuple[Path, Path]) -> None:
    second = RunOpened("run-2", 2.0, 1e-6, 9.0, 0.3, "fcfl 0.1.0", SEEDED)
    with Ledger.open(*files, signer=KEY) as ledger:
        ledger.append(second.KIND, second.body())
        made, _ = Release.charge("run-2", 0, MechanismPlan(0.05, 2.0, 1.5, 7, 300), second.filter())
        ledger.append(made.KIND, made.body())
    found = stranger(*files, KEY.public_key)
    ours = verify(*files, KEY.public_key)
    for run in ours.runs:
        epsilon, agreed, told = found[run.opened.run]
        assert epsilon == pytest.approx(run.epsilon, rel=1e-9)
        assert agreed == run.opened.epsilon
        assert told == f"{run.opened.status}, fcfl 0.1.0"


def test_the_records_hold_all_that_epsilon_is_computed_from(files: tuple[Path, Path]) -> None:
    first, run, release, *_ = entries_of(files[0])
    assert {"format", "public_key", "nonce", "composition"} == set(first.body)
    told = {"adjacency", "unit", "order", "conversion", "epsilon", "delta", "rdp_budget", "software", "status"}
    assert told <= set(run.body)
    assert {"sampling_rate", "noise_multiplier", "clip_norm", "steps", "epoch", "purpose", "rdp"} <= set(release.body)
