"""The benchmarks: their structure, and that variants do the same work. Never their timings."""

import io
import warnings

import numpy as np
import pytest
import torch
from rich.console import Console

from experiments.benchmarks import data_prep, dp_step
from experiments.benchmarks import round as round_benchmark
from experiments.benchmarks.secagg import __main__ as secagg_benchmark
from privacy.mlp import Mlp
from privacy.mlp_kernel import clip_limit
from privacy.plan import MechanismPlan

SMALL = Mlp(5, (8, 6))


def test_a_tiny_run_prints_every_variant_with_ratios_and_targets() -> None:
    out = Console(file=io.StringIO(), width=140)
    dp_step.main(["--rounds", "2", "--batches", "8", "256", "--no-memory"], out, features=5, hidden=(8, 6))
    text = out.file.getvalue()  # type: ignore[attr-defined]
    for name in dp_step.VARIANTS:
        assert text.count(f"│ {name} ") >= 2
    for shown in (
        "B = 8",
        "B = 256",
        "at most 1.25",
        "at least 2.2",
        "at least 25",
        "one thread",
        "2 interleaved rounds",
    ):
        assert shown in text


def test_times_are_per_round_and_the_thread_setting_is_restored() -> None:
    before = torch.get_num_threads()
    times = dp_step.measure(dp_step.Work.of(8, SMALL), rounds=3, warm_up=0)
    assert list(times) == list(dp_step.VARIANTS)
    assert all(taken.shape == (3,) and (taken > 0).all() for taken in times.values())
    assert torch.get_num_threads() == before
    ratio = dp_step.Ratio.of(np.array([2.0, 4.0, 9.0]), np.array([1.0, 1.0, 3.0]))
    assert ratio.median == 3.0


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(SystemExit):
        dp_step.main(["--rounds", "0"])


@pytest.mark.parametrize("name", [dp_step.OURS, dp_step.GHOST, dp_step.VMAP, dp_step.HOOKS])
def test_every_private_variant_makes_the_same_step_without_noise(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Same clipped sum over the same (full) batch: the comparison is one of equals."""
    monkeypatch.setattr(dp_step, "SIGMA", 1e-9)
    work = dp_step.Work.of(4, SMALL)
    plan = MechanismPlan(1.0, dp_step.CLIP, 1e-9, 5, len(work.features))
    work = dp_step.Work(SMALL, plan, work.features, work.targets * 9, work.start)
    # The others clip at the clip itself, and ours a little below it.
    clip = dp_step.CLIP if name == dp_step.OURS else dp_step.CLIP / clip_limit(SMALL, 1.0)
    clipped = SMALL.clipped_gradient_sum(
        work.start, torch.from_numpy(work.features), torch.from_numpy(work.targets), clip
    )
    expected = work.start - dp_step.STEP_SIZE / plan.divisor * clipped.total
    kept: list[torch.nn.Module] = []
    network = dp_step.Work.network

    def keep(self: dp_step.Work) -> torch.nn.Sequential:
        kept.append(network(self))
        return kept[-1]  # type: ignore[return-value]

    monkeypatch.setattr(dp_step.Work, "network", keep)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step = dp_step.VARIANTS[name](work)
        step()
    cells = dict(zip(step.__code__.co_freevars, step.__closure__ or (), strict=True))
    if "weights" not in cells:
        found = torch.nn.utils.parameters_to_vector(kept[0].parameters()).detach()
    elif name == dp_step.OURS:
        found = cells["weights"].cell_contents
    else:
        found = torch.cat([value.flatten() for value in cells["weights"].cell_contents.values()])
    moved = float((expected - work.start).norm())
    assert float((found - expected).norm()) < 1e-4 * moved


def test_the_benchmark_of_secure_aggregation_plays_both_sides(capsys: pytest.CaptureFixture[str]) -> None:
    """Our round checks its own sum; a small size in seconds, whose figures say little."""
    secagg_benchmark.main(["--quick"])
    printed = capsys.readouterr().out
    for part in ("mask of 10,000 values", "Shamir combine, 14 of 20", "round of 5 x 1,000, 1 lost: coordinator"):
        assert part in printed
    assert "MISSED" not in printed, "targets are for the real sizes"


def test_the_benchmark_of_the_preparation_prints_both_stages_and_the_goal() -> None:
    out = Console(file=io.StringIO(), width=140)
    data_prep.main(["--tickers", "6", "--silos", "1"], out)
    text = out.file.getvalue()  # type: ignore[attr-defined]
    assert "check " in text
    assert "prepare, check included" in text
    assert "1,000 ticker-years / s" in text


@pytest.mark.slow
def test_a_run_of_one_round_prints_its_stages_once_without_masks_and_once_with_them() -> None:
    out = Console(file=io.StringIO(), width=140)
    round_benchmark.main(["--rounds", "1", "--silos", "3", "--tickers", "9"], out)
    text = out.file.getvalue()  # type: ignore[attr-defined]
    for stage in ("gradients", "ring encoding", "server step", "masks", "unmasking", "ledgers", round_benchmark.REST):
        assert stage in text
    assert "in the clear: " in text
    assert "with secure aggregation: " in text


def test_stages_are_exclusive_and_nothing_is_lost() -> None:
    clock = round_benchmark.Clock()
    inner = clock.timed("inner", lambda: sum(range(20_000)))
    outer = clock.timed("outer", lambda: [inner(), inner()])
    began = round_benchmark._now()
    clock.start()
    outer()
    clock.turn()
    passed = [now - before for now, before in zip(round_benchmark._now(), began, strict=True)]
    assert set(clock.seconds) == {"inner", "outer", round_benchmark.REST}
    for total, whole in zip(clock.total, passed, strict=True):
        assert 0 <= total <= whole + 1e-9
