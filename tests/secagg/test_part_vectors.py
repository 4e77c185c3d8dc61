"""Known answers for single parts, good and bad, each file computed twice: by the room and from its documentation.

To write the files again after a deliberate change:
python -c "from tests.secagg.test_part_vectors import write; write()"
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from secagg import prg, ring, shamir
from secagg.errors import NotEnoughSurvivors, SecAggError
from secagg.keys import Scope, check_public_key, commit_seed, pair_key, public_key, self_mask_key
from secagg.recover import Holders, recover
from secagg.ring import Layout, Segment
from tests.secagg import test_reference as reference

FOLDER = Path(__file__).parent / "vectors"
SCOPE = Scope(2, bytes(range(16)), 7)
DIGEST = hashlib.sha256(b"an announcement").digest()
Rows = list[dict[str, Any]]


def secret(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


def keys() -> dict[str, Rows]:
    one, two, seed = secret("alpha"), secret("bravo"), secret("seed")
    common = {"run_id": SCOPE.run_id.hex(), "epoch": 7, "announcement_hash": DIGEST.hex()}
    pair = pair_key(
        SCOPE,
        X25519PrivateKey.from_private_bytes(one),
        ("alpha", public_key(one)),
        ("bravo", public_key(two)),
        DIGEST,
    )
    own = self_mask_key(SCOPE, "alpha", public_key(one), seed, DIGEST)
    commitment = commit_seed(SCOPE, "alpha", seed)
    good: Rows = [
        {"what": "pairwise mask", **common, "private": one.hex(), "peer_private": two.hex(), "key": pair.hex()},
        {"what": "self mask", **common, "private": one.hex(), "seed": seed.hex(), "key": own.hex()},
        {"what": "seed commitment", **common, "seed": seed.hex(), "key": commitment.hex()},
    ]
    low = {"zero": bytes(32), "one": bytes([1]) + bytes(31), "minus one": bytes([0xEC] + [0xFF] * 30 + [0x7F])}
    bad: Rows = [{"what": f"public key of low order, {name}", "key": key.hex()} for name, key in low.items()]
    return {"good": good, "bad": [*bad, {"what": "public key of 31 bytes", "key": (bytes([9]) * 31).hex()}]}


def masks() -> dict[str, Rows]:
    good: Rows = [
        {"key": secret(f"{name}{bits}").hex(), "segment": name, "bits": bits, "length": n,
         "mask": prg.expand(secret(f"{name}{bits}"), name, n, bits).tolist()}
        for name, bits, n in (("update", 32, 6), ("control", 32, 6), ("weight", 64, 3))
    ]  # fmt: skip
    # Words of a seed in another order once gave the same mask in another implementation.
    rotated = secret("update32")[4:] + secret("update32")[:4]
    good.append({"key": rotated.hex(), "segment": "update", "bits": 32, "length": 6,
                 "mask": prg.expand(rotated, "update", 6, 32).tolist()})  # fmt: skip
    return {"good": good, "bad": [{"key": "00" * 31, "segment": "update", "bits": 32, "length": 6}]}


def shares() -> dict[str, Rows]:
    good: Rows = []
    for name, value in (("a hash", secret("shared")), ("leading zeros", bytes(31) + b"\x01"), ("zero", bytes(32))):
        made = shamir.split(value, 4, 5, reference.entropy(9))
        good.append({"what": name, "secret": value.hex(), "t": 4, "shares": [share.hex() for share in made]})
    first = [bytes.fromhex(share) for share in good[0]["shares"]]
    wrong = bytes(33)
    bad: Rows = [
        {"what": "index 0", "t": 4, "shares": {x: share.hex() for x, share in zip("0234", first, strict=False)}},
        {"what": "three of four", "t": 4, "shares": {str(x): first[x - 1].hex() for x in (1, 2, 3)}},
        {"what": "not a field element", "t": 4, "shares": {str(x): "ff" * 33 for x in (1, 2, 3, 4)}},
        {"what": "32 bytes", "t": 4, "shares": {str(x): first[x - 1][1:].hex() for x in (1, 2, 3, 4)}},
        {"what": "two wrong of five", "t": 4, "secret": good[0]["secret"],
         "shares": {str(x): (wrong if x < 3 else first[x - 1]).hex() for x in range(1, 6)}},
    ]  # fmt: skip
    return {"good": good, "bad": bad}


def ring_rows() -> dict[str, Rows]:
    good: Rows = []
    for bits, bound, parties, values in (
        (32, 8.0, 3, [0.5, 1.0, 2.0, 4.0]),
        (32, 8.0, 3, [0.5, 1.0, 2.0, 9.0]),
        (64, 1e6, 20, [-1e6, 0.1, 3.0, 2e6]),
    ):
        step = ring.finest_step(bound, parties, bits)
        layout = Layout((Segment("A", 4, bits, bound, step),), parties)
        made = ring.encode(layout, {"A": np.array(values)}, lambda n: np.full(n, 0.25))
        good.append(
            {"bits": bits, "bound": bound, "parties": parties, "step": step, "values": values, "uniform": 0.25,
             "encoded": made.signed("A").tolist(), "saturated": made.saturated["A"]}
        )  # fmt: skip
    bad: Rows = [
        {"what": "bound 0", "bits": 32, "bound": 0.0, "parties": 3, "step": 0.5},
        {"what": "bound -1", "bits": 32, "bound": -1.0, "parties": 3, "step": 0.5},
        {"what": "48 bits", "bits": 48, "bound": 8.0, "parties": 3, "step": 0.5},
        {"what": "five of 8191 x 60000 units wrap", "bits": 32, "bound": 8191.0 * 60_000, "parties": 5, "step": 1.0},
    ]
    return {"good": good, "bad": bad}


FILES: dict[str, Callable[[], dict[str, Rows]]] = {"keys": keys, "masks": masks, "shares": shares, "ring": ring_rows}


def write() -> None:
    for name, compute in FILES.items():
        (FOLDER / f"{name}.json").write_text(json.dumps(compute(), indent=1) + "\n", encoding="utf-8")


def known(name: str) -> dict[str, Rows]:
    found: dict[str, Rows] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("name", FILES)
def test_the_room_gives_the_known_answers(name: str) -> None:
    assert FILES[name]() == known(name)


def test_keys_from_the_documentation_are_the_known_ones() -> None:
    pair, own, commitment = known("keys")["good"]
    one, two = bytes.fromhex(pair["private"]), bytes.fromhex(pair["peer_private"])
    shared = reference.exchange(one, reference.public(two))
    context = ["alpha", "bravo", reference.public(one), reference.public(two), DIGEST]
    assert reference.hkdf(shared, "pairwise-mask", *context).hex() == pair["key"]
    seed = bytes.fromhex(own["seed"])
    assert reference.hkdf(seed, "self-mask", "alpha", reference.public(one), DIGEST).hex() == own["key"]
    assert reference.labelled("seed-commitment", [*reference.SCOPE, "alpha", seed]).hex() == commitment["key"]


def test_bad_public_keys_are_refused_by_their_owners_name() -> None:
    for row in known("keys")["bad"]:
        with pytest.raises(SecAggError, match="mallory"):
            check_public_key(bytes.fromhex(row["key"]), "mallory")


def test_masks_from_the_documentation_are_the_known_ones_and_differ() -> None:
    rows = known("masks")
    for row in rows["good"]:
        found = reference.mask(bytes.fromhex(row["key"]), row["segment"], row["length"], row["bits"] // 8)
        assert found == row["mask"]
    assert len({tuple(row["mask"]) for row in rows["good"]}) == len(rows["good"])
    for row in rows["bad"]:
        with pytest.raises(SecAggError):
            prg.expand(bytes.fromhex(row["key"]), row["segment"], row["length"], row["bits"])


def test_any_four_known_shares_give_the_secret_and_the_documentation_gives_the_shares() -> None:
    for row in known("shares")["good"]:
        value = bytes.fromhex(row["secret"])
        assert [share.hex() for share in reference.share(value, reference.entropy(9))] == row["shares"]
        given = {x: bytes.fromhex(share) for x, share in enumerate(row["shares"], 1)}
        for left_out in given:
            assert shamir.combine({x: share for x, share in given.items() if x != left_out}, row["t"]) == value


def test_bad_shares_are_refused_or_found_out_by_the_commitment() -> None:
    for row in known("shares")["bad"]:
        given = {int(x): bytes.fromhex(share) for x, share in row["shares"].items()}
        if "secret" in row:
            value = bytes.fromhex(row["secret"])
            with pytest.raises(SecAggError, match="the seed of mallory"):
                recover("the seed of mallory", given, row["t"], lambda found, value=value: found == value, Holders())
            continue
        with pytest.raises((SecAggError, NotEnoughSurvivors)):
            shamir.combine(given, row["t"])


def test_ring_elements_from_the_documentation_are_the_known_ones() -> None:
    rows = known("ring")
    for row in rows["good"]:
        clamped = [min(max(value, -row["bound"]), row["bound"]) / row["step"] for value in row["values"]]
        expected = [int(np.floor(value)) + (row["uniform"] < value - np.floor(value)) for value in clamped]
        assert row["encoded"] == expected
        assert row["saturated"] == sum(abs(value) > row["bound"] for value in row["values"])
    for row in rows["bad"]:
        with pytest.raises(SecAggError):
            Layout((Segment("A", 4, row["bits"], row["bound"], row["step"]),), row["parties"])


@pytest.mark.parametrize("parties", range(2, 11))
def test_largest_sums_fit_or_are_refused_or_widened_and_never_wrap(parties: int) -> None:
    """8191 levels times a weight of 60,000: four parties fit a signed ring of 32 bits, five need more."""
    top = 8191 * 60_000
    fits = parties * top < 2**31
    assert fits == (parties <= 4)
    if not fits:
        with pytest.raises(SecAggError, match="A"):
            Layout((Segment("A", 2, 32, float(top), 1.0),), parties)
    layout = Layout((Segment("A", 2, 32 if fits else 64, float(top), 1.0),), parties)
    one = ring.encode(layout, {"A": np.array([float(top), -float(top)])}, lambda n: np.zeros(n))
    total = sum(one.signed("A").astype(object) for _ in range(parties))
    assert total.tolist() == [parties * top, -parties * top]


def test_a_silo_beyond_the_bound_is_told_and_the_sum_is_exact_to_one_step() -> None:
    """Three silos send [.5, 1, 2, 4] at a bound of 8; then one of them 9, then 16 in the last place."""
    step = ring.finest_step(8.0, 3, 32)
    layout = Layout((Segment("A", 4, 32, 8.0, step),), 3)
    plain = np.array([0.5, 1.0, 2.0, 4.0])
    for last, saturated in ((4.0, 0), (9.0, 1), (16.0, 1)):
        odd = np.array([*plain[:3], last])
        made = [ring.encode(layout, {"A": v}, prg.secure_uniforms()) for v in (plain, plain, odd)]
        total = ring.decode_sum(layout, {"A": sum(m.signed("A") for m in made)})["A"]
        np.testing.assert_allclose(total, 2 * plain + np.minimum(odd, 8.0), atol=3 * step)
        assert [m.saturated["A"] for m in made] == [0, 0, saturated]
