"""Audit the mechanism on a grid of settings: `python -m experiments.audit`. See docs/audit.md."""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from experiments.audit import bounds
from experiments.audit.attack import Setting, audit_canaries, audit_two_worlds
from privacy.accounting import epsilon_pld, epsilon_rdp
from privacy.mlp import Mlp
from privacy.randomness import RandomStream

DELTA, CONFIDENCE = 1e-5, 0.95
SAMPLED = Setting(0.1, 1.0, 1.0, 10, canaries=60, background=20)
WHOLE = Setting(1.0, 1.0, 1.0, 4, canaries=60, background=20)
SAMPLED_SIGMAS, WHOLE_SIGMAS = (0.3, 0.5, 1.0, 2.0), (1.0, 2.0, 4.0, 8.0)
PAIR = Setting(1.0, 1.0, 1.0, 1, canaries=1, background=4, model=Mlp(4, (8,)))
PAIR_SIGMAS = (0.5, 1.0, 2.0, 4.0)
FACTORS = (1.0, 0.9, 0.8, 0.7, 0.5)


@dataclass(frozen=True)
class Row:
    """One line of the report.

    Attributes
    ----------
    sampling_rate, noise_multiplier, steps
        The claim's q, sigma and tau.
    noise_factor
        Share of the claimed noise that was really added; 1 where the mechanism is audited as it is.
    claimed, tight
        Epsilon at delta that the product would state (Renyi orders), and the exact one (loss distribution).
    bound
        Lower bound on epsilon.
    gaussian_bound
        The same assuming that the mechanism is Gaussian; only without sampling.
    guesses, correct, attack
        Of the attack that gave the bound.
    """

    sampling_rate: float
    noise_multiplier: float
    steps: int
    noise_factor: float
    claimed: float
    tight: float
    bound: float
    gaussian_bound: float | None
    guesses: int
    correct: int
    attack: str

    @property
    def violated(self) -> bool:
        """Whether a lower bound passes the claim; a Gaussian mechanism with this sigma has exactly `tight`."""
        return self.bound > self.claimed or (self.gaussian_bound or 0.0) > self.tight


def _each() -> float:
    """Confidence of a line of the audits in two worlds, so that all hold together (Bonferroni): they come close to
    the claim, where a false alarm is possible.
    """
    return 1 - (1 - CONFIDENCE) / (len(PAIR_SIGMAS) + len(FACTORS))


def _claims(setting: Setting) -> tuple[float, float]:
    plan = setting.sampling_rate, setting.noise_multiplier, setting.steps, DELTA
    return epsilon_rdp(*plan), epsilon_pld(*plan)


def canaries(setting: Setting, runs: int) -> Row:
    """Runs full of canaries."""
    streams = [RandomStream.from_os() for _ in range(runs)]
    found = audit_canaries(setting, DELTA, streams, 1, confidence=CONFIDENCE)
    return Row(
        setting.sampling_rate,
        setting.noise_multiplier,
        setting.steps,
        1.0,
        *_claims(setting),
        found.epsilon,
        None,
        found.guesses,
        found.correct,
        found.score,
    )


def pair(claimed: Setting, runs: int, factor: float = 1.0) -> Row:
    """One canary in two worlds, with `factor` of the claimed noise."""
    real = replace(claimed, noise_multiplier=factor * claimed.noise_multiplier)
    found, mu = audit_two_worlds(real, DELTA, runs, RandomStream.from_os(), 1, confidence=_each())
    return Row(
        claimed.sampling_rate,
        claimed.noise_multiplier,
        claimed.steps,
        factor,
        *_claims(claimed),
        found.epsilon,
        bounds.gaussian_epsilon(mu, DELTA),
        found.guesses,
        found.correct,
        found.score,
    )


def table(title: str, rows: Sequence[Row]) -> Table:
    """Rows as a table; columns that say nothing are left out."""
    weaker = any(row.noise_factor < 1 for row in rows)
    gaussian = any(row.gaussian_bound is not None for row in rows)
    drawn = Table(title=title, title_justify="left")
    columns = {
        "sigma": [f"{row.noise_multiplier:g}" for row in rows],
        **({"added": [f"{100 * row.noise_factor:.0f} %" for row in rows]} if weaker else {}),
        "claimed": [f"{row.claimed:.2f}" for row in rows],
        "exact": [f"{row.tight:.2f}" for row in rows],
        "bound": [f"{row.bound:.2f}" for row in rows],
        **({"Gaussian": [f"{row.gaussian_bound or 0:.2f}" for row in rows]} if gaussian else {}),
        "right": [f"{row.correct}/{row.guesses}" for row in rows],
        "attack": [row.attack for row in rows],
        "": ["VIOLATED" if row.violated else "holds" for row in rows],
    }
    for head in columns:
        drawn.add_column(head, justify="left" if head in ("attack", "") else "right", no_wrap=True)
    for cells in zip(*columns.values(), strict=True):
        drawn.add_row(*cells)
    return drawn


