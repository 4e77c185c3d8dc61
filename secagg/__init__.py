"""Secure aggregation: keys, shares, masks, ring and two state machines without I/O. Imports nothing of ours, no Flower, no torch."""
