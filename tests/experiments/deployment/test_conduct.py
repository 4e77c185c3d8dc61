"""What the conductor of a deployed run waits for, and when it does not start a second ServerApp."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from flwr.common.constant import Status
from flwr.proto.control_pb2 import ListNodesResponse, ListRunsResponse
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.run_pb2 import Run as FlowerRun
from flwr.proto.run_pb2 import RunStatus
from flwr.proto.transport_pb2 import Scalar
from rich.console import Console

from experiments.deployment import conduct
from experiments.deployment.conduct import Patience
from experiments.deployment.control import ONLINE, Coordinator, under_way
from fcfl_strategy.errors import RunError

COORDINATOR = Coordinator("127.0.0.1:1", Path("ca.crt"))
QUICK = Patience(online=0.2, missing=0.05, superlink=0.0)


class Control:
    """A SuperLink with these runs (folder, status) and so many nodes online."""

    def __init__(self, runs: list[tuple[str, str]], online: int = 0) -> None:
        self.runs, self.online = runs, online

    def ListRuns(self, request: object) -> ListRunsResponse:  # noqa: N802 - Flower's name
        found = {
            number: FlowerRun(override_config={"run-dir": Scalar(string=folder)}, status=RunStatus(status=status))
            for number, (folder, status) in enumerate(self.runs)
        }
        return ListRunsResponse(run_dict=found)

    def ListNodes(self, request: object) -> ListNodesResponse:  # noqa: N802 - Flower's name
        nodes = [NodeInfo(node_id=n, public_key=b"%d" % n, status=ONLINE) for n in range(self.online)]
        return ListNodesResponse(nodes_info=nodes)


@pytest.mark.parametrize("status", [Status.PENDING, Status.STARTING, Status.RUNNING])
def test_a_run_is_under_way_until_the_superlink_says_it_has_ended(tmp_path: Path, status: str) -> None:
    ours, other = str(tmp_path / "run"), str(tmp_path / "other")
    assert under_way(Control([(ours, Status.FINISHED), (ours, status)]), tmp_path / "run")  # type: ignore[arg-type]
    assert not under_way(Control([(ours, Status.FINISHED), (other, status)]), tmp_path / "run")  # type: ignore[arg-type]


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> Any:
    def connect(client: Control) -> None:
        @contextmanager
        def control(_: Coordinator) -> Iterator[Control]:
            yield client

        monkeypatch.setattr(conduct, "control", control)
        monkeypatch.setattr(conduct, "WAIT_SECONDS", 0.01)

    return connect


def begun(run: Path, monkeypatch: pytest.MonkeyPatch, least: int) -> None:
    (run / "journal").mkdir(parents=True)
    (run / "journal" / "run").write_bytes(b"frozen")

    class Frozen:
        minimum = least

    monkeypatch.setattr(conduct.Run, "from_bytes", lambda _: Frozen())


def test_a_run_that_has_begun_goes_on_without_silos_it_can_do_without(
    tmp_path: Path, connected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(tmp_path, monkeypatch, 3)
    connected(Control([], online=3))
    conduct._await_online(COORDINATOR, tmp_path, 4, QUICK, Console(quiet=True))


def test_a_run_that_has_begun_waits_for_as_many_as_it_needs(
    tmp_path: Path, connected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(tmp_path, monkeypatch, 3)
    connected(Control([], online=2))
    with pytest.raises(RunError, match="2 of 4 silos are online"):
        conduct._await_online(COORDINATOR, tmp_path, 4, QUICK, Console(quiet=True))


def test_a_new_run_begins_with_all_its_silos(tmp_path: Path, connected: Any) -> None:
    connected(Control([], online=3))
    with pytest.raises(RunError, match="3 of 4 silos are online"):
        conduct._await_online(COORDINATOR, tmp_path, 4, QUICK, Console(quiet=True))
