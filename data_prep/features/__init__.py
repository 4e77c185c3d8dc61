"""The 52 features: one table, pure functions from bars and public series to clipped, scale-free numbers.

`table` is what a silo needs to read samples; it does not load pandas. `compute` makes the features.
"""
