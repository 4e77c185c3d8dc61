"""Forward pass, and the clipped gradient sum in one hand-written backward pass (book-keeping, Bu et al. 2023)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from privacy.checks import real
from privacy.errors import PrivacyError
from privacy.model import RESERVE, ROWS, ClippedSum

if TYPE_CHECKING:
    from privacy.mlp import Mlp

_EPS = 1e-5
_UNIT = 2.0**-24  # unit roundoff of float32
_ALIKE = 8  # rows come in multiples of this, so that a row's result depends neither on its place nor on its company
_BLOCK = 144  # rows of one product; sums of blocks are added afterwards, so that errors grow with it and not with n
_DEPTH = _BLOCK + -(-ROWS // _BLOCK)  # roundings on the way of one term into a sum, at most
# Up to here float32 squares neither overflow nor vanish; beyond, norms are taken in float64.
_SAFE_SQUARE, _SAFE_ACTIVATIONS = 1e30, 1e18
# Beyond these a product with a clipped gradient could fall below float32's normal range; the record becomes null.
_LARGEST_ACTIVATIONS, _SMALLEST_FACTOR = 1e36, 1e-30
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

    def squares(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Squared norms per record: of the linear map's, and of the two others together."""
        return _square(self.linear, dtype), _square(self.gain, dtype).add_(_square(self.shift, dtype))


def _square(rows: Tensor, dtype: torch.dtype) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=dtype)
    return norms.square_()


def _blocks(model: "Mlp", flat: Tensor) -> list[Tensor]:
    if flat.ndim != 1 or flat.shape[0] != model.size or flat.dtype != torch.float32:
        raise PrivacyError(
            f"params of shape {tuple(flat.shape)}, {flat.dtype}: expected ({model.size},), torch.float32"
        )
    parts = torch.split(flat, model.sizes)
    return [part.view(shape) if len(shape) > 1 else part for part, shape in zip(parts, model.shapes, strict=True)]


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


def _padded(features: Tensor) -> Tensor:
    missing = -len(features) % _ALIKE
    return functional.pad(features, (0, 0, 0, missing)) if missing else features


@torch.no_grad()
def predict(model: "Mlp", params: Tensor, features: Tensor) -> Tensor:
    """Return the forecasts; guarantee, adjacency and assumptions: see `Mlp.predict`."""
    _check_features(model, features)
    return _forward(model, _blocks(model, params), _padded(features))[2][: len(features)]


def clip_limit(model: "Mlp", clip_norm: float) -> float:
    """Return where gradients are clipped so that the computed sum moves by at most `clip_norm`.

    Guarantee, for one record replaced by the null record, with u = 2^-24, w the widest layer and L the number of
    hidden layers: a computed norm is off by at most (w + 2 L + 16) u and each of two sums of n clipped gradients, in
    any order of addition within a block, by gamma n times the limit, gamma = m u / (1 - m u), with m = 147 roundings on
    the way of a term (Higham 2002, section 3.1). A sum with the record has at most `ROWS` + 1 rows and one without it
    at most `ROWS`. Assumption: float32 arithmetic rounds to nearest or better (`_check_arithmetic`).

    Parameters
    ----------
    model : Mlp
        Layer sizes.
    clip_norm : float
        C, above 0.
    """
    gamma = _DEPTH * _UNIT / (1.0 - _DEPTH * _UNIT)
    norm = (max(model.features, *model.hidden) + 2 * len(model.hidden) + 16) * _UNIT
    return clip_norm * (1.0 - RESERVE) / ((1.0 + norm) * (1.0 + (2 * ROWS + 1) * gamma))


