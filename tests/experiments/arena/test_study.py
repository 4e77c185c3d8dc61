"""A study file is read as it says, and what is wrong with it is named by file and key."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.arena.errors import StudyError
from experiments.arena.methods import Method, Range
from experiments.arena.study import find, load, studies

TINY = Path(__file__).parent / "tiny.toml"


def changed(tmp_path: Path, before: str, after: str) -> Path:
    text = TINY.read_text(encoding="utf-8")
    assert before in text
    path = tmp_path / "study.toml"
    path.write_text(text.replace(before, after, 1), encoding="utf-8")
    return path


@pytest.mark.parametrize("path", studies(), ids=lambda path: path.stem)
def test_every_study_that_comes_with_the_software_is_valid(path: Path) -> None:
    study = load(path)
    assert study.methods
    assert find(path.stem) == path


def test_methods_are_overlays_on_the_run_configuration() -> None:
    study = load(TINY)
    fcfl, fedavg, still = study.methods
    config = study.config(study.cases[0], {**fedavg.settings, "local.step-size": 1.0}, seed=5)
    assert config.real("server.momentum") == 0.0
    assert config.real("local.step-size") == 1.0
    assert config.whole("noise-seed") == config.whole("model-seed") == 5
    assert config.whole("rounds") == 3
    assert config.real("dp.epsilon") == 4.0
    assert not config.flag("eval.metrics")
    assert not fcfl.settings
    assert not still.tune


def test_all_tuned_methods_have_the_same_number_of_trials() -> None:
    study = load(TINY)
    assert [len(study.trials(method)) for method in study.methods] == [2, 2, 1]


@pytest.mark.parametrize(
    ("before", "after", "key", "expected"),
    [
        ("trials = 2", "trials = 3", "methods.fcfl.tune", "exactly 3"),
        ('trials = 2\nseed = 3\nsearch = "grid"', "trials = 3\nseed = 3", "methods.fcfl.tune", "at least 3"),
        ("untuned = true", "", "methods.still.untuned", "unequal budget"),
        ("[methods.fcfl.tune]", "[methods.fcfl.tun]", "methods.fcfl", "expected true"),
        ("local.steps = 1", "local.step = 1", "run.local.step", "unknown setting"),
        ("local.steps = 1", "noise-seed = 1", "run.noise-seed", "seeds"),
        ("local.steps = 1", "local.steps = 0", "run", "local.steps: expected at least 1"),
        ("local.steps = 1", "local.steps = [1]", "run.local.steps", "one value"),
        ("local.step-size = [0.1, 1.0]", "local.step-size = [0.1, -1.0]", "methods.fedavg", "above 0"),
        ("local.step-size = [0.1, 1.0]", "local.step-size = [0.1, 0.1]", "methods.fedavg.tune", "different"),
        ("local.step-size = [0.1, 1.0]", "local.step-size = 0.1", "methods.fedavg.tune", "a list"),
        (
            "local.step-size = [0.1, 1.0]",
            "local.step-size = { from = 0.1, to = 1.0 }",
            "methods.fedavg.tune",
            "search",
        ),
        ("seed = 3", "seed = 1", "tuning.seed", "none of the reported seeds"),
        ("seed = 3", "sed = 3", "tuning.sed", "unknown key"),
        ("seeds = [1, 2]", "seeds = [1, 1]", "seeds", "different"),
        ("seeds = [1, 2]", "seeds = []", "seeds", "different"),
        ("epsilons = [4.0]", "epsilons = [0.0]", "privacy.epsilons", "above 0"),
        ("epsilons = [4.0]", "epsilons = [nan]", "privacy.epsilons", "above 0"),
        ("alphas = [1.0]", "alphas = 1.0", "data.alphas", "list"),
        ("silos = 3", "silos = true", "data.silos", "whole number"),
        ("tickers = 9", "tickers = 9\nfolder = 3", "data.folder", "unknown key"),
        ("baseline = true", 'baseline = "yes"', "methods.fedavg.baseline", "true or false"),
        ("paper = { mse = 1.26 }", "paper = { mape = 1.26 }", "methods.fcfl.paper.mape", "mse, mae, da"),
        ('title = "A tiny study"', "title = 3", "title", "text"),
        ('title = "A tiny study"', "title = ", "study.toml", "not TOML"),
    ],
)
def test_what_is_wrong_is_named_by_file_and_key(
    before: str, after: str, key: str, expected: str, tmp_path: Path
) -> None:
    path = changed(tmp_path, before, after)
    with pytest.raises(StudyError) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert key in message
    assert expected in message


def test_a_study_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"nothing: no such study; expected one of .*table2"):
        find("nothing")
    with pytest.raises(StudyError, match="cannot be read"):
        load(tmp_path / "missing.toml")


def method(**tune: object) -> Method:
    return Method("m", "m", {"rounds": 2}, tune, baseline=False)  # type: ignore[arg-type]


@given(st.integers(1, 12), st.integers(0, 2**20))
def test_random_trials_of_lists_are_different_and_repeat_with_their_seed(number: int, seed: int) -> None:
    made = method(a=(1, 2, 3), b=(True, False), c=("x", "y"))
    trials = made.trials(number, "random", seed)
    assert len({str(trial) for trial in trials}) == number
    assert trials == made.trials(number, "random", seed)
    assert all(trial["rounds"] == 2 and trial["a"] in (1, 2, 3) for trial in trials)


@given(st.floats(1e-6, 1e3), st.floats(1.001, 1e3), st.integers(0, 2**20))
def test_draws_of_a_range_lie_within_it(low: float, ratio: float, seed: int) -> None:
    trials = method(a=Range(low, low * ratio, logarithmic=True)).trials(5, "random", seed)
    assert all(low * 0.995 <= trial["a"] <= low * ratio * 1.005 for trial in trials)


def test_a_grid_is_tried_whole() -> None:
    trials = method(a=(1, 2), b=(3, 4)).trials(4, "grid", 0)
    assert {(trial["a"], trial["b"]) for trial in trials} == {(1, 3), (1, 4), (2, 3), (2, 4)}
