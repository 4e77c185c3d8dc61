"""A whole run in one process without messages, masks, ledgers and files: **nothing is hidden from the coordinator**.

What a coordinator and a silo compute is the product's own code: the plan, the local training and its noise, the ring
encoding, the filters that decide who may still train, the server's step. Left out is what carries and protects it:
Flower, the masks, signatures, the ledger on disk, and the loss of silos. With the same noise seed weights and history
are bit for bit those of the same run with masks (`tests/experiments/arena/test_federation.py`), so a study may use it;
a deployment never.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client_app.contribution import Question, Sample, contribution
from client_app.drift_control import Control, settle
from fcfl_strategy import rounds
from fcfl_strategy.metrics import split_metrics
from fcfl_strategy.rounds import Facts, RunState
from fcfl_strategy.settings import Settings
from privacy.count_filter import Budget
from privacy.release import ReleasePlan
from secagg.layout import layout_for
from secagg.messages import PROTOCOL_VERSION, Announcement
from secagg.ring import EncodedVector, Layout, decode_sum, signed_view

IN_THE_CLEAR = "sums in the clear, nothing hidden from the coordinator"
_NO_HASH = bytes(32)
_NO_HEAD = bytes(40)


@dataclass(frozen=True)
class Silo:
    """One silo between two epochs.

    Attributes
    ----------
    name : str
    sample : Sample
    control : Control
        Settled up to the last epoch.
    budgets : mapping of str to Budget
        What its ledger would say of every budget of the run.
    """

    name: str
    sample: Sample
    control: Control
    budgets: Mapping[str, Budget]

    def answer(self, asked: Question) -> tuple["Silo", EncodedVector]:
        """Contribute to an epoch, and be charged for it as a silo's ledger would.

        The epoch is settled at once: here every vector counts.
        """
        may_train = rounds.fits(self.budgets, asked.training) is not None
        may_measure = rounds.fits(self.budgets, asked.others) is not None
        vector = contribution(self.sample, self.name, asked, self.control, may_train=may_train, may_measure=may_measure)
        due = (asked.training if vector.released else ()) + (asked.others if may_measure else ())
        budgets = rounds.fits(self.budgets, due)
        if budgets is None:
            raise RuntimeError(f"{self.name}: a release that was admitted does not fit its budget")
        control = settle(self.control, asked.announcement.epoch, vector.pending)
        return replace(self, control=control, budgets=budgets), vector.encoded


@dataclass(frozen=True)
class Epoch:
    """A finished epoch.

    Attributes
    ----------
    state : RunState
        After it.
    point : ndarray of float32, shape (p,)
        What was broadcast.
    row : mapping
        The line of the history that the coordinator would write, without seconds and bytes.
    silos : tuple of Silo
    """

    state: RunState
    point: NDArray[np.float32]
    row: Mapping[str, Any]
    silos: tuple[Silo, ...]


def conduct(settings: Settings, weights: NDArray[np.float32], samples: Mapping[str, Sample]) -> Iterator[Epoch]:
    """Run until the planned rounds are done or the budget ends, and yield every epoch.

    Parameters
    ----------
    settings : Settings
    weights : ndarray of float32, shape (p,)
        The public initial model.
    samples : mapping of str to Sample
        The silos by name.

    Raises
    ------
    fcfl_strategy.errors.SumError
        If the sums of an epoch contradict each other, as only numbers without any sense do.
    """
    records = {name: samples[name].records for name in sorted(samples)}
    state = rounds.first_state(settings, weights, records)
    control, budgets = Control(np.zeros(len(weights))), settings.terms.budgets()
    silos = tuple(Silo(name, samples[name], control, budgets) for name in records)
    while rounds.unscaled(settings, state) and not _done(settings, state, records):
        yield (epoch := _epoch(settings, state, records, silos, "scale"))
        state, silos = epoch.state, epoch.silos
    while not _done(settings, state, records):
        yield (epoch := _epoch(settings, state, records, silos, "train"))
        state, silos = epoch.state, epoch.silos
    if settings.evaluate:
        yield _epoch(settings, state, records, silos, "evaluate")


def _done(settings: Settings, state: RunState, records: Mapping[str, int]) -> bool:
    return state.rounds >= settings.rounds or rounds.exhausted(settings, state, records)


def _epoch(
    settings: Settings, state: RunState, records: Mapping[str, int], silos: tuple[Silo, ...], purpose: str
) -> Epoch:
    """Announce, sum and absorb one epoch, as `fcfl_strategy.strategy.FcflStrategy` does."""
    make = {"scale": rounds.plan_scaling, "train": rounds.plan_training}.get(purpose, rounds.plan_evaluation)
    plan = make(settings, state, records)
    point, control = rounds.broadcast(settings, state, records)
    if purpose == "evaluate":
        point = rounds.served(settings, state).astype(np.float32)
    announced = _announcement(settings, state, plan, tuple(records))
    scale = state.scale
    state = rounds.announced(settings, state, plan)

    answered, total = [], _Total(announced.layout)
    for silo in silos:
        charges = plan.charges(settings.terms, records[silo.name])
        asked = Question(announced, plan, settings.terms, charges, point, control, scale)
        after, encoded = silo.answer(asked)
        answered.append(after)
        total.add(encoded)
    sums = total.decoded()

    state, facts = rounds.complete(state, dict.fromkeys(records, _NO_HEAD)), Facts(0, None, None)
    if purpose == "scale":
        state = rounds.absorb_moments(settings, state, plan, sums)
    elif purpose == "train":
        state, facts = rounds.absorb(settings, state, plan, sums)
    else:
        state = replace(state, evaluated=True)
    return Epoch(state, point, _row(settings, state, plan, facts, sums, len(silos)), tuple(answered))


def _announcement(settings: Settings, state: RunState, plan: ReleasePlan, names: tuple[str, ...]) -> Announcement:
    """Return what a contribution needs of an announcement: its epoch and its ring."""
    bounds = ((b.name, b.length, b.bits, b.bound) for b in plan.bounds(settings.terms))
    return Announcement(
        version=PROTOCOL_VERSION,
        run_id=settings.terms.run_id,
        epoch=state.epoch + 1,
        roster_hash=_NO_HASH,
        participants=tuple((name, _NO_HASH) for name in names),
        layout=layout_for(bounds, len(names)),
        outcomes=(),
        ledger_heads={},
        context=b"",
    )


class _Total:
    """Sum of encoded vectors, one at a time: as integers, which the layout keeps from wrapping."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._sums = {segment.name: np.zeros(segment.length, dtype=np.int64) for segment in layout}

    def add(self, encoded: EncodedVector) -> None:
        for name, values in encoded.values.items():
            np.add(self._sums[name], signed_view(values), out=self._sums[name])

    def decoded(self) -> dict[str, NDArray[np.float64]]:
        return decode_sum(self._layout, self._sums)


def _row(
    settings: Settings, state: RunState, plan: ReleasePlan, facts: Facts, sums: rounds.Sums, silos: int
) -> Mapping[str, Any]:
    training = plan.purpose == "train"
    empty = training and facts.contributors == 0
    evaluation = plan.purpose == "evaluate"
    return MappingProxyType(
        {
            "epoch": state.epoch,
            "round": state.rounds,
            "purpose": plan.purpose,
            "status": "empty" if empty else "completed",
            "contributors": facts.contributors if training else None,
            "survivors": silos,
            "enrolled": silos,
            "sigma": plan.noise_multiplier if training else None,
            "epsilon": rounds.epsilon(settings, state),
            "budget_fraction": state.spent[settings.terms.run].fraction,
            "divergence": facts.divergence,
            "update_norm": facts.update_norm,
            "validation": split_metrics(sums, "validation"),
            "test": split_metrics(sums, "test") if evaluation else None,
        }
    )
