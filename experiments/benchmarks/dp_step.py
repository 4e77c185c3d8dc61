"""CPU time of one DP-SGD step beside a plain step, Opacus and torch.func: `python -m experiments.benchmarks.dp_step`.

Every variant draws its Poisson sample from the same kind of stream, gathers the rows, and ends with updated weights;
the private ones clip, add noise and divide by the public divisor in between. As in training a round is five steps in a
row, for which ours draws samples and noise in one go; the two variants that materialise gradients take one step, as
their time is the same at each. Rounds run the variants in random order on one thread. Process CPU time is taken and
ratios are formed within the round, so that load on the machine moves both sides of a ratio.
"""

import argparse
import multiprocessing
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from privacy.dpsgd import drawn_ahead, private_gradient
from privacy.mlp import Mlp
from privacy.plan import MechanismPlan
from privacy.randomness import RandomStream

RATE, CLIP, SIGMA, STEP_SIZE = 0.1, 1.0, 3.77, 0.05
STEPS = 5  # local steps of a round
MAIN_BATCH = 256
PLAIN, OURS, HOOKS, GHOST, VMAP = "plain", "ours", "opacus hooks", "opacus ghost", "torch.func vmap"
SLOW = HOOKS, VMAP
TARGETS: dict[tuple[str, str], tuple[str, float]] = {
    (OURS, PLAIN): ("at most", 1.25),
    (GHOST, OURS): ("at least", 2.2),
    (HOOKS, OURS): ("at least", 25.0),
}
"""Goals at a batch of 256: time of the first over time of the second."""

Step = Callable[[], None]


@dataclass(frozen=True)
class Work:
    """One training task, the same for all variants.

    Attributes
    ----------
    model
        Layer sizes.
    plan
        Sampling rate, clip, noise and divisor.
    features, targets
        All records of a silo.
    start
        Initial weights, output layer not zero.
    """

    model: Mlp
    plan: MechanismPlan
    features: npt.NDArray[np.float32]
    targets: npt.NDArray[np.float32]
    start: Tensor

    @classmethod
    def of(cls, batch: int, model: Mlp) -> "Work":
        """Random records whose Poisson sample has `batch` on average."""
        records = round(batch / RATE)
        rng = np.random.default_rng(0)
        start = torch.from_numpy(model.initial_parameters(0))
        start[-model.hidden[-1] - 1 :] = 0.05
        return cls(
            model,
            MechanismPlan(RATE, CLIP, SIGMA, STEPS, records),
            rng.standard_normal((records, model.features)).astype(np.float32),
            rng.standard_normal(records).astype(np.float32),
            start,
        )

    def network(self) -> nn.Sequential:
        """The same model of torch's own layers, at the initial weights."""
        layers: list[nn.Module] = []
        for fan_in, width in pairwise((self.model.features, *self.model.hidden)):
            layers += [nn.Linear(fan_in, width), nn.GELU(), nn.LayerNorm(width)]
        network = nn.Sequential(*layers, nn.Linear(self.model.hidden[-1], 1))
        nn.utils.vector_to_parameters(self.start.clone(), network.parameters())  # it makes views
        return network

    def batches(self) -> Callable[[], tuple[Tensor, Tensor]]:
        """Sampling and gathering as the variants other than ours do it."""
        stream = RandomStream.from_os()

        def draw() -> tuple[Tensor, Tensor]:
            rows = stream.poisson_sample(len(self.features), self.plan.sampling_rate)
            return torch.from_numpy(self.features[rows]), torch.from_numpy(self.targets[rows])

        return draw


def plain(work: Work) -> Step:
    """Autograd and torch.optim.SGD, not private."""
    network, draw = work.network(), work.batches()
    optimiser = torch.optim.SGD(network.parameters(), STEP_SIZE)

    def step() -> None:
        features, targets = draw()
        optimiser.zero_grad()
        (((network(features).squeeze(1) - targets) ** 2).sum() / (2 * work.plan.divisor)).backward()
        optimiser.step()

    return step


