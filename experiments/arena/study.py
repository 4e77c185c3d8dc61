"""A study: methods, data, privacy, seeds and tuning budget in one declarative file; ``docs/experiments.md``."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.errors import DataError
from data_prep.spec import FederationSpec
from data_prep.synthetic import MarketSpec
from experiments.arena.errors import StudyError
from experiments.arena.markets import Market
from experiments.arena.methods import Method, Settings
from experiments.arena.reader import Section
from server_app.config import KEYS, ConfigError, RunConfig

BUILT_IN = Path(__file__).parent / "studies"
OURS = {
    "run-dir": "",
    "resume": False,
    "simulation-root": "",
    "roster-file": "",
    "eval.metrics": False,
    "eval.epsilon": 0.0,
    "eval.final": False,
}
"""What the arena decides: it keeps no run folder and looks at validation and test itself."""

PAPER = {"mse": "MSE e-4", "mae": "MAE e-2", "da": "DA %"}
"""Figures of the paper that a study can set beside its own."""


@dataclass(frozen=True)
class Tuning:
    """The budget that every tuned method has.

    Attributes
    ----------
    trials : int
        Settings tried for each method.
    seed : int
        Of the runs that tune; none of those that are reported.
    search : {"random", "grid"}
    draw_seed : int
        Of the random search.
    select : {"mse", "rounds"}
        Least validation error of the served weights at the end; or fewest rounds to ``goal``, then error.
    goal : float
        Validation skill to be reached with ``rounds``.
    """

    trials: int
    seed: int
    search: str
    draw_seed: int
    select: str
    goal: float


@dataclass(frozen=True)
class Case:
    """One setting that all methods are compared in."""

    market: Market
    epsilon: float

    @property
    def alpha(self) -> float:
        """Dirichlet concentration of the partition."""
        return self.market.federation.alpha


@dataclass(frozen=True)
class Study:
    """A validated study.

    Attributes
    ----------
    name, title : str
    cases : tuple of Case
    delta : float
    run : mapping of str to value
        Settings that all methods share.
    methods : tuple of Method
    tuning : Tuning
    seeds : tuple of int
        Of the reported runs: of the model and of all randomness of the silos.
    skills : tuple of float
        For which the number of rounds is reported.
    """

    name: str
    title: str
    cases: tuple[Case, ...]
    delta: float
    run: Settings
    methods: tuple[Method, ...]
    tuning: Tuning
    seeds: tuple[int, ...]
    skills: tuple[float, ...]

    def trials(self, method: Method) -> tuple[Settings, ...]:
        """Return the settings that are tried for a method."""
        return method.trials(self.tuning.trials, self.tuning.search, self.tuning.draw_seed)

    def config(self, case: Case, settings: Settings, seed: int) -> RunConfig:
        """Return the configuration of one run."""
        return RunConfig.from_mapping(
            {
                **self.run,
                **settings,
                **OURS,
                "silos": case.market.federation.silos,
                "dp.epsilon": case.epsilon,
                "dp.delta": self.delta,
                "noise-seed": seed,
                "model-seed": seed,
            }
        )


def find(name: str) -> Path:
    """Return the file of a study: a path, or the name of one that comes with the software.

    Raises
    ------
    StudyError
        If there is neither.
    """
    given = Path(name)
    if given.suffix == ".toml" or given.is_file():
        return given
    built_in = BUILT_IN / f"{name}.toml"
    if not built_in.is_file():
        known = ", ".join(path.stem for path in studies())
        raise StudyError(f"{name}: no such study; expected one of {known}, or the path of a .toml file")
    return built_in


def studies() -> list[Path]:
    """Return the files of the studies that come with the software."""
    return sorted(BUILT_IN.glob("*.toml"))


def load(path: Path) -> Study:
    """Read and validate a study.

    Raises
    ------
    StudyError
        Naming the file, the key, and what was expected.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StudyError(f"{path}: cannot be read ({error.strerror}); check the path") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise StudyError(f"{path}: not TOML: {error}") from None
    top = Section(str(path), "", content)
    title = top.text("title", path.stem)
    cases, delta = _cases(top)
    run = top.section("run").settings("", _forbidden())
    tuning, seeds = _tuning(top.section("tuning")), top.whole_numbers("seeds", (2025, 2026, 2027))
    if tuning.seed in seeds:
        raise top.error("tuning.seed", f"expected none of the reported seeds {list(seeds)}, got {tuning.seed}")
    report = top.section("report")
    skills = report.numbers("skills", (0.5, 0.8), low=0.0, high=10.0)
    report.finish()
    given = top.section("methods")
    methods = tuple(_method(given.section(name)) for name in given.names())
    if not methods:
        raise top.error("methods", "expected at least one [methods.NAME]")
    top.finish()
    study = Study(path.stem, title, cases, delta, run, methods, tuning, seeds, skills)
    for where, case, settings in _configurations(study, top):
        try:
            study.config(case, settings, tuning.seed)
        except ConfigError as error:
            raise top.error(where, str(error)) from None
    return study


