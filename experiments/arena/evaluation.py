"""The arena looks at the silos' validation and test records directly. **A deployment never does.**"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from client_app.contribution import Sample
from client_app.evaluation import metric_sums
from data_prep.shards import Shard, Split
from fcfl_strategy.metrics import Metrics, split_metrics
from privacy.mlp import Mlp
from privacy.scaling import FeatureScale, ScaledRows


def split_of(shard: Shard, name: str) -> Split:
    """Return a split by its name."""
    found: Split = getattr(shard, name)
    return found


def evaluate(
    model: Mlp,
    point: NDArray[np.float32],
    samples: Iterable[Sample],
    splits: Sequence[str],
    scale: FeatureScale | None = None,
) -> dict[str, Metrics]:
    """Return the metrics of weights on splits, over all silos together.

    The same sums as those of the product's secure sum, but for its fixed point.

    Parameters
    ----------
    model, point
        The network and its weights, shape (p,).
    samples : iterable of Sample
        The silos.
    splits : sequence of str
        ``validation`` and ``test``, or one of them.
    scale : FeatureScale, optional
        Scale of the features, where the run has one.
    """
    silos = [sample.shard for sample in samples]
    found = {}
    for name in splits:
        parts = []
        for shard in silos:
            split = split_of(shard, name)
            if len(split.targets) == 0:
                continue
            if scale is not None:
                split = replace(split, features=ScaledRows(split.features, scale))  # type: ignore[arg-type]
            parts.append(metric_sums(model, point, split.features, split.targets, split.truth, shard.target_scale))
        found[name] = means(parts)
    return found


def means(parts: Iterable[Mapping[str, float]]) -> Metrics:
    """Return the metrics of sums over silos."""
    total: dict[str, float] = {}
    for part in parts:
        total = {metric: total.get(metric, 0.0) + value for metric, value in part.items()}
    found = split_metrics({f"all.{metric}": np.array([value]) for metric, value in total.items()}, "all")
    if found is None:
        raise ValueError("no silo has a record in the split; expected at least one")
    return found
