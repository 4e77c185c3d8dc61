"""Command line, in-process runtime and studies; may import every other room."""
