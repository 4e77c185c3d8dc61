"""Readers: files as vendors publish them -> arrays, or an error that names the cell."""