def _squares(
    entering: list[Tensor], signals: list[tuple[Tensor, Tensor]], residual: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Squared gradient norm per record: of an outer product it is the product of squares (Goodfellow 2015).

    n_i = sum over Linear of |g|^2 (|a|^2 + 1) + sum over LayerNorm of (|g xhat|^2 + |g|^2). Also the largest |a|^2.
    """
    activations = [_square(rows, dtype) for rows in entering]
    largest = torch.stack(activations).amax(0)
    total = residual.to(dtype).square().mul_(activations.pop().add_(1.0))
    for activation, (linear, others) in zip(activations, signals, strict=True):
        total.addcmul_(linear, activation.add_(1.0)).add_(others)
    return total, largest


def _factors(
    entering: list[Tensor],
    signals: list[_Signal],
    squares_of: list[tuple[Tensor, Tensor]],
    residual: Tensor,
    limit: float,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Clip factor and clipped square per record, and which float32 cannot represent, if any; by its own row only."""
    squares, largest = _squares(entering, squares_of, residual, torch.float32)
    null = None
    # Written so that NaN is not safe.
    if not (float(squares.max()) < _SAFE_SQUARE and float(largest.max()) < _SAFE_ACTIVATIONS):
        safe = (squares < _SAFE_SQUARE) & (largest < _SAFE_ACTIVATIONS)
        again = [signal.squares(torch.float64) for signal in signals]
        exact, largest = _squares(entering, again, residual, torch.float64)
        squares = torch.where(safe, squares.double(), exact)
        null = ~((limit / squares.sqrt() >= _SMALLEST_FACTOR) & (largest <= _LARGEST_ACTIVATIONS))
    kept = squares.clamp(max=limit**2)
    return squares.sqrt_().reciprocal_().mul_(limit).clamp_(max=1.0).float(), kept, null


def _backward(
    model: "Mlp", blocks: list[Tensor], layers: list[_Layer], residual: Tensor
) -> tuple[list[_Signal], list[tuple[Tensor, Tensor]]]:
    """Output gradients of every layer, and their squares while they are in the cache."""
    signal = torch.outer(residual, blocks[-2])
    signals: list[_Signal] = []
    squares: list[tuple[Tensor, Tensor]] = []
    for index in reversed(range(len(layers))):
        layer = layers[index]
        weight, _, gain, shift = blocks[4 * index : 4 * index + 4]
        by_gain = (layer.activated - layer.mean).mul_(layer.rstd).mul_(signal)
        into_activation = torch.ops.aten.native_layer_norm_backward(
            signal, layer.activated, [model.hidden[index]], layer.mean, layer.rstd, gain, shift, [True, False, False]
        )[0]
        into_linear = torch.ops.aten.gelu_backward(into_activation, layer.linear)
        signals.append(_Signal(into_linear, by_gain, signal))
        squares.append(signals[-1].squares(torch.float32))
        if index > 0:
            signal = into_linear @ weight
    return signals[::-1], squares[::-1]


def _check_arithmetic() -> None:
    if torch.get_float32_matmul_precision() != "highest" or torch.is_autocast_enabled("cpu"):
        raise PrivacyError(
            "float32 products may be rounded to fewer digits, which the clip does not allow for: "
            "call torch.set_float32_matmul_precision('highest') and leave autocast off"
        )


@torch.no_grad()
def clipped_gradient_sum(
    model: "Mlp", params: Tensor, features: Tensor, targets: Tensor, clip_norm: float
) -> ClippedSum:
    """Return the clipped sum; guarantee, adjacency, assumptions and theorem: see `Mlp.clipped_gradient_sum`."""
    _check_arithmetic()
    limit = clip_limit(model, real("clip_norm", clip_norm, *_CLIP_RANGE))
    _check_features(model, features)
    # No sizes in the texts: the number of sampled records is private.
    if targets.shape != (len(features),) or targets.dtype != torch.float32:
        raise PrivacyError("targets: expected a vector with one torch.float32 value per row of features")
    if len(features) > ROWS:
        raise PrivacyError(f"features: expected at most {ROWS} rows, for which the sum is proven; use clipped_sum")
    blocks = _blocks(model, params)
    total = torch.empty_like(params)
    if (rows := len(features)) == 0:
        return ClippedSum(total.zero_(), 0, 0.0)
    layers, last, forecast = _forward(model, blocks, _padded(features))
    residual = torch.zeros_like(forecast)  # of the rows added, so that their gradients are 0
    torch.sub(forecast[:rows], targets, out=residual[:rows])
    signals, squares = _backward(model, blocks, layers, residual)
    entering = [*(layer.entering for layer in layers), last]
    factors, kept, null = _factors(entering, signals, squares, residual, limit)
    zeroed = 0
    if null is not None:
        zeroed = int(null[:rows].sum())
        factors, kept, residual = (values.masked_fill(null, 0.0) for values in (factors, kept, residual))
        last = _remove(null.unsqueeze(1), layers, signals, last)
    _scaled_sums(_blocks(model, total), layers, signals, last, residual, factors)
    return ClippedSum(total, zeroed, float(kept.sum(dtype=torch.float64)))


def _remove(null: Tensor, layers: list[_Layer], signals: list[_Signal], last: Tensor) -> Tensor:
    """Zero the marked rows, whose product with a factor of 0 may be NaN, in their place: no other row may notice."""
    for layer, signal in zip(layers, signals, strict=True):
        layer.entering = layer.entering.masked_fill(null, 0.0)
        for part in (signal.linear, signal.gain, signal.shift):
            part.masked_fill_(null, 0.0)
    return last.masked_fill(null, 0.0)


def _sum_blocks(weights: Tensor, rows: Tensor, total: Tensor) -> None:
    first, *others = weights @ rows
    total.copy_(first)
    for part in others:
        total += part


def _scaled_sums(
    totals: list[Tensor],
    layers: list[_Layer],
    signals: list[_Signal],
    last: Tensor,
    residual: Tensor,
    scale: Tensor,
) -> None:
    starts = range(0, len(scale), _BLOCK)
    # One row of weights per block: adding the zeros of the others rounds nothing.
    weights = torch.zeros(len(starts), len(scale))
    for row, start in enumerate(starts):
        weights[row, start : start + _BLOCK] = scale[start : start + _BLOCK]
    for index, (layer, signal) in enumerate(zip(layers, signals, strict=True)):
        weight, bias, gain, shift = totals[4 * index : 4 * index + 4]
        for part, rows in ((bias, signal.linear), (gain, signal.gain), (shift, signal.shift)):
            _sum_blocks(weights, rows, part)
        scaled = signal.linear.mul_(scale.unsqueeze(1))
        torch.mm(scaled[:_BLOCK].t(), layer.entering[:_BLOCK], out=weight)
        further = torch.empty_like(weight) if len(starts) > 1 else weight
        for start in starts[1:]:
            block = slice(start, start + _BLOCK)
            weight += torch.mm(scaled[block].t(), layer.entering[block], out=further)
    weights *= residual
    _sum_blocks(weights, last, totals[-2])
    totals[-1].copy_(weights.sum(1).sum())
