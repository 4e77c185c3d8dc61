"""The order of the circle and the graph on it: regular, connected, from everyone's nonce, the same everywhere.

To write the known answers again after a deliberate change:
python -c "from tests.secagg.test_graph import write; write()"
"""

import dataclasses
import json
from collections import Counter
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import ECB
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.errors import ProtocolError
from secagg.graph import Circle, RegularGraph, commit_nonce, graph_seed, permutation
from secagg.messages import Run
from tests.secagg.federation import seeded
from tests.secagg.regular import Regular

VECTORS = Path(__file__).parent / "vectors" / "graph.json"
RUN_ID = bytes(range(16))


def plain_permutation(seed: bytes, n: int) -> list[int]:
    """From the documentation's definition: AES blocks of a counter, words, rejection, exchange."""
    block = Cipher(AES256(seed), ECB()).encryptor()
    stream = b"".join(block.update(i.to_bytes(16, "big")) for i in range(4 * n))
    words = iter(int.from_bytes(stream[at : at + 4], "little") for at in range(0, len(stream), 4))
    order = list(range(n))
    for i in reversed(range(1, n)):
        word = next(w for w in words if w < 2**32 - 2**32 % (i + 1))
        j = word % (i + 1)
        order[i], order[j] = order[j], order[i]
    return order


def known_answers() -> dict[str, object]:
    nonces = [seeded(f"graph-vectors/{i}")(32) for i in range(12)]
    ids = [f"silo-{i:02d}" for i in range(12)]
    seed = graph_seed(RUN_ID, bytes(32), nonces)
    circle = RegularGraph(6, 0.0, 0.25, False, 3, 1, tuple(nonces)).circle(RUN_ID, bytes(32), ids)
    return {
        "nonce_0": nonces[0].hex(),
        "commitment_0": commit_nonce(RUN_ID, ids[0], nonces[0]).hex(),
        "seed": seed.hex(),
        "order": list(circle.order),
        "neighbours_0": list(circle.neighbours(ids[0])),
        "permutation_of_1000_begins": list(permutation(seed, 1000)[:12]),
    }


def write() -> None:
    VECTORS.write_text(json.dumps(known_answers(), indent=1) + "\n", encoding="utf-8")


def test_the_order_of_the_circle_has_known_answers() -> None:
    assert known_answers() == json.loads(VECTORS.read_text(encoding="utf-8"))


@pytest.mark.parametrize("n", [1, 2, 3, 12, 1000])
def test_a_second_implementation_gets_the_same_permutation(n: int) -> None:
    for i in range(5):
        seed = seeded(f"permutation/{i}")(32)
        found = permutation(seed, n)
        assert list(found) == plain_permutation(seed, n)
        assert sorted(found) == list(range(n))


def test_permutations_are_uniform_by_chi_square() -> None:
    tries, draw = 12_000, seeded("uniform")
    counts = Counter(permutation(draw(32), 4) for _ in range(tries))
    expected = tries / 24
    chi_square = sum((counts[p] - expected) ** 2 / expected for p in counts)
    assert len(counts) == 24
    assert chi_square < 23 + 5 * (2 * 23) ** 0.5
    places = Counter(at for _ in range(tries) for at in [permutation(draw(32), 11).index(0)])
    assert sum((places[p] - tries / 11) ** 2 / (tries / 11) for p in range(11)) < 10 + 5 * (2 * 10) ** 0.5


def test_words_that_would_favour_a_residue_are_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """For three silos 2^32 - 1 is the one word that is not used: with it residue 0 would come up once more."""
    stream = b"".join(word.to_bytes(4, "little") for word in (2**32 - 1, 1, 1)) + bytes(4084)

    class Fixed:
        def encryptor(self) -> "Fixed":
            return self

        def update(self, data: bytes) -> bytes:
            return stream

    monkeypatch.setattr("secagg.graph.Cipher", lambda *_: Fixed())
    assert permutation(bytes(32), 3) == (0, 2, 1)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), n=st.integers(4, 30))
