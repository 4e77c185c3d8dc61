"""Measure which scaling of the features trains better: `python -m experiments.scaling`.

See docs/design/feature-scaling.md.
"""

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, stdev

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from data_prep.features.table import N_FEATURES
from data_prep.prepare import prepare_synthetic
from data_prep.shards import open_shard
from data_prep.spec import FederationSpec
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
from privacy.mlp import Mlp
from privacy.scaling import FeatureScale

SHARES = (0.02, 0.05, 0.10)
STEP_SIZES = (0.5, 1.0, 2.0)
PREPARED, MISFIT = "public constants as they are", "public constants that do not fit"
PUBLIC, LEAKING = "public", "exact (leaks)"
LARGEST_MISFIT = 8.0


@dataclass(frozen=True)
class Arm:
    """One line of the report.

    Attributes
    ----------
    name
        Kind of scaling.
    noise
        How the budget is split.
    step_size
        Client step with the best validation error at the first seed.
    validation
        Skill on validation of every step size tried at the first seed.
    test
        One score for each seed.
    """

    name: str
    noise: Noise
    step_size: float
    validation: dict[float, float]
    test: list[Score]

    @property
    def skills(self) -> list[float]:
        """Test skill of every seed."""
        return [found.skill for found in self.test]


def misfit() -> npt.NDArray[np.float32]:
    """Factors on the features, from 1/8 to 1: a market that is not what the public constants were chosen for."""
    exponents = np.random.default_rng(0).uniform(-1.0, 0.0, N_FEATURES)
    return (LARGEST_MISFIT**exponents).astype(np.float32)


def measure(name: str, share: float, setting: Setting, silos: Sequence[Silo], seeds: Sequence[int]) -> Arm:
    """Tune the client step at the first seed on validation, then train every seed with it."""
    noise = split_budget(setting, share)

    def scaled(seed: int) -> list[Silo]:
        if noise.scaling is not None:
            scale = private_scale(silos, noise.scaling, seed)
        else:
            scale = leaking_scale(silos) if name == LEAKING else FeatureScale.public(N_FEATURES, BOUND)
        return [silo.scaled(scale) for silo in silos]

    rows = scaled(seeds[0])
    tried = {eta: train(setting, rows, noise.training, eta, seeds[0]) for eta in STEP_SIZES}
    validation = {eta: score(setting.model, weights, rows, "validation").skill for eta, weights in tried.items()}
    best = max(validation, key=lambda eta: validation[eta])
    test = [score(setting.model, tried[best], rows, "test")]
    for seed in seeds[1:]:
        rows = scaled(seed)
        test.append(score(setting.model, train(setting, rows, noise.training, best, seed), rows, "test"))
    return Arm(name, noise, best, validation, test)


def compare(arm: Arm, public: Arm) -> tuple[float, float, str]:
    """Mean and spread over seeds of the difference in skill to the public arm, and what they say."""
    differences = [own - other for own, other in zip(arm.skills, public.skills, strict=True)]
    mean, spread = fmean(differences), stdev(differences)
    if abs(mean) <= spread:
        return mean, spread, "within"
    return mean, spread, "better" if mean > 0 else "worse"


def table(title: str, arms: Sequence[Arm]) -> Table:
    """One line for each arm."""
    drawn = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for head in ("scaling", "sigma", "step", "MSE e-4", "skill", "against public", ""):
        drawn.add_column(head, justify="left" if head in ("scaling", "") else "right", no_wrap=True)
    for arm in arms:
        mean, spread, verdict = compare(arm, arms[0])
        scaling = "" if arm.noise.scaling is None else f"{arm.noise.scaling:.1f}, "
        drawn.add_row(
            arm.name,
            f"{scaling}{arm.noise.training:.3f}",
            f"{arm.step_size:g}",
            f"{fmean(1e4 * found.mse for found in arm.test):.4f}",
            f"{fmean(arm.skills):.3f} ± {stdev(arm.skills):.3f}",
            "" if arm is arms[0] else f"{mean:+.3f} ± {spread:.3f}",
            "" if arm is arms[0] else verdict,
        )
    return drawn


def conclusion(title: str, arms: Sequence[Arm]) -> str:
    """Say which won, also if it is not clear."""
    rivals = [arm for arm in arms[1:] if arm.name != LEAKING]
    best = max(rivals, key=lambda arm: fmean(arm.skills))
    mean, spread, verdict = compare(best, arms[0])
    won = {"better": f"{best.name} won", "worse": "public scaling won", "within": "no clear winner"}[verdict]
    return (
        f"{title}: {won}; the best private scaler, {best.name}, differs from public scaling by "
        f"{mean:+.3f} ± {spread:.3f} of skill over {len(best.test)} seeds"
        f"{', within the spread' if verdict == 'within' else ''} (the best of {len(rivals)}, which favours it)."
    )


