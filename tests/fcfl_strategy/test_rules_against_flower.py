"""Server steps without noise against Flower's own strategies, model by model, over several rounds."""

from collections.abc import Iterator

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedYogi
from flwr.supercore.task_identity import TaskIdentity

from fcfl_strategy.adaptive import Adaptive
from fcfl_strategy.fedavg import Averaging
from fcfl_strategy.server_rule import ServerRule, init

SIZES = (40, 1000, 333)
P, ROUNDS = 7, 6


@pytest.fixture(autouse=True)
def task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages can only be made inside a task."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def replies(models: list[np.ndarray]) -> Iterator[Message]:
    for node, (model, size) in enumerate(zip(models, SIZES, strict=True), start=10):
        asked = Message(RecordDict(), node, "train")
        content = {"arrays": ArrayRecord({"w": Array(model)}), "metrics": MetricRecord({"num-examples": size})}
        yield Message(RecordDict(content), reply_to=asked)


def run_both(flower: FedAvg, rule: ServerRule, factors: list[float]) -> None:
    """Give both the same silo models for some rounds; ``factors`` scale Flower's step relative to ours."""
    draw = np.random.default_rng(5)
    weights = draw.normal(size=P)
    # FedAdam and FedYogi of Flower start from moments of zero; ours start at tau^2, as their source has it.
    state = init(weights)
    theirs = weights
    for number in range(1, ROUNDS + 1):
        updates = [draw.normal(size=P) * 0.1 for _ in SIZES]
        if isinstance(flower, FedAvgM):
            flower.current_arrays = ArrayRecord({"w": Array(theirs)})
        elif hasattr(flower, "current_arrays"):
            flower.current_arrays = {"w": theirs}
        arrays, _ = flower.aggregate_train(number, replies([theirs + u for u in updates]))
        assert arrays is not None
        moved = arrays["w"].numpy() - theirs
        mean = sum(n * u for n, u in zip(SIZES, updates, strict=True)) / sum(SIZES)
        after = rule.update(state, mean)
        np.testing.assert_allclose(moved, factors[number - 1] * (after.weights - state.weights), rtol=1e-6, atol=1e-12)
        state, theirs = after, theirs + moved


def test_fedavg_takes_flower_s_step() -> None:
    run_both(FedAvg(), Averaging(), [1.0] * ROUNDS)


@pytest.mark.parametrize(("rate", "momentum"), [(1.0, 0.9), (0.3, 0.5), (0.7, 0.0)])
def test_fedavgm_takes_flower_s_step(rate: float, momentum: float) -> None:
    flower = FedAvgM(server_learning_rate=rate, server_momentum=momentum)
    run_both(flower, Averaging(rate, momentum), [1.0] * ROUNDS)


@pytest.mark.parametrize("tau", [1e-3, 0.5])
def test_fedyogi_takes_flower_s_step(tau: float) -> None:
    rule = Adaptive("yogi", step_size=0.02, momentum=0.8, second_moment=0.95, adaptivity=tau)
    run_both(FedYogi(eta=0.02, beta_1=0.8, beta_2=0.95, tau=tau), rule, [1.0] * ROUNDS)


@pytest.mark.parametrize("tau", [1e-3, 0.5])
def test_fedadam_takes_flower_s_step_but_for_flower_s_bias_correction(tau: float) -> None:
    """Flower scales the step by sqrt(1 - beta_2^(k+1)) / (1 - beta_1^(k+1)), the source does not."""
    rule = Adaptive("adam", step_size=0.02, momentum=0.8, second_moment=0.95, adaptivity=tau)
    factors = [np.sqrt(1 - 0.95 ** (k + 1)) / (1 - 0.8 ** (k + 1)) for k in range(1, ROUNDS + 1)]
    run_both(FedAdam(eta=0.02, beta_1=0.8, beta_2=0.95, tau=tau), rule, factors)
