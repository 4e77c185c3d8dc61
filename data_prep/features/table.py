"""The one list of features. Names, formulas, windows and ranges are public and part of the feature hash.

Every feature is a ratio, a logarithm of a ratio, or a number already without unit, centred and scaled by public
constants, then clipped. Nothing here or in the functions that compute the features is fitted on anybody's records:
a fitted scaler would make every sample depend on every record, and the sensitivity bound of the privacy mechanism
would no longer hold.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass

__all__ = ["FEATURES", "GROUPS", "MEMORY_ROWS", "N_FEATURES", "Feature", "feature_hash", "markdown_table"]

# Raised whenever a formula's code changes without its text.
_REVISION = 3

GROUPS: tuple[str, ...] = ("price", "technical", "volume", "macro", "factors", "calendar")


@dataclass(frozen=True)
class Feature:
    """One column of the feature matrix.

    Attributes
    ----------
    name : str
        Unique, stable.
    group : str
        One of `GROUPS`.
    formula : str
        What is computed, in the notation of `markdown_table`.
    window : int
        Trading days (rows, the day itself included) of an instrument's bars the value depends on; 0 for features that
        do not look at the instrument.
    source : str
        Columns of the instrument, series or factor that the value is computed from.
    values : int
        Values of its public series that it takes, the newest included; 0 for features without one.
    clip : float
        The value lies in [-clip, clip].
    """

    name: str
    group: str
    formula: str
    window: int
    source: str
    values: int = 0
    clip: float = 3.0

    @property
    def warm_up(self) -> str:
        """What has to come before the newest value: days of the instrument, or values of its public series."""
        if self.window:
            return f"{self.window - 1} days"
        unit = {"macro": "months", "factors": "returns"}.get(self.group)
        return f"{self.values - 1} {unit}" if unit else "-"


FEATURES: tuple[Feature, ...] = (
    Feature("ret_1", "price", "r / s", 61, "close"),
    Feature("ret_1_lag_1", "price", "r[-1] / s", 61, "close"),
    Feature("ret_1_lag_2", "price", "r[-2] / s", 61, "close"),
    Feature("ret_5", "price", "log(C / C[-5]) / (s sqrt(5))", 61, "close"),
    Feature("ret_21", "price", "log(C / C[-21]) / (s sqrt(21))", 61, "close"),
    Feature("ret_63", "price", "log(C / C[-63]) / (s sqrt(63))", 64, "close"),
    Feature("mom_126_21", "price", "log(C[-21] / C[-126]) / (s sqrt(105))", 127, "close"),
    Feature("gap", "price", "2 log(O / C[-1]) / s", 61, "open, close"),
    Feature("intraday", "price", "1.2 log(C / O) / s", 61, "open, close"),
    Feature("close_location", "price", "1.7 (2C - H - L) / (H - L)", 1, "high, low, close"),
    Feature("close_location_5", "price", "3 mean_5((2C - H - L) / (H - L))", 5, "high, low, close"),
    Feature("range", "price", "2 log(h / mean_20(h) + 0.1), h = log(H / L)", 20, "high, low"),
    Feature("volatility_ratio", "price", "2 log((rms_5(r) + 1e-4) / s)", 61, "close"),
    Feature("volatility_level", "price", "2 log((rms_20(r) + 1e-4) / 0.013)", 21, "close"),
    Feature("autocorrelation_20", "price", "4 mean_20(r r[-1]) / (mean_20(r^2) + 1e-8)", 22, "close"),
    Feature("high_distance_63", "price", "2 log(C / max_63(H)) / (s sqrt(63)) + 1.5", 63, "high, close"),
    Feature("rsi_14", "technical", "(RSI - 50) / 18, RSI = 100 sum_14(r+) / sum_14(|r|)", 15, "close"),
    Feature("macd", "technical", "M / 1.5, M = (ema_12(C) - ema_26(C)) / (C s)", 104, "close"),
    Feature("macd_histogram", "technical", "2 (M - ema_9(M))", 130, "close"),
    Feature("atr_14", "technical", "3 log(mean_14(TR / C[-1]) / s) - 0.5", 61, "high, low, close"),
    Feature("adx_14", "technical", "(ADX - 23) / 9, Wilder smoothing cut after 42 days", 84, "high, low"),
    Feature("di_14", "technical", "3 (DI+ - DI-) / (DI+ + DI-), Wilder smoothing cut after 42 days", 43, "high, low"),
    Feature("stochastic_14_3", "technical", "(%D - 50) / 28", 16, "high, low, close"),
    Feature("cci_20", "technical", "CCI / 100", 20, "high, low, close"),
    Feature("williams_42", "technical", "(%R + 50) / 29", 42, "high, low, close"),
    Feature("bollinger_b_20", "technical", "(C - sma_20(C)) / (1.2 sd_20(C))", 20, "close"),
    Feature("bollinger_width_20", "technical", "2 log(sd_20(C) / (C s) + 0.1) - 1", 61, "close"),
    Feature("aroon_25", "technical", "(Aroon up - Aroon down) / 60", 26, "high, low"),
    Feature("ultimate_7_14_28", "technical", "(ULTOSC - 50) / 11", 29, "high, low, close"),
    Feature("volume_shock", "volume", "2 log(v + 0.05), v = V / mean_60(V)", 60, "volume"),
    Feature("volume_trend", "volume", "3.5 log(mean_5(v) + 0.05)", 64, "volume"),
    Feature("mfi_14", "volume", "(MFI - 50) / 17", 15, "high, low, close, volume"),
    Feature("obv_20", "volume", "4 sum_20(sign(r) V) / sum_20(V)", 21, "close, volume"),
    Feature("chaikin_20", "volume", "7 sum_20((2C - H - L) / (H - L) V) / sum_20(V)", 20, "high, low, close, volume"),
    Feature("volume_correlation_20", "volume", "3.5 (corr_20(|r|, v) - 0.35)", 79, "close, volume"),
    Feature("fedfunds_level", "macro", "(FEDFUNDS - 2) / 2", 0, "FEDFUNDS", values=1),
    Feature("fedfunds_change", "macro", "(FEDFUNDS - FEDFUNDS[-12 months]) / 1.5", 0, "FEDFUNDS", values=13),
    Feature("indpro_growth", "macro", "log(INDPRO / INDPRO[-12 months]) / 0.04", 0, "INDPRO", values=13),
    Feature("unrate_change", "macro", "(UNRATE - UNRATE[-12 months]) / 1.5", 0, "UNRATE", values=13),
    Feature(
        "cpi_inflation", "macro", "(log(CPIAUCSL / CPIAUCSL[-12 months]) - 0.025) / 0.02", 0, "CPIAUCSL", values=13
    ),
    Feature("factor_market", "factors", "sum_21(Mkt-RF) / (0.011 sqrt(21))", 0, "Mkt-RF", values=21),
    Feature("factor_smb", "factors", "sum_21(SMB) / (0.006 sqrt(21))", 0, "SMB", values=21),
    Feature("factor_hml", "factors", "sum_21(HML) / (0.008 sqrt(21))", 0, "HML", values=21),
    Feature("factor_rmw", "factors", "sum_21(RMW) / (0.0045 sqrt(21))", 0, "RMW", values=21),
    Feature("factor_cma", "factors", "sum_21(CMA) / (0.004 sqrt(21))", 0, "CMA", values=21),
    Feature("factor_momentum", "factors", "sum_21(Mom) / (0.010 sqrt(21))", 0, "Mom", values=21),
    Feature("weekday_sin", "calendar", "1.4 sin(2 pi weekday / 5)", 0, "date"),
    Feature("weekday_cos", "calendar", "1.4 cos(2 pi weekday / 5)", 0, "date"),
    Feature("month_phase_sin", "calendar", "1.4 sin(2 pi (day of month - 1) / days in month)", 0, "date"),
    Feature("month_phase_cos", "calendar", "1.4 cos(2 pi (day of month - 1) / days in month)", 0, "date"),
    Feature("year_phase_sin", "calendar", "1.4 sin(2 pi (day of year - 1) / 366)", 0, "date"),
    Feature("year_phase_cos", "calendar", "1.4 cos(2 pi (day of year - 1) / 366)", 0, "date"),
)

N_FEATURES = len(FEATURES)
# Rows of an instrument's bars, the day itself included, that any feature depends on. Rows before it are the warm-up.
MEMORY_ROWS = max(feature.window for feature in FEATURES)


def feature_hash() -> str:
    """Return the SHA-256 of the table and the code's revision, in hexadecimal.

    Two silos whose hashes agree compute the same columns.
    """
    table = {"revision": _REVISION, "features": [asdict(feature) for feature in FEATURES]}
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()


def markdown_table() -> str:
    """Return the table of features as Markdown, one row per column of the feature matrix."""
    rows = [
        "| # | feature | group | formula | source | window | warm-up | range |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for number, f in enumerate(FEATURES):
        window = str(f.window) if f.window else "-"
        formula = f.formula.replace("|", "\\|")
        rows.append(
            f"| {number} | `{f.name}` | {f.group} | {formula} | {f.source} | {window} | {f.warm_up} | +-{f.clip:g} |"
        )
    return "\n".join(rows) + "\n"
