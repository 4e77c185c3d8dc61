"""The Flower Strategy: rounds of two messages, each round one secure sum, with its own ``start``.

Flower's base ``start`` counts rounds from 1, cannot repeat an abandoned round, keeps no server state and
looks for replies every 3 s; here an epoch may fail without a trace in the optimiser, every stage has its
own deadline, and the state is checkpointed after every epoch.
"""

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fcfl_strategy import checkpoint, rounds
from fcfl_strategy.enrolment import CLOSE, enrol, find_missing
from fcfl_strategy.errors import RunError, SumError
from fcfl_strategy.exchange import Mailbox, request
from fcfl_strategy.journal import Journal
from fcfl_strategy.metrics import Metrics, split_metrics
from fcfl_strategy.rounds import Facts, RunState
from fcfl_strategy.secure_epoch import Federation, SecureEpoch
from fcfl_strategy.settings import Settings
from privacy.release import ReleasePlan
from secagg.envelopes import CloseRequest
from secagg.errors import SecAggError
from secagg.layout import layout_for

logger = logging.getLogger("fcfl.coordinator")

CHECKPOINT = "checkpoint"


class Observer(Protocol):
    """What the server room does beside the protocol; both calls may be repeated for an epoch after a crash."""

    def announced(self, epoch: int, plan: ReleasePlan) -> None:
        """Charge the epoch in the coordinator's ledger, durably, before anything is sent."""

    def finished(self, row: Mapping[str, Any]) -> None:
        """Add a row to the history, durably."""


@dataclass(frozen=True)
class OpenEpoch:
    """An announced epoch, and once its sums are there what they showed."""

    secure: SecureEpoch
    plan: ReleasePlan
    facts: Facts = field(default=Facts(0, None, None))
    splits: Mapping[str, Metrics | None] = field(default_factory=dict)


