"""A method of a study: settings over the run configuration, and the settings that are tuned."""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from experiments.arena.errors import StudyError
from server_app.methods import Value

Settings = Mapping[str, Value]


@dataclass(frozen=True)
class Range:
    """Numbers between two bounds, for random search.

    Attributes
    ----------
    low, high : float
    logarithmic : bool
        Uniform in the logarithm.
    """

    low: float
    high: float
    logarithmic: bool

    def draw(self, rng: np.random.Generator) -> float:
        """Draw a number, rounded to three digits so that it can be read and written down."""
        low, high = (math.log(self.low), math.log(self.high)) if self.logarithmic else (self.low, self.high)
        drawn = float(rng.uniform(low, high))
        return float(f"{math.exp(drawn) if self.logarithmic else drawn:.3g}")


Candidates = tuple[Value, ...] | Range


@dataclass(frozen=True)
class Method:
    """One method.

    Attributes
    ----------
    name, label : str
        In the study's file, and for people.
    settings : mapping of str to value
        Over the settings that all methods share.
    tune : mapping of str to candidates
        Settings that are tuned; empty for a method that is run as it is, which is said with its results.
    baseline : bool
        Whether it is a rival that others are measured against.
    paper : mapping of str to float
        What the paper says of it: ``mse`` in 1e-4, ``mae`` in 1e-2, ``da`` in per cent.
    """

    name: str
    label: str
    settings: Settings
    tune: Mapping[str, Candidates]
    baseline: bool
    paper: Mapping[str, float] = field(default_factory=dict)

    def trials(self, number: int, search: str, seed: int) -> tuple[Settings, ...]:
        """Return ``number`` different settings to try, the same ones for the same seed; one if nothing is tuned.

        Raises
        ------
        StudyError
            If there are fewer, or with a grid search more, than ``number``: budgets would be unequal.
        """
        if not self.tune:
            return (self.settings,)
        lists = [values for values in self.tune.values() if not isinstance(values, Range)]
        finite = len(lists) == len(self.tune)
        if search == "grid" and not finite:
            raise StudyError('a range cannot be searched as a grid; give a list of values, or search = "random"')
        size = math.prod(len(values) for values in lists)
        if finite and (size < number or (search == "grid" and size != number)):
            wanted = f"exactly {number}" if search == "grid" else f"at least {number}"
            raise StudyError(
                f"{size} different settings, expected {wanted}: every method has the same number of trials; "
                "change its lists, or tuning.trials"
            )
        if search == "grid":
            points = itertools.product(*lists)
            return tuple({**self.settings, **dict(zip(self.tune, point, strict=True))} for point in points)
        return self._drawn(number, seed, finite)

    def _drawn(self, number: int, seed: int, finite: bool) -> tuple[Settings, ...]:
        # Seeded by the method's name as well: its draws do not depend on which other methods there are.
        rng = np.random.default_rng([seed, *self.name.encode()])
        if finite:
            sizes = [len(values) for values in self._lists()]
            chosen = rng.choice(math.prod(sizes), size=number, replace=False)
            places = (np.unravel_index(int(place), sizes) for place in sorted(chosen))
            points = [
                {key: values[int(at)] for (key, values), at in zip(self._pairs(), place, strict=True)}
                for place in places
            ]
        else:
            points = [{key: _draw(values, rng) for key, values in self.tune.items()} for _ in range(number)]
        return tuple({**self.settings, **point} for point in points)

    def _pairs(self) -> Sequence[tuple[str, tuple[Value, ...]]]:
        return [(key, values) for key, values in self.tune.items() if not isinstance(values, Range)]

    def _lists(self) -> Sequence[tuple[Value, ...]]:
        return [values for _, values in self._pairs()]


def _draw(values: Candidates, rng: np.random.Generator) -> Value:
    return values.draw(rng) if isinstance(values, Range) else values[int(rng.integers(len(values)))]


def shown(settings: Settings) -> str:
    """Return settings in one line, sorted."""
    return ", ".join(f"{key} {json.dumps(value)}" for key, value in sorted(settings.items()))
