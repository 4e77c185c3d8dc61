import copy
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from scipy import stats

from privacy.errors import PrivacyError
from privacy.randomness import _DOMAIN, RandomStream, _encode, _hkdf_sha256

N = 200_000


def stream(*labels: str | int | bytes) -> RandomStream:
    return RandomStream.seeded(20261130, *labels)


def test_uniform_is_uniform_and_open() -> None:
    values = stream("uniform").uniform(N)
    assert values.dtype == np.float64
    assert values.min() > 0.0
    assert values.max() < 1.0
    assert stats.kstest(values, "uniform").pvalue > 1e-3
    low_bits = (values * 2**53).astype(np.int64) & 0xFF
    assert stats.chisquare(np.bincount(low_bits[values >= 0.5], minlength=256)).pvalue > 1e-3


def test_extreme_words_stay_inside_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    words = np.array([0, 1, 2**64 - 1, 2**63], dtype=np.uint64)
    monkeypatch.setattr(RandomStream, "_words", lambda self, n: words.copy())
    values = stream().uniform(4)
    assert np.all((values > 0.0) & (values < 1.0))
    assert np.all(np.isfinite(stream().normal(4)))


def test_normal_is_normal_and_uncorrelated() -> None:
    values = stream("normal").normal(N + 1)
    assert len(values) == N + 1
    assert values.dtype == np.float64
    assert stats.kstest(values, "norm").pvalue > 1e-3
    assert abs(values.mean()) < 4 / np.sqrt(N)
    assert abs(values.var() - 1) < 4 * np.sqrt(2 / N)
    assert abs(stats.kurtosis(values)) < 4 * np.sqrt(24 / N)
    half = N // 2
    for lag in (1, half, half + 1):
        assert abs(np.mean(values[:-lag] * values[lag:])) < 4 / np.sqrt(N - lag)
    assert abs(np.mean(values[:half] ** 2 * values[half + 1 : 2 * half + 1] ** 2) - 1) < 0.03


def test_poisson_sample_includes_each_record_independently() -> None:
    source = stream("poisson")
    rounds, records, rate = 2000, 40, 0.3
    hits = np.zeros((rounds, records))
    for k in range(rounds):
        rows = source.poisson_sample(records, rate)
        assert rows.dtype == np.int64
        assert np.all(np.diff(rows) > 0)
        hits[k, rows] = 1
    each = hits.sum(axis=0)
    assert ((each - rounds * rate) ** 2 / (rounds * rate * (1 - rate))).sum() < stats.chi2.ppf(0.999, records)
    sizes = np.bincount(hits.sum(axis=1).astype(int), minlength=records + 1)
    expected = stats.binom.pmf(np.arange(records + 1), records, rate) * rounds
    kept = expected > 5
    assert stats.chisquare(sizes[kept], expected[kept] * sizes[kept].sum() / expected[kept].sum()).pvalue > 1e-3


def test_edges_of_poisson_and_coin() -> None:
    source = stream("edges")
    assert source.poisson_sample(0, 0.5).size == 0
    assert source.poisson_sample(100, 0.0).size == 0
    assert np.array_equal(source.poisson_sample(5, 1.0), np.arange(5))
    assert all(source.coin(1.0) for _ in range(100))
    assert not any(source.coin(0.0) for _ in range(100))
    assert 0.27 < np.mean([source.coin(0.3) for _ in range(5000)]) < 0.33


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), -0.1, 1.1, True, "0.1"])
def test_bad_probabilities_are_named(rate: float) -> None:
    with pytest.raises(PrivacyError, match="rate"):
        stream().poisson_sample(10, rate)
    with pytest.raises(PrivacyError, match="p = "):
        stream().coin(rate)


def test_seeded_streams_are_the_same_in_every_process() -> None:
    code = (
        "from privacy.randomness import RandomStream as R; s = R.seeded(7, 'a', 1, b'x');"
        "print(s.uniform(5).tolist(), s.poisson_sample(50, .2).tolist(), s.rounded_normal(5, 1e7).tolist())"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    here = RandomStream.seeded(7, "a", 1, b"x")
    assert (
        other.strip()
        == f"{here.uniform(5).tolist()} {here.poisson_sample(50, 0.2).tolist()} {here.rounded_normal(5, 1e7).tolist()}"
    )


def test_tiny_requests_work() -> None:
    assert stream().uniform(0).shape == stream().normal(0).shape == (0,)
    assert stream().normal(1).shape == (1,)


def test_known_answer_of_a_seeded_stream() -> None:
    # Changing the derivation would silently change every public starting point and every seeded experiment.
    assert RandomStream.seeded(7, "a", 1, b"x")._words(2).tobytes().hex() == "74dbf759f2e884abde78311ae271f5cf"


def test_known_answer_of_the_noise() -> None:
    # The same on every machine and with every library version: no last digit of an exponential decides a rounding.
    noise = RandomStream.seeded(7, "noise").rounded_normal(5, 2.0**22)
    assert noise.tolist() == [2416730.0, 3125020.0, -795607.0, 680468.0, 4168550.0]


def test_labels_cannot_collide() -> None:
    lists: list[tuple[str | int | bytes, ...]] = [
        (),
        ("",),
        ("ab",),
        ("a", "b"),
        (b"ab",),
        (1,),
        ("1",),
        (11,),
        (1, 1),
        (-1,),
    ]
    assert len({stream(*labels).uniform(1)[0] for labels in lists}) == len(lists)
    assert stream("a").uniform(1)[0] != RandomStream.seeded(1, "a").uniform(1)[0]


def test_hkdf_is_the_standard_one() -> None:
    secret, info = _encode(7), _DOMAIN + _encode("a")
    assert _hkdf_sha256(secret, info) == HKDF(hashes.SHA256(), 32, None, info).derive(secret)


@pytest.mark.parametrize("label", [True, 1.5, None])
def test_other_label_types_are_refused(label: object) -> None:
    with pytest.raises(PrivacyError, match="label"):
        RandomStream.seeded(1, label)  # type: ignore[arg-type]
    with pytest.raises(PrivacyError, match="seed"):
        RandomStream.seeded(label)  # type: ignore[arg-type]


def test_os_streams_differ_and_are_marked() -> None:
    first, second = RandomStream.from_os(), RandomStream.from_os()
    assert not np.array_equal(first.uniform(4), second.uniform(4))
    assert not first.is_seeded
    assert stream().is_seeded


def test_nothing_secret_in_repr_or_errors() -> None:
    assert repr(RandomStream.from_os()) == "RandomStream(os)"
    assert "20261130" not in repr(stream("label"))
    with pytest.raises(PrivacyError) as caught:
        RandomStream(b"secretsecret", seeded=False)
    assert "secretsecret" not in str(caught.value)


def test_a_stream_cannot_be_copied() -> None:
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(PrivacyError, match="copied"):
            attempt(RandomStream.from_os())


def test_a_private_stream_does_not_cross_a_fork() -> None:
    source = RandomStream.from_os()
    child = os.fork()
    if child == 0:
        try:
            source.uniform(1)
        except PrivacyError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def test_long_requests_cross_the_internal_chunk() -> None:
    many = (1 << 17) + 5
    whole = stream("chunk")._words(many)
    parts = stream("chunk")
    assert np.array_equal(whole, np.concatenate([parts._words(many - 3), parts._words(3)]))