class FcflStrategy(Strategy):
    """FCFL on Flower, and its baselines: the settings' `ServerRule` and plan make the method.

    Parameters
    ----------
    settings : Settings
    journal : Journal
        Holds the checkpoint, if the run is resumed.
    observer : Observer
    """

    def __init__(self, settings: Settings, journal: Journal, observer: Observer) -> None:
        self.settings = settings
        self.journal = journal
        self.observer = observer
        self.outcome = ""
        self.records: Mapping[str, int] = {}
        self._grid: Grid
        self._mailbox: Mailbox
        self._federation: Federation
        self._state: RunState
        self._open: OpenEpoch | None = None

    # --- the run --------------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 0,
        timeout: float = 0,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Any = None,
    ) -> Result:
        """Run, or resume, until the planned rounds are done or the privacy budget ends.

        Parameters
        ----------
        grid : Grid
        initial_arrays : ArrayRecord
            One float32 vector named ``weights``.
        num_rounds, timeout, train_config, evaluate_config, evaluate_fn
            Kept for Flower's signature; the noise is calibrated for the rounds of the settings, which
            decide alone.

        Returns
        -------
        Result
            Final weights and the metrics of each round.

        Raises
        ------
        RunError
            If too few silos enrol or survive.
        """
        self._grid = grid
        self._mailbox = Mailbox(grid, self.settings.deadlines.poll)
        self._federation, self.records = enrol(grid, self._mailbox, self.settings, self.journal)
        weights = initial_arrays["weights"].numpy()
        stored = self.journal.get(CHECKPOINT)
        self._state = (
            checkpoint.load(stored) if stored is not None else rounds.first_state(self.settings, weights, self.records)
        )
        if self._state.abandoned >= self.settings.max_abandoned:
            # The run gave up and somebody resumes it: it gets as many tries again.
            self._state = replace(self._state, abandoned=0)
        result = Result()
        while rounds.unscaled(self.settings, self._state) and not self._done():
            self._run_epoch("scale")
        while not self._done():
            metrics = self._run_epoch("train")
            if metrics is not None:
                result.train_metrics_clientapp[self._state.rounds] = metrics
        if self.settings.evaluate and not self._state.evaluated:
            metrics = self._run_epoch("evaluate")
            if metrics is not None:
                result.evaluate_metrics_clientapp[self._state.rounds] = metrics
        self._close()
        result.arrays = self._weights()
        return result

    def _done(self) -> bool:
        state, settings = self._state, self.settings
        if state.rounds >= settings.rounds:
            self.outcome = "completed"
        elif rounds.exhausted(settings, state, self.records):
            self.outcome = "budget exhausted"
        elif state.abandoned >= settings.max_abandoned:
            raise RunError(
                f"too few survivors in {state.abandoned} epochs in a row: at least "
                f"{self._federation.run.minimum} of {len(self._federation.run.roster.entries)} silos must answer; "
                "see the silos' logs, then resume the run"
            )
        return bool(self.outcome)

    def _run_epoch(self, purpose: str) -> MetricRecord | None:
        """Announce, sum and absorb one epoch; None if it was abandoned."""
        began = time.monotonic()
        waits, settled = self.settings.deadlines, self._state
        training, done = purpose == "train", False
        configure = {"scale": self.configure_scaling, "train": self.configure_train}.get(
            purpose, self.configure_evaluate
        )
        self._open, metrics = None, None
        try:
            self._collect_bundles(settled.epoch + 1)
            messages = list(configure(settled.rounds + 1, ArrayRecord(), ConfigRecord(), self._grid))
            opened = self._opened
            self.observer.announced(opened.secure.number, opened.plan)
            secure, federation = opened.secure, self._federation
            self._mailbox.insist(
                messages,
                secure.receive_masked,
                waits.train,
                lambda lost: federation.would_do(secure.announcement.ids, secure.masked, lost),
            )
            if training:
                _, metrics = self.aggregate_train(settled.rounds + 1, ())
            elif purpose == "scale":
                self.aggregate_scaling()
            else:
                metrics = self.aggregate_evaluate(settled.rounds + 1, ())
            done = True
        except (SecAggError, SumError) as error:
            logger.warning("epoch %d abandoned: %s", settled.epoch + 1, error)
            shown: Mapping[str, bytes] = self._open.secure.heads() if self._open is not None else {}
            self._state = rounds.abandon(replace(self._state, epoch=settled.epoch + 1), shown)
        if self._open is not None and self._open.secure.control_lost:
            logger.warning("epoch %d: a silo lost its control; all controls are reset", self._state.epoch)
            self._state = rounds.reset_controls(self._state)
        status = "completed" if done else "abandoned"
        if training and done and self._opened.facts.contributors == 0:
            status = "empty"
        self.observer.finished(self._row(purpose, status, time.monotonic() - began))
        self.journal.put(CHECKPOINT, checkpoint.dump(self._state))
        for kind in ("announcement", "masked", "survivors", "bundle"):
            self.journal.erase(f"{self._state.epoch:08d}.{kind}")
        return metrics

    @property
    def _opened(self) -> OpenEpoch:
        if self._open is None:
            raise RuntimeError("no epoch is announced")
        return self._open

    def _collect_bundles(self, epoch: int) -> None:
        """Make sure that enough silos have sent a bundle for ``epoch``.

        Survivors of the epoch before sent it with their vectors and latecomers were asked beside the unmask
        stage, so that only the first epoch, or one after heavy losses, waits here.
        """
        if self.journal.get(f"{epoch:08d}.announcement") is not None:
            return
        federation, waits = self._federation, self.settings.deadlines
        held = federation.bundles(epoch)
        if epoch == 1 or federation.run.shortage(held.keys(), held.keys()):
            # A run that was taken up over a line that is cut may know too few nodes.
            find_missing(self._grid, self._mailbox, self.settings, federation, waits.unmask)
            self._mailbox.insist(
                self._join_requests(epoch),
                lambda answer: federation.receive_bundle(answer, epoch),
                waits.unmask,
                lambda lost: bool(federation.run.shortage((held := federation.bundles(epoch)), held)),
            )

    def _join_requests(self, epoch: int) -> list[Message]:
        """Requests to the silos without a bundle for ``epoch``."""
        federation = self._federation
        missing = set(federation.nodes) - set(federation.bundles(epoch))
        return federation.join_requests(epoch, missing, self.settings.deadlines.unmask)

    # --- Flower's interface, one epoch ------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Announce a training epoch; the requests carry ``y`` and ``c``."""
        plan = rounds.plan_training(self.settings, self._state, self.records)
        point, control = rounds.broadcast(self.settings, self._state, self.records)
        return self._announce(plan, point, control)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Announce an epoch that only sums the metrics of the served model."""
        plan = rounds.plan_evaluation(self.settings, self._state, self.records)
        _, control = rounds.broadcast(self.settings, self._state, self.records)
        served = rounds.served(self.settings, self._state).astype(np.float32)
        return self._announce(plan, served, control)

    def configure_scaling(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Announce the epoch that sums the moments of the features."""
        point, control = rounds.broadcast(self.settings, self._state, self.records)
        return self._announce(rounds.plan_scaling(self.settings, self._state, self.records), point, control)

    def _announce(
        self, plan: ReleasePlan, point: np.ndarray[Any, Any], control: np.ndarray[Any, Any]
    ) -> Iterable[Message]:
        run = self._federation.run
        state, bounds = self._state, plan.bounds(self.settings.terms)
        layout = layout_for(((b.name, b.length, b.bits, b.bound) for b in bounds), len(run.roster.entries))
        secure = SecureEpoch.announce(
            self._federation, state.epoch + 1, layout, plan.to_bytes(), state.outcomes, state.ledger_heads
        )
        self._open = OpenEpoch(secure, ReleasePlan.from_bytes(secure.announcement.context))
        self._state = rounds.announced(self.settings, state, self._open.plan)
        sent = {"point": point, "control": control}
        if self._state.scale is not None:
            sent["scale"] = rounds.scale_array(self._state.scale)
        return secure.mask_requests(sent, self.settings.deadlines.train)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Unmask the sum of the vectors received in time and take the server step."""
        opened, sums = self._opened, self._unmask()
        state = rounds.complete(self._state, opened.secure.heads())
        self._state, facts = rounds.absorb(self.settings, state, opened.plan, sums)
        metrics = split_metrics(sums, "validation")
        self._open = replace(opened, facts=facts, splits={"validation": metrics})
        return self._weights(), _metric_record(metrics)

    def aggregate_scaling(self) -> None:
        """Unmask the moments of the features and fix their scale."""
        opened, sums = self._opened, self._unmask()
        state = rounds.complete(self._state, opened.secure.heads())
        self._state = rounds.absorb_moments(self.settings, state, opened.plan, sums)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Unmask the metrics of the served model."""
        opened, sums = self._opened, self._unmask()
        self._state = replace(rounds.complete(self._state, opened.secure.heads()), evaluated=True)
        splits = {split: split_metrics(sums, split) for split in opened.plan.splits}
        self._open = replace(opened, splits=splits)
        return _metric_record(splits["test"])

    def _unmask(self) -> dict[str, np.ndarray[Any, Any]]:
        waits, secure = self.settings.deadlines, self._opened.secure
        asked = secure.fix_survivors()
        federation, epoch = self._federation, secure.number + 1
        # Latecomers are asked beside the unmasking; their answers are taken whenever they arrive.
        find_missing(self._grid, self._mailbox, self.settings, federation)
        self._mailbox.send(self._join_requests(epoch), lambda answer: federation.receive_bundle(answer, epoch))
        self._mailbox.insist(
            secure.unmask_requests(asked, waits.unmask),
            secure.receive_shares,
            waits.unmask,
            lambda lost: federation.would_do(secure.announcement.ids, secure.shares, lost),
        )
        return secure.sums()

    def _weights(self) -> ArrayRecord:
        return ArrayRecord({"weights": Array(rounds.served(self.settings, self._state).astype(np.float32))})

    def summary(self) -> None:
        """Log the main settings."""
        logger.info("settings: %s", self.settings)

    # --- what is left behind ----------------------------------------------------------------------

    @property
    def rounds_done(self) -> int:
        """Rounds done so far, empty ones included."""
        return self._state.rounds

    @property
    def further_budgets(self) -> Mapping[str, Mapping[str, float]]:
        """Upper bounds on what a silo spent of the budgets beside training, by purpose."""
        terms = self.settings.terms
        return {
            opened.run.removeprefix(f"{terms.run}."): {
                "epsilon": self._state.spent[opened.run].epsilon(terms.delta),
                "epsilon_target": opened.epsilon,
            }
            for opened in terms.openings("coordinator")[1:]
        }

    @property
    def feature_scale(self) -> Mapping[str, np.ndarray[Any, Any]]:
        """Mean and scale of the features that the model was trained on, if they are not the public ones."""
        found = self._state.scale
        return {} if found is None else {"feature_mean": np.array(found.mean), "feature_scale": np.array(found.scale)}

    @property
    def threshold(self) -> int:
        """Silos that must survive an epoch: ``t``, or all but the stated drop-outs of a regular graph."""
        return self._federation.run.minimum

    def _row(self, purpose: str, status: str, seconds: float) -> Mapping[str, Any]:
        """One line of the history."""
        state, opened = self._state, self._open
        training, done = purpose == "train", status != "abandoned"
        return {
            "epoch": state.epoch,
            "round": state.rounds + (0 if done else 1) if training else state.rounds,
            "purpose": purpose,
            "status": status,
            "contributors": opened.facts.contributors if opened and training and done else None,
            "survivors": len(opened.secure.masked) if opened else 0,
            "enrolled": len(self._federation.run.roster.entries),
            "sigma": opened.plan.noise_multiplier if opened and training else None,
            "epsilon": rounds.epsilon(self.settings, state),
            "budget_fraction": state.spent[self.settings.terms.run].fraction,
            "divergence": opened.facts.divergence if opened else None,
            "update_norm": opened.facts.update_norm if opened else None,
            "validation": opened.splits.get("validation") if opened else None,
            "test": opened.splits.get("test") if opened else None,
            "seconds": seconds,
            "bytes_up": opened.secure.bytes_up if opened else 0,
            "bytes_down": opened.secure.bytes_down if opened else 0,
        }

    def _close(self) -> None:
        """Tell the silos that the run is over, so that they erase its secrets."""
        federation, waits = self._federation, self.settings.deadlines
        body = CloseRequest(federation.run.run_id).to_bytes()
        messages = [request(CLOSE, node, body, ttl=waits.unmask, group="close") for node in federation.nodes.values()]
        answers = self._mailbox.exchange(messages, waits.unmask)
        if silent := len(federation.nodes) - sum(answer.body is not None for answer in answers):
            logger.warning("%d silos did not confirm the end of the run", silent)


def _metric_record(metrics: Metrics | None) -> MetricRecord:
    return MetricRecord({name: value for name, value in (metrics or {}).items() if value is not None})
