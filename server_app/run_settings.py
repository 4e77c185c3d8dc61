"""From a validated configuration to what the strategy needs: calibrate the noise, fix the terms."""

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fcfl_strategy.schedule import NoiseSchedule, planned_shape
from fcfl_strategy.server_update import Preconditioner, ServerUpdate
from fcfl_strategy.settings import Deadlines, Settings
from privacy.calibration import Calibration, calibrate
from privacy.mlp import FEATURES, HIDDEN, Mlp
from privacy.records import RECORD_ADJACENCY, SILO_REPLACE_ADJACENCY, SILO_ZERO_ADJACENCY
from privacy.terms import Allowance, RunTerms
from secagg.errors import RosterFileError
from secagg.graph_parameters import Rates
from secagg.pins import PinnedRoster
from server_app.config import ConfigError, RunConfig


def initial_weights(config: RunConfig) -> NDArray[np.float32]:
    """Public initial model: seeded, output layer zero, so that the run begins at the zero forecast."""
    return Mlp(FEATURES, HIDDEN).initial_parameters(config.whole("model-seed"))


def settings_of(config: RunConfig, run_id: bytes) -> Settings:
    """Calibrate and assemble.

    Raises
    ------
    privacy.errors.PrivacyError
        If the budget is too small for even one round, or a privacy setting is out of range.
    """
    plan = config.whole("rounds"), config.text("dp.schedule")
    contributions = config.whole("dp.contributions") or plan[0]
    accountant, unit = config.text("dp.accountant"), config.text("dp.unit")
    silo = unit == "silo"
    calibration = calibrate(
        epsilon=config.real("dp.epsilon"),
        delta=config.real("dp.delta"),
        sampling_rate=1.0 if silo else config.real("dp.sampling-rate"),
        steps=1 if silo else config.whole("local.steps") + config.whole("local.backtracks"),
        contributions=contributions,
        shape=planned_shape(plan[1], plan[0]),
        sigma_min=config.real("dp.sigma-min"),
        sigma_max=config.real("dp.sigma-max"),
        conversion="paper" if accountant == "paper" else "improved",
        accountant="pld" if accountant == "pld" else "rdp",
        reserved=config.real("dp.scaling-share"),
    )
    constant = plan[1] == "constant"
    lowest = calibration.schedule[0] if constant else config.real("dp.sigma-min")
    highest = calibration.schedule[0] if constant else config.real("dp.sigma-max")
    seed = config.whole("noise-seed")
    terms = RunTerms(
        run_id=run_id,
        epsilon=config.real("dp.epsilon"),
        delta=config.real("dp.delta"),
        order=calibration.order,
        rdp_budget=calibration.rdp_budget,
        adjacency=_adjacency(config),
        accountant=calibration.accountant,
        conversion=calibration.conversion,
        contributions=contributions if calibration.accountant == "pld" else 0,
        variance_scale=config.real("dp.variance-scale"),
        sampling_rate=config.real("dp.sampling-rate"),
        clip_norm=config.real("dp.clip-norm"),
        sigma_min=lowest,
        sigma_max=highest,
        steps=config.whole("local.steps"),
        cohort=config.real("participation.cohort"),
        min_probability=config.real("participation.min-probability"),
        features=FEATURES,
        hidden=HIDDEN,
        noise_seed=seed if seed >= 0 else None,
        metrics=config.flag("eval.metrics"),
        scaling_noise=_scaling_noise(calibration, config.real("dp.scaling-share")),
        evaluation=_evaluation(config),
        metric_bound=config.real("eval.loss-bound") if config.real("eval.epsilon") else 0.0,
        backtracks=config.whole("local.backtracks"),
        loss_bound=config.real("local.loss-bound") if config.whole("local.backtracks") else 0.0,
        config_hash=bytes.fromhex(config.hash),
    )
    return Settings(
        terms=terms,
        rounds=plan[0],
        contributions=contributions,
        update=_update(config),
        schedule=NoiseSchedule(
            "constant" if constant else "divergence",
            calibration.noise_multiplier,
            lowest,
            highest,
            config.real("dp.sensitivity"),
        ),
        step_size=config.real("local.step-size"),
        drift_budget=config.real("local.drift-budget"),
        proximal=config.real("local.proximal"),
        proximal_max=config.real("local.proximal-max"),
        control_smoothing=config.real("drift.smoothing"),
        control_gain=config.real("drift.gain"),
        drift_penalty=config.real("participation.drift-penalty"),
        silos=config.whole("silos"),
        colluders=config.whole("secagg.colluders"),
        max_abandoned=config.whole("max-abandoned"),
        evaluate_every=config.whole("eval.every"),
        evaluate=config.flag("eval.final"),
        deadlines=Deadlines(
            config.real("deadline.enrol"),
            config.real("deadline.train"),
            config.real("deadline.unmask"),
            config.real("deadline.poll"),
        ),
        graph=config.text("secagg.graph"),
        rates=Rates(config.real("secagg.corruption"), config.real("secagg.dropout"), config.flag("secagg.active")),
        pins=_pins(config.text("roster-file")),
    )


