"""Average of the iterates, the model that is served.

Polyak-Ruppert averaging with exponential weights and their bias correction. Against a plain mean over the tail of the
run it needs no knowledge of the last round, which a privacy budget may bring early, it forgets the start by itself, and
one vector is all its state.
"""

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


def add(decay: float, average: Vector, weights: Vector) -> Vector:
    """Add an iterate: ``a avg + (1 - a) w``, from an average that starts at zero."""
    return decay * average + (1 - decay) * weights


def served(decay: float, average: Vector, count: int, weights: Vector) -> Vector:
    """Return the weighted mean of the ``count`` iterates so far, or the last weights without averaging or iterates.

    Parameters
    ----------
    decay : float
        ``a`` in [0, 1); the mean reaches back about ``1 / (1 - a)`` rounds, and 0 is off.
    average : ndarray of float64, shape (p,)
        From `add`.
    count : int
        Iterates added.
    weights : ndarray of float64, shape (p,)
        Last iterate.
    """
    if decay == 0 or count == 0:
        return weights
    return average / (1 - decay**count)
