"""Means of a split from securely summed metrics, in raw log-return units."""

from fcfl_strategy.rounds import Sums


def split_metrics(sums: Sums, split: str) -> dict[str, float | int | None]:
    """Return count, MSE, MAE and directional accuracy of a split, with the zero and the optimal forecast's MSE.

    The optimal forecast is known only where every record's is (the synthetic market); else None.
    """
    total = {name.removeprefix(f"{split}."): float(value[0]) for name, value in sums.items() if name.startswith(split)}
    count = round(total["count"])
    if count == 0:
        return {"count": 0, "mse": None, "mae": None, "directional_accuracy": None, "mse_zero": None, "mse_optimal": None}
    known = round(total["count_optimal"]) == count
    return {
        "count": count,
        "mse": total["sse"] / count,
        "mae": total["sae"] / count,
        "directional_accuracy": total["hits"] / count,
        "mse_zero": total["sse_zero"] / count,
        "mse_optimal": total["sse_optimal"] / count if known else None,
    }
