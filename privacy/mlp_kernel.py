"""Forward pass, and the clipped gradient sum in one hand-written backward pass (book-keeping, Bu et al. 2023)."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from privacy.checks import real
from privacy.errors import PrivacyError
from privacy.metric import factors_of
from privacy.model import RESERVE, ROWS, ClippedSum
from privacy.randomness import RandomStream

if TYPE_CHECKING:
    from privacy.mlp import Mlp

_EPS = 1e-5
_UNIT = 2.0**-24  # unit roundoff of float32
_ALIKE = 8  # rows come in multiples of this, so that a row's result depends neither on its place nor on its company
_NARROW = 16  # columns
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
    normalised: Tensor


@dataclass(slots=True)
class _Signal:
    """Output gradients of one hidden layer: of the linear map, of gain and of shift.

    That of the last shift is an outer product of residuals and output weights, and held as these two.
    """

    linear: Tensor
    gain: Tensor
    shift: Tensor | tuple[Tensor, Tensor]

    def norms(self, linear: Tensor, gain: Tensor, shift: Tensor) -> None:
        """Write the norms per record, in the precision of where they go."""
        _norms(self.linear, linear)
        _norms(self.gain, gain)
        if isinstance(self.shift, Tensor):
            _norms(self.shift, shift)
        else:
            residual, weight = self.shift
            torch.mul(residual, torch.linalg.vector_norm(weight, dtype=shift.dtype), out=shift)


def _norms(rows: Tensor, out: Tensor) -> None:
    torch.linalg.vector_norm(rows, dim=1, dtype=out.dtype, out=out)


@dataclass(slots=True)
class _Norms:
    """Norms per record as rows of one matrix, so that few operations work on all of them.

    Rows: of the activations that enter each of the L + 1 linear maps, of the signals that leave them, then of gain and
    shift of every hidden layer.
    """

    matrix: Tensor
    rows: tuple[Tensor, ...]
    hidden: int

    @classmethod
    def room(cls, hidden: int, records: int, dtype: torch.dtype) -> "_Norms":
        """Nothing measured yet."""
        matrix = torch.empty(4 * hidden + 2, records, dtype=dtype)
        return cls(matrix, matrix.unbind(), hidden)

    def of_signal(self, index: int, signal: _Signal) -> None:
        """Measure what a hidden layer sends back."""
        others = 2 * (self.hidden + 1 + index)
        signal.norms(self.rows[self.hidden + 1 + index], self.rows[others], self.rows[others + 1])

    def of_activations(self, entering: list[Tensor], residual: Tensor) -> None:
        """Measure what enters the linear maps; the last one's signal is the residual."""
        for index, rows in enumerate(entering):
            _norms(rows, self.rows[index])
        self.rows[2 * self.hidden + 1].copy_(residual)

    def squares(self) -> tuple[Tensor, Tensor]:
        """Squared gradient norm per record and all squared activations, from the norms, which are used up.

        The squared norm of an outer product is the product of squares (Goodfellow 2015): n_i = sum over Linear of
        |g|^2 (|a|^2 + 1) + sum over LayerNorm of (|g xhat|^2 + |g|^2). Every value comes from its own column.
        """
        self.matrix.square_()
        activations = self.matrix[: self.hidden + 1]
        products = torch.addcmul(*2 * (self.matrix[self.hidden + 1 : 2 * self.hidden + 2],), activations)
        total, *others = (*products.unbind(), *self.rows[2 * self.hidden + 2 :])
        for other in others:
            total.add_(other)
        return total, activations


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