def test_the_graph_is_regular_symmetric_and_counts_what_it_says(data: st.DataObject, n: int) -> None:
    k = 2 * data.draw(st.integers(1, (n - 2) // 2))
    circle = Circle(tuple(data.draw(st.permutations([f"s{i:02d}" for i in range(n)]))), k)
    edges = {s: set(circle.neighbours(s)) for s in circle.order}
    assert all(len(near) == k and s not in near for s, near in edges.items())
    assert all(s in edges[near] for s in edges for near in edges[s])
    members = data.draw(st.sets(st.sampled_from(circle.order)))
    assert circle.surviving_neighbours(members) == {s: len(near & members) for s, near in edges.items()}
    reached: set[str] = set()
    waiting = sorted(members)[:1]
    while waiting:
        reached.add(here := waiting.pop())
        waiting += sorted(edges[here] & members - reached)
    assert circle.connected(members) == (bool(members) and reached == members)
    rows = [[circle.order[(at + j) % n] not in members for j in range(k // 2)] for at in range(n)]
    assert circle.most_missing(members) == max(map(sum, rows))


def test_every_nonce_and_the_roster_shape_the_order() -> None:
    nonces = [bytes([i]) * 32 for i in range(8)]
    seed = graph_seed(RUN_ID, bytes(32), nonces)
    others = [graph_seed(RUN_ID, bytes(32), [*nonces[:i], bytes(32 - 1) + b"x", *nonces[i + 1 :]]) for i in range(8)]
    others += [graph_seed(bytes(16), bytes(32), nonces), graph_seed(RUN_ID, b"x" * 32, nonces)]
    assert len({seed, *others}) == 11


def test_a_changed_missing_or_exchanged_nonce_is_refused() -> None:
    run = Regular(12).run
    graph = run.graph
    assert graph is not None
    first, second, *rest = graph.nonces
    for nonces, says in (
        ((bytes(32), second, *rest), "silo-00 committed"),
        ((second, first, *rest), "silo-00 committed"),
        ((first, second, *rest[:-1]), "11, expected one of each of the 12"),
    ):
        with pytest.raises(ProtocolError, match=says):
            dataclasses.replace(run, graph=dataclasses.replace(graph, nonces=nonces))
    with pytest.raises(ProtocolError, match="silo-00 committed"):
        dataclasses.replace(run, run_id=bytes(16))


def test_a_roster_with_other_commitments_has_another_graph_or_none() -> None:
    run = Regular(12).run
    bare = tuple(dataclasses.replace(entry, nonce_commitment=bytes(32)) for entry in run.roster.entries)
    with pytest.raises(ProtocolError, match="committed"):
        dataclasses.replace(run, roster=dataclasses.replace(run.roster, entries=bare))


def test_degree_and_threshold_below_the_stated_rates_are_refused() -> None:
    run = Regular(12).run
    assert run.graph is not None
    for change, says in (
        ({"threshold": 5}, "shares"),
        ({"graph": dataclasses.replace(run.graph, corruption=0.5)}, "corrupt"),
        ({"graph": dataclasses.replace(run.graph, degree=7)}, "even degree"),
        ({"graph": dataclasses.replace(run.graph, security=40)}, "in a row"),
        ({"max_colluders": 1}, "colluders"),
    ):
        with pytest.raises(ProtocolError, match=says):
            dataclasses.replace(run, **change)


def test_silos_with_different_graphs_have_different_views() -> None:
    run = Regular(12).run
    assert run.graph is not None
    assert Run.from_bytes(run.to_bytes()) == run
    views = {
        run.roster_hash,
        run.roster.hash(),
        dataclasses.replace(run, threshold=3).roster_hash,
        dataclasses.replace(run, graph=dataclasses.replace(run.graph, degree=8)).roster_hash,
    }
    assert len(views) == 4
