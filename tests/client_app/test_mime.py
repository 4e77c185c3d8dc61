"""MIME at the silo: the server's momentum in its steps, and its gradient of all records in the sum."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import client_app.local_training
from privacy.dpsgd import clipped_sum
from privacy.mlp import Mlp
from tests.client_app.federation import HIDDEN, N_FEATURES, Desk, Small

MakeDesk = Callable[..., Desk]


def test_the_steps_hold_the_momentum_that_was_sent_and_no_control(
    desk: MakeDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = desk(**{"method": "mime", "server.momentum": 0.75})
    moment = np.linspace(-1, 1, len(made.state.server.weights))
    made.state = replace(made.state, server=replace(made.state.server, first_moment=moment))
    train, seen = client_app.local_training.train_locally, []

    def watched(*args: Any) -> object:
        seen.append(args[6])
        return train(*args)

    monkeypatch.setattr(client_app.local_training, "train_locally", watched)
    asked = made.ask(1)
    made.contribute(asked, "silo-00")
    np.testing.assert_allclose(seen[0], 0.75 * moment, rtol=1e-6)


def test_the_sum_holds_the_clipped_gradient_of_all_records_with_its_noise(desk: MakeDesk, tmp_path: Path) -> None:
    """At a generous epsilon the gradient shows through; what is left is noise of the deviation that is charged."""
    small = Small.make(tmp_path / "generous", 3, records=[400, 500, 600], epsilon=400.0, min_noise_multiplier=0.1)
    made = desk(small=small, **{"method": "mime", "dp.epsilon": 400.0, "rounds": 1})
    draw = np.random.default_rng(1)
    weights = made.state.server.weights + 0.1 * draw.normal(size=len(made.state.server.weights))
    made.state = replace(made.state, server=replace(made.state.server, weights=weights))
    asked = made.ask(1)
    sums = made.sum_of(asked, {name: made.contribute(asked, name) for name in small.homes})
    model, point = Mlp(N_FEATURES, HIDDEN), torch.from_numpy(asked.arrays["point"])
    total = np.zeros(model.size)
    for name in small.homes:
        train = made.silo(name).sample.shard.train
        rows = np.arange(len(train.targets))
        total += clipped_sum(model, point, train.features, train.targets, rows, made.settings.terms.clip_norm)[0]
    assert sums["weight"][0] == 1500, "everybody takes part with p = 1"
    noise = np.sqrt(3) * made.settings.terms.gradient_noise * made.settings.terms.clip_norm
    assert np.std(total) > 3 * noise, "the gradient is large enough to be seen"
    assert float(np.std(sums["gradient"] - total)) == pytest.approx(noise, rel=0.2)
