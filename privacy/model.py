"""What a model must offer so that the mechanism can train it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

ROWS = 288
"""Rows that one call of `clipped_gradient_sum` sums at most; `privacy.dpsgd.clipped_sum` makes as many calls as it
needs."""

RESERVE = 2.0**-17
"""Share of the clip that a model leaves to the rounding errors of adding up the calls."""


@dataclass(frozen=True, slots=True)
class ClippedSum:
    """Sum of clipped per-example gradients. **Private data**: it may leave the mechanism only with noise.

    Attributes
    ----------
    total : torch.Tensor
        Flat float32 or float64 vector.
    zeroed : int
        Records whose gradient was not finite and became the zero vector; for the silo's own log only.
    squares : float or None
        Sum of the squared norms of the clipped gradients, each at most the square of the clip; None from a model that
        does not offer it.
    """

    total: "torch.Tensor"
    zeroed: int
    squares: float | None = None


class PerExampleModel(Protocol):
    """A model held as one flat float32 vector.

    Guarantee an implementation must give: a call of `clipped_gradient_sum` with n <= `ROWS` rows and clip C returns the
    exact sum of one vector v_i per row up to an error of norm at most mu n C, where v_i is a function of that row, the
    parameters and public numbers only, **neither of the other rows nor of its place**, down to the last bit, and has
    norm at most (1 - `RESERVE` - (2 `ROWS` + 1) mu) C; a null record has v_i = 0. That is what the sums over samples
    with and without a record need to differ by at most C, rounding included (`privacy.dpsgd.clipped_sum`), when one
    record is replaced by the null record (Abadi et al. 2016, algorithm 1). No statistics across rows. Forecasts, too,
    are functions of their row alone.
    """

    @property
    def size(self) -> int:
        """Number of parameters."""
        ...

    def predict(self, params: "torch.Tensor", features: "torch.Tensor") -> "torch.Tensor":
        """Forecasts, shape (n,)."""
        ...

    def clipped_gradient_sum(
        self, params: "torch.Tensor", features: "torch.Tensor", targets: "torch.Tensor", clip_norm: float
    ) -> ClippedSum:
        """Sum over the rows of their clipped gradients."""
        ...