def _product(rows: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return rows @ matrix + bias, where a row's result depends neither on its place nor on its company.

    Narrow matrices go column by column: their products are made by other routines, in which it would.
    """
    if matrix.shape[1] >= _NARROW:
        return torch.mm(rows, matrix) if bias is None else torch.addmm(bias, rows, matrix)
    product = torch.stack([torch.mv(rows, column) for column in matrix.unbind(1)], dim=1)
    return product if bias is None else product.add_(bias)


@lru_cache(maxsize=16)
def _neutral(width: int) -> tuple[Tensor, Tensor]:
    """Gain 1 and shift 0: with them the normalisation is computed in vector registers, without any it is not."""
    return torch.ones(width), torch.zeros(width)


def _forward(model: "Mlp", blocks: list[Tensor], features: Tensor) -> tuple[list[_Layer], Tensor, Tensor]:
    entering = features
    layers = []
    for index, width in enumerate(model.hidden):
        weight, bias, gain, shift = blocks[4 * index : 4 * index + 4]
        linear = _product(entering, weight.t(), bias)
        activated = functional.gelu(linear)
        normalised, mean, rstd = torch.native_layer_norm(activated, [width], *_neutral(width), _EPS)
        layers.append(_Layer(entering, linear, activated, mean, rstd, normalised))
        entering = torch.addcmul(shift, normalised, gain)
    return layers, entering, torch.mv(entering, blocks[-2]).add_(blocks[-1])


@dataclass(frozen=True, slots=True)
class _Coordinates:
    """Factors of the metric, as the kernel uses them; None where a right factor is the identity."""

    scales: tuple[float, ...]
    right: tuple[Tensor | None, ...]

    def weights(self, blocks: list[Tensor]) -> list[Tensor]:
        """Return the weights that parameters stand for."""
        found = []
        for index, block in enumerate(blocks):
            of_map = min(index // 4, len(self.scales) - 1)
            scale, right = self.scales[of_map], self.right[of_map]
            if right is not None and index % 4 == 0:
                block = torch.mv(right, block) if block.ndim == 1 else torch.mm(block, right)
            found.append(block if scale == 1 else block * scale)
        return found

    def pull_back(
        self, layers: list[_Layer], signals: list[_Signal], last: Tensor, residual: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Turn factors of gradients in the weights into those in the parameters; return those of the last map.

        A gradient is an outer product of a signal and an activation. The scale goes to the signal, where a power of
        two rounds nothing, and the right factor to the activation: row by row, so that the clipped sum keeps its
        promise with the rows as they come out.
        """
        for layer, signal, scale, right in zip(layers, signals, self.scales, self.right, strict=False):
            if right is not None:
                layer.entering = _product(layer.entering, right)
            if scale != 1:
                signal.linear.mul_(scale)
                signal.gain.mul_(scale)
                if isinstance(signal.shift, Tensor):
                    signal.shift.mul_(scale)
        residual = residual * self.scales[-1]
        signals[-1].shift = residual, weight * (self.scales[-2] / self.scales[-1])
        return last if self.right[-1] is None else _product(last, self.right[-1]), residual


@lru_cache(maxsize=8)
def _coordinates(model: "Mlp") -> _Coordinates | None:
    if model.metric.trivial:
        return None
    made = factors_of(model)
    return _Coordinates(
        made.scales, tuple(None if right is None else torch.from_numpy(right).float() for right in made.right)
    )


def activations(model: "Mlp", seed: int, probes: int) -> list[npt.NDArray[np.float64]]:
    """Return what enters each linear map when standard normal inputs pass through the initial model of a seed.

    No data, so no privacy cost whatever the adjacency.

    Parameters
    ----------
    model : Mlp
        Layer sizes.
    seed : int
        Public.
    probes : int
        Number of inputs, a multiple of 8.
    """
    plain = model.plain
    normal = RandomStream.seeded(seed, "metric-probes").normal(probes * model.features)
    inputs = torch.from_numpy(normal.astype(np.float32).reshape(probes, model.features))
    with torch.no_grad():
        layers, last, _ = _forward(plain, _blocks(plain, torch.from_numpy(plain.initial_parameters(seed))), inputs)
    return [rows.double().numpy() for rows in (*(layer.entering for layer in layers), last)]


def _weights(model: "Mlp", params: Tensor) -> list[Tensor]:
    coordinates, blocks = _coordinates(model), _blocks(model, params)
    return blocks if coordinates is None else coordinates.weights(blocks)


def _padded(features: Tensor) -> Tensor:
    missing = -len(features) % _ALIKE
    return functional.pad(features, (0, 0, 0, missing)) if missing else features


@torch.no_grad()
def predict(model: "Mlp", params: Tensor, features: Tensor) -> Tensor:
    """Return the forecasts; guarantee, adjacency and assumptions: see `Mlp.predict`."""
    _check_features(model, features)
    return _forward(model, _weights(model, params), _padded(features))[2][: len(features)]


def rounding() -> float:
    """Return mu: a computed sum of n <= `ROWS` vectors errs by at most mu n times the largest of their norms.

    Guarantee, whatever the adjacency: a sum is a binary tree of additions. Per coordinate j the depths of its n leaves
    add up to at most (n - 1)(n + 2) / 2, and a rounding before the sum (a product) and one after it (a factor) add two
    to each, so that d_ij <= n + 1 roundings add up to at most n (n + 5) / 2 over i. The error is at most
    u' sum_i d_ij |v_ij| with u' = u / (1 - (n + 1) u) (Higham 2002, lemma 3.1), and its square at most
    u'^2 n (n + 5) / 2 sum_i (n + 1) v_ij^2 (Cauchy and Schwarz). Summed over j that is at most
    u'^2 n^2 (n + 3)^2 / 2 times the largest squared norm. Assumption: as for `clip_limit`.
    """
    return (ROWS + 3) * _UNIT / (math.sqrt(2.0) * (1.0 - (ROWS + 1) * _UNIT))


def clip_limit(model: "Mlp", clip_norm: float) -> float:
    """Return where gradients are clipped so that the computed sum moves by at most `clip_norm`.

    Guarantee, for one record replaced by the null record, with u = 2^-24, w the widest layer and L the number of
    hidden layers: a computed norm is off by at most (w + 2 L + 16) u and a sum of n clipped gradients, in any order of
    addition, by `rounding()` n times the limit. A sum with the record has at most `ROWS` + 1 rows and one without it
    at most `ROWS`. Assumption: float32 arithmetic rounds to nearest or better (`_check_arithmetic`).

    Parameters
    ----------
    model : Mlp
        Layer sizes.
    clip_norm : float
        C, above 0.
    """
    norm = (max(model.features, *model.hidden) + 2 * len(model.hidden) + 16) * _UNIT
    return clip_norm * (1.0 - RESERVE) / ((1.0 + norm) * (1.0 + (2 * ROWS + 1) * rounding()))


def _factors(
    norms: _Norms, entering: list[Tensor], signals: list[_Signal], residual: Tensor, weight: Tensor, limit: float
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Clip factor and clipped square per record, and which float32 cannot represent, if any; by its own row only."""
    norms.of_activations(entering, residual)
    squares, activations = norms.squares()
    null = None
    # The output weight meets the scaled residual as an activation does. Written so that NaN is not safe.
    factor = float(torch.linalg.vector_norm(weight, dtype=torch.float64)) ** 2
    usual = factor < _SAFE_ACTIVATIONS
    if not (usual and float(activations.max()) < _SAFE_ACTIVATIONS and float(squares.max()) < _SAFE_SQUARE):
        safe = (squares < _SAFE_SQUARE) & (activations.amax(0) < _SAFE_ACTIVATIONS) & usual
        again = _Norms.room(len(signals), len(residual), torch.float64)
        for index, signal in enumerate(signals):
            again.of_signal(index, signal)
        again.of_activations(entering, residual)
        exact, activations = again.squares()
        squares = torch.where(safe, squares.double(), exact)
        fits = (activations.amax(0) <= _LARGEST_ACTIVATIONS) & (factor <= _LARGEST_ACTIVATIONS)
        null = ~((limit / squares.sqrt() >= _SMALLEST_FACTOR) & fits)
    kept = squares.clamp(max=limit**2)
    return squares.sqrt_().reciprocal_().mul_(limit).clamp_(max=1.0).float(), kept, null


def _backward(
    model: "Mlp", blocks: list[Tensor], layers: list[_Layer], residual: Tensor, norms: _Norms | None
) -> list[_Signal]:
    """Output gradients of every layer; their norms, if wanted, are taken while they are in the cache."""
    signal = torch.outer(residual, blocks[-2])
    signals: list[_Signal] = []
    for index in reversed(range(len(layers))):
        layer = layers[index]
        weight, _, gain, shift = blocks[4 * index : 4 * index + 4]
        by_gain = layer.normalised.mul_(signal)
        into_activation = torch.ops.aten.native_layer_norm_backward(
            signal, layer.activated, [model.hidden[index]], layer.mean, layer.rstd, gain, shift, [True, False, False]
        )[0]
        into_linear = torch.ops.aten.gelu_backward.grad_input(into_activation, layer.linear, grad_input=into_activation)
        by_shift = signal if index < len(layers) - 1 else (residual, blocks[-2])
        signals.append(_Signal(into_linear, by_gain, by_shift))
        if norms is not None:
            norms.of_signal(index, signals[-1])
        if index > 0:
            signal = _product(into_linear, weight)
    return signals[::-1]


def _check_arithmetic() -> None:
    if torch.get_float32_matmul_precision() != "highest" or torch.is_autocast_enabled("cpu"):
        raise PrivacyError(
            "float32 products may be rounded to fewer digits, which the clip does not allow for: "
            "call torch.set_float32_matmul_precision('highest') and leave autocast off"
        )


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
    total = torch.empty(model.size)
    if len(features) == 0:
        return ClippedSum(total.zero_(), 0, 0.0)
    with torch.inference_mode():  # only what is written to `total` leaves it
        return ClippedSum(total, *_sum_into(total, model, params, features, targets, limit))


def _sum_into(
    total: Tensor, model: "Mlp", params: Tensor, features: Tensor, targets: Tensor, limit: float
) -> tuple[int, float]:
    rows, coordinates, blocks = len(features), _coordinates(model), _weights(model, params)
    layers, last, forecast = _forward(model, blocks, _padded(features))
    residual = torch.zeros_like(forecast)  # of the rows added, so that their gradients are 0
    torch.sub(forecast[:rows], targets, out=residual[:rows])
    norms = _Norms.room(len(layers), len(residual), torch.float32)
    signals = _backward(model, blocks, layers, residual, norms if coordinates is None else None)
    output = blocks[-2]
    if coordinates is not None:
        last, residual = coordinates.pull_back(layers, signals, last, residual, output)
        output = output * (coordinates.scales[-2] / coordinates.scales[-1])
        for index, signal in enumerate(signals):
            norms.of_signal(index, signal)
    entering = [*(layer.entering for layer in layers), last]
    factors, kept, null = _factors(norms, entering, signals, residual, output, limit)
    zeroed = 0
    if null is not None:
        zeroed = int(null[:rows].sum())
        factors, kept, residual = (values.masked_fill(null, 0.0) for values in (factors, kept, residual))
        last = _remove(null.unsqueeze(1), layers, signals, last)
    _scaled_sums(_blocks(model, total), layers, signals, last, residual, factors)
    return zeroed, float(kept.sum(dtype=torch.float64))


def _remove(null: Tensor, layers: list[_Layer], signals: list[_Signal], last: Tensor) -> Tensor:
    """Zero the marked rows, whose product with a factor of 0 may be NaN, in their place: no other row may notice."""
    for layer, signal in zip(layers, signals, strict=True):
        layer.entering = layer.entering.masked_fill(null, 0.0)
        signal.linear.masked_fill_(null, 0.0)
        signal.gain.masked_fill_(null, 0.0)
        if isinstance(signal.shift, Tensor):
            signal.shift.masked_fill_(null, 0.0)
        else:  # an output weight that is not finite makes every record null
            signal.shift = signal.shift[0], torch.nan_to_num(signal.shift[1], 0.0, 0.0, 0.0)
    return last.masked_fill(null, 0.0)


def _scaled_sums(
    totals: list[Tensor],
    layers: list[_Layer],
    signals: list[_Signal],
    last: Tensor,
    residual: Tensor,
    scale: Tensor,
) -> None:
    scaled_residual = residual * scale
    row, column = scale.unsqueeze(0), scale.unsqueeze(1)
    for index, (layer, signal) in enumerate(zip(layers, signals, strict=True)):
        weight, bias, gain, shift = totals[4 * index : 4 * index + 4]
        torch.mm(row, signal.linear, out=bias.unsqueeze(0))
        torch.mm(row, signal.gain, out=gain.unsqueeze(0))
        if isinstance(signal.shift, Tensor):
            torch.mm(row, signal.shift, out=shift.unsqueeze(0))
        else:
            torch.mul(signal.shift[1], scaled_residual.sum(), out=shift)
        if layer.entering.shape[1] < signal.linear.shape[1]:  # the narrower of the two
            torch.mm(signal.linear.t(), layer.entering * column, out=weight)
        else:
            torch.mm(signal.linear.mul_(column).t(), layer.entering, out=weight)
    torch.mm(scaled_residual.unsqueeze(0), last, out=totals[-2].unsqueeze(0))
    torch.sum(scaled_residual, 0, keepdim=True, out=totals[-1])
