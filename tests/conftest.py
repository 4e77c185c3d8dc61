"""Settings of all tests: a busy machine is no reason to fail, and nothing is computed that no test looks at."""

import sys
from collections.abc import Iterator
from functools import partial

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("fcfl", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fcfl")

# Real processes that mostly wait, the longest first: beside them there is something else to do, at the end nothing.
FIRST = (
    "tests/experiments/deployment/test_node.py",
    "tests/experiments/test_runtimes.py",
    "tests/experiments/deployment/test_recovery.py",
    "tests/experiments/test_resume.py",
    "tests/experiments/provision/test_flower.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files that take longest first; needs --no-loadscope-reorder where files are spread over processes."""
    rank = {name: number for number, name in enumerate(FIRST)}
    items.sort(key=lambda item: rank.get(item.nodeid.partition("::")[0], len(FIRST)))


@pytest.fixture(autouse=True, scope="session")
def _coarse_group_figure() -> Iterator[None]:
    """Let summaries of runs take a coarse grid for the group figure, a bound all the same.

    The figure itself is tested in `tests/privacy`; as fine as it is printed for a user it takes longer than a tiny run.
    """
    with pytest.MonkeyPatch.context() as patch:
        # Whoever conducts a run in this process has imported it by now.
        if (app := sys.modules.get("server_app.app")) is not None:
            patch.setattr(app, "epsilon_group", partial(app.epsilon_group, discretization=1.0))
        yield
