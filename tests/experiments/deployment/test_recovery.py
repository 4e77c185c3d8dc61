"""Every process of a deployment is killed without warning; the run goes on, and nothing is counted or charged twice."""

from collections.abc import Callable

import pytest

from tests.experiments.deployment.oracle import check
from tests.experiments.deployment.runs import LAST, Run
from tests.experiments.deployment.scenarios import full
from tests.experiments.deployment.stack import Stack

Begin = Callable[..., Run]
Outcome = Callable[[object], None]
pytestmark = [pytest.mark.slow, full]


def test_a_worker_killed_in_training(stack: Stack, begin: Begin, outcome: Outcome) -> None:
    run = begin()
    run.until_answering(LAST, "train", epoch=1)
    run.kill_worker(LAST)
    run.finish()
    outcome(check(stack, run.path, faulty=[LAST]))


def test_the_superlink_killed_and_started_again(stack: Stack, begin: Begin, outcome: Outcome) -> None:
    run = begin()
    run.until_announced(1)
    stack.link.kill()
    stack.start_link()
    run.finish()
    outcome(check(stack, run.path))


def test_the_proxy_killed_and_started_again(stack: Stack, begin: Begin, outcome: Outcome) -> None:
    run = begin()
    run.until_answering(LAST, "train", epoch=1)
    stack.door.kill()
    stack.wait(lambda: "does not answer" in stack.nodes[LAST].said(), "the silo to notice")
    stack.door.start()
    run.finish()
    outcome(check(stack, run.path))


def test_the_server_app_killed(stack: Stack, begin: Begin, outcome: Outcome) -> None:
    run = begin()
    run.until_unmasking(1)
    stack.server_app().kill()
    run.finish()
    outcome(check(stack, run.path))


def test_the_executor_killed(stack: Stack, begin: Begin, outcome: Outcome) -> None:
    run = begin()
    run.until_announced(1)
    stack.executor.power_off()
    stack.executor.start()
    run.finish()
    outcome(check(stack, run.path))


@pytest.mark.parametrize("message", ["enrol", "join", "train", "unmask"])
def test_a_node_killed_at_work_on_a_message(stack: Stack, begin: Begin, outcome: Outcome, message: str) -> None:
    """The SuperLink gives a message to nobody twice: the coordinator sends it again."""
    run = begin(rounds=3)
    run.until_answering(LAST, message if message == "train" else f"query.{message}")
    stack.nodes[LAST].kill()
    stack.nodes[LAST].start()
    run.finish()
    # Once enough have answered, the epoch does not wait for one whose node is away.
    outcome(check(stack, run.path, faulty=[LAST]))


def test_the_conductor_killed_and_the_command_given_again(stack: Stack, begin: Begin, outcome: Outcome) -> None:
    run = begin()
    run.until_announced(1)
    run.conductor.power_off()
    run.conductor.start()
    run.finish()
    outcome(check(stack, run.path))


def test_everything_killed_and_started_again(stack: Stack, begin: Begin, outcome: Outcome) -> None:
    run = begin()
    run.until_answering(LAST, "train", epoch=1)
    for part in (*stack.parts, run.conductor):
        part.power_off()
    stack.up()
    run.conductor.start()
    run.finish()
    outcome(check(stack, run.path))


def test_power_lost_between_ledger_and_reply(stack: Stack, begin: Begin, outcome: Outcome) -> None:
    run = begin(rounds=3, **{"deadline.train": 45.0})
    charge_and_lose_power(stack, run)
    stack.nodes[LAST].start()
    run.finish()
    outcome(check(stack, run.path, faulty=[LAST]))


def test_power_lost_between_ledger_and_reply_and_the_server_app_killed(
    stack: Stack, begin: Begin, outcome: Outcome
) -> None:
    """The resumed coordinator asks again, and the outbox gives the reply that was paid for."""
    run = begin()
    charge_and_lose_power(stack, run)
    stack.server_app().kill()
    stack.nodes[LAST].start()
    run.finish()
    outcome(check(stack, run.path))


def charge_and_lose_power(stack: Stack, run: Run) -> None:
    """Cut the line once a silo trains, wait until its ledger has the epoch, and switch it off."""
    run.until_answering(LAST, "train", epoch=1)
    stack.door.pause()
    stack.wait(lambda: run.charged(LAST, 1), "the silo's ledger")
    stack.nodes[LAST].power_off()
    stack.door.go_on()
