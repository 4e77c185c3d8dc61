"""Bytes of a run's state, for the checkpoint after every epoch."""

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fcfl_strategy.errors import RunError
from fcfl_strategy.rounds import RunState
from fcfl_strategy.server_rule import ServerState
from privacy.count_filter import Budget, CountFilter
from privacy.filter import RenyiFilter
from privacy.release import FEATURE_BOUND
from privacy.scaling import FeatureScale
from secagg.messages import EpochOutcome

SCHEMA = 3
_BUDGETS: Mapping[str, type[RenyiFilter] | type[CountFilter]] = {
    "RenyiFilter": RenyiFilter,
    "CountFilter": CountFilter,
}


def dump(state: RunState) -> bytes:
    """Encode a state; vectors keep their exact bits."""
    server = state.server
    scalars = {
        "schema": SCHEMA,
        "noise_moment": server.noise_moment.hex(),
        "first_noise": server.first_noise.hex(),
        "updates": server.updates,
        "rounds": state.rounds,
        "epoch": state.epoch,
        "outcomes": [outcome.to_bytes().hex() for outcome in state.outcomes],
        "score_total": state.score_total.hex(),
        "divergence": state.divergence.hex(),
        "control_spread": state.control_spread.hex(),
        "control_noise": state.control_noise.hex(),
        "spent": {run: [type(budget).__name__, _exact(asdict(budget))] for run, budget in state.spent.items()},
        "abandoned": state.abandoned,
        "empty": state.empty,
        "ledger_heads": {silo: head.hex() for silo, head in state.ledger_heads.items()},
        "evaluated": state.evaluated,
        "generation": state.generation,
        "scale": None if state.scale is None else [x.hex() for x in (*state.scale.mean, *state.scale.scale)],
    }
    buffer = io.BytesIO()
    np.savez(
        buffer,
        weights=server.weights,
        previous=server.previous,
        first_moment=server.first_moment,
        second_moment=server.second_moment,
        control_total=state.control_total,
        average=state.average,
        scalars=np.frombuffer(json.dumps(scalars).encode(), dtype=np.uint8),
    )
    return buffer.getvalue()


def _exact(fields: Mapping[str, float]) -> dict[str, int | str]:
    """Floats as text with their exact bits."""
    return {name: value.hex() if isinstance(value, float) else value for name, value in fields.items()}


def _budget(kind: str, fields: Mapping[str, int | str]) -> Budget:
    values = {name: float.fromhex(value) if isinstance(value, str) else value for name, value in fields.items()}
    return _BUDGETS[kind](**values)  # type: ignore[arg-type]


def _scale(stored: list[str] | None) -> FeatureScale | None:
    if stored is None:
        return None
    values, half = tuple(float.fromhex(text) for text in stored), len(stored) // 2
    return FeatureScale(values[:half], values[half:], FEATURE_BOUND)


def load(data: bytes) -> RunState:
    """Decode a state.

    Raises
    ------
    RunError
        If the checkpoint is damaged or was written by another version of the software.
    """
    try:
        with np.load(io.BytesIO(data)) as stored:
            arrays = {name: stored[name] for name in stored.files}
        scalars = json.loads(arrays.pop("scalars").tobytes())
        schema = scalars["schema"]
    except (AttributeError, EOFError, KeyError, OSError, TypeError, ValueError, zipfile.BadZipFile):
        raise RunError("journal/checkpoint: damaged; restore it from a copy") from None
    if schema != SCHEMA:
        raise RunError(f"journal/checkpoint: schema {schema}, this software reads {SCHEMA}; resume with the old one")
    try:
        return _state(arrays, scalars)
    except (KeyError, TypeError, ValueError):
        raise RunError("journal/checkpoint: not as this software writes it; restore it from a copy") from None


def _state(arrays: Mapping[str, NDArray[Any]], scalars: Mapping[str, Any]) -> RunState:
    return RunState(
        server=ServerState(
            weights=arrays["weights"],
            previous=arrays["previous"],
            first_moment=arrays["first_moment"],
            second_moment=arrays["second_moment"],
            noise_moment=float.fromhex(scalars["noise_moment"]),
            updates=scalars["updates"],
            first_noise=float.fromhex(scalars["first_noise"]),
        ),
        control_total=arrays["control_total"],
        rounds=scalars["rounds"],
        epoch=scalars["epoch"],
        outcomes=tuple(EpochOutcome.from_bytes(bytes.fromhex(outcome)) for outcome in scalars["outcomes"]),
        score_total=float.fromhex(scalars["score_total"]),
        divergence=float.fromhex(scalars["divergence"]),
        spent={run: _budget(*stored) for run, stored in scalars["spent"].items()},
        abandoned=scalars["abandoned"],
        empty=scalars["empty"],
        ledger_heads={silo: bytes.fromhex(head) for silo, head in scalars["ledger_heads"].items()},
        average=arrays["average"],
        control_spread=float.fromhex(scalars["control_spread"]),
        control_noise=float.fromhex(scalars["control_noise"]),
        evaluated=scalars["evaluated"],
        generation=scalars["generation"],
        scale=_scale(scalars["scale"]),
    )
