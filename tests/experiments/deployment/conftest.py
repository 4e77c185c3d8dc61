"""One deployment for all scenarios of recovery: each is a run of its own, and leaves the deployment whole."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.experiments.deployment.runs import Run
from tests.experiments.deployment.scenarios import FAILED, note
from tests.experiments.deployment.stack import Stack, deployed


@pytest.fixture(scope="package")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with deployed(tmp_path_factory.mktemp("recovery")) as stack:
        yield stack


@pytest.fixture
def stack(deployment: Stack) -> Stack:
    """The deployment with every part running, whatever an earlier test left."""
    deployment.up()
    return deployment


@pytest.fixture
def begin(stack: Stack, request: pytest.FixtureRequest) -> Iterator[Callable[..., Run]]:
    """Start a run; one that is still under way at the end of the test is ended."""
    begun: list[Run] = []
    scenario = request.node.name

    def start(**settings: Any) -> Run:
        name = "".join(c if c.isalnum() else "-" for c in scenario)[-40:].strip("-")
        begun.append(Run.begin(stack, stack.root / "runs" / name, **settings))
        return begun[-1]

    yield start
    for run in begun:
        run.conductor.terminate()


@pytest.fixture
def outcome(request: pytest.FixtureRequest) -> Callable[[object], None]:
    """Write what came of a scenario where the table is made from."""
    note(request.node.name, FAILED)
    return lambda text: note(request.node.name, str(text))
