"""Settings of a run on the command line: ``--set key=value``."""

import json
from typing import Annotated, Any

import typer

from server_app.config import KEYS, ConfigError

Set = Annotated[list[str] | None, typer.Option("--set", help="A setting as key=value; see 'fcfl settings'.")]


def read_settings(given: list[str] | None) -> dict[str, Any]:
    """Read ``key=value`` pairs; values are read as JSON where they are, else as text."""
    values: dict[str, Any] = {}
    for pair in given or []:
        key, equals, text = pair.partition("=")
        if not equals or key not in KEYS:
            raise ConfigError(f"{key}: unknown setting; 'fcfl settings' lists them, and --set wants key=value")
        try:
            values[key] = json.loads(text)
        except ValueError:  # no JSON, or a number with thousands of digits
            values[key] = text
    return values
