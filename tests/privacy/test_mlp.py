import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from privacy import mlp_kernel
from privacy.errors import PrivacyError
from privacy.mlp import Mlp, initial_parameters
from privacy.mlp_kernel import clip_limit
from privacy.model import RESERVE, ROWS, PerExampleModel

torch.set_num_threads(1)
SMALL = Mlp(7, (11, 5))
FULL = Mlp()


def network(model: Mlp, params: Tensor, dtype: torch.dtype) -> nn.Sequential:
    """The same model built from torch's own layers, in the same order of parameters."""
    layers: list[nn.Module] = []
    for fan_in, width in pairwise((model.features, *model.hidden)):
        layers += [nn.Linear(fan_in, width), nn.GELU(), nn.LayerNorm(width)]
    net = nn.Sequential(*layers, nn.Linear(model.hidden[-1], 1)).to(dtype)
    nn.utils.vector_to_parameters(params.to(dtype), net.parameters())
    return net


def batch(model: Mlp, rows: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    params = torch.from_numpy(initial_parameters(model, seed))
    params = params + 0.05 * torch.randn(model.size, generator=generator)
    return (
        params,
        torch.randn(rows, model.features, generator=generator),
        2 * torch.randn(rows, generator=generator),
    )


def brute_force(model: Mlp, params: Tensor, features: Tensor, targets: Tensor) -> Tensor:
    """Per-example gradients in float64 through torch.func."""
    net = network(model, params, torch.float64)
    weights = {name: value.detach() for name, value in net.named_parameters()}

    def loss(current: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return (functional_call(net, current, (x.unsqueeze(0),)).squeeze() - y) ** 2 / 2

    each = vmap(grad(loss), in_dims=(None, 0, 0))(weights, features.double(), targets.double())
    return torch.cat([value.flatten(1) for value in each.values()], dim=1)


def clipped(gradients: Tensor, clip_norm: float) -> Tensor:
    return (gradients * (clip_norm / gradients.norm(dim=1)).clamp(max=1.0).unsqueeze(1)).sum(0)


def relative(value: Tensor, truth: Tensor) -> float:
    return float((value.double() - truth).norm() / truth.norm())


def test_size_and_layout() -> None:
    assert FULL.size == 121_281
    assert SMALL.layout[0].name == "hidden0.weight"
    edges = [(block.start, block.stop) for block in FULL.layout]
    assert edges[0][0] == 0
    assert edges[-1][1] == FULL.size
    assert all(left[1] == right[0] for left, right in pairwise(edges))
    model: PerExampleModel = FULL
    assert model.size == FULL.size


@pytest.mark.parametrize("clip_norm", [0.1, 3.0, 1e6])
@pytest.mark.parametrize(("model", "rows"), [(SMALL, 33), (FULL, 24), (Mlp(3, (4,)), 9), (Mlp(5, (6, 7, 8)), 9)])
def test_against_float64_brute_force(model: Mlp, rows: int, clip_norm: float) -> None:
    params, features, targets = batch(model, rows)
    truth = clipped(brute_force(model, params, features, targets), clip_limit(model, clip_norm))
    found = model.clipped_gradient_sum(params, features, targets, clip_norm)
    assert found.zeroed == 0
    assert found.total.dtype == torch.float32
    assert relative(found.total, truth) < 1e-5


@pytest.mark.filterwarnings("ignore:Full backward hook")
def test_against_opacus_hooks() -> None:
    from opacus.grad_sample import GradSampleModule

    params, features, targets = batch(SMALL, 40)
    hooked = GradSampleModule(network(SMALL, params, torch.float32), loss_reduction="sum")
    ((hooked(features).squeeze(1) - targets) ** 2 / 2).sum().backward()
    each = torch.cat([p.grad_sample.flatten(1) for p in hooked.parameters()], dim=1)
    found = SMALL.clipped_gradient_sum(params, features, targets, 1.0)
    assert relative(found.total, clipped(each.double(), clip_limit(SMALL, 1.0))) < 1e-5


def test_predictions_match_torch() -> None:
    params, features, _ = batch(FULL, 16)
    expected = network(FULL, params, torch.float32)(features).squeeze(1)
    assert torch.allclose(FULL.predict(params, features), expected, atol=1e-5)


def test_training_starts_at_the_zero_forecast_everywhere_the_same() -> None:
    start = FULL.initial_parameters(3)
    assert start.dtype == np.float32
    assert start.shape == (FULL.size,)
    assert np.array_equal(start, initial_parameters(FULL, 3))
    assert not np.array_equal(start, initial_parameters(FULL, 4))
    assert not start[-321:].any()
    features = torch.randn(5, 52, generator=torch.Generator().manual_seed(0))
    assert not FULL.predict(torch.from_numpy(start), features).any()
    weight = start[FULL.layout[0].span]
    assert np.abs(weight).max() <= 1 / np.sqrt(52)
    assert weight.std() == pytest.approx(1 / np.sqrt(3 * 52), rel=0.02)


def test_known_answer_of_the_starting_point() -> None:
    # A silo and the server must start from the same point, whatever their machines and library versions.
    start = initial_parameters(FULL, 2026)
    assert start[:3].tolist() == [-0.01212992426007986, -0.00792065542191267, 0.01217388641089201]


def test_empty_batch_is_zero() -> None:
    params, features, targets = batch(FULL, 4)
    found = FULL.clipped_gradient_sum(params, features[:0], targets[:0], 1.0)
    assert not found.total.any()
    assert found.zeroed == 0
    assert FULL.predict(params, features[:0]).shape == (0,)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 3e38])
