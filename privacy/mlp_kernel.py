"""Forward pass, and the clipped gradient sum in one hand-written backward pass (book-keeping, Bu et al. 2023)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from privacy.checks import real
from privacy.errors import PrivacyError
from privacy.model import ClippedSum

if TYPE_CHECKING:
    from privacy.mlp import Mlp

_EPS = 1e-5
_SLACK = 1e-5  # absorbs the float32 rounding of a scaled per-example gradient, measured at 2e-7
_SAFE_SQUARE, _SAFE_FEATURE = 1e30, 1e6
# Beyond these, products with a clipped gradient fall below float32's normal range and would round past the slack.
_LARGEST_FEATURE, _SMALLEST_FACTOR = 1e18, 1e-30
_CLIP_RANGE = 1e-6, 1e6


@dataclass(slots=True)
class _Layer:
    """What the backward pass needs of one hidden layer."""

    entering: Tensor
    linear: Tensor
    activated: Tensor
    mean: Tensor
    rstd: Tensor


@dataclass(slots=True)
class _Signal:
    """Output gradients of one hidden layer: of the linear map, of gain and of shift."""

    linear: Tensor
    gain: Tensor
    shift: Tensor


def _blocks(model: "Mlp", flat: Tensor) -> list[Tensor]:
    if flat.ndim != 1 or flat.shape[0] != model.size or flat.dtype != torch.float32:
        raise PrivacyError(
            f"params of shape {tuple(flat.shape)}, {flat.dtype}: expected ({model.size},), torch.float32"
        )
    return [flat[block.span].view(block.shape) for block in model.layout]


def _check_features(model: "Mlp", features: Tensor) -> None:
    if features.ndim != 2 or features.shape[1] != model.features or features.dtype != torch.float32:
        raise PrivacyError(
            f"features: expected a matrix of {model.features} columns, torch.float32; "
            f"given {features.ndim} axes, the last of {features.shape[-1] if features.ndim else 0}, {features.dtype}"
        )


def _forward(model: "Mlp", blocks: list[Tensor], features: Tensor) -> tuple[list[_Layer], Tensor, Tensor]:
    entering = features
    layers = []
    for index, width in enumerate(model.hidden):
        weight, bias, gain, shift = blocks[4 * index : 4 * index + 4]
        linear = torch.addmm(bias, entering, weight.t())
        activated = functional.gelu(linear)
        leaving, mean, rstd = torch.native_layer_norm(activated, [width], gain, shift, _EPS)
        layers.append(_Layer(entering, linear, activated, mean, rstd))
        entering = leaving
    forecast = torch.addmv(blocks[-1].expand(len(features)), entering, blocks[-2])
    return layers, entering, forecast


@torch.no_grad()
def predict(model: "Mlp", params: Tensor, features: Tensor) -> Tensor:
    """Return the forecasts; guarantee, adjacency and assumptions: see `Mlp.predict`."""
    _check_features(model, features)
    return _forward(model, _blocks(model, params), features)[2]


def _squares(
    layers: list[_Layer], signals: list[_Signal], last: Tensor, residual: Tensor, dtype: torch.dtype
) -> Tensor:
    """Squared gradient norm per record: of an outer product it is the product of squares (Goodfellow 2015).

    n_i = sum over Linear of |g|^2 (|a|^2 + 1) + sum over LayerNorm of (|g xhat|^2 + |g|^2).
    """

    def square(rows: Tensor) -> Tensor:
        norms: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=dtype)
        return norms.square_()

    total = residual.to(dtype).square() * (square(last) + 1.0)
    for layer, signal in zip(layers, signals, strict=True):
        total += square(signal.linear) * (square(layer.entering) + 1.0)
        total += square(signal.gain) + square(signal.shift)
    return total


def _factors(
    layers: list[_Layer], signals: list[_Signal], last: Tensor, residual: Tensor, clip_norm: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Clip factor and clipped square per record, and which records float32 can represent; each by its own row only."""
    squares = _squares(layers, signals, last, residual, torch.float32)
    largest = layers[0].entering.abs().amax(dim=1)
    unsafe = ~((squares < _SAFE_SQUARE) & (largest < _SAFE_FEATURE))  # written so that NaN is unsafe
    if bool(unsafe.any()):
        squares = torch.where(unsafe, _squares(layers, signals, last, residual, torch.float64), squares.double())
    limit = clip_norm * (1.0 - _SLACK)
    kept = squares.double().clamp(max=limit**2)
    factors = (limit / squares.sqrt_()).clamp_(max=1.0)  # a gradient of norm 0 gets factor 1
    return factors.to(torch.float32), kept, (factors >= _SMALLEST_FACTOR) & (largest <= _LARGEST_FEATURE)