def figure(parts: Mapping[str, Sequence[Arm]]) -> Figure:
    """Skill of every seed and its mean, one panel for each part."""
    with mpl.rc_context({"font.size": 9.0}):
        drawn = Figure(figsize=(4.2 * len(parts), 3.2), layout="constrained")
        FigureCanvasAgg(drawn)
        panels = drawn.subplots(1, len(parts), squeeze=False, sharey=True)[0]
        for axes, (title, arms) in zip(panels, parts.items(), strict=True):
            for place, arm in enumerate(arms):
                colour = "#999999" if arm.name == LEAKING else "#0072b2"
                axes.plot([place] * len(arm.skills), arm.skills, "o", color=colour, alpha=0.5)
                axes.plot([place - 0.25, place + 0.25], [fmean(arm.skills)] * 2, "-", color=colour)
            axes.set_xticks(range(len(arms)), [arm.name.replace(" ", "\n", 1) for arm in arms])
            axes.set(title=title)
        panels[0].set_ylabel("test skill (0: zero forecast, 1: optimum)")
    return drawn


def main(arguments: Sequence[str] | None = None, console: Console | None = None) -> None:
    """Measure, print, and write `scaling.json`, `scaling.svg` and `scaling.png`."""
    parser = argparse.ArgumentParser(prog="python -m experiments.scaling", description=__doc__)
    parser.add_argument("--tickers", type=int, default=80, help="instruments of the synthetic market")
    parser.add_argument("--silos", type=int, default=8, help="silos, all of which contribute to every round")
    parser.add_argument("--rounds", type=int, default=8, help="rounds")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of model, samples and noise")
    parser.add_argument("--hidden", type=int, nargs="+", default=list(Mlp().hidden), help="widths of the model")
    parser.add_argument(
        "--constants",
        choices=("fit", "misfit", "both"),
        default="fit",
        help="public constants as they are, or wrong ones",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/scaling"), help="folder for the figure and the JSON file"
    )
    chosen = parser.parse_args(arguments)
    if min(chosen.tickers, chosen.silos, chosen.rounds) < 1 or chosen.seeds < 2:
        parser.error("--tickers, --silos, --rounds: expected at least 1; --seeds: at least 2")
    console = console or Console()
    setting = replace(Setting(), rounds=chosen.rounds, model=Mlp(N_FEATURES, tuple(chosen.hidden)))
    seeds = list(range(1, chosen.seeds + 1))
    factors = {PREPARED: np.ones(N_FEATURES, dtype=np.float32), MISFIT: misfit()}
    if chosen.constants != "both":
        del factors[MISFIT if chosen.constants == "fit" else PREPARED]
    arms = [(PUBLIC, 0.0), *((f"private, {share:.0%}", share) for share in SHARES), (LEAKING, 0.0)]
    parts: dict[str, list[Arm]] = {}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            spec = FederationSpec(silos=chosen.silos)
            shards = [open_shard(path) for path in prepare_synthetic(Path(folder), spec, tickers=chosen.tickers)]
            records = [len(shard.train.targets) for shard in shards]
            for title, factor in factors.items():
                silos = [Silo.of(shard, factor) for shard in shards]
                parts[title] = done = []
                for name, share in arms:
                    done.append(measure(name, share, setting, silos, seeds))
                    console.print(f"{title}: {name}, skill {fmean(done[-1].skills):.3f}", highlight=False)
    finally:
        torch.set_num_threads(threads)
    console.print(
        f"epsilon = {setting.epsilon:g} at delta = {setting.delta:g} for everything a silo releases; "
        f"q = {setting.sampling_rate:g}, steps: {setting.steps}, rounds: {setting.rounds}, "
        f"parameters: {setting.model.size}, "
        f"{len(records)} silos with {min(records)} to {max(records)} records, {len(seeds)} seeds (mean ± standard "
        "deviation); sigma: of scaling, of training; step: the best of "
        f"{', '.join(f'{eta:g}' for eta in STEP_SIZES)} on validation; noise is seeded",
        soft_wrap=True,
    )
    for title, rows in parts.items():
        console.print(table(title, rows))
        console.print(conclusion(title, rows), soft_wrap=True)
    chosen.out.mkdir(parents=True, exist_ok=True)
    drawn = figure(parts)
    for kind in ("svg", "png"):
        drawn.savefig(chosen.out / f"scaling.{kind}", dpi=150)
    document = {
        "setting": asdict(setting),
        "scaling_clip": CLIP,
        "records": records,
        "seeds": seeds,
        "step_sizes": STEP_SIZES,
        "parts": {title: [asdict(arm) for arm in rows] for title, rows in parts.items()},
        "conclusions": [conclusion(title, rows) for title, rows in parts.items()],
    }
    (chosen.out / "scaling.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    console.print(f"written: {chosen.out}/scaling.json, scaling.svg, scaling.png", soft_wrap=True)


if __name__ == "__main__":
    main()
