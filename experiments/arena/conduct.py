"""From a study to its Parquet file: data, references, tuning, reported runs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.arena.cache import Cache
from experiments.arena.errors import StudyError
from experiments.arena.markets import Data, Market
from experiments.arena.methods import Method, Settings
from experiments.arena.pool import Pool
from experiments.arena.references import References
from experiments.arena.results import Done, reference_rows, write
from experiments.arena.runs import Run
from experiments.arena.study import Case, Study, Tuning
from privacy.errors import PrivacyError

ROOT = Path("runs/arena")
Contest = tuple[Case, Method]


def results_path(root: Path, name: str) -> Path:
    """Where the results of a study go."""
    return root / "studies" / f"{name}.parquet"


def conduct(study: Study, root: Path, jobs: int, console: Console) -> Path:
    """Do what is missing of a study and write its results.

    Parameters
    ----------
    study : Study
    root : Path
        Holds cached runs, data sets and results.
    jobs : int
        Processes.
    console : Console
        For the progress.

    Returns
    -------
    Path
        The Parquet file.

    Raises
    ------
    StudyError
        If a run is impossible under its privacy budget, or a process is ended from outside.
    """
    pool = Pool(Cache(root), jobs, console)
    data = {market.key: market.prepare(root) for market in _markets(study)}
    tasks = {key: References(found) for key, found in data.items()}
    made = dict(zip(tasks, pool.results("references", list(tasks.values())), strict=True))
    references = {key: found["references"] for key, found in made.items()}
    rows: list[Mapping[str, Any]] = []
    for case in study.cases:
        key = case.market.key
        rows += reference_rows(case, tasks[key].key, references[key])
    try:
        tuned = list(_tune(study, data, references, pool))
        best = {(done.case, done.method.name): done for done in tuned if done.chosen}
        reported = list(_report(study, data, best, pool))
    except PrivacyError as error:
        raise StudyError(f"{study.name}: a run is impossible: {error}") from None
    for done in (*tuned, *reported):
        rows += done.rows()
    path = results_path(root, study.name)
    write(path, study, rows)
    return path


def _markets(study: Study) -> Sequence[Market]:
    return list({case.market.key: case.market for case in study.cases}.values())


def _contests(study: Study) -> Iterator[Contest]:
    return ((case, method) for case in study.cases for method in study.methods)


def _tune(study: Study, data: Mapping[str, Data], references: Mapping[str, Any], pool: Pool) -> Iterator[Done]:
    """Run every trial of every method on validation, and mark the one that is reported."""
    tried = [(case, method, study.trials(method)) for case, method in _contests(study)]
    seed = study.tuning.seed
    tasks = [
        Run(study.config(case, settings, seed), data[case.market.key], ("validation",))
        for case, method, trials in tried
        for settings in trials
        if method.tune
    ]
    results = iter(zip(tasks, pool.results("tuning", tasks), strict=True))
    for case, method, trials in tried:
        if not method.tune:
            continue
        done = [next(results) for _ in trials]
        scores = [_score(study.tuning, result, references[case.market.key]) for _, result in done]
        best = scores.index(min(scores))
        for number, (settings, (task, result)) in enumerate(zip(trials, done, strict=True)):
            yield Done(case, method, settings, seed, "tuning", number, number == best, task.key, result)


def _score(tuning: Tuning, result: Mapping[str, Any], references: Mapping[str, Any]) -> tuple[float, float]:
    """Smaller is better; a run that failed is the worst."""
    if result["failed"] is not None:
        return float("inf"), float("inf")
    errors = [line["served"]["validation"]["mse"] for line in result["rounds"]]
    if tuning.select == "mse":
        return errors[-1], 0.0
    zero, central = (references[name]["validation"]["mse"] for name in ("zero", "central"))
    wanted = zero - tuning.goal * (zero - central)
    reached = [number for number, error in enumerate(errors) if error <= wanted]
    return float(reached[0]) if reached else float("inf"), errors[-1]


def _report(
    study: Study, data: Mapping[str, Data], best: Mapping[tuple[Case, str], Done], pool: Pool
) -> Iterator[Done]:
    """Run the chosen settings with every seed, on validation and test."""
    runs: list[tuple[Case, Method, Settings, int, int, Run]] = []
    for case, method in _contests(study):
        chosen = best.get((case, method.name))
        settings, trial = (chosen.settings, chosen.trial) if chosen else (method.settings, 0)
        for seed in study.seeds:
            task = Run(study.config(case, settings, seed), data[case.market.key], ("validation", "test"))
            runs.append((case, method, settings, seed, trial, task))
    results = pool.results("report", [run[-1] for run in runs])
    for (case, method, settings, seed, trial, task), result in zip(runs, results, strict=True):
        yield Done(case, method, settings, seed, "report", trial, True, task.key, result)


@dataclass(frozen=True)
class Work:
    """How many runs a study has.

    Attributes
    ----------
    cases, tuning, report : int
    """

    cases: int
    tuning: int
    report: int

    @classmethod
    def of(cls, study: Study) -> "Work":
        """Count them."""
        trials = sum(len(study.trials(method)) for method in study.methods if method.tune)
        cases = len(study.cases)
        return cls(cases, cases * trials, cases * len(study.methods) * len(study.seeds))
