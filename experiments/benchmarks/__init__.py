"""Benchmarks: ratios measured in interleaved rounds on one machine, never absolute times."""
