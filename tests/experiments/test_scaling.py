"""The scaling study spends one budget, compares like with like, and says plainly what came out."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from data_prep.features.table import FEATURES, N_FEATURES
from data_prep.prepare import prepare_synthetic
from data_prep.shards import open_shard
from data_prep.spec import FederationSpec
from experiments.scaling import __main__ as command
from experiments.scaling.__main__ import Arm, compare, conclusion
from experiments.scaling.study import (
    BOUND,
    CLIP,
    Noise,
    Score,
    Setting,
    Silo,
    leaking_scale,
    private_scale,
    score,
    split_budget,
    train,
)
from privacy.accounting import order_budget
from privacy.calibration import calibrate
from privacy.filter import RenyiFilter
from privacy.mlp import Mlp
from privacy.plan import MechanismPlan
from privacy.scaling import contributions

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def silos(tmp_path_factory: pytest.TempPathFactory) -> list[Silo]:
    out = tmp_path_factory.mktemp("federation")
    paths = prepare_synthetic(out, FederationSpec(silos=2, min_samples=500), tickers=6)
    return [Silo.of(open_shard(path), np.ones(N_FEATURES, dtype=np.float32)) for path in paths]


def test_without_a_scaler_all_of_the_budget_goes_into_training() -> None:
    setting = Setting()
    found = split_budget(setting, 0.0)
    planned = calibrate(setting.epsilon, setting.delta, setting.sampling_rate, setting.steps, setting.rounds)
    assert found.scaling is None
    assert found.training == pytest.approx(planned.noise_multiplier, rel=1e-3)


@pytest.mark.parametrize("share", [0.02, 0.1, 0.5])
def test_scaling_and_training_together_are_what_one_filter_admits(share: float) -> None:
    setting = Setting()
    noise = split_budget(setting, share)
    assert noise.scaling is not None
    budget = order_budget(noise.order, setting.epsilon, setting.delta, "improved")
    scaling = MechanismPlan(1.0, CLIP, noise.scaling, 1, 1000)
    training = MechanismPlan(setting.sampling_rate, setting.clip_norm, noise.training, setting.steps, 1000)
    assert scaling.rdp(noise.order) == pytest.approx(share * budget)
    filter_ = RenyiFilter(noise.order, budget)
    for plan in (scaling, *[training] * setting.rounds):
        filter_ = filter_.charge(plan.rdp(noise.order))
    assert not filter_.admits(training.rdp(noise.order))
    assert filter_.spent > 0.999 * budget, "nothing is wasted either"


def test_a_private_scale_comes_close_to_the_leaking_one(silos: list[Silo]) -> None:
    private, exact = private_scale(silos, 5.0, 1), leaking_scale(silos)
    assert np.abs(np.subtract(private.mean, exact.mean)).max() < 0.1
    assert np.abs(np.subtract(private.scale, exact.scale)).max() < 0.35
    pooled = np.concatenate([silo.train.features for silo in silos]).astype(np.float64)
    np.testing.assert_allclose(exact.mean, pooled.mean(0), atol=1e-9)
    np.testing.assert_allclose(exact.scale, np.maximum(pooled.std(0), 0.1), atol=1e-6)


def test_every_feature_has_the_public_range_and_few_records_are_clipped(silos: list[Silo]) -> None:
    assert {feature.clip for feature in FEATURES} == {BOUND}
    lengths = np.linalg.norm(contributions(silos[0].train.features, BOUND, 100.0), axis=1)
    assert (lengths > CLIP).mean() < 0.02


def test_training_learns_and_equal_seeds_give_equal_weights(silos: list[Silo]) -> None:
    setting = Setting(rounds=4, model=Mlp(N_FEATURES, (16,)))
    first, again = (train(setting, silos, 0.5, 1.0, 3) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    zero = score(setting.model, setting.model.initial_parameters(3).astype(np.float64), silos, "train")
    assert zero.skill == pytest.approx(0.0, abs=1e-9), "the run begins at the zero forecast"
    assert score(setting.model, first, silos, "train").skill > 0.1


def made(name: str, *skills: float) -> Arm:
    return Arm(name, Noise(16.0, None, 3.0), 1.0, {1.0: 0.1}, [Score(1e-4, skill) for skill in skills])


def test_the_words_follow_the_numbers() -> None:
    public = made("public", 0.50, 0.60, 0.55)
    for shift, verdict, words in ((0.1, "better", "won"), (-0.1, "worse", "public scaling won")):
        rival = made("private, 5%", *(skill + shift for skill in public.skills))
        assert compare(rival, public)[2] == verdict
        assert words in conclusion("x", [public, rival, made("exact (leaks)", 1.0, 1.0, 1.0)])
    alike = made("private, 5%", 0.55, 0.55, 0.56)
    assert compare(alike, public)[2] == "within"
    assert "no clear winner" in conclusion("x", [public, alike])


def test_the_command_prints_a_table_and_writes_figure_and_json(tmp_path: Path) -> None:
    shown = io.StringIO()
    small = ["--tickers", "6", "--silos", "2", "--rounds", "1", "--seeds", "2", "--hidden", "8", "--constants", "both"]
    command.main([*small, "--out", str(tmp_path)], Console(file=shown, width=80))
    text = shown.getvalue()
    assert {path.name for path in tmp_path.iterdir()} == {"scaling.json", "scaling.svg", "scaling.png"}
    document = json.loads((tmp_path / "scaling.json").read_text(encoding="utf-8"))
    for title, arms in document["parts"].items():
        assert title in text
        assert [arm["name"] for arm in arms] == [
            "public",
            "private, 2%",
            "private, 5%",
            "private, 10%",
            "exact (leaks)",
        ]
        assert all(len(arm["test"]) == 2 for arm in arms)
    assert len(document["parts"]) == len(document["conclusions"]) == 2
    assert all(line in text for line in document["conclusions"])
    with pytest.raises(SystemExit):
        command.main(["--seeds", "1"])
