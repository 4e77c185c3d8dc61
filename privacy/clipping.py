"""Clipping of gradients that a model has materialised, one row per record; slow, but for any model and any dtype."""

import torch

from privacy.checks import real
from privacy.errors import PrivacyError
from privacy.model import RESERVE, ClippedSum

# For the rounding of scaled rows and of sums in float64, (2 ROWS + 1) mu <= 2^-32, and what a model must leave.
_DOWN = 1.0 - RESERVE - 2.0**-30


@torch.no_grad()
def clip_rows(gradients: torch.Tensor, clip_norm: float) -> ClippedSum:
    """Return the sum of the rows, each scaled to an L2 norm of at most `clip_norm`, in float64.

    Guarantee: every row adds a vector of norm at most `clip_norm`, whatever its dtype, so the sum moves by at most
    `clip_norm` when one record is replaced by the null record; a row with a value that is not finite adds zero.
    Assumption: a row depends on its record, released parameters and public numbers only. Abadi et al. 2016,
    algorithm 1. Norms are taken in float64 of rows divided by their largest value, so they neither overflow nor
    vanish.

    Parameters
    ----------
    gradients : torch.Tensor
        Shape (B, p), any floating dtype; B may be 0.
    clip_norm : float
        C, above 0.

    Returns
    -------
    ClippedSum
        The sum (float64), the number of zeroed rows and the sum of clipped squared norms.
    """
    real("clip_norm", clip_norm, 0.0, low_open=True)
    if gradients.ndim != 2 or not gradients.is_floating_point():
        # No sizes in the text: the number of sampled records is private.
        raise PrivacyError(
            f"gradients: expected a matrix of floats, one row per record; given {gradients.ndim} axes, "
            f"{gradients.dtype}"
        )
    usable = gradients.isfinite().all(dim=1)
    rows = gradients[usable].double()
    largest = rows.abs().amax(dim=1, keepdim=True).clamp_(min=torch.finfo(torch.float64).tiny)
    shapes = rows / largest
    lengths = torch.linalg.vector_norm(shapes, dim=1, keepdim=True)
    kept = torch.minimum(lengths * largest, torch.full_like(lengths, clip_norm * _DOWN))
    scaled = shapes * torch.where(lengths > 0, kept / lengths, torch.zeros_like(kept))
    return ClippedSum(scaled.sum(0), int((~usable).sum()), float(kept.square().sum()))
