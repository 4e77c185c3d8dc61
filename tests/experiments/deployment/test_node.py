"""Real nodes of silos against Flower's own SuperLink: the bits of one process, and what happens when something dies."""

import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from flwr.proto.control_pb2 import ListNodesRequest, UnregisterNodeRequest
from rich.console import Console

from client_app.node.errors import NodeError
from client_app.node.fleet import connect
from client_app.node.settings import Connection, load_connection
from experiments.deployment.conduct import Patience, conduct_deployed
from experiments.deployment.control import control, node_key
from experiments.flower import APP, stop
from experiments.provision.certificates import authority, pem
from experiments.provision.keys import new_key, openssh, write_once
from experiments.silos import make_silos
from experiments.training import run_in_process
from privacy.ledger import verify
from tests.experiments.deployment.lab import Lab, deployed, wait
from tests.experiments.tiny import write_samples

pytestmark = pytest.mark.slow

SILOS = 3
SETTINGS: Mapping[str, Any] = {
    "silos": SILOS,
    "rounds": 2,
    "participation.cohort": 2.0,
    "noise-seed": 7,
    "deadline.poll": 0.5,
}
# What somebody who may submit runs could send to the silos.
FOREIGN = """
from pathlib import Path
from flwr.clientapp import ClientApp
Path({marker!r}).write_text("imported")
app = ClientApp()
"""


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return sorted(write_samples(tmp_path_factory.mktemp("market") / "samples", SILOS).iterdir())