def figure(parts: Mapping[str, Sequence[Row]]) -> Figure:
    """Claim and bounds against sigma, one panel for each part."""
    with mpl.rc_context({"font.size": 9.0}):
        drawn = Figure(figsize=(3.6 * len(parts), 3.4), layout="constrained")
        FigureCanvasAgg(drawn)
        for axes, (title, rows) in zip(drawn.subplots(1, len(parts), squeeze=False)[0], parts.items(), strict=True):
            sigmas = [row.noise_multiplier for row in rows]
            axes.plot(sigmas, [row.claimed for row in rows], "k-", label="claimed (Rényi)")
            axes.plot(sigmas, [row.tight for row in rows], "k--", label="exact (loss distribution)")
            axes.plot(sigmas, [row.bound for row in rows], "o", color="#0072b2", label="lower bound, 95 %")
            if rows[0].gaussian_bound is not None:
                gaussian = [row.gaussian_bound or 0.0 for row in rows]
                axes.plot(sigmas, gaussian, "s", color="#d55e00", label="lower bound if Gaussian, 95 %")
            axes.set(title=title, xlabel="noise multiplier sigma", xscale="log", yscale="symlog")
            axes.set_xticks(sigmas, [f"{sigma:g}" for sigma in sigmas])
            axes.set_xticks([], minor=True)
            axes.set_ylim(bottom=0)
        drawn.axes[0].set_ylabel(f"epsilon at delta = {DELTA:g}")
        handles, labels = drawn.axes[-1].get_legend_handles_labels()
        drawn.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return drawn


def main(arguments: Sequence[str] | None = None, console: Console | None = None) -> None:
    """Audit, print, and write `audit.json`, `audit.svg` and `audit.png`."""
    parser = argparse.ArgumentParser(prog="python -m experiments.audit", description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="training runs full of canaries, per setting")
    parser.add_argument("--pairs", type=int, default=4000, help="runs with one canary, per setting")
    parser.add_argument("--out", type=Path, default=Path("runs/audit"), help="folder for the figure and the JSON file")
    chosen = parser.parse_args(arguments)
    if chosen.runs < 1 or chosen.pairs < 20:
        parser.error("--runs: expected at least 1; --pairs: at least 20")
    console = console or Console()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        parts = {
            f"many canaries, q = {SAMPLED.sampling_rate:g}, {SAMPLED.steps} steps": [
                canaries(replace(SAMPLED, noise_multiplier=sigma), chosen.runs) for sigma in SAMPLED_SIGMAS
            ],
            f"many canaries, q = 1, {WHOLE.steps} steps": [
                canaries(replace(WHOLE, noise_multiplier=sigma), chosen.runs) for sigma in WHOLE_SIGMAS
            ],
            "one canary, two worlds, q = 1, 1 step": [
                pair(replace(PAIR, noise_multiplier=sigma), chosen.pairs) for sigma in PAIR_SIGMAS
            ],
        }
        weaker = [pair(PAIR, chosen.pairs, factor) for factor in FACTORS]
    finally:
        torch.set_num_threads(threads)
    console.print(
        f"delta = {DELTA:g}, confidence {CONFIDENCE:.0%} for each line, in two worlds for all lines together; "
        f"{chosen.runs} runs of "
        f"{SAMPLED.canaries} canaries, or {chosen.pairs} runs of one, per line; noise from the operating system's key",
        soft_wrap=True,
    )
    for title, rows in parts.items():
        console.print(table(title, rows))
    console.print(table("what the audit in two worlds resolves: less noise than claimed", weaker))
    chosen.out.mkdir(parents=True, exist_ok=True)
    drawn = figure(parts)
    for kind in ("svg", "png"):
        drawn.savefig(chosen.out / f"audit.{kind}", dpi=150)
    document = {
        "delta": DELTA,
        "confidence": CONFIDENCE,
        "runs": chosen.runs,
        "pairs": chosen.pairs,
        "audits": {title: [asdict(row) for row in rows] for title, rows in parts.items()},
        "less_noise_than_claimed": [asdict(row) for row in weaker],
    }
    (chosen.out / "audit.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    console.print(f"written: {chosen.out}/audit.json, audit.svg, audit.png", soft_wrap=True)


if __name__ == "__main__":
    main()