@pytest.mark.parametrize("where", ["features", "targets"])
def test_a_non_finite_record_becomes_the_null_record(bad: float, where: str) -> None:
    params, features, targets = batch(FULL, 12)
    kept = torch.arange(12) != 5
    expected = FULL.clipped_gradient_sum(params, features[kept], targets[kept], 1.0)
    if where == "features":
        features[5, 3] = bad
    else:
        targets[5] = bad
    found = FULL.clipped_gradient_sum(params, features, targets, 1.0)
    if found.zeroed:
        assert found.zeroed == 1
        assert torch.allclose(found.total, expected.total, atol=1e-6)
    assert torch.isfinite(found.total).all()
    assert float((found.total.double() - expected.total.double()).norm()) <= 1.0
    assert found.zeroed == 1 or abs(bad) < float("inf")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
def test_an_output_weight_that_is_not_finite_or_huge_makes_every_record_null(bad: float) -> None:
    """As if none had been sampled: an empty sample must not tell itself from others."""
    params, features, targets = batch(SMALL, 3)
    params[SMALL.layout[-2].start + 1] = bad
    found = SMALL.clipped_gradient_sum(params, features, targets, 1.0)
    assert not found.total.any()
    assert found.zeroed == 3


def test_a_batch_of_only_bad_records_is_zero() -> None:
    params, features, targets = batch(SMALL, 3)
    found = SMALL.clipped_gradient_sum(params, features * float("nan"), targets, 1.0)
    assert not found.total.any()
    assert found.zeroed == 3


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e3, 1e8, 1e18, 1e30, 1e37])
@pytest.mark.parametrize("clip_norm", [1e-6, 1.0, 100.0])
def test_one_record_never_adds_more_than_the_clip(scale: float, clip_norm: float) -> None:
    for model in (SMALL, FULL):
        params, features, targets = batch(model, 6, seed=1)
        for row in range(6):
            for x, y in ((features, targets * scale), (features * scale, targets), (features * scale, targets * scale)):
                alone = model.clipped_gradient_sum(params, x[row : row + 1], y[row : row + 1], clip_norm)
                assert float(alone.total.double().norm()) <= clip_norm


