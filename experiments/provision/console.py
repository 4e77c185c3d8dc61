"""Plain lines on the terminal."""

from rich.console import Console

console = Console()


def say(*lines: str) -> None:
    """Print lines as they are: no mark-up, no folding, so that commands and fingerprints can be copied."""
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