def _backward(model: "Mlp", blocks: list[Tensor], layers: list[_Layer], residual: Tensor) -> list[_Signal]:
    signal = torch.outer(residual, blocks[-2])
    signals: list[_Signal] = []
    for index in reversed(range(len(layers))):
        layer = layers[index]
        weight, _, gain, shift = blocks[4 * index : 4 * index + 4]
        by_gain = (layer.activated - layer.mean).mul_(layer.rstd).mul_(signal)
        into_activation = torch.ops.aten.native_layer_norm_backward(
            signal, layer.activated, [model.hidden[index]], layer.mean, layer.rstd, gain, shift, [True, False, False]
        )[0]
        into_linear = torch.ops.aten.gelu_backward(into_activation, layer.linear)
        signals.append(_Signal(into_linear, by_gain, signal))
        if index > 0:
            signal = into_linear @ weight
    signals.reverse()
    return signals


@torch.no_grad()
def clipped_gradient_sum(
    model: "Mlp", params: Tensor, features: Tensor, targets: Tensor, clip_norm: float
) -> ClippedSum:
    """Return the clipped sum; guarantee, adjacency, assumptions and theorem: see `Mlp.clipped_gradient_sum`."""
    real("clip_norm", clip_norm, *_CLIP_RANGE)
    _check_features(model, features)
    if targets.shape != (len(features),) or targets.dtype != torch.float32:
        # No sizes in the text: the number of sampled records is private.
        raise PrivacyError("targets: expected a vector with one torch.float32 value per row of features")
    total = torch.zeros(model.size, dtype=torch.float32)
    blocks = _blocks(model, params)
    zeroed, squares = 0, 0.0
    while len(features) > 0:
        layers, last, forecast = _forward(model, blocks, features)
        residual = forecast - targets
        signals = _backward(model, blocks, layers, residual)
        factors, kept, usable = _factors(layers, signals, last, residual, clip_norm)
        if bool(usable.all()):
            _scaled_sums(model, _blocks(model, total), layers, signals, last, residual, factors)
            squares = float(kept.sum())
            break
        # 0 * NaN is NaN, so the rows must leave the batch: no later product may see them.
        zeroed += int((~usable).sum())
        features, targets = features[usable], targets[usable]
    return ClippedSum(total, zeroed, squares)


def _scaled_sums(
    model: "Mlp",
    totals: list[Tensor],
    layers: list[_Layer],
    signals: list[_Signal],
    last: Tensor,
    residual: Tensor,
    scale: Tensor,
) -> None:
    for index in range(len(model.hidden)):
        weight, bias, gain, shift = totals[4 * index : 4 * index + 4]
        signal = signals[index]
        torch.mv(signal.gain.t(), scale, out=gain)
        torch.mv(signal.shift.t(), scale, out=shift)
        scaled = signal.linear.mul_(scale.unsqueeze(1))
        torch.mm(scaled.t(), layers[index].entering, out=weight)
        torch.sum(scaled, 0, out=bias)
    scaled_residual = residual.mul_(scale)
    torch.mv(last.t(), scaled_residual, out=totals[-2])
    totals[-1].copy_(scaled_residual.sum())
