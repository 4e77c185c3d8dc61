"""Empirical lower bounds on the epsilon of the DP-SGD implementation; see docs/audit.md."""