def _pins(path: str) -> PinnedRoster | None:
    """Read the roster that limits who may enrol; what is wrong with it is named before the run starts."""
    if not path:
        return None
    try:
        return PinnedRoster.parse(Path(path).read_bytes().decode(), path)
    except OSError as error:
        raise ConfigError(f"roster-file: {path}: cannot be read ({error.strerror}); see 'fcfl roster'") from None
    except (UnicodeDecodeError, RosterFileError) as error:
        raise ConfigError(f"roster-file: {error}") from None


def _adjacency(config: RunConfig) -> str:
    if config.text("dp.unit") == "record":
        return RECORD_ADJACENCY
    return SILO_ZERO_ADJACENCY if config.text("dp.neighbour") == "zero" else SILO_REPLACE_ADJACENCY


def _scaling_noise(calibration: Calibration, share: float) -> float:
    """Noise of one release of all records that costs a share of the Renyi budget: order / (2 sigma^2)."""
    if share == 0:
        return 0.0
    # The last digits make sure that both parts fit the filter, which adds up.
    return math.sqrt(calibration.order / (2 * share * calibration.rdp_budget)) * (1 + 1e-9)


def _evaluation(config: RunConfig) -> Allowance | None:
    """Budget of the noised metrics: one release of all records for every validation, and for the final evaluation."""
    if config.real("eval.epsilon") == 0:
        return None
    times = config.whole("rounds") // config.whole("eval.every") + config.flag("eval.final")
    if times == 0:
        raise ConfigError("eval.every: no validation falls into the run; lower it, or set eval.epsilon to 0")
    found = calibrate(
        epsilon=config.real("eval.epsilon"),
        delta=config.real("dp.delta"),
        sampling_rate=1.0,
        steps=1,
        contributions=times,
        sigma_min=1e-3,
        sigma_max=1e6,
    )
    return Allowance(config.real("eval.epsilon"), found.order, found.rdp_budget, found.noise_multiplier)


def _update(config: RunConfig) -> ServerUpdate:
    preconditioners: dict[str, Preconditioner] = {"none": "none", "normalised": "normalised", "raw": "raw"}
    return ServerUpdate(
        momentum=config.real("server.momentum"),
        second_moment=config.real("server.second-moment"),
        step_size=config.real("server.step-size"),
        lookahead=config.real("server.lookahead"),
        interpolation=config.real("server.interpolation"),
        bias_correction=config.flag("server.bias-correction"),
        preconditioner=preconditioners[config.text("server.preconditioner")],
        noise_corrected=config.flag("server.noise-corrected"),
        jitter=config.real("server.jitter"),
        trust_region=config.real("server.trust-region"),
    )


def network() -> Mlp:
    """Return the network of every run, in its plain coordinates."""
    return Mlp(FEATURES, HIDDEN)