@pytest.fixture(scope="module")
def lab(shards: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with deployed(tmp_path_factory.mktemp("lab"), shards) as made:
        for number in range(SILOS):
            made.node(number)
        yield made


def conduct(lab: Lab, name: str, app: Path = APP, **settings: Any) -> Path:
    """Conduct a run of its own; return its folder."""
    run = lab.root / name
    conduct_deployed(
        run,
        {**SETTINGS, **settings},
        lab.coordinator,
        [home / "supernode.pub" for home in lab.homes],
        app=app,
        home=lab.root / f"home-{name}",
        patience=Patience(),
        console=Console(quiet=True),
    )
    return run


def weights(run: Path) -> bytes:
    with np.load(run / "model.npz") as stored:
        return np.array(stored["weights"]).tobytes()


def foreign_app(root: Path, marker: Path) -> Path:
    """The app with other code in place of the silos'."""
    shutil.copytree(APP, root, ignore=lambda folder, names: {n for n in names if n.startswith(".") or n in IGNORED})
    shutil.rmtree(root / "client_app")
    (root / "client_app").mkdir()
    (root / "client_app" / "__init__.py").touch()
    (root / "client_app" / "app.py").write_text(FOREIGN.format(marker=str(marker)))
    return root


IGNORED = frozenset({"runs", "tests", "docs", "docker", "experiments", "__pycache__"})


def test_real_nodes_give_the_bits_of_one_process_and_run_none_of_the_code_that_is_shipped(
    lab: Lab, shards: list[Path], tmp_path: Path
) -> None:
    marker = tmp_path / "ran-foreign-code"
    run = conduct(lab, "bits", app=foreign_app(tmp_path / "app", marker))
    make_silos(shards, tmp_path / "silos", epsilon=3.0, delta=3e-5, allow_seeded=True)
    settings = {**SETTINGS, "simulation-root": str(tmp_path / "silos")}
    run_in_process(tmp_path / "run", settings, console=Console(quiet=True))
    assert weights(run) == weights(tmp_path / "run")
    # It was shipped: the executor has unpacked it.
    unpacked = (lab.root / "flower").rglob("client_app/app.py")
    assert FOREIGN.format(marker=str(marker)) in [path.read_text() for path in unpacked]
    assert not marker.exists()


def test_another_process_with_the_key_is_refused_while_the_first_one_is_alive(lab: Lab, tmp_path: Path) -> None:
    shutil.copytree(lab.homes[0], tmp_path / "copy")
    with (
        pytest.raises(NodeError, match="another process uses it"),
        connect(load_connection(tmp_path / "copy"), threading.Event(), patience=0),
    ):
        pass


def test_a_key_that_nobody_registered_is_refused(lab: Lab, tmp_path: Path) -> None:
    write_once(tmp_path / "key", openssh(new_key()))
    known = load_connection(lab.homes[0])
    stranger = Connection(known.superlink, known.root_certificates, tmp_path / "key")
    with pytest.raises(NodeError, match="not registered"), connect(stranger, threading.Event(), patience=0):
        pass


def test_a_server_of_another_authority_is_refused(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_bytes(pem(authority(new_key(), "Other", datetime.now(UTC), 3)))
    known = load_connection(lab.homes[0])
    deceived = Connection(known.superlink, tmp_path / "ca.crt", known.node_key)
    with pytest.raises(NodeError, match="certificate is not accepted"), connect(deceived, threading.Event()):
        pass


def test_a_node_killed_in_training_and_one_stopped_in_training_come_back_and_the_run_goes_on(lab: Lab) -> None:
    # Three silos are the least that can unmask: an epoch that lacks one is abandoned. More steps take longer, so that a
    # node can be met while it trains. What it had taken is sent to it again once it has come back.
    settings = {**SETTINGS, "max-abandoned": 1000, "local.steps": 50, "rounds": 8, "deadline.train": 120.0}
    run = lab.conduct("killed", settings)
    node, family = training(lab, 0)
    node.send_signal(signal.SIGKILL)
    node.wait()
    assert_gone(family)
    lab.node(0)
    wait(lambda: sum("connected" in event for event in lab.events(0)) == 2, lab.log(lab.homes[0].name))
    assert "stopped" not in lab.events(0)
    node, family = training(lab, 1)
    node.send_signal(signal.SIGTERM)
    assert node.wait(30) == 0
    # It has told the coordinator: nobody waits for its heartbeats to run out.
    assert "offline" in lab.statuses()
    assert_gone(family)
    assert lab.events(1)[-1] == "stopped"
    lab.node(1)
    wait(lambda: sum("connected" in event for event in lab.events(1)) == 2, lab.log(lab.homes[1].name))

    def done() -> int:
        history = run / "history.jsonl"
        return history.read_text().count('"status": "completed"') if history.exists() else 0

    before = done()
    wait(lambda: done() > before, lab.log("conduct"))
    stop(lab.running["conduct"])
    for home in lab.homes:
        # An epoch that is charged twice, or a run beyond its budget, is an error here.
        found = verify(home / "ledger.jsonl", home / "ledger.anchor")
        assert len(found.runs) == 2


def training(lab: Lab, number: int) -> tuple[subprocess.Popen[bytes], list[psutil.Process]]:
    """Wait until a node trains; return it with its descendants."""
    node = lab.running[lab.homes[number].name]

    def found() -> list[psutil.Process]:
        return psutil.Process(node.pid).children(recursive=True) if lab.answering(number, "train") else []

    # The fork server, Python's resource tracker, and the process of the message.
    wait(lambda: len(found()) == 3, lab.log(lab.homes[number].name))
    time.sleep(0.5)
    return node, psutil.Process(node.pid).children(recursive=True)


def assert_gone(family: list[psutil.Process]) -> None:
    _, left = psutil.wait_procs(family, 30)
    assert not left


def test_a_node_whose_key_is_revoked_ends_and_says_so(lab: Lab) -> None:
    node = lab.running[lab.homes[2].name]
    key = node_key(lab.homes[2] / "supernode.pub")
    with control(lab.coordinator) as client:
        (info,) = [one for one in client.ListNodes(ListNodesRequest()).nodes_info if one.public_key == key]
        client.UnregisterNode(UnregisterNodeRequest(node_id=info.node_id))
    assert node.wait(60) == 1
    assert "revoked" in lab.events(2)[-1]


def test_an_absent_superlink_is_waited_for_and_one_that_lost_its_database_ends_the_node_by_name(lab: Lab) -> None:
    link = lab.running["superlink"]
    link.kill()
    link.wait()
    node = lab.running[lab.homes[0].name]
    wait(lambda: "the coordinator does not answer" in lab.events(0)[-1], lab.log(lab.homes[0].name))
    assert node.poll() is None
    other = lab.running[lab.homes[1].name]
    other.send_signal(signal.SIGTERM)
    assert other.wait(30) == 0
    for file in lab.root.glob("state.db*"):
        file.unlink()
    lab.superlink()
    assert node.wait(60) == 1
    assert "not registered" in lab.events(0)[-1]


def test_no_line_of_a_nodes_log_holds_more_than_an_event(lab: Lab) -> None:
    events = [event for number in range(SILOS) for event in lab.events(number)]
    assert events
    assert not any("Traceback" in event or "Error(" in event for event in events)
