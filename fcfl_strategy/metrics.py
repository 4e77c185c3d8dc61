"""Means of a split from securely summed metrics, in raw log-return units."""

from collections.abc import Mapping

from fcfl_strategy.rounds import Sums

Metrics = Mapping[str, float | int | None]


def split_metrics(sums: Sums, split: str) -> Metrics | None:
    """Return count, MSE, MAE and directional accuracy of a split, with the zero and the optimal forecast's MSE.

    The optimal forecast is known only where every record's is (the synthetic market); else None. A split
    without records, or one the run does not measure, gives None.
    """
    prefix = f"{split}."
    if f"{prefix}count" not in sums:
        return None
    total = {name.removeprefix(prefix): float(value[0]) for name, value in sums.items() if name.startswith(prefix)}
    count = round(total["count"])
    if count <= 0:  # below 0 only if a silo does not follow the protocol
        return None
    known = round(total["count_optimal"]) == count
    # Noised sums may leave the range of what they estimate.
    return {
        "count": count,
        "mse": max(total["sse"], 0.0) / count,
        "mae": max(total["sae"], 0.0) / count,
        "directional_accuracy": min(max(total["hits"] / count, 0.0), 1.0),
        "mse_zero": max(total["sse_zero"], 0.0) / count,
        "mse_optimal": total["sse_optimal"] / count if known else None,
    }
