"""The DP-SGD mechanism, its accountant, filter, calibration and ledger. Imports nothing of ours, and no Flower."""
