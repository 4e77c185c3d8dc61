"""A federation of quadratics: the real rounds, local steps, controls and server step, without files and messages.

Silo i has ``F_i(w) = (w - b_i)' A_i (w - b_i) / 2`` and records that all have its gradient, so that a round without
noise is deterministic and everything the theory speaks of is known.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from client_app.drift_control import Control, Pending, change, noise_energy_after, settle
from client_app.local_training import LocalUpdate, step_size, train_locally
from fcfl_strategy import rounds
from fcfl_strategy.rounds import Facts, RunState
from fcfl_strategy.schedule import NoiseSchedule
from fcfl_strategy.server_rule import ServerRule
from fcfl_strategy.settings import Settings
from privacy.model import ClippedSum
from privacy.plan import MechanismPlan
from privacy.randomness import RandomStream
from privacy.release import ReleasePlan
from tests.fcfl_strategy.made import make_settings, make_terms

Vector = np.ndarray[Any, np.dtype[np.float64]]
CLIP = 1e4
QUIET = 1e-9


@dataclass(frozen=True)
class Silo:
    """One silo's objective, a `privacy.model.PerExampleModel` whose records all have the same gradient."""

    curvature: Vector
    centre: Vector
    records: int

    @property
    def size(self) -> int:
        return len(self.centre)

    def gradient(self, w: Vector) -> Vector:
        return self.curvature @ (w - self.centre)

    def predict(self, params: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def clipped_gradient_sum(
        self, params: torch.Tensor, features: torch.Tensor, targets: torch.Tensor, clip_norm: float
    ) -> ClippedSum:
        one = self.gradient(params.double().numpy())
        return ClippedSum(torch.from_numpy(len(features) * one).float(), 0)


@dataclass(frozen=True)
class Problem:
    """The silos and the objective ``F = sum_i N_i F_i / sum_i N_i``."""

    silos: tuple[Silo, ...]

    @classmethod
    def random(
        cls, condition: float, heterogeneity: float, *, size: int = 8, silos: int = 6, seed: int = 0
    ) -> "Problem":
        """Curvatures around a common one with eigenvalues from 1 / condition to 1 in a random basis."""
        draw = np.random.default_rng(seed)
        basis, _ = np.linalg.qr(draw.normal(size=(size, size)))
        eigenvalues = np.geomspace(1 / condition, 1.0, size)
        records = (20, 60, 30, 80, 40, 50, 70, 25, 35, 90)
        common = draw.normal(size=size)
        made = []
        for i in range(silos):
            factors = np.exp(0.5 * draw.uniform(-1, 1, size=size))
            curvature = (basis * (eigenvalues * factors)) @ basis.T
            made.append(Silo(curvature, common + heterogeneity * draw.normal(size=size), records[i % len(records)]))
        return cls(tuple(made))

    @property
    def shares(self) -> Vector:
        counts = np.array([silo.records for silo in self.silos], dtype=float)
        return counts / counts.sum()

    @property
    def curvature(self) -> Vector:
        return np.einsum("i,ijk->jk", self.shares, np.array([silo.curvature for silo in self.silos]))

    @property
    def optimum(self) -> Vector:
        pulls = np.array([silo.curvature @ silo.centre for silo in self.silos])
        found: Vector = np.linalg.solve(self.curvature, self.shares @ pulls)
        return found

    def gradients(self, w: Vector) -> Vector:
        return np.array([silo.gradient(w) for silo in self.silos])

    def gradient(self, w: Vector) -> Vector:
        found: Vector = self.shares @ self.gradients(w)
        return found

    def excess(self, w: Vector) -> float:
        """``F(w) - F(w*)``."""
        away = w - self.optimum
        return float(away @ self.curvature @ away) / 2

    def dispersion(self, w: Vector) -> float:
        """``sum_i p_i ||grad F_i - grad F||^2``."""
        away = self.gradients(w) - self.gradient(w)
        return float(self.shares @ np.sum(away**2, axis=1))

    def tracking_errors(self, controls: Sequence[Control], w: Vector) -> Vector:
        """``e_i = (c_i - c) - (grad F_i - grad F)``, one row for each silo (errata E7)."""
        own = np.array([c.weighted / s.records for c, s in zip(controls, self.silos, strict=True)])
        return (own - self.shares @ own) - (self.gradients(w) - self.gradient(w))


def settings_for(rule: ServerRule, eta: float, *, steps: int = 1, sigma: float = QUIET, **changes: Any) -> Settings:
    """Every record in every step, and noise of deviation ``sigma`` on the sum of a silo's gradients."""
    terms = make_terms(
        sampling_rate=1.0, clip_norm=CLIP, sigma_min=sigma / CLIP, sigma_max=sigma / CLIP, steps=steps, metrics=False
    )
    plain = {"drift_budget": 0.0, "control_smoothing": 0.0, "control_gain": 0.0, "rounds": 100_000}
    schedule = NoiseSchedule("constant", sigma / CLIP, sigma / CLIP, sigma / CLIP)
    return make_settings(terms, rule=rule, step_size=eta, schedule=schedule, **(plain | changes))


@dataclass(frozen=True)
class Run:
    """A run between two rounds."""

    problem: Problem
    settings: Settings
    state: RunState
    controls: tuple[Control, ...]

    @classmethod
    def start(cls, problem: Problem, settings: Settings, weights: Vector | None = None) -> "Run":
        size = problem.silos[0].size
        state = rounds.first_state(settings, np.zeros(size, np.float32), cls.counts(problem))
        if weights is not None:
            state = replace(state, server=settings.rule.init(weights))
        return cls(problem, settings, state, tuple(Control(np.zeros(size)) for _ in problem.silos))

    @staticmethod
    def counts(problem: Problem) -> Mapping[str, int]:
        return {f"silo-{i}": silo.records for i, silo in enumerate(problem.silos)}

    @property
    def weights(self) -> Vector:
        return self.state.server.weights

    @property
    def excess(self) -> float:
        return self.problem.excess(self.weights)

    def plan(self) -> ReleasePlan:
        return rounds.plan_training(self.settings, self.state, self.counts(self.problem))

    def local(self, i: int, plan: ReleasePlan, seed: int = 0) -> tuple[LocalUpdate, Vector]:
        """One silo's steps, and its ``c - c_i``."""
        silo, control = self.problem.silos[i], self.controls[i]
        point, mean = rounds.broadcast(self.settings, self.state, self.counts(self.problem))
        difference = mean - control.weighted / silo.records
        mechanism = MechanismPlan(plan.sampling_rate, plan.clip_norm, plan.noise_multiplier, plan.steps, silo.records)
        rows = np.zeros((silo.records, 1), np.float32), np.zeros(silo.records, np.float32)
        correction = (plan.control_gain * difference).astype(np.float32)
        eta = step_size(plan, mechanism, control.direction)
        stream = RandomStream.seeded(seed, i)
        return train_locally(silo, *rows, plan, mechanism, point, correction, eta, stream), difference

    def round(self, seed: int = 0, contributors: Sequence[int] | None = None) -> tuple["Run", Facts]:
        """One whole round of these contributors (all by default), each with the weight of its records."""
        plan, xi = self.plan(), self.settings.control_smoothing
        controls, sums = list(self.controls), dict[str, Any]()
        chosen = range(len(controls)) if contributors is None else contributors
        for i in chosen:
            update, difference = self.local(i, plan, seed)
            silo, control = self.problem.silos[i], controls[i]
            sent = change(control, update.mean_gradient, silo.records, xi)
            noise = noise_energy_after(control, update.gradient_noise, xi)
            pending = Pending(sent, update.drift, update.direction, noise_energy=noise)
            controls[i] = settle(control, self.state.rounds + 1, pending)
            weight = float(silo.records)
            values: dict[str, Any] = {
                "update": weight * update.delta,
                "control": sent,
                "weight": weight,
                "squared_norm": weight * float(update.delta @ update.delta),
                "noise_energy": weight * update.noise_energy,
                "weighted_noise_energy": weight**2 * update.noise_energy,
                "control_spread": weight * float(difference @ difference),
                "control_noise": weight * control.noise_energy,
                "score": weight,
                "contributors": 1.0,
            }
            sums = {name: sums.get(name, 0.0) + value for name, value in values.items()}
        given = {name: np.atleast_1d(value) for name, value in sums.items()}
        state, facts = rounds.absorb(self.settings, self.state, plan, given)
        return replace(self, state=state, controls=tuple(controls)), facts

    def many(self, count: int, seed: int = 0) -> "Run":
        run = self
        for number in range(count):
            run, _ = run.round(seed * 1_000_003 + number)
        return run
