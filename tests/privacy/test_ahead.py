import copy
import os
import pickle

import numpy as np
import pytest
import torch

from privacy import ahead
from privacy.ahead import DrawnAhead
from privacy.dpsgd import drawn_ahead, private_gradient
from privacy.errors import PrivacyError
from privacy.mlp import Mlp
from privacy.plan import MechanismPlan
from privacy.randomness import RandomStream

SIZES = (40, 0.3, 7, 1e6)


def test_ahead_gives_what_one_long_draw_gives() -> None:
    found = DrawnAhead(RandomStream.seeded(1), 3, *SIZES)
    samples = [found.poisson_sample(40, 0.3) for _ in range(3)]
    noise = [found.rounded_normal(7, 1e6) for _ in range(3)]
    stream = RandomStream.seeded(1)
    every = stream.poisson_sample(120, 0.3)
    assert np.array_equal(np.concatenate([rows + 40 * k for k, rows in enumerate(samples)]), every)
    assert all(rows.size == 0 or 0 <= rows.min() <= rows.max() < 40 for rows in samples)
    assert np.array_equal(np.concatenate(noise), stream.rounded_normal(21, 1e6))


def test_long_contributions_are_drawn_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_AT_ONCE", 15)
    found = DrawnAhead(RandomStream.from_os(), 5, *SIZES)
    noise = [found.rounded_normal(7, 1e6) for _ in range(5)]
    samples = [found.poisson_sample(40, 0.3) for _ in range(5)]
    assert len({part.tobytes() for part in noise}) == len({part.tobytes() for part in samples}) == 5


@pytest.mark.parametrize("kind", ["poisson_sample", "rounded_normal"])
def test_what_is_drawn_ahead_is_used_once(kind: str) -> None:
    found = DrawnAhead(RandomStream.from_os(), 2, *SIZES)
    given = SIZES[:2] if kind == "poisson_sample" else SIZES[2:]
    first, second = (getattr(found, kind)(*given) for _ in range(2))
    assert not np.array_equal(first, second)
    assert not np.shares_memory(first, second)
    with pytest.raises(PrivacyError, match="at most the planned number"):
        getattr(found, kind)(*given)
    for other in ((given[0] + 1, given[1]), (given[0], given[1] / 2)):
        with pytest.raises(PrivacyError, match="another size or rate"):
            getattr(found, kind)(*other)


def test_what_is_drawn_ahead_is_neither_copied_nor_carried_over_a_fork() -> None:
    found = DrawnAhead(RandomStream.from_os(), 2, *SIZES)
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(PrivacyError, match="copied"):
            attempt(found)
    found.rounded_normal(7, 1e6)  # the next one is waiting
    child = os.fork()
    if child == 0:
        try:
            found.rounded_normal(7, 1e6)
        except PrivacyError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert repr(found) == "DrawnAhead(RandomStream(os))"


@pytest.mark.parametrize("variance_scale", [0.0, 0.25])
def test_releases_drawn_ahead_are_those_of_the_plan_and_no_more(variance_scale: float) -> None:
    model = Mlp(6, (9, 8))
    plan = MechanismPlan(0.1, 0.5, 2.0, 3, 300, variance_scale)
    params = torch.from_numpy(model.initial_parameters(0))
    features, targets = np.zeros((300, 6), np.float32), np.zeros(300, np.float32)
    draws = drawn_ahead(model, 300, plan, RandomStream.from_os())
    means = [private_gradient(model, params, features, targets, plan, draws).mean for _ in range(3)]
    pooled = torch.stack(means).double()
    assert float(pooled.std()) * plan.divisor == pytest.approx(plan.noise_stddev, rel=0.15)
    assert abs(float(torch.corrcoef(pooled)[0, 1])) < 0.35
    with pytest.raises(PrivacyError, match="at most the planned number"):
        private_gradient(model, params, features, targets, plan, draws)
    with pytest.raises(PrivacyError, match="another size or rate"):
        private_gradient(model, params, features[:-1], targets[:-1], plan, draws)
