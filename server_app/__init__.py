"""The coordinator: Flower ServerApp, run configuration, checkpoints, report."""
