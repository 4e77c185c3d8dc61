"""Secure aggregation: keys, shares, masks, ring and the two sides of the protocol, without I/O.

Imports nothing of ours, no Flower, no torch. The protocol is described in docs/secure-aggregation.md.
"""