def _configurations(study: Study, top: Section) -> Iterator[tuple[str, Case, Settings]]:
    yield "run", study.cases[0], {}
    for method in study.methods:
        try:
            trials = study.trials(method)
        except StudyError as error:
            raise top.error(f"methods.{method.name}.tune", str(error)) from None
        for case in study.cases:
            for settings in trials:
                yield f"methods.{method.name}", case, settings


def _forbidden() -> Mapping[str, str]:
    ours = dict.fromkeys(OURS, "the arena decides it")
    return ours | {
        "noise-seed": "seeds and tuning.seed decide it",
        "model-seed": "seeds and tuning.seed decide it",
        "silos": "data.silos decides it",
        "dp.epsilon": "privacy.epsilons decides it",
        "dp.delta": "privacy.delta decides it",
    }


def _cases(top: Section) -> tuple[tuple[Case, ...], float]:
    data, privacy = top.section("data"), top.section("privacy")
    alphas = data.numbers("alphas", (0.2,), above=0.0)
    folders = data.texts("folders")
    common: dict[str, Any] = {
        "silos": data.whole("silos", 20, low=3),
        "seed": data.whole("partition-seed", 2025, low=0),
        "min_samples": data.whole("min-samples", 1000, low=1),
    }
    epsilons = privacy.numbers("epsilons", (1.0,), above=0.0)
    delta = privacy.number("delta", 1e-5, above=0.0, high=0.5)
    try:
        synthetic = (
            None
            if folders
            else MarketSpec(
                tickers=data.whole("tickers", 320, low=1),
                seed=data.whole("market-seed", 2025, low=0),
                mse=data.number("mse", 1.20e-4, above=0.0),
                r_squared=data.number("r-squared", 0.052, above=0.0, high=0.9),
            )
        )
        markets = [Market(FederationSpec(alpha=alpha, **common), synthetic, folders) for alpha in alphas]
    except DataError as error:
        raise top.error("data", str(error)) from None
    data.finish()
    privacy.finish()
    return tuple(Case(market, epsilon) for market in markets for epsilon in epsilons), delta


def _tuning(section: Section) -> Tuning:
    found = Tuning(
        trials=section.whole("trials", 8, low=1),
        seed=section.whole("seed", 2024, low=0),
        search=section.choice("search", ("random", "grid")),
        draw_seed=section.whole("draw-seed", 1, low=0),
        select=section.choice("select", ("mse", "rounds")),
        goal=section.number("goal", 0.8, above=0.0, high=10.0),
    )
    section.finish()
    return found


def _method(section: Section) -> Method:
    name = section.where.removeprefix("methods.")
    found = Method(
        name=name,
        label=section.text("label", name),
        settings=section.section("set").settings("", _forbidden()),
        tune=section.section("tune").candidates(KEYS, _forbidden()),
        baseline=section.flag("baseline"),
        paper=_paper(section.section("paper")),
    )
    if section.flag("untuned") == bool(found.tune):
        what = "has settings to tune" if found.tune else "has none, which is an unequal budget"
        raise section.error(
            "untuned", f"expected true for a method that is run as it is, and only there; this one {what}"
        )
    section.finish()
    return found


def _paper(section: Section) -> Mapping[str, float]:
    found = {name: section.number(name, 0.0, above=0.0) for name in section.names()}
    for name in found:
        if name not in PAPER:
            raise section.error(name, f"unknown key; expected {', '.join(PAPER)}")
    return found