@pytest.mark.parametrize("scale", [1.0, 1e4, 1e12])
def test_replacing_a_record_moves_the_sum_by_two_clips_at_most(scale: float) -> None:
    clip_norm = 0.7
    params, features, targets = batch(FULL, 200, seed=2)
    before = FULL.clipped_gradient_sum(params, features, targets, clip_norm).total.double()
    features[17] *= -scale
    targets[17] *= -scale
    after = FULL.clipped_gradient_sum(params, features, targets, clip_norm).total.double()
    without = torch.arange(200) != 17
    null = FULL.clipped_gradient_sum(params, features[without], targets[without], clip_norm).total.double()
    assert float((before - after).norm()) <= 2 * clip_norm
    assert float((after - null).norm()) <= clip_norm
    assert float((before - null).norm()) <= clip_norm


def test_a_record_does_not_depend_on_its_company() -> None:
    params, features, targets = batch(FULL, 64, seed=3)
    together = FULL.clipped_gradient_sum(params, features, targets, 1.0).total
    alone = sum(
        FULL.clipped_gradient_sum(params, features[k : k + 1], targets[k : k + 1], 1.0).total.double()
        for k in range(64)
    )
    assert isinstance(alone, Tensor)
    assert relative(together, alone) < 1e-5


@pytest.mark.parametrize(
    "model",
    [FULL, SMALL, *(Mlp(7, hidden) for hidden in ((16, 8), (9, 9), (1,), (5, 320), (17, 21), (6, 7, 8), (33, 15, 12)))],
    ids=str,
)
def test_a_row_is_computed_alike_in_any_place_and_company(model: Mlp) -> None:
    """Bit for bit: what the proof of the clipped sum assumes of products of a multiple of 8 rows."""
    params, features, _ = batch(model, ROWS, seed=4)
    blocks = mlp_kernel._blocks(model, params)

    def computed(rows: Tensor) -> list[Tensor]:
        layers, last, forecast = mlp_kernel._forward(model, blocks, mlp_kernel._padded(rows))
        norms = mlp_kernel._Norms.room(len(layers), len(forecast), torch.float32)
        signals = mlp_kernel._backward(model, blocks, layers, forecast - 1.0, norms)
        factors, kept, _ = mlp_kernel._factors(
            norms, [*(layer.entering for layer in layers), last], signals, forecast - 1.0, blocks[-2], 0.1
        )
        found = [last, forecast, factors, kept]
        for layer, signal in zip(layers, signals, strict=True):
            found += [layer.entering, signal.linear, signal.gain]
            found += [signal.shift] if isinstance(signal.shift, Tensor) else [signal.shift[0]]
        return [part[: len(rows)] for part in found]

    whole = computed(features)
    for size in (1, 2, 3, 5, 8, 17, 100, 144, 145, 255, ROWS - 1):
        for start in (0, ROWS - size):
            part = computed(features[start : start + size])
            assert all(torch.equal(left[start : start + size], right) for left, right in zip(whole, part, strict=True))
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(0))
    assert all(torch.equal(left[order], right) for left, right in zip(whole, computed(features[order]), strict=True))
    forecasts = model.predict(params, features)
    assert torch.equal(model.predict(params, features[7:20]), forecasts[7:20])


def exact_rows(model: Mlp, params: Tensor, features: Tensor, targets: Tensor, clip_norm: float) -> Tensor:
    """The vectors that the kernel sums, from its own float32 factors, in float64: one row per record."""
    seen: list[Tensor] = []
    original = mlp_kernel._scaled_sums

    def watch(totals: list[Tensor], *rest: object) -> None:
        layers, signals, last, residual, scale = (part.copy() if isinstance(part, list) else part for part in rest)
        rows = []
        for layer, signal in zip(layers, signals, strict=True):  # type: ignore[call-overload]
            column = scale.unsqueeze(1)
            left, right = signal.linear, layer.entering * column
            if layer.entering.shape[1] >= left.shape[1]:
                left, right = left * column, layer.entering
            if isinstance(signal.shift, Tensor):
                shift = signal.shift.double() * column.double()
            else:
                shift = torch.outer((residual * scale).double(), signal.shift[1].double())  # type: ignore[operator]
            rows += [
                torch.einsum("bi,bj->bij", left.double(), right.double()).flatten(1),
                signal.linear.double() * column.double(),
                signal.gain.double() * column.double(),
                shift,
            ]
        weights = (residual * scale).double().unsqueeze(1)
        rows += [weights * last.double(), weights]
        seen.append(torch.cat(rows, 1)[: len(features)])
        original(totals, *rest)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mlp_kernel, "_scaled_sums", watch)
        model.clipped_gradient_sum(params, features, targets, clip_norm)
    return seen[0]


