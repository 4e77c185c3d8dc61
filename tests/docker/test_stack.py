"""Four silos, the proxy and the coordinator as real containers: ``make compose-test``.

Needs a Docker engine and the images (``make images``); skipped otherwise.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SILOS = [f"silo-{number:02d}" for number in range(4)]
PROJECT = "fcfl-test"
RUN_SECONDS = 420
ROUNDS = 4

pytestmark = pytest.mark.skipif(os.environ.get("FCFL_COMPOSE") != "1", reason="real containers: make compose-test")


def compose(*arguments: str, check: bool = True, timeout: float = 120) -> str:
    done = subprocess.run(
        ["docker", "compose", "-p", PROJECT, *arguments],
        cwd=ROOT,
        env={**os.environ, "FCFL_SILOS": "4", "FCFL_ROUNDS": str(ROUNDS), "FCFL_TICKERS": "40", "FCFL_RUN": PROJECT},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert not check or done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def inside(service: str, script: str) -> str:
    """Run a Python script in a container and return what it prints."""
    return compose("exec", "-T", service, "python", "-c", script)


def state_of(service: str) -> dict[str, Any]:
    (line,) = compose("ps", "-a", "--format", "json", service).splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


def history() -> list[dict[str, Any]]:
    path = ROOT / "runs" / PROJECT / "history.jsonl"
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except FileNotFoundError:
        return []


def wait_for(what: str, reached: Any, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not reached():
        logs = compose("logs", "--tail", "30", check=False)
        assert time.monotonic() < end, f"{what}: not within {seconds:g} s\n{logs[-6000:]}"
        time.sleep(1.0)


@pytest.fixture(scope="module")
def stack() -> Iterator[None]:
    """The stack with a run under way."""
    shutil.rmtree(ROOT / "runs" / PROJECT, ignore_errors=True)
    try:
        compose("up", "-d", "--no-build", "conductor", *SILOS, timeout=300)
        wait_for("the first round", lambda: len(history()) > 0, RUN_SECONDS)
        yield
    finally:
        compose("down", "-v", "-t", "2", check=False)
        shutil.rmtree(ROOT / "runs" / PROJECT, ignore_errors=True)


FETCH = """
import ssl, urllib.error, urllib.request
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE as KIND
trusted = ssl.create_default_context(cafile="/silo/ca.crt")
def status(path, data=b""):
    try:
        asked = urllib.request.Request("https://proxy:8443" + path, data=data, headers={"content-type": KIND})
        return urllib.request.urlopen(asked, timeout=10, context=trusted).status
    except urllib.error.HTTPError as error:
        return error.code
"""


@pytest.mark.usefixtures("stack")
def test_from_a_silos_network_only_the_fleet_is_reached_and_only_with_a_registered_key() -> None:
    paths = ("/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/acquire-task", "/docs", "/openapi.json")
    closed = (*paths, "/v1/fleet/register-node", "/v1/fleet/unregister-node", "/v1/fleet/../control/start-run")
    printed = inside(SILOS[0], FETCH + f"print([status(path) for path in {closed!r}])")
    assert json.loads(printed) == [404] * len(closed)
    assert int(inside(SILOS[0], FETCH + "print(status('/v1/fleet/pull-messages'))")) in (400, 401, 403)
    lookup = "import socket\ntry: print(socket.gethostbyname('superlink'))\nexcept OSError: print('unknown')"
    assert inside(SILOS[0], lookup).strip() == "unknown"


@pytest.mark.usefixtures("stack")
def test_rubbish_and_giants_are_turned_away_at_the_door_and_the_run_goes_on() -> None:
    before = len(history())
    script = """
import os
results = set()
for size in (0, 1, 100, 5000, 1 << 20):
    for path in ("pull-messages", "push-messages", "push-object", "activate-node", "send-node-heartbeat"):
        results.add(status("/v1/fleet/" + path, os.urandom(size)))
print(sorted(results))
try:
    print(status("/v1/fleet/push-object", bytes(80 << 20)))
except OSError:
    print(413)
"""
    answers = inside(SILOS[1], FETCH + script).splitlines()
    assert all(400 <= code < 600 for code in json.loads(answers[0]))
    assert int(answers[1]) == 413
    wait_for("the next round", lambda: len(history()) > before or _ended(), RUN_SECONDS)


@pytest.mark.usefixtures("stack")
def test_containers_run_as_a_user_on_a_read_only_system() -> None:
    for service in ("superlink", "executor", "proxy", SILOS[0]):
        shown = compose("exec", "-T", service, "sh", "-c", "id -u; touch /usr/here 2>&1 || true")
        assert shown.splitlines()[0] == "10001"
        assert "Read-only file system" in shown


@pytest.mark.usefixtures("stack")
def test_no_image_holds_a_key_a_ledger_or_a_sample() -> None:
    names = " -o ".join(f"-name '{name}'" for name in ("*.key", "ledger.jsonl", "*.npy", "identity.pub", "silo.toml"))
    script = f"find / -xdev \\( {names} \\) 2>/dev/null"
    for image in ("fcfl", "fcfl-proxy"):
        command = ["docker", "run", "--rm", "--user", "0", f"{image}:{os.environ.get('FCFL_TAG', 'local')}"]
        found = subprocess.run([*command, "sh", "-c", script], capture_output=True, text=True, timeout=120, check=False)
        ours = [line for line in found.stdout.splitlines() if "/site-packages/" not in line]
        assert ours == [], image


@pytest.mark.usefixtures("stack")
def test_the_run_survives_the_death_of_superlink_proxy_and_a_silo_and_ends_with_a_report() -> None:
    compose("kill", "-s", "KILL", "superlink", "proxy", SILOS[3])
    # An engine starts what died by itself anew, but not what somebody killed.
    compose("start", "superlink", "proxy", SILOS[3])
    wait_for("the end of the run", _ended, RUN_SECONDS)
    run = ROOT / "runs" / PROJECT
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    assert (summary["outcome"], summary["rounds"]) == ("completed", ROUNDS)
    assert (run / "report.html").stat().st_size > 10_000
    # A round in which no silo's coin said yes is empty, and counts.
    done = ("completed", "empty")
    rounds = [row["round"] for row in history() if row["purpose"] == "train" and row["status"] in done]
    assert rounds == list(range(1, ROUNDS + 1))


def _ended() -> bool:
    return (ROOT / "runs" / PROJECT / "report.html").exists()
