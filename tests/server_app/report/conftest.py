"""A run directory as the coordinator writes it."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ZERO, OPTIMAL = 1.2650e-4, 1.1995e-4
HEAD = "9f2c" * 16


def metrics(mse: float = 1.2117e-4, count: int = 77_616, **changes: Any) -> dict[str, Any]:
    return {
        "count": count,
        "mse": mse,
        "mae": 0.00853,
        "directional_accuracy": 0.5612,
        "mse_zero": ZERO,
        "mse_optimal": OPTIMAL,
    } | changes


def epoch(number: int, round_: int, status: str = "completed", **changes: Any) -> dict[str, Any]:
    done = status == "completed"
    return {
        "epoch": number,
        "round": round_,
        "purpose": "train",
        "status": status,
        "contributors": 10 + (number * 7) % 4 - 1 if done else None,
        "survivors": 20 - (number % 3 == 0) if done else 11,
        "enrolled": 20,
        "sigma": 1.05 - 0.01 * round_ if done else None,
        "epsilon": 0.94312 * math.sqrt((number + 1) / 17),
        "budget_fraction": 0.8912 * (number + 1) / 17,
        "divergence": max(0.0, 0.31 - 0.012 * round_) if done else None,
        "update_norm": 0.82 / (1 + round_) if done else None,
        "validation": metrics(OPTIMAL + 0.9 * (ZERO - OPTIMAL) * math.exp(-round_ / 4) + 4e-7) if done else None,
        "seconds": 12.4 + 0.3 * (number % 5),
        "bytes_up": 9_702_480,
        "bytes_down": 19_512_900,
    } | changes


def history() -> list[dict[str, Any]]:
    rounds = [epoch(k, k) for k in range(7)]
    rounds.append(epoch(7, 7, "abandoned", seconds=31.2))
    return rounds + [epoch(k + 1, k) for k in range(7, 15)]


def summary(**changes: Any) -> dict[str, Any]:
    return {
        "run_id": "5b1fd6a0c7e94e02",
        "outcome": "completed",
        "message": "All 15 planned rounds were done.",
        "rounds": 15,
        "epsilon": 0.94312,
        "epsilon_target": 1.0,
        "delta": 1e-5,
        "order": 14.5,
        "budget_fraction": 0.8912,
        "seeded": False,
        "validation_protected": False,
        "adjacency": "one record replaced by a null record with zero gradient",
        "accountant": "rdp",
        "further_budgets": {"evaluation": {"epsilon": 0.41, "epsilon_target": 0.5}},
        "group": {"records": 134, "epsilon": 812.34},
        "evaluation": {"validation": metrics(1.2093e-4), "test": metrics(1.2117e-4, 161_280)},
        "silos": 20,
        "records_total": 543_210,
        "secure_aggregation": True,
        "threshold": 14,
        "started": "2025-03-04T09:12:45+00:00",
        "finished": "2025-03-04T09:16:31+00:00",
        "software": {"fcfl": "0.1.0", "flwr": "1.42.0", "torch": "2.9.1", "python": "3.11.9"},
        "ledger": {"entries": 16, "head": HEAD},
    } | changes


def config(**changes: Any) -> dict[str, Any]:
    return {
        "config": {
            "preset": "default",
            "rounds": 15,
            "cohort": 10,
            "local-steps": 5,
            "client-step": 0.5,
            "dp.unit": "record",
            "dp.clip": 1.0,
            "dp.sample-rate": 0.1,
            "dp.epsilon": 1.0,
            "dp.delta": 1e-5,
            "server.beta-1": 0.5,
            "server.preconditioner": "normalised",
            "drift.control": True,
            "participation": "hidden",
        },
        "hash": "c0ffee" * 10 + "c0ff",
    } | changes


WriteRun = Callable[..., Path]


@pytest.fixture
def write_run(tmp_path: Path) -> WriteRun:
    """Write a run directory; each file can be given as a value or, to break it, as raw text or None (no file)."""

    def write(config_: Any = ..., history_: Any = ..., summary_: Any = ..., name: str = "run") -> Path:
        directory = tmp_path / name
        directory.mkdir()
        values = {
            "config.json": config() if config_ is ... else config_,
            "history.jsonl": history() if history_ is ... else history_,
            "summary.json": summary() if summary_ is ... else summary_,
        }
        for file, value in values.items():
            if value is None:
                continue
            if isinstance(value, str):
                text = value
            elif file.endswith("l"):
                text = "".join(json.dumps(row) + "\n" for row in value)
            else:
                text = json.dumps(value, indent=1)
            (directory / file).write_text(text, encoding="utf-8")
        return directory

    return write
