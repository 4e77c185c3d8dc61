"""A message is answered by a process of its own, and whatever happens to that one, the node goes on."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path

import psutil
import pytest
from flwr.common.constant import ErrorCode

from client_app.node import task
from client_app.node.worker import Worker
from tests.client_app.node.messages import NODE, child, data_of, request

ROOT = Path(__file__).resolve().parents[3]
WAIT_SECONDS = 60.0
NODE_PROCESS = """
import sys, threading
from pathlib import Path
from client_app.node.worker import Worker
from tests.client_app.node.messages import NODE, child, request
if __name__ == "__main__":
    worker = Worker(Path(sys.argv[1]), threading.Event(), target=child, warm=["flwr.app"])
    worker.answer(request(b"hang"), NODE, 600.0)
"""


@pytest.fixture
def stopping() -> threading.Event:
    return threading.Event()


@pytest.fixture
def worker(tmp_path: Path, stopping: threading.Event) -> Worker:
    return Worker(tmp_path, stopping, target=child, warm=["flwr.app", "tests.client_app.node.messages"])


def wait(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def child_of(home: Path) -> int:
    wait(lambda: (home / "child").exists() and (home / "child").read_text() != "")
    return int((home / "child").read_text())


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_reply_comes_back_and_torch_gets_one_thread(worker: Worker) -> None:
    reply = worker.answer(request(b"ask"), NODE, 60.0)
    assert reply is not None
    assert data_of(reply) == b"ask " + os.environ["OMP_NUM_THREADS"].encode()


WARM_PROCESS = """
import sys, threading
from pathlib import Path
from client_app.node.worker import Worker
if __name__ == "__main__":
    worker = Worker(Path(sys.argv[1]), threading.Event(), warm=["slow_to_import"])
    worker.warm_up()
    print((Path(sys.argv[1]) / "imported").exists())
"""


def test_warming_up_ends_once_everything_is_imported(tmp_path: Path) -> None:
    module = f"import time; time.sleep(1.0); open({str(tmp_path / 'imported')!r}, 'w').close()"
    (tmp_path / "slow_to_import.py").write_text(module)
    (tmp_path / "node_process.py").write_text(WARM_PROCESS)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    command = [sys.executable, str(tmp_path / "node_process.py"), str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr


@pytest.mark.parametrize("death", [b"crash", b"half"])
def test_a_child_that_dies_is_an_error_without_a_reason_and_the_next_message_is_answered(
    worker: Worker, death: bytes
) -> None:
    reply = worker.answer(request(death), NODE, 60.0)
    assert reply is not None
    assert reply.has_error()
    assert (reply.error.code, reply.error.reason) == (ErrorCode.CLIENT_APP_CRASHED, "")
    after = worker.answer(request(b"ask"), NODE, 60.0)
    assert after is not None
    assert not after.has_error()


def test_a_child_that_hangs_is_ended_when_nobody_waits_any_more(worker: Worker, tmp_path: Path) -> None:
    reply = worker.answer(request(b"hang"), NODE, 2.0)
    assert reply is not None
    assert reply.has_error()
    wait(lambda: gone(child_of(tmp_path)))


def test_stopping_ends_the_child_and_gives_no_reply(worker: Worker, tmp_path: Path, stopping: threading.Event) -> None:
    def stop() -> None:
        child_of(tmp_path)
        stopping.set()

    thread = threading.Thread(target=stop)
    thread.start()
    assert worker.answer(request(b"hang"), NODE, 600.0) is None
    thread.join()
    assert gone(child_of(tmp_path))


def test_a_fork_server_that_died_is_started_again_and_its_last_child_still_replies(worker: Worker) -> None:
    first = worker.answer(request(b"no server"), NODE, 60.0)
    assert first is not None
    assert data_of(first) == b"alone"
    second = worker.answer(request(b"ask"), NODE, 60.0)
    assert second is not None
    assert not second.has_error()


def test_messages_leave_no_process_and_no_open_file(worker: Worker) -> None:
    worker.answer(request(), NODE, 60.0)
    before = open_files()
    for _ in range(5):
        worker.answer(request(), NODE, 60.0)
        worker.answer(request(b"crash"), NODE, 60.0)
    assert open_files() == before
    server = psutil.Process(forkserver._forkserver._forkserver_pid)  # type: ignore[attr-defined]
    wait(lambda: not server.children())


def test_a_child_ends_with_a_node_that_was_killed(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    script = tmp_path / "node.py"
    script.write_text(NODE_PROCESS)
    node = subprocess.Popen([sys.executable, str(script), str(tmp_path)], env=environment)
    pid = child_of(tmp_path)
    node.kill()
    node.wait()
    wait(lambda: gone(pid))


def test_the_text_of_an_exception_in_a_child_goes_nowhere(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("price 17.25")

    monkeypatch.setattr(task, "_answer", broken)
    with pytest.raises(SystemExit) as stop:
        task.answer(None, request(), NODE, "/silo")  # type: ignore[arg-type]
    assert stop.value.code == task.FAILED
    assert "17.25" not in str(stop.value.__cause__)
    assert stop.value.__suppress_context__
    assert capfd.readouterr().err == ""
