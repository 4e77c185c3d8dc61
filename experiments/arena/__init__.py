"""The arena: studies of methods on whole runs, many of them, as fast as the mathematics allows."""
