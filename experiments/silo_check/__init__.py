"""``fcfl silo check``: whether a silo's folder, machine and connection are fit for a run, and what to do if not."""
