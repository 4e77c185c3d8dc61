"""A whole study: tuned on validation, reported on test, done once, shown from its results alone."""

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from experiments.arena import cli as arena_cli
from experiments.arena import pool, runs
from experiments.arena.conduct import _score, conduct, results_path
from experiments.arena.errors import StudyError
from experiments.arena.figures import render, skill_by_round
from experiments.arena.markets import Data
from experiments.arena.references import References
from experiments.arena.results import Results
from experiments.arena.runs import Run, weights_of
from experiments.arena.study import Study, load
from experiments.arena.tables import contenders, sheets
from tests.client_app import federation

TINY = Path(__file__).parent / "tiny.toml"
QUIET = Console(file=io.StringIO())


@pytest.fixture(autouse=True)
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    federation.make_light(monkeypatch)


@pytest.fixture(scope="module")
def study() -> Study:
    return load(TINY)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, study: Study) -> Path:
    folder = tmp_path_factory.mktemp("arena")
    with pytest.MonkeyPatch.context() as patch:
        federation.make_light(patch)
        conduct(study, folder, 1, QUIET)
    return folder


@pytest.fixture
def rows(root: Path) -> pd.DataFrame:
    return Results.read(results_path(root, "tiny")).rows


def test_tuning_never_sees_test_and_reports_see_every_round(rows: pd.DataFrame, study: Study) -> None:
    assert set(rows[rows.role == "tuning"].split) == {"validation"}
    reported = rows[rows.role == "report"]
    for _, run in reported.groupby(["method", "seed", "split", "weights"]):
        assert sorted(run["round"]) == [0, 1, 2, 3]
    assert set(reported.seed) == set(study.seeds)
    assert set(rows[rows.role == "tuning"].seed) == {study.tuning.seed}


def test_what_is_reported_are_the_settings_with_the_least_validation_error(rows: pd.DataFrame) -> None:
    for method in ("fcfl", "fedavg"):
        last = rows[(rows.role == "tuning") & (rows.method == method) & (rows["round"] == 3)]
        served = last[last.weights == "served"]
        best = served.loc[served.mse.idxmin()]
        assert best.chosen
        assert served.chosen.sum() == 1
        assert set(rows[(rows.role == "report") & (rows.method == method)].settings) == {best.settings}


def test_the_run_starts_at_the_zero_forecast_and_a_step_of_nothing_stays_there(rows: pd.DataFrame) -> None:
    start = rows[(rows["round"] == 0)]
    assert (start.mse == start.mse_zero).all()
    still = rows[(rows.method == "still") & (rows.split == "test")]
    assert still.mse.to_list() == pytest.approx(still.mse_zero.to_list(), rel=1e-6)


def test_references_are_ordered_as_they_must_be(rows: pd.DataFrame) -> None:
    errors = rows[(rows.role == "reference") & (rows.split == "validation")].set_index("method").mse
    assert errors["optimal"] < errors["central"] == min(errors["ridge"], errors["network"])
    assert errors["zero"] == rows[rows.split == "validation"].mse_zero.iloc[0]
    assert errors["ridge"] < errors["zero"]


