"""The 52 features: one table, pure functions from bars and public series to clipped, scale-free numbers."""

from data_prep.features.compute import Context, build_context, compute_features
from data_prep.features.table import FEATURES, MEMORY_ROWS, N_FEATURES, Feature, feature_hash, markdown_table

__all__ = [
    "FEATURES",
    "MEMORY_ROWS",
    "N_FEATURES",
    "Context",
    "Feature",
    "build_context",
    "compute_features",
    "feature_hash",
    "markdown_table",
]
