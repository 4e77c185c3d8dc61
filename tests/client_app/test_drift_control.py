"""Control variates track each silo's own gradient (E7), on quadratics where everything is known."""

import numpy as np
import pytest

from client_app.drift_control import Control, Pending, change, settle

P, SILOS = 6, 4
RECORDS = (40, 100, 60, 200)


class Quadratics:
    """``F_i(w) = (w - b_i)' A_i (w - b_i) / 2`` with weights ``N_i``."""

    def __init__(self, seed: int = 0) -> None:
        generator = np.random.default_rng(seed)
        roots = generator.normal(size=(SILOS, P, P)) / np.sqrt(P)
        self.curvature = np.array([r @ r.T + 0.3 * np.eye(P) for r in roots])
        self.centre = generator.normal(size=(SILOS, P)) * 3
        self.share = np.array(RECORDS) / sum(RECORDS)

    def gradient(self, i: int, w: np.ndarray) -> np.ndarray:
        return self.curvature[i] @ (w - self.centre[i])

    def optimum(self) -> np.ndarray:
        lhs = np.einsum("i,ijk->jk", self.share, self.curvature)
        rhs = np.einsum("i,ijk,ik->j", self.share, self.curvature, self.centre)
        return np.linalg.solve(lhs, rhs)


def moved(control: Control, epoch: int, gradient: np.ndarray, records: int, xi: float) -> Control:
    return settle(control, epoch, Pending(change(control, gradient, records, xi), 0.0, 0.0))


def test_the_control_converges_to_the_silo_s_own_gradient_and_nothing_else() -> None:
    problem, w = Quadratics(), np.full(P, 0.7)
    for i in range(SILOS):
        own, control = problem.gradient(i, w), Control(np.zeros(P))
        for epoch in range(1, 41):
            control = moved(control, epoch, own, RECORDS[i], 0.3)
            expected = (1 - 0.7**epoch) * own
            np.testing.assert_allclose(control.weighted / RECORDS[i], expected, rtol=1e-10)
        # Half of the drift would stay if the mean corrected direction were tracked instead.
        np.testing.assert_allclose(control.weighted / RECORDS[i], own, rtol=1e-5)


def test_the_silo_s_own_gradient_is_the_fixed_point() -> None:
    own = np.linspace(-2, 3, P)
    np.testing.assert_array_equal(change(Control(100 * own), own, 100, 0.3), np.zeros(P))


def test_full_smoothing_replaces_the_control() -> None:
    own = np.linspace(-2, 3, P)
    control = moved(Control(np.full(P, 17.0)), 1, own, 50, 1.0)
    np.testing.assert_allclose(control.weighted, 50 * own, rtol=1e-12)


def test_no_smoothing_changes_nothing() -> None:
    np.testing.assert_array_equal(change(Control(np.ones(P)), np.full(P, 9.0), 50, 0.0), np.zeros(P))


@pytest.mark.parametrize("steps", [1, 8])
def test_with_controls_local_steps_reach_the_joint_optimum_and_tracking_errors_vanish(steps: int) -> None:
    problem, xi, eta = Quadratics(), 0.5, 0.4 / steps
    optimum = problem.optimum()

    def run(gain: float) -> tuple[np.ndarray, list[Control]]:
        w, controls = np.zeros(P), [Control(np.zeros(P)) for _ in range(SILOS)]
        for epoch in range(1, 401):
            mean = sum(c.weighted for c in controls) / sum(RECORDS)
            deltas, after = [], []
            for i, control in enumerate(controls):
                local, gradients = w.copy(), []
                correction = gain * (mean - control.weighted / RECORDS[i])
                for _ in range(steps):
                    gradients.append(problem.gradient(i, local))
                    local = local - eta * (gradients[-1] + correction)
                deltas.append(local - w)
                after.append(moved(control, epoch, np.mean(gradients, axis=0), RECORDS[i], xi))
            w, controls = w + np.einsum("i,ij->j", problem.share, np.array(deltas)), after
        return w, controls

    w, controls = run(1.0)
    np.testing.assert_allclose(w, optimum, atol=1e-8)
    mean = sum(c.weighted for c in controls) / sum(RECORDS)
    joint = sum(s * problem.gradient(i, w) for i, s in enumerate(problem.share))
    for i, control in enumerate(controls):
        error = (control.weighted / RECORDS[i] - mean) - (problem.gradient(i, w) - joint)
        assert np.linalg.norm(error) < 1e-6
    if steps > 1:
        # Without the correction the same steps end elsewhere: the test can fail.
        assert np.linalg.norm(run(0.0)[0] - optimum) > 1e-2


def test_an_epoch_that_did_not_count_changes_its_number_only() -> None:
    control = Control(np.ones(P), 3, 0.5, 0.25, measured=True)
    after = settle(control, 4, None)
    assert after.settled == 4
    assert (after.drift, after.direction, after.measured) == (0.5, 0.25, True)
    np.testing.assert_array_equal(after.weighted, control.weighted)


def test_a_settled_change_is_added_exactly_and_measured() -> None:
    after = settle(Control(np.ones(P)), 7, Pending(np.full(P, 0.25), 2.0, 3.0))
    assert (after.settled, after.drift, after.direction, after.measured) == (7, 2.0, 3.0, True)
    np.testing.assert_array_equal(after.weighted, np.full(P, 1.25))
