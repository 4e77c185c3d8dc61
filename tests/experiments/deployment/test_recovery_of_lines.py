"""The line between silos and coordinator is cut, or its certificate ends: the run waits and goes on."""

import time
from collections.abc import Callable
from datetime import timedelta

import pytest

from experiments.provision import moments
from tests.experiments.deployment.oracle import check
from tests.experiments.deployment.runs import LAST, Run, fcfl
from tests.experiments.deployment.scenarios import full
from tests.experiments.deployment.stack import Stack

Begin = Callable[..., Run]
Outcome = Callable[[object], None]
pytestmark = [pytest.mark.slow, full]
LONG = {"deadline.enrol": 400.0, "deadline.train": 400.0, "deadline.unmask": 400.0}
STAGES = {
    "enrol": lambda run: run.until_answering(LAST, "query.enrol"),
    "join": lambda run: run.until_answering(LAST, "query.join"),
    "train": lambda run: run.until_answering(LAST, "train", epoch=1),
    "unmask": lambda run: run.until_unmasking(1),
}


def cut(stack: Stack, seconds: float) -> None:
    """Let nothing through for a while; connections stay open, as on a line that is cut."""
    stack.door.pause()
    end = time.monotonic() + seconds
    stack.wait(lambda: time.monotonic() >= end, "the end of the cut", seconds + 60)
    stack.door.go_on()


def test_the_line_cut_for_ten_seconds_in_every_stage(stack: Stack, begin: Begin, outcome: Outcome) -> None:
    run = begin()
    for stage in STAGES.values():
        stage(run)
        cut(stack, 10.0)
    run.finish()
    outcome(check(stack, run.path))


@pytest.mark.parametrize("stage", STAGES)
def test_the_line_cut_for_two_minutes(stack: Stack, begin: Begin, outcome: Outcome, stage: str) -> None:
    """Longer than Flower takes a silent node for alive."""
    run = begin(**LONG)
    STAGES[stage](run)
    cut(stack, 120.0)
    run.finish()
    # Once enough have answered, the epoch does not wait for one whose node Flower took for gone meanwhile.
    outcome(check(stack, run.path, faulty=None))


def test_a_server_certificate_that_ends(stack: Stack, begin: Begin, outcome: Outcome) -> None:
    run, node = begin(**LONG), stack.nodes[LAST]
    run.until_announced(1)
    stack.renewed(1, moments.now() - timedelta(days=1) + timedelta(seconds=30))
    stack.link.kill()
    stack.start_link()
    stack.wait(lambda: "certificate has expired" in node.said(), "the silo to say so")
    assert node.running
    fcfl("provision", "renew", "--project", stack.project.root)
    stack.link.kill()
    stack.start_link()
    run.finish()
    outcome(f"the node names it and waits; after `fcfl provision renew`: {check(stack, run.path, may_abandon=True)}")