def test_a_study_that_is_run_again_does_nothing_again(
    root: Path, study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = results_path(root, "tiny")
    before = path.read_bytes()
    path.unlink()

    def refuse(self: Any) -> Any:
        raise AssertionError("done before")

    monkeypatch.setattr(runs.Run, "do", refuse)
    monkeypatch.setattr(References, "do", refuse)
    assert conduct(study, root, 1, QUIET).read_bytes() == before


def test_an_interrupted_study_keeps_what_is_finished_and_ends_with_the_same_results(
    root: Path, study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(root / "data", tmp_path / "data")
    done, work = [], Run.do

    def interrupted(self: Run) -> dict[str, Any]:
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(self.key)
        return work(self)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "do", interrupted)
        with pytest.raises(KeyboardInterrupt):
            conduct(study, tmp_path, 1, QUIET)
    assert all((tmp_path / f"{key}.json").is_file() for key in done)
    again: list[str] = []

    def counted(self: Run) -> dict[str, Any]:
        again.append(self.key)
        return work(self)

    monkeypatch.setattr(Run, "do", counted)
    conduct(study, tmp_path, 1, QUIET)
    assert not set(again) & set(done)
    seconds = ["seconds", "cpu_seconds"]
    one, other = (Results.read(results_path(folder, "tiny")).rows.drop(columns=seconds) for folder in (root, tmp_path))
    pd.testing.assert_frame_equal(one, other)


def test_half_a_result_is_not_taken_for_one(root: Path, study: Study, tmp_path: Path) -> None:
    copied = tmp_path / "copy"
    shutil.copytree(root, copied)
    path = sorted(copied.glob("*.json"))[0]
    whole = json.loads(path.read_text())
    path.write_text(path.read_text()[:-20])
    conduct(study, copied, 1, QUIET)
    again = json.loads(path.read_text())
    assert again["of"] == whole["of"]
    assert again["result"].get("rounds") == whole["result"].get("rounds")


def test_everything_that_decides_a_result_is_in_its_key(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    data = Data(Path("somewhere"), "abc")
    run = Run(study.config(study.cases[0], {}, 1), data, ("validation",))
    others = [
        replace(run, config=study.config(study.cases[0], {}, 2)),
        replace(run, config=study.config(study.cases[0], {"local.step-size": 0.25}, 1)),
        replace(run, data=Data(Path("somewhere"), "abd")),
        replace(run, splits=("validation", "test")),
    ]
    assert len({run.key, *(other.key for other in others)}) == 5
    assert replace(run, data=Data(Path("elsewhere"), "abc")).key == run.key
    monkeypatch.setattr("experiments.arena.cache.CODE_VERSION", 10**6)
    assert replace(run).key != run.key


def test_tables_and_figure_need_the_results_only(root: Path, tmp_path: Path) -> None:
    alone = tmp_path / "tiny.parquet"
    shutil.copy(results_path(root, "tiny"), alone)
    results = Results.read(alone)
    (sheet,) = sheets(results)
    text = sheet.markdown()
    for shown in (
        "FCFL",
        "FedAvg",
        "zero forecast",
        "pooled ridge",
        "not tuned",
        "nothing hidden",
        "paper MSE",
        "1.26",
    ):
        assert shown in text
    assert all(len(row) == len(sheet.head) for row in sheet.rows)
    assert render(skill_by_round(results), "svg").startswith(b"<?xml")


def test_skill_and_rounds_are_those_of_the_curve(rows: pd.DataFrame) -> None:
    reported = rows.copy()
    curve = (reported.role == "report") & (reported.method == "fcfl") & (reported.split == "test")
    reported.loc[curve, "mse"] = reported.loc[curve, "round"].map({0: 4.0, 1: 3.0, 2: 2.5, 3: 2.9})
    for name, error in {"zero": 4.0, "central": 2.0}.items():
        reported.loc[(reported.role == "reference") & (reported.method == name), "mse"] = error
    found = next(method for method in contenders(reported, (0.5, 0.75, 0.9)) if method.method == "fcfl")
    assert found.skill == pytest.approx((0.55, 0.55))
    assert found.rounds == {0.5: (1.0, 1.0), 0.75: (2.0, 2.0), 0.9: (float("inf"),) * 2}


def test_selection_by_rounds_takes_the_fastest_and_a_failed_run_is_the_worst(study: Study) -> None:
    tuning = replace(study.tuning, select="rounds", goal=0.5)
    errors = {"zero": {"validation": {"mse": 4.0}}, "central": {"validation": {"mse": 2.0}}}

    def result(*path: float, failed: str | None = None) -> dict[str, Any]:
        return {"failed": failed, "rounds": [{"served": {"validation": {"mse": error}}} for error in path]}

    fast, good, never = result(4.0, 2.9, 2.9), result(4.0, 3.5, 2.1), result(4.0, 3.5, 3.4)
    failed = result(4.0, failed="contradiction")
    ranked = sorted([never, failed, good, fast], key=lambda made: _score(tuning, made, errors))
    assert ranked == [fast, good, never, failed]
    assert min([fast, good], key=lambda made: _score(study.tuning, made, errors)) == good


def test_the_served_weights_of_reported_runs_are_kept(root: Path, rows: pd.DataFrame) -> None:
    key = rows[rows.role == "report"].run.iloc[0]
    result = json.loads((root / f"{key}.json").read_text())["result"]
    assert weights_of(result).shape == (federation.PARAMETERS,)


def test_the_command_shows_a_study_and_says_what_is_missing(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = Console(file=io.StringIO(), width=60)
    monkeypatch.setattr(arena_cli, "console", shown)
    page = tmp_path / "table.md"
    arena_cli.show(str(TINY), root, page)
    arena_cli.list_studies()
    text = shown.file.getvalue()  # type: ignore[attr-defined]
    assert "pooled ridge regression" in text
    assert "table2" in text
    assert page.read_text().startswith("**A tiny study")
    with pytest.raises(StudyError, match=r"no results yet; run the study: fcfl experiment run tiny"):
        arena_cli.show(str(TINY), tmp_path, None)
    broken = results_path(tmp_path, "tiny")
    broken.parent.mkdir()
    broken.write_bytes(b"PAR1")
    with pytest.raises(StudyError, match="not the results of a study"):
        arena_cli.show(str(TINY), tmp_path, None)


@pytest.mark.slow
def test_results_do_not_depend_on_the_number_of_processes(
    root: Path, study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # other processes have the real network
    data = Data.open(root / "data" / study.cases[0].market.key, 3)
    tasks = [Run(study.config(study.cases[0], {}, seed), data, ("validation",)) for seed in (1, 2)]
    one, two = (pool.Pool(pool.Cache(tmp_path / str(jobs)), jobs, QUIET).results("runs", tasks) for jobs in (1, 2))
    assert [result["rounds"] for result in one] == [result["rounds"] for result in two]
