"""Tables of a study, made from its Parquet file and nothing else."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import pandas as pd

from experiments.arena.federation import IN_THE_CLEAR
from experiments.arena.methods import shown
from experiments.arena.results import Results
from experiments.arena.statistics import hedges_g
from experiments.arena.study import PAPER

NEVER = math.inf
NEAR = 1.05
"""The paper's target: the centralised error times this."""


@dataclass(frozen=True)
class Sheet:
    """One table for people.

    Attributes
    ----------
    title : str
    head : tuple of str
    rows : tuple of tuple of str
    notes : tuple of str
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]

    def markdown(self) -> str:
        """Return it as Markdown."""
        bars = ["---", *["---:"] * (len(self.head) - 1)]
        lines = [f"| {' | '.join(row)} |" for row in (self.head, bars, *self.rows)]
        return "\n".join([f"**{self.title}**", "", *lines, "", *(f"- {note}" for note in self.notes), ""])


@dataclass(frozen=True)
class Contender:
    """A method in one case: one value for each seed.

    Attributes
    ----------
    method, label : str
    baseline, tuned : bool
    settings : mapping
        The chosen ones.
    mse, mae, accuracy, skill : tuple of float
        On test, of the weights that are served after the last round.
    rounds : mapping of float to tuple of float
        Rounds to a test skill; infinite where it is not reached.
    near : tuple of float
        Rounds to `NEAR` times the centralised error.
    epsilon : float
        Largest of any silo in any run.
    failed : int
        Runs that could not go on.
    """

    method: str
    label: str
    baseline: bool
    tuned: bool
    settings: Mapping[str, bool | int | float | str]
    mse: tuple[float, ...]
    mae: tuple[float, ...]
    accuracy: tuple[float, ...]
    skill: tuple[float, ...]
    rounds: Mapping[float, tuple[float, ...]]
    near: tuple[float, ...]
    epsilon: float
    failed: int


def skill_of(mse: float, zero: float, central: float) -> float:
    """``(L_zero - L) / (L_zero - L_central)`` (errata E18); NaN where centralised training does not beat zero."""
    return (zero - mse) / (zero - central) if zero > central else math.nan


def reference_errors(rows: pd.DataFrame, split: str) -> dict[str, float]:
    """Mean squared error of every reference of a case."""
    chosen = rows[(rows.role == "reference") & (rows.split == split)]
    return dict(zip(chosen.method, chosen.mse, strict=True))


def contenders(rows: pd.DataFrame, skills: Sequence[float]) -> list[Contender]:
    """Return the methods of one case, in the order of the file."""
    errors = reference_errors(rows, "test")
    zero, central = errors["zero"], errors["central"]
    chosen = rows[(rows.role == "report") & (rows.split == "test") & (rows.weights == "served")]
    found = []
    for name in chosen.method.unique():
        own = chosen[chosen.method == name]
        curves = [curve.sort_values("round") for _, curve in own.groupby("seed")]
        last = [curve.iloc[-1] for curve in curves]
        paths = [dict(zip(curve["round"], curve.mse, strict=True)) for curve in curves]
        found.append(
            Contender(
                method=name,
                label=own.label.iloc[0],
                baseline=bool(own.baseline.iloc[0]),
                tuned=bool(own.tuned.iloc[0]),
                settings=json.loads(own.settings.iloc[0]),
                mse=tuple(float(line.mse) for line in last),
                mae=tuple(float(line.mae) for line in last),
                accuracy=tuple(float(line.directional_accuracy) for line in last),
                skill=tuple(skill_of(float(line.mse), zero, central) for line in last),
                rounds={s: tuple(_first(path, zero - s * (zero - central)) for path in paths) for s in skills},
                near=tuple(_first(path, NEAR * central) for path in paths),
                epsilon=float(own.epsilon_of_silos.max()),
                failed=int(own.groupby("seed").failed.first().notna().sum()),
            )
        )
    return found


def _first(path: Mapping[int, float], wanted: float) -> float:
    """Return the first round with an error of at most ``wanted``; the zero forecast at the start is round 0."""
    return min((float(number) for number, error in path.items() if error <= wanted), default=NEVER)


def sheets(results: Results) -> list[Sheet]:
    """Return one table for each case, and one of the settings that tuning chose."""
    rows, facts, found = results.rows, results.facts, []
    for (alpha, epsilon), part in rows.groupby(["alpha", "epsilon"], sort=False):
        found.append(_case(f"{facts['title']}: alpha = {alpha:g}, epsilon = {epsilon:g}", part, facts))
    return found


def _case(title: str, rows: pd.DataFrame, facts: Mapping[str, object]) -> Sheet:
    skills = [float(s) for s in facts["skills"]]  # type: ignore[attr-defined]
    errors, methods = reference_errors(rows, "test"), contenders(rows, skills)
    rivals = [method for method in methods if method.baseline]
    rival = max(rivals, key=lambda method: fmean(method.skill)) if rivals else None
    head = ("method", "MSE e-4", "MAE e-2", "DA %", "skill", *(f"rounds to {s:g}" for s in skills))
    head += (f"to {NEAR:g} central", "epsilon", "g of MSE against best baseline")
    figures: Mapping[str, Mapping[str, float]] = facts["paper"]  # type: ignore[assignment]
    told = [name for name in PAPER if any(name in figures[method.method] for method in methods)]
    head += tuple(f"paper {PAPER[name]}" for name in told)
    lines = [
        _line(method, skills, rival) + tuple(f"{figures[method.method].get(name, '')}" for name in told)
        for method in methods
    ]
    references = rows[(rows.role == "reference") & (rows.split == "test")]
    for line in references.to_dict("records"):
        skill = skill_of(line["mse"], errors["zero"], errors["central"])
        values = (f"{1e4 * line['mse']:.4f}", f"{1e2 * line['mae']:.4f}", f"{1e2 * line['directional_accuracy']:.2f}")
        lines.append((line["label"], *values, f"{skill:.3f}", *[""] * (len(head) - 5)))
    seeds = ", ".join(map(str, facts["seeds"]))  # type: ignore[call-overload]
    notes = [
        f"test, served weights after the last round; mean ± standard deviation over the seeds {seeds}",
        f"{facts['trials']} trials for each method, chosen on validation by {facts['select']}; "
        "skill: 0 is the zero forecast, 1 centralised training without privacy; rounds: one figure a seed, – is never",
        f"epsilon: of the silo that spent most, at delta = {facts['delta']:g}; noise is seeded: not private; "
        f"{IN_THE_CLEAR}",
    ]
    if rival is not None:
        notes.append(f"best baseline: {rival.label}; g: Hedges' g with 95 % interval, below 0 is less error")
    notes += [
        f"{method.label}: {shown(method.settings) or 'defaults'}{'' if method.tuned else ' (not tuned)'}"
        + (f"; {method.failed} runs could not go on" if method.failed else "")
        for method in methods
    ]
    return Sheet(title, head, tuple(lines), tuple(notes))


def _line(method: Contender, skills: Sequence[float], rival: Contender | None) -> tuple[str, ...]:
    compared = ""
    if rival is not None and rival is not method and (effect := hedges_g(method.mse, rival.mse)) is not None:
        compared = f"{effect.g:+.2f} [{effect.low:+.2f}, {effect.high:+.2f}]"
    return (
        method.label,
        _spread(method.mse, 1e4, 4),
        _spread(method.mae, 1e2, 4),
        _spread(method.accuracy, 1e2, 2),
        _spread(method.skill, 1.0, 3),
        *(_each(method.rounds[s]) for s in skills),
        _each(method.near),
        f"{method.epsilon:.3f}",
        compared,
    )


def _spread(values: Sequence[float], factor: float, digits: int) -> str:
    mean = f"{factor * fmean(values):.{digits}f}"
    return f"{mean} ± {factor * stdev(values):.{digits}f}" if len(values) > 1 else mean


def _each(values: Sequence[float]) -> str:
    return "/".join("–" if value == NEVER else f"{value:.0f}" for value in values)
