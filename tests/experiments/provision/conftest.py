"""A project and silos of its own for each test, made by the same functions as the commands use."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from experiments.provision import kit as kits
from experiments.provision.code import code_key, new_code
from experiments.provision.enrolment import install, make_request, open_kit
from experiments.provision.federation import Federation, Institution, Server
from experiments.provision.project import Project
from experiments.provision.request import Request
from tests.experiments.tiny import fcfl

NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
SERVER = Server.of("fl.example.org", 443, ["localhost"], ["127.0.0.1", "::1"], "server")
DECLARED = Federation("Trial", (SERVER,))


@dataclass(frozen=True)
class Operator:
    """A project, and the steps of an enrolment without the command line."""

    project: Project
    root: Path

    def expect(self, name: str, organisation: str = "") -> bytes:
        key = code_key(new_code(), name, "code")
        self.project.add(Institution(name, organisation))
        self.project.store(self.project.state().expect(name, key, NOW + timedelta(days=14), NOW))
        return key

    def home(self, name: str) -> Path:
        return self.root / f"home-{name}"

    def enrol(self, name: str, organisation: str = "") -> Request:
        request = make_request(self.home(name), name, NOW, self.expect(name, organisation))
        self.admit(request)
        return request

    def admit(self, request: Request) -> None:
        request.verify(NOW, "request")
        self.project.store(self.project.state().admit(request, NOW, "request"))

    def kit(self, name: str) -> bytes:
        key, issuer = self.project.authority()
        return kits.build(self.project.declared(), self.project.state(), name, issuer, key)

    def install(self, name: str) -> None:
        install(self.home(name), open_kit(self.home(name), self.kit(name), self.fingerprint, NOW, "kit"))

    @property
    def fingerprint(self) -> str:
        from experiments.provision.certificates import fingerprint

        return fingerprint(self.project.ca())


@pytest.fixture
def operator(tmp_path: Path) -> Operator:
    return Operator(Project.create(tmp_path / "project", DECLARED, NOW), tmp_path)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    return lambda *arguments: fcfl(monkeypatch, "provision", *arguments)


@pytest.fixture
def refused(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that must fail; return its one line."""

    def check(*arguments: object) -> str:
        capsys.readouterr()
        assert run(*arguments) == 2
        error = capsys.readouterr().err
        assert error.startswith("fcfl: ")
        assert error.count("\n") == 1
        return error

    return check
