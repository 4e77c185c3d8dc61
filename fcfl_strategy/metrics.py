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
    if count == 0:
        return None
    known = round(total["count_optimal"]) == count
    return {
        "count": count,
        "mse": total["sse"] / count,
        "mae": total["sae"] / count,
        "directional_accuracy": total["hits"] / count,
        "mse_zero": total["sse_zero"] / count,
        "mse_optimal": total["sse_optimal"] / count if known else None,
    }
