"""The client metric changes the coordinates that a silo clips in, and nothing of what the clip promises."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from privacy.errors import PrivacyError
from privacy.metric import MAX_EXPONENT, PROBES, Metric, factors_of, from_weights, to_weights
from privacy.mlp import Mlp
from privacy.mlp_kernel import activations, clip_limit
from tests.privacy.test_mlp import FULL, SMALL, batch, brute_force, clipped, relative

METRIC = Metric((3, 0, -1), 2.0, seed=5)
WIDE = Mlp(FULL.features, FULL.hidden, METRIC)
NARROW = Mlp(SMALL.features, SMALL.hidden, METRIC)


def moved(model: Mlp, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Parameters in the coordinates of the metric, for weights that are not the initial ones; and a batch."""
    weights, features, targets = batch(model.plain, rows)
    return torch.from_numpy(from_weights(model, weights.numpy()).astype(np.float32)), features, targets


def pulled_back(model: Mlp, params: Tensor, features: Tensor, targets: Tensor) -> Tensor:
    """Per-example gradients in the parameters by the chain rule, in float64; ``P`` is symmetric."""
    each = brute_force(model.plain, torch.from_numpy(model.weights(params.numpy())), features, targets)
    return torch.stack([torch.from_numpy(to_weights(model, gradient.numpy())) for gradient in each])


@pytest.mark.parametrize("clip_norm", [0.1, 3.0, 1e6])
@pytest.mark.parametrize("model", [NARROW, WIDE], ids=["narrow", "wide"])
def test_the_clipped_sum_is_that_of_the_chain_rule(model: Mlp, clip_norm: float) -> None:
    params, features, targets = moved(model, 24)
    truth = clipped(pulled_back(model, params, features, targets), clip_limit(model, clip_norm))
    found = model.clipped_gradient_sum(params, features, targets, clip_norm)
    assert relative(found.total, truth) < 3e-6
    plain = FULL if model is WIDE else SMALL
    weights = torch.from_numpy(model.weights(params.numpy()))
    assert relative(plain.clipped_gradient_sum(weights, features, targets, clip_norm).total, truth) > 0.1


def test_the_squared_norms_are_those_of_the_clipped_gradients() -> None:
    params, features, targets = moved(WIDE, 24)
    limit = clip_limit(WIDE, 3.0)
    each = pulled_back(WIDE, params, features, targets).norm(dim=1).clamp(max=limit)
    assert WIDE.clipped_gradient_sum(params, features, targets, 3.0).squares == pytest.approx(float((each**2).sum()))


def test_forecasts_are_those_of_the_weights() -> None:
    params, features, _ = moved(WIDE, 24)
    weights = torch.from_numpy(WIDE.weights(params.numpy()))
    torch.testing.assert_close(WIDE.predict(params, features), FULL.predict(weights, features), atol=1e-5, rtol=1e-5)


@settings(max_examples=25, deadline=None)
@given(
    st.tuples(*[st.integers(-MAX_EXPONENT, MAX_EXPONENT)] * 3),
    st.sampled_from([0.0, 0.1, 10.0]),
    st.sampled_from([1e-18, 1e-3, 1.0, 1e12]),
    st.floats(1e-6, 1e6),
)
def test_one_record_moves_the_sum_by_the_clip_at_most(
    exponents: tuple[int, ...], damping: float, scale: float, clip_norm: float
) -> None:
    model = Mlp(SMALL.features, SMALL.hidden, Metric(exponents, damping))
    params, features, targets = moved(model, 17)
    features[3] *= scale
    targets[3] *= scale
    full = model.clipped_gradient_sum(params, features, targets, clip_norm).total.double()
    others = [row for row in range(17) if row != 3]
    rest = model.clipped_gradient_sum(params, features[others], targets[others], clip_norm).total.double()
    assert float((full - rest).norm()) <= clip_norm


@pytest.mark.parametrize("model", [WIDE, Mlp(FULL.features, FULL.hidden, Metric((8, -2, 0), 0.5))])
def test_a_record_is_clipped_alike_in_any_place_and_company(model: Mlp) -> None:
    params, features, targets = moved(model, 40)
    alone = model.clipped_gradient_sum(params, features[:1], targets[:1], 1.0).total
    # Records that the model forecasts without error have no gradient, so that the sum is that of the one record.
    for place in (0, 7, 21, 39):
        rows = torch.cat([features[1 : place + 1], features[:1], features[place + 1 :]])
        exact = model.predict(params, rows)
        wanted = torch.where(torch.arange(40) == place, targets[0], exact)
        assert torch.equal(model.clipped_gradient_sum(params, rows, wanted, 1.0).total, alone), place


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 3e38])
def test_a_record_that_is_not_finite_is_null(bad: float) -> None:
    params, features, targets = moved(WIDE, 9)
    features[4, 2] = bad
    with_it = WIDE.clipped_gradient_sum(params, features, targets, 1.0)
    others = [row for row in range(9) if row != 4]
    without = WIDE.clipped_gradient_sum(params, features[others], targets[others], 1.0)
    assert with_it.zeroed == 1
    assert torch.isfinite(with_it.total).all()
    torch.testing.assert_close(with_it.total, without.total, atol=1e-5, rtol=1e-4)


def test_coordinates_and_weights_are_each_others_inverse() -> None:
    weights = np.random.default_rng(0).standard_normal(WIDE.size)
    np.testing.assert_allclose(to_weights(WIDE, from_weights(WIDE, weights)), weights, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(from_weights(FULL, weights), weights)


def test_training_starts_at_the_same_network_whatever_the_metric() -> None:
    start = WIDE.initial_parameters(9)
    np.testing.assert_allclose(WIDE.weights(start), FULL.initial_parameters(9), atol=1e-7)
    features = torch.randn(16, FULL.features)
    assert not WIDE.predict(torch.from_numpy(start), features).any()


def test_right_factors_are_those_of_the_second_moments_of_the_activations() -> None:
    made = factors_of(WIDE)
    assert made.scales == (8.0, 1.0, 0.5)
    assert made.right[0] is None
    for factor, entering in zip(made.right[1:], activations(WIDE, METRIC.seed, PROBES)[1:], strict=True):
        assert factor is not None
        moment = entering.T @ entering / PROBES
        assert np.trace(moment) == pytest.approx(len(moment), rel=1e-3)
        whitened = factor @ (moment / METRIC.damping + np.eye(len(moment))) @ factor
        np.testing.assert_allclose(whitened, np.eye(len(moment)), atol=1e-9)


def test_the_same_settings_give_the_same_coordinates() -> None:
    again = Mlp(FULL.features, FULL.hidden, Metric((3, 0, -1), 2.0, seed=5))
    other = Mlp(FULL.features, FULL.hidden, Metric((3, 0, -1), 2.0, seed=6))
    factors_of.cache_clear()
    first = factors_of(again).right[1]
    factors_of.cache_clear()
    np.testing.assert_array_equal(factors_of(again).right[1], first)
    assert not np.array_equal(factors_of(other).right[1], first)


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda: Metric((11, 0, 0)), "metric.exponents"),
        (lambda: Metric((0.5, 0, 0)), "metric.exponents"),
        (lambda: Metric(damping=-1.0), "metric.damping"),
        (lambda: Metric(damping=float("nan")), "metric.damping"),
        (lambda: Metric(seed=-1), "metric.seed"),
        (lambda: Mlp(metric=Metric((1, 2))), "metric.exponents"),
    ],
)
def test_settings_out_of_range_are_named(build: object, name: str) -> None:
    with pytest.raises(PrivacyError, match=name):
        build()  # type: ignore[operator]
