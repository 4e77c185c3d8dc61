"""Any `torch.nn.Module` as a model of the mechanism, with per-example gradients by Opacus; slow, but general."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from privacy.clipping import clip_rows
from privacy.errors import PrivacyError
from privacy.model import RESERVE, ROWS, ClippedSum

_ALIKE = 8  # rows come in multiples of this, as for the MLP
_FLOAT64_SUM = 1e-9  # far above the rounding of two float64 sums of `ROWS` rows


class OpacusModule:
    """A module with one forecast per row, as a `privacy.model.PerExampleModel`; the loss is (forecast - target)^2 / 2.

    Guarantee: that of `PerExampleModel`, for one record replaced by the null record: gradients of every row are
    materialised by Opacus' `GradSampleModule`, clipped one by one and added in float64 by `privacy.clipping.clip_rows`
    (Abadi et al. 2016, algorithm 1). Losses are one value per row: Opacus' own clipping silently does not clip if they
    have two axes. Assumptions: Opacus' gradients are those of the rows; a row's forecast and gradient do not depend on
    its company or place, down to the last bit, in batches of a multiple of 8 rows. Modules that mix rows
    (batch normalisation) or that Opacus cannot handle are refused.

    Parameters
    ----------
    module : nn.Module
        Maps (n, d) float32 to (n,) or (n, 1). It is used, and its parameters overwritten, by the model.
    """

    def __init__(self, module: nn.Module) -> None:
        from opacus import GradSampleModule
        from opacus.validators import ModuleValidator

        if errors := ModuleValidator.validate(module, strict=False):
            raise PrivacyError(f"module: Opacus refuses it ({errors[0]}); replace that layer")
        frozen = [name for name, parameter in module.named_parameters() if not parameter.requires_grad]
        if frozen:
            raise PrivacyError(f"module.{frozen[0]}: is frozen; every parameter must require a gradient")
        self._module = GradSampleModule(module, batch_first=True, loss_reduction="sum", strict=True)
        self._size = sum(parameter.numel() for parameter in module.parameters())

    @property
    def size(self) -> int:
        """Number of parameters."""
        return self._size

    def initial_parameters(self) -> Tensor:
        """Return the module's own parameters as the flat vector (no data, so no privacy cost)."""
        return parameters_to_vector(self._module.parameters()).detach().clone()

    def _forward(self, params: Tensor, features: Tensor) -> Tensor:
        if params.shape != (self._size,) or params.dtype != torch.float32:
            raise PrivacyError(f"params: expected ({self._size},) torch.float32")
        vector_to_parameters(params.clone(), self._module.parameters())
        self._module.train()
        padded = functional.pad(features, (0, 0, 0, -len(features) % _ALIKE))
        forecast: Any = self._module(padded)
        if not isinstance(forecast, Tensor) or forecast.shape not in ((len(padded),), (len(padded), 1)):
            # No sizes in the text: the number of sampled records is private.
            raise PrivacyError("module: expected one forecast per row, shape (n,) or (n, 1)")
        return forecast.reshape(len(padded))

    def predict(self, params: Tensor, features: Tensor) -> Tensor:
        """Forecasts, shape (n,); each a function of its row alone (assumption of the class)."""
        if len(features) == 0:
            return torch.zeros(0)
        with torch.no_grad():
            return self._forward(params, features)[: len(features)]

    def clipped_gradient_sum(self, params: Tensor, features: Tensor, targets: Tensor, clip_norm: float) -> ClippedSum:
        """Return the clipped sum in float64.

        Guarantee, adjacency (one record replaced by the null record), assumptions and theorem: those of the class.

        Parameters
        ----------
        params : Tensor
            Flat float32 vector.
        features, targets : Tensor
            Float32, shapes (n, d) and (n,), n at most `privacy.model.ROWS`.
        clip_norm : float
            C, above 0.

        Raises
        ------
        PrivacyError
            If shapes do not fit.
        """
        rows = len(features)
        if features.ndim != 2 or targets.shape != (rows,):
            raise PrivacyError("features, targets: expected a matrix and a vector with one value per row")
        if rows > ROWS:
            raise PrivacyError(f"features: expected at most {ROWS} rows; use clipped_sum")
        if rows == 0:
            return ClippedSum(torch.zeros(self._size, dtype=torch.float64), 0, 0.0)
        self._module.zero_grad(set_to_none=True)
        losses = (self._forward(params, features)[:rows] - targets).square() / 2
        if losses.shape != (rows,):
            raise PrivacyError("losses: expected one value per row")
        losses.sum().backward()  # type: ignore[no-untyped-call]
        gradients = torch.cat([self._rows_of(parameter)[:rows] for parameter in self._module.parameters()], dim=1)
        self._module.zero_grad(set_to_none=True)
        limit = clip_norm * (1.0 - RESERVE - _FLOAT64_SUM)
        return clip_rows(gradients, limit)

    @staticmethod
    def _rows_of(parameter: nn.Parameter) -> Tensor:
        found = getattr(parameter, "grad_sample", None)
        if not isinstance(found, Tensor) or found.shape[1:] != parameter.shape:
            raise PrivacyError("module: Opacus gave no gradient per row for a parameter; every one must be used once")
        return found.detach().flatten(1)