def ours(work: Work) -> Step:
    """`private_gradient` with noise from the operating system's key, drawn for a round as local training does."""
    stream = RandomStream.from_os()
    weights = work.start.clone()
    draws, taken = drawn_ahead(work.model, len(work.features), work.plan, stream), 0

    def step() -> None:
        nonlocal draws, taken
        if taken == work.plan.steps:
            draws, taken = drawn_ahead(work.model, len(work.features), work.plan, stream), 0
        taken += 1
        release = private_gradient(work.model, weights, work.features, work.targets, work.plan, draws)
        weights.sub_(release.mean, alpha=STEP_SIZE)

    return step


def opacus_hooks(work: Work) -> Step:
    """GradSampleModule with DPOptimizer: every per-example gradient is materialised."""
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    network, draw = GradSampleModule(work.network(), loss_reduction="sum"), work.batches()
    optimiser = DPOptimizer(
        torch.optim.SGD(network.parameters(), STEP_SIZE),
        noise_multiplier=SIGMA,
        max_grad_norm=CLIP,
        expected_batch_size=work.plan.divisor,
        loss_reduction="mean",
    )

    def step() -> None:
        features, targets = draw()
        optimiser.zero_grad()
        ((network(features).squeeze(1) - targets) ** 2 / 2).sum().backward()
        optimiser.step()

    return step


class _HalfSquares(nn.Module):
    """Loss of shape (B,): on a loss of shape (B, 1) Opacus' ghost clipping silently does not clip."""

    def __init__(self) -> None:
        super().__init__()
        self.reduction = "mean"

    def forward(self, forecasts: Tensor, targets: Tensor) -> Tensor:
        return (forecasts.squeeze(1) - targets) ** 2 / 2


def opacus_ghost(work: Work) -> Step:
    """Opacus' ghost clipping: two backward passes, norms without materialised gradients."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    network = GradSampleModuleFastGradientClipping(
        work.network(), loss_reduction="mean", max_grad_norm=CLIP, use_ghost_clipping=True
    )
    draw = work.batches()
    optimiser = DPOptimizerFastGradientClipping(
        torch.optim.SGD(network.parameters(), STEP_SIZE),
        noise_multiplier=SIGMA,
        max_grad_norm=CLIP,
        expected_batch_size=work.plan.divisor,
        loss_reduction="mean",
    )
    criterion = DPLossFastGradientClipping(network, optimiser, _HalfSquares(), loss_reduction="mean")

    def step() -> None:
        features, targets = draw()
        optimiser.zero_grad()
        criterion(network(features), targets).backward()
        optimiser.step()

    return step


def func_vmap(work: Work) -> Step:
    """Per-example gradients by vmap(grad), clipped, summed and noised with torch's generator."""
    network, draw = work.network(), work.batches()
    weights = {name: value.detach() for name, value in network.named_parameters()}

    def loss(current: dict[str, Tensor], row: Tensor, target: Tensor) -> Tensor:
        forecast: Tensor = torch.func.functional_call(network, current, (row.unsqueeze(0),))
        return (forecast.squeeze() - target) ** 2 / 2

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))

    def step() -> None:
        features, targets = draw()
        gradients = each(weights, features, targets)
        squares = torch.stack([value.flatten(1).square().sum(1) for value in gradients.values()]).sum(0)
        factors = (CLIP / squares.sqrt()).clamp(max=1.0)
        for name, value in gradients.items():
            total = torch.tensordot(factors, value, dims=1)
            total += torch.randn_like(total) * work.plan.noise_stddev
            weights[name] = weights[name] - STEP_SIZE / work.plan.divisor * total

    return step


VARIANTS: dict[str, Callable[[Work], Step]] = {
    PLAIN: plain,
    OURS: ours,
    GHOST: opacus_ghost,
    VMAP: func_vmap,
    HOOKS: opacus_hooks,
}


@contextmanager
def one_thread() -> Iterator[None]:
    """Pin torch to one thread: spinning threads would count as CPU time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def measure(work: Work, rounds: int, warm_up: int = 2) -> dict[str, npt.NDArray[np.float64]]:
    """CPU seconds a step of every variant in every round: of `STEPS` steps, or of one where `SLOW`."""
    order = np.random.default_rng()
    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        steps = {name: make(work) for name, make in VARIANTS.items()}
        taken: dict[str, list[float]] = {name: [] for name in steps}
        for turn in range(warm_up + rounds):
            for name in order.permutation(list(steps)):
                times = 1 if name in SLOW else STEPS
                begin = time.process_time()
                for _ in range(times):
                    steps[name]()
                spent = time.process_time() - begin
                if turn >= warm_up:
                    taken[name].append(spent / times)
    return {name: np.array(values) for name, values in taken.items()}


@dataclass(frozen=True)
class Ratio:
    """Median and quartiles of the ratios within rounds."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, above: npt.NDArray[np.float64], below: npt.NDArray[np.float64]) -> "Ratio":
        """Of two variants measured in the same rounds."""
        low, median, high = np.percentile(above / below, [25, 50, 75])
        return cls(float(low), float(median), float(high))

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.low:.2f}, {self.high:.2f}]"


