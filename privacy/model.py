"""What a model must offer so that the mechanism can train it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


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

    Guarantee an implementation must give: `clipped_gradient_sum` is a sum of one vector per row, each of L2 norm at
    most `clip_norm` and a function of that row, the parameters and public numbers only; so it moves by at most
    `clip_norm` when one record is replaced by the null record (Abadi et al. 2016, algorithm 1). No statistics across
    rows.
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
