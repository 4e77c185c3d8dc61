"""The multilayer perceptron as one flat vector with a public layout. Importing this module does not import torch."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from privacy.checks import whole
from privacy.errors import PrivacyError
from privacy.metric import WEIGHTS, Metric, from_weights, to_weights
from privacy.model import ClippedSum
from privacy.randomness import RandomStream

if TYPE_CHECKING:
    import torch

FEATURES = 52
HIDDEN = (320, 320)


@dataclass(frozen=True, slots=True)
class Block:
    """One named tensor in the flat vector: `params[start:stop].reshape(shape)`."""

    name: str
    shape: tuple[int, ...]
    start: int

    @property
    def stop(self) -> int:
        """End of the block, exclusive."""
        return self.start + math.prod(self.shape)

    @property
    def span(self) -> slice:
        """The block's place in the flat vector."""
        return slice(self.start, self.stop)


@dataclass(frozen=True)
class Mlp:
    """Linear -> GELU (exact) -> LayerNorm (eps 1e-5) for every hidden layer, then Linear to one forecast.

    The loss of a record is (forecast - target)^2 / 2. Implements `privacy.model.PerExampleModel`; nothing mixes rows.
    The layout is public: per hidden layer `weight`, `bias`, `gain`, `shift`, then `output.weight` and `output.bias`.

    Parameters
    ----------
    features : int
        Width of the input.
    hidden : tuple of int
        Widths of the hidden layers, at least one.
    metric : Metric
        Coordinates of the parameters. The default is the weights themselves.
    """

    features: int = FEATURES
    hidden: tuple[int, ...] = HIDDEN
    metric: Metric = WEIGHTS

    def __post_init__(self) -> None:
        """Validate by field name."""
        whole("features", self.features, 1)
        object.__setattr__(self, "hidden", tuple(whole("hidden", width, 1) for width in self.hidden))
        whole("number of hidden layers", len(self.hidden), 1)
        if len(self.metric.exponents) not in (0, len(self.hidden) + 1):
            raise PrivacyError(
                f"metric.exponents: {len(self.metric.exponents)} given, expected one for each of the "
                f"{len(self.hidden) + 1} linear maps"
            )

    @cached_property
    def layout(self) -> tuple[Block, ...]:
        """Names, shapes and slices of the flat vector, in order; they cover it without gaps."""
        shapes: list[tuple[str, tuple[int, ...]]] = []
        for index, (fan_in, width) in enumerate(pairwise((self.features, *self.hidden))):
            shapes += [
                (f"hidden{index}.weight", (width, fan_in)),
                (f"hidden{index}.bias", (width,)),
                (f"hidden{index}.gain", (width,)),
                (f"hidden{index}.shift", (width,)),
            ]
        shapes += [("output.weight", (self.hidden[-1],)), ("output.bias", (1,))]
        blocks: list[Block] = []
        start = 0
        for name, shape in shapes:
            blocks.append(Block(name, shape, start))
            start = blocks[-1].stop
        return tuple(blocks)

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the blocks, in order."""
        return tuple(block.shape for block in self.layout)

    @cached_property
    def sizes(self) -> list[int]:
        """Numbers of values of the blocks, in order."""
        return [math.prod(shape) for shape in self.shapes]

    @cached_property
    def size(self) -> int:
        """Number of parameters."""
        return self.layout[-1].stop

    @property
    def plain(self) -> "Mlp":
        """The same network, whose parameters are its weights."""
        return replace(self, metric=WEIGHTS)

    def initial_parameters(self, seed: int) -> npt.NDArray[np.float32]:
        """Return the public starting point: see the function `initial_parameters` (no data, so no privacy cost)."""
        return initial_parameters(self, seed)

    def weights(self, params: npt.NDArray[np.floating]) -> npt.NDArray[np.float32]:
        """Return the weights of the network, parameters of `plain`: see `privacy.metric.to_weights`."""
        return to_weights(self, params).astype(np.float32)

    def predict(self, params: "torch.Tensor", features: "torch.Tensor") -> "torch.Tensor":
        """Return the forecasts.

        Guarantee: post-processing of `params`, free of cost, only where `features` are not private records; forecasts
        of private records are private (adjacency: one record replaced by the null record). Assumption: float32
        inputs.

        Parameters
        ----------
        params : torch.Tensor
            Flat float32 vector.
        features : torch.Tensor
            Shape (n, features), float32.

        Returns
        -------
        torch.Tensor
            Shape (n,).
        """
        from privacy.mlp_kernel import predict

        return predict(self, params, features)

    def clipped_gradient_sum(
        self, params: "torch.Tensor", features: "torch.Tensor", targets: "torch.Tensor", clip_norm: float
    ) -> ClippedSum:
        """Return the sum of clipped per-example gradients of (forecast - target)^2 / 2, in one backward pass.

        Guarantee: what `PerExampleModel` promises, so the sum moves by at most `clip_norm` when one record is replaced
        by the null record and by at most 2 clip_norm when it is replaced by another, all float32 rounding included:
        clips are at `privacy.mlp_kernel.clip_limit`, 0.7 % below C. Records whose gradient is not finite are null
        records: zeros in their place. Assumptions: `params` do not depend on the records beyond accounted releases;
        float32 products are IEEE 754 sums in some order (settings that round more are refused); a row of a product of
        a multiple of 8 rows is computed alike wherever it stands and whatever the other rows (tested at the default
        widths; seen to fail for widths below 16). Abadi et al. 2016, algorithm 1, clipping; book-keeping of Bu et al.
        2023.

        Parameters
        ----------
        params : torch.Tensor
            Flat float32 vector.
        features, targets : torch.Tensor
            Shapes (n, features) and (n,), float32; n at most `privacy.model.ROWS`, may be 0.
        clip_norm : float
            C, above 0.

        Returns
        -------
        ClippedSum
            The sum and the number of zeroed records.
        """
        from privacy.mlp_kernel import clipped_gradient_sum

        return clipped_gradient_sum(self, params, features, targets, clip_norm)


def initial_parameters(model: Mlp, seed: int) -> npt.NDArray[np.float32]:
    """Return the public starting point of a run; the same on every machine.

    Guarantee: a function of the layout and the seed only, so it costs no privacy whatever the adjacency. Hidden
    weights and biases are uniform in +-1/sqrt(fan-in) (torch's default for Linear), gains 1, shifts 0, and the output
    layer is 0, so that training starts at the zero forecast (section 7 of the specification). Assumption: the seed is
    public.

    Parameters
    ----------
    model : Mlp
        Layer sizes.
    seed : int
        Public seed.

    Returns
    -------
    ndarray of float32
        Flat vector of length `model.size`, in the coordinates of the model's metric.
    """
    params = np.zeros(model.size, dtype=np.float32)
    fan_in = model.features
    for block in model.layout:
        kind = block.name.rpartition(".")[2]
        if block.name.startswith("output."):
            continue
        if kind == "weight":
            fan_in = block.shape[1]
        if kind == "gain":
            params[block.span] = 1.0
        elif kind in ("weight", "bias"):
            stream = RandomStream.seeded(seed, "initial-parameters", block.name)
            bound = 1.0 / math.sqrt(fan_in)
            params[block.span] = (2.0 * stream.uniform(block.stop - block.start) - 1.0) * bound
    return params if model.metric.trivial else from_weights(model, params).astype(np.float32)