def _peak(reset: bool = False) -> float:
    """Peak resident MiB of this process, after setting it back to the present value if wanted (Linux only)."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def _extra_memory(name: str, batch: int, model: Mlp) -> float:
    """Peak of five steps above what was resident before them; run in a process of its own."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    warm = VARIANTS[name](Work.of(20, model))
    warm()  # loads what is loaded late
    step = VARIANTS[name](Work.of(batch, model))
    before = _peak(reset=True)
    for _ in range(5):
        step()
    return _peak() - before


def memory(batch: int, model: Mlp) -> dict[str, float]:
    """Extra memory of every variant in MiB, each in a fresh process; empty where the system does not tell."""
    if not Path("/proc/self/clear_refs").exists():
        return {}
    context = multiprocessing.get_context("spawn")
    found = {}
    for name in VARIANTS:
        with context.Pool(1) as pool:
            found[name] = pool.apply(_extra_memory, (name, batch, model))
    return found


def table(batch: int, times: Mapping[str, npt.NDArray[np.float64]], extra: Mapping[str, float]) -> Table:
    """One table: milliseconds, ratio to the plain step, ratio to ours, and memory where measured."""
    title = f"B = {batch}: CPU time of a step, median [quartiles]"
    drawn = Table("variant", "ms", "to plain", "to ours", title=title, title_justify="left")
    if extra:
        drawn.add_column("extra MiB")
    for column in drawn.columns[1:]:
        column.justify = "right"
    for name, taken in times.items():
        cells = [
            name,
            f"{1e3 * float(np.median(taken)):.1f}",
            str(Ratio.of(taken, times[PLAIN])),
            str(Ratio.of(taken, times[OURS])),
        ]
        drawn.add_row(*cells, *([f"{extra[name]:.0f}"] if extra else []))
    return drawn


def goals(times: Mapping[str, npt.NDArray[np.float64]]) -> Table:
    """Targets beside the figures."""
    drawn = Table(
        "at B = 256", "target", "measured", "", title="Targets (reported, not asserted)", title_justify="left"
    )
    for (above, below), (kind, bound) in TARGETS.items():
        ratio = Ratio.of(times[above], times[below])
        met = ratio.median <= bound if kind == "at most" else ratio.median >= bound
        drawn.add_row(f"{above} / {below}", f"{kind} {bound:g}", str(ratio), "met" if met else "missed")
    return drawn


def main(arguments: Sequence[str] | None = None, console: Console | None = None, **smaller: Any) -> None:
    """Measure and print.

    Parameters
    ----------
    arguments
        Command line.
    console
        Where to print.
    **smaller
        Fields of `Mlp`, for tests.
    """
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=40, help="rounds, each with a few steps of every variant")
    parser.add_argument("--batches", type=int, nargs="+", default=[64, MAIN_BATCH, 1024], help="mean batch sizes")
    parser.add_argument("--no-memory", action="store_true", help="do not measure memory (one process per variant)")
    chosen = parser.parse_args(arguments)
    if chosen.rounds < 1 or min(chosen.batches) < 1:
        parser.error("--rounds and --batches: expected whole numbers of at least 1")
    console = console or Console()
    model = Mlp(**smaller)
    console.print(
        f"{model.size} parameters, Poisson sampling at q = {RATE} (drawing and gathering included for all), "
        f"sigma = {SIGMA}, one thread, {chosen.rounds} interleaved rounds, process CPU time",
        soft_wrap=True,
    )
    for batch in chosen.batches:
        extra = memory(batch, model) if batch == MAIN_BATCH and not chosen.no_memory else {}
        times = measure(Work.of(batch, model), chosen.rounds)
        console.print(table(batch, times, extra))
        if batch == MAIN_BATCH:
            console.print(goals(times))


if __name__ == "__main__":
    main()
