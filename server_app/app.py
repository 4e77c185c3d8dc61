"""Flower ServerApp of the coordinator: configuration, run folder, strategy, summary, report."""

import io
import json
import logging
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from fcfl_strategy.errors import RunError
from fcfl_strategy.settings import Settings
from fcfl_strategy.strategy import FcflStrategy
from privacy.errors import PrivacyError
from privacy.pld import epsilon_group
from privacy.release import SAMPLES_PER_BAR
from privacy.terms import RunTerms
from secagg.errors import SecAggError
from server_app.config import ConfigError, RunConfig
from server_app.observer import RunObserver
from server_app.reception import prompt
from server_app.run_folder import RunFolder, write_atomic
from server_app.run_settings import initial_weights, settings_of

logger = logging.getLogger("fcfl.coordinator")
EXPECTED = (ConfigError, RunError, PrivacyError, SecAggError)

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run or resume training; a run that cannot go on leaves its reason in ``failure.json``."""
    log_to_flower()
    path = Path(str(context.run_config.get("run-dir") or f"runs/{context.run_id}")).resolve()
    try:
        with prompt(grid) as prompted:
            conduct(prompted, RunConfig.from_mapping(context.run_config), path)
    except EXPECTED as error:
        logger.error("%s", error)
        # Without the folder, or on the very disk that is full, the log line has to do.
        with suppress(OSError):
            (path / "failure.json").write_text(json.dumps({"message": str(error)}), encoding="utf-8")
        raise SystemExit(f"fcfl: {error}") from None


def log_to_flower() -> None:
    """Let the coordinator's log lines go where Flower's go, the stream of ``flwr run`` included."""
    ours = logging.getLogger("fcfl")
    ours.setLevel(logging.INFO)
    ours.handlers = logging.getLogger("flwr").handlers


@dataclass(frozen=True)
class Opened:
    """A run that is ready to start or to go on."""

    folder: RunFolder
    settings: Settings


def open_run(config: RunConfig, path: Path) -> Opened:
    """Start a run folder, or take up an interrupted run."""
    if config.flag("resume"):
        folder, stored = RunFolder.reopen(path, config)
        settings = settings_of(config, RunTerms.from_bytes(stored).run_id)
        if settings.terms.to_bytes() != stored:
            raise ConfigError(
                "resume: this software calibrates the run differently; resume with the version that began it"
            )
        return Opened(folder, settings)
    settings = settings_of(config, secrets.token_bytes(16))
    return Opened(RunFolder.create(path, config, settings.terms.to_bytes()), settings)


def conduct(grid: Grid, config: RunConfig, path: Path) -> Path:
    """Conduct a whole run over ``grid`` and return the path of its report."""
    run = open_run(config, path)
    began = datetime.now(UTC)
    with RunObserver.open(run.folder, run.settings) as observer:
        strategy = FcflStrategy(run.settings, run.folder.journal, observer)
        result = strategy.start(grid, ArrayRecord({"weights": Array(initial_weights(config))}))
        observer.close(strategy.outcome)
        model = io.BytesIO()
        parts: dict[str, Any] = {
            "weights": run.settings.terms.model.weights(result.arrays["weights"].numpy()),
            **strategy.feature_scale,
        }
        np.savez(model, **parts)
        write_atomic(path / "model.npz", [model.getvalue()])
        run.folder.write_json("summary.json", _summary(run, strategy, observer, began))
    # matplotlib is only needed now that the silos have been served.
    from server_app.report.page import write_report

    return write_report(path)


def _group(run: Opened) -> Mapping[str, float] | None:
    """Epsilon of all samples that one price enters, for a silo that contributed in every epoch (errata E23)."""
    terms, purposes = run.settings.terms, [row["purpose"] for row in run.folder.history()]
    epochs, scalings = purposes.count("train"), purposes.count("scale")
    if terms.unit != "record" or epochs == 0:
        return None
    # Constant noise, or the least that the terms allow: with a loss distribution the noise may not depend on outputs.
    steps = epochs * (terms.steps + terms.backtracks)
    whole = [terms.scaling_noise] * scalings + [terms.gradient_noise] * (epochs if terms.gradient_noise else 0)
    epsilon = epsilon_group(terms.sampling_rate, terms.sigma_min, steps, terms.delta, SAMPLES_PER_BAR, unsampled=whole)
    return {"records": SAMPLES_PER_BAR, "epsilon": epsilon}


def _summary(run: Opened, strategy: FcflStrategy, observer: RunObserver, began: datetime) -> Mapping[str, Any]:
    terms = run.settings.terms
    last = run.folder.history()[-1]
    evaluated = last["purpose"] == "evaluate" and last["validation"] and last["test"]
    count, head = observer.head
    messages = {
        "completed": "All planned rounds were done.",
        "budget exhausted": "The privacy budget ended before the planned rounds; training stopped there.",
    }
    return {
        "run_id": terms.run_id.hex(),
        "outcome": strategy.outcome,
        "message": messages[strategy.outcome],
        "rounds": strategy.rounds_done,
        "epsilon": last["epsilon"],
        "epsilon_target": terms.epsilon,
        "delta": terms.delta,
        "order": terms.order,
        "budget_fraction": last["budget_fraction"],
        "seeded": terms.noise_seed is not None,
        "validation_protected": terms.evaluation is not None,
        "adjacency": terms.adjacency,
        "accountant": terms.accountant,
        "further_budgets": strategy.further_budgets,
        "group": _group(run),
        "evaluation": {"validation": last["validation"], "test": last["test"]} if evaluated else None,
        "silos": len(strategy.records),
        "records_total": sum(strategy.records.values()),
        "secure_aggregation": True,
        "threshold": strategy.threshold,
        "started": began.isoformat(timespec="seconds"),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "software": {name: version(name) for name in ("fcfl", "flwr", "torch", "opacus", "dp-accounting")},
        "ledger": {"entries": count, "head": head},
    }