def check_the_theorem(model: Mlp, params: Tensor, features: Tensor, targets: Tensor, clip_norm: float) -> Tensor:
    """Every vector is below its bound, and the sum errs by no more than the bound; returns the sum."""
    found = model.clipped_gradient_sum(params, features, targets, clip_norm).total.double()
    rows = exact_rows(model, params, features, targets, clip_norm)
    error = mlp_kernel.rounding()
    largest = clip_norm * (1 - RESERVE) / (1 + (2 * ROWS + 1) * error)
    assert float(rows.norm(dim=1).max()) <= largest
    assert float((found - rows.sum(0)).norm()) <= error * float(rows.norm(dim=1).sum())
    return found


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_aligned_records_move_the_sum_by_the_clip_at_most(scale: float) -> None:
    """The same record over and over, so that all roundings go the same way; sums with and without one of them."""
    for seed in range(3):
        params, features, targets = batch(FULL, 1, seed=seed)
        params[-321:] *= 1e3
        features, targets = (features * scale).expand(ROWS, -1).contiguous(), targets.expand(ROWS).contiguous()
        for rows in (64, 145, 256, ROWS):
            whole = check_the_theorem(FULL, params, features[:rows], targets[:rows], 1.0)
            without = FULL.clipped_gradient_sum(params, features[1:rows], targets[1:rows], 1.0).total.double()
            x = features[:rows].clone()
            x[rows // 2] = torch.nan
            null = FULL.clipped_gradient_sum(params, x, targets[:rows], 1.0)
            assert null.zeroed == 1
            for other in (without, null.total.double()):
                assert 0.98 < float((whole - other).norm()) <= 1.0


@given(
    rows=st.integers(1, ROWS),
    seed=st.integers(0, 2**32 - 1),
    spread=st.sampled_from([0.0, 1e-7, 1e-3, 1.0]),
    weight=st.sampled_from([1.0, 1e3, 1e10]),
    clip_norm=st.sampled_from([1e-6, 0.3, 1.0, 1e6]),
)
@settings(max_examples=60, deadline=None)
def test_the_sum_errs_by_less_than_is_charged(
    rows: int, seed: int, spread: float, weight: float, clip_norm: float
) -> None:
    params, features, targets = batch(SMALL, rows, seed=seed)
    params[-6:] *= weight
    features = features[:1] + spread * features
    targets = targets[:1] + spread * targets
    whole = check_the_theorem(SMALL, params, features, targets, clip_norm)
    gone = seed % rows
    kept = torch.arange(rows) != gone
    others = SMALL.clipped_gradient_sum(params, features[kept], targets[kept], clip_norm).total.double()
    assert float((whole - others).norm()) <= clip_norm


def test_the_clip_limit_is_the_charge_of_the_theorem() -> None:
    unit, root = Fraction(1, 2**24), Fraction(math.sqrt(2.0)) * (1 - Fraction(1, 2**50))
    error = (ROWS + 3) * unit / (root * (1 - (ROWS + 1) * unit))
    assert mlp_kernel.rounding() == pytest.approx(float(error), rel=1e-12)
    norm = Fraction(320 + 2 * 2 + 16, 2**24)
    limit = Fraction(clip_limit(FULL, 1.0))
    assert limit * (1 + norm) * (1 + (2 * ROWS + 1) * error) + Fraction(RESERVE) <= 1 + Fraction(1, 2**50)
    assert 0.9925 < limit < 0.993, "what the proof costs: 0.7 % of the clip"


@given(rows=st.integers(1, ROWS), seed=st.integers(0, 2**32 - 1))
def test_no_order_of_additions_has_longer_ways_than_the_proof_counts(rows: int, seed: int) -> None:
    """Random binary trees, with one rounding before and one after the sum: depths, their sum, and the error."""
    rng = np.random.default_rng(seed)
    sums = [(np.float32(value), float(np.float32(value)), [2]) for value in rng.random(rows)]
    spread = rng.choice([0.0, 0.1, 1.0])  # 0: a chain
    while len(sums) > 1:
        left, right = sums.pop(0), sums.pop(int(spread * rng.random() * (len(sums) - 1)))
        depths = [depth + 1 for depth in left[2] + right[2]]
        sums.insert(int(spread * rng.random() * len(sums)), (left[0] + right[0], left[1] + right[1], depths))
    found, exact, depths = sums[0]
    assert max(depths) <= rows + 1
    assert sum(depths) <= rows * (rows + 5) / 2
    assert abs(float(found) - exact) <= mlp_kernel.rounding() * rows


def test_products_with_fewer_digits_are_refused() -> None:
    params, features, targets = batch(SMALL, 4)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with pytest.raises(PrivacyError, match="set_float32_matmul_precision"):
            SMALL.clipped_gradient_sum(params, features, targets, 1.0)
    finally:
        torch.set_float32_matmul_precision(before)
    with torch.autocast("cpu"), pytest.raises(PrivacyError, match="autocast"):
        SMALL.clipped_gradient_sum(params, features, targets, 1.0)


def test_huge_activations_meet_tiny_signals() -> None:
    """Gains that the server chose: squares of one factor vanish in float32 where those of the other are huge."""
    params, features, targets = batch(SMALL, 5)
    for gain, weight in ((1e19, 1e-24), (1e17, 1e-23), (1e37, 1e-38)):
        hostile = params.clone()
        hostile[SMALL.layout[2].span] = gain
        hostile[SMALL.layout[4].span] *= 1.0 / gain
        hostile[SMALL.layout[8].span] = weight
        for clip_norm in (1e-6, 1e-2):
            for row in range(5):
                x, y = features[row : row + 1], targets[row : row + 1]
                y = SMALL.predict(hostile, x) + 1.0 if row % 2 else y
                found = SMALL.clipped_gradient_sum(hostile, x, y, clip_norm)
                assert float(found.total.double().norm()) <= clip_norm


def test_inputs_are_not_changed() -> None:
    params, features, targets = batch(SMALL, 8)
    copies = params.clone(), features.clone(), targets.clone()
    SMALL.clipped_gradient_sum(params, features, targets, 1.0)
    assert all(torch.equal(left, right) for left, right in zip(copies, (params, features, targets), strict=True))


def test_wrong_shapes_are_refused_without_private_sizes() -> None:
    params, features, targets = batch(SMALL, 1234)
    with pytest.raises(PrivacyError, match=f"at most {ROWS} rows") as caught:
        SMALL.clipped_gradient_sum(params, features, targets, 1.0)
    assert "1234" not in str(caught.value)
    for bad in (targets.unsqueeze(1), targets[:-1], targets.double()):
        with pytest.raises(PrivacyError, match="targets") as caught:
            SMALL.clipped_gradient_sum(params, features, bad, 1.0)
        assert "123" not in str(caught.value)
    for wrong in (features[:, :-1], features.double(), features[0]):
        with pytest.raises(PrivacyError, match="features") as caught:
            SMALL.clipped_gradient_sum(params, wrong, targets, 1.0)
        assert "1234" not in str(caught.value)
    with pytest.raises(PrivacyError, match="params"):
        SMALL.predict(params[:-1], features)
    for clip_norm in (0.0, 1e-7, float("nan"), float("inf"), -1.0):
        with pytest.raises(PrivacyError, match="clip_norm"):
            SMALL.clipped_gradient_sum(params, features, targets, clip_norm)
    with pytest.raises(PrivacyError, match="hidden"):
        Mlp(3, ())
