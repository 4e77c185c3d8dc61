"""One process of a deployment: started, killed without warning, paused, started again."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from experiments.flower import stop

ROOT = Path(__file__).resolve().parents[3]


class Part:
    """A process and everything it starts.

    Attributes
    ----------
    wanted : bool
        Whether it should be running; a supervisor, such as ``restart: unless-stopped``, starts it again if it ends.
    starts : int
        How often it was started.
    """

    def __init__(self, name: str, command: Sequence[object], log: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self.command = [str(word) for word in command]
        self.log = log
        self.environment = dict(environment)
        self.wanted = False
        self.starts = 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> "Part":
        assert not self.running, f"{self.name} runs already"
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self.command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self.environment,
                start_new_session=True,
            )
        self.wanted, self.starts = True, self.starts + 1
        return self

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def family(self) -> list[psutil.Process]:
        """All descendants."""
        try:
            return psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def kill(self) -> None:
        """SIGKILL to the process alone; what it started sees to itself."""
        self.wanted = False
        self._end([])

    def power_off(self) -> None:
        """SIGKILL to the process and all it started, as when a machine loses power."""
        self.wanted = False
        self._end(self.family())

    def _end(self, more: Sequence[psutil.Process]) -> None:
        assert self.process is not None
        # Stopped first, so that nothing of it gets to react to the death of another.
        for member in (*more, psutil.Process(self.pid)) if self.running else more:
            if member.is_running():
                member.suspend()
        for member in more:
            if member.is_running():
                member.kill()
        self.process.kill()
        self.process.wait()
        psutil.wait_procs(more, timeout=10)

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def terminate(self) -> None:
        """End politely, and everything it started."""
        self.wanted = False
        if self.process is not None and self.running:
            stop(self.process)

    def said(self) -> str:
        """Everything it has written."""
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
