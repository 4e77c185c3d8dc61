"""From a validated configuration to what the strategy needs: calibrate the noise, fix the terms."""

import numpy as np
from numpy.typing import NDArray

from fcfl_strategy.schedule import NoiseSchedule, planned_shape
from fcfl_strategy.server_update import Preconditioner, ServerUpdate
from fcfl_strategy.settings import Deadlines, Settings
from privacy.calibration import calibrate
from privacy.mlp import FEATURES, HIDDEN, Mlp
from privacy.release import RunTerms
from server_app.config import RunConfig


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
    calibration = calibrate(
        epsilon=config.real("dp.epsilon"),
        delta=config.real("dp.delta"),
        sampling_rate=config.real("dp.sampling-rate"),
        steps=config.whole("local.steps"),
        contributions=contributions,
        shape=planned_shape(plan[1], plan[0]),
        sigma_min=config.real("dp.sigma-min"),
        sigma_max=config.real("dp.sigma-max"),
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
        unit=config.text("dp.unit"),
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
        evaluate=config.flag("eval.final"),
        deadlines=Deadlines(
            config.real("deadline.enrol"),
            config.real("deadline.train"),
            config.real("deadline.unmask"),
            config.real("deadline.poll"),
        ),
    )


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
