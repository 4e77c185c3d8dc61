"""Settings of a run on the command line: ``--set key=value``."""

import json
from typing import Annotated, Any

import typer

from server_app.config import KEYS, ConfigError
from server_app.methods import PRESETS

Set = Annotated[list[str] | None, typer.Option("--set", help="A setting as key=value; see 'fcfl settings'.")]

Preset = Annotated[
    str, typer.Option(help=f"Settings to start from ({', '.join(PRESETS)}); --set overrides them one by one.")
]


def read_settings(given: list[str] | None, preset: str = "") -> dict[str, Any]:
    """Read ``key=value`` pairs over a preset; values are read as JSON where they are, else as text."""
    if preset and preset not in PRESETS:
        raise ConfigError(f"--preset: expected one of {', '.join(PRESETS)}, got {preset!r}")
    values: dict[str, Any] = dict(PRESETS.get(preset, {}))
    for pair in given or []:
        key, equals, text = pair.partition("=")
        if not equals or key not in KEYS:
            raise ConfigError(f"{key}: unknown setting; 'fcfl settings' lists them, and --set wants key=value")
        try:
            values[key] = json.loads(text)
        except ValueError:  # no JSON, or a number with thousands of digits
            values[key] = text
    return values
