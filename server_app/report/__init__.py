"""The run report: one self-contained page about what a run learned and what it cost in privacy.

Nothing is imported here: who only reads a history does not wait for the plotting library.
"""
