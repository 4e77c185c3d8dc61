"""fcfl provision: a federation is walked through from the first command to TLS, and mistakes end in one line."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from client_app.home import SiloHome
from client_app.pinned_roster import pinned
from experiments.provision.keys import write_once
from privacy.files import replace as write
from tests.experiments.provision.handshake import client, shake
from tests.experiments.tiny import fcfl

Run = Callable[..., int]
Refused = Callable[..., str]
INIT = ("--name", "Trial", "--server", "fl.example.org", "--server-name", "localhost", "--ip", "127.0.0.1")


@pytest.fixture
def project(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert run("init", tmp_path / "project", *INIT) == 0
    assert "fingerprint" not in capsys.readouterr().err
    return tmp_path / "project"


@pytest.fixture
def say(run: Run, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that must succeed; return what it printed."""

    def speak(*arguments: object) -> str:
        capsys.readouterr()
        assert run(*arguments) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    return speak


def told(text: str, what: str) -> str:
    """What a person reads off the screen: the word after a label."""
    found = re.search(rf"{what}\s+(\S+?):?(\s|$)", text)
    assert found, text
    return found[1]


def enrol(say: Callable[..., str], project: Path, root: Path, name: str) -> tuple[str, str]:
    """Enrol one silo; return the authority's fingerprint as it was told, and what 'sign' printed."""
    spoken = say("add-silo", name, "--organisation", f"{name} plc", "--project", project)
    code = root / f"code-{name}"
    write_once(code, told(spoken, "enrolment code").encode())
    sent = say("csr", root / name, "--silo", name, "--code-file", code, "--out", root / f"{name}.json")
    signed = say("sign", root / f"{name}.json", "--fingerprint", told(sent, "request"), "--project", project)
    assert told(sent, "request") == told(signed, "request")
    assert told(sent, "identity") == told(signed, "identity")
    return told(spoken, "authority"), signed


def test_a_federation_from_the_first_command_to_tls(
    run: Run, say: Callable[..., str], project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("bank-a", "bank-b")
    for number, name in enumerate(names):
        authority, signed = enrol(say, project, tmp_path, name)
        registered = re.search(r"flwr supernode register (\S+) SUPERLINK --name", signed)
        assert registered
        assert Path(registered[1]).read_text() == (tmp_path / name / "supernode.pub").read_text()
        say("note-node", name, 1000 + number, "--project", project)
    for name in names:
        kit = tmp_path / f"{name}.tar"
        say("export", name, "--out", kit, "--project", project)
        shown = say("install", kit, "--home", tmp_path / name, "--fingerprint", authority)
        home = tmp_path / name
        assert f"fcfl silo check {home}" in shown
        assert f"fcfl silo run {home}" in shown
        # The institution reads the example and makes it its policy.
        write(home / "silo.toml", (home / "silo.example.toml").read_bytes())
        assert fcfl(monkeypatch, "roster", "check", home / "roster.toml", "--silo", home) == 0
        roster = pinned(SiloHome.open(home))
        assert roster is not None
        assert [(pin.name, pin.comment) for pin in roster.pins] == [(other, f"{other} plc") for other in names]
        served = project / "servers" / "fl.example.org" / "current"
        for host in ("fl.example.org", "localhost", "127.0.0.1"):
            assert shake(client((home / "ca.crt").read_bytes(), strict=True), served, host) == "TLSv1.3"
    shown = say("status", "--project", project)
    assert "warning" not in shown
    for name in names:
        assert SiloHome.open(tmp_path / name).identity.fingerprint in shown
    revoked = say("revoke", "bank-b", "--project", project)
    assert "flwr supernode unregister 1001 SUPERLINK" in revoked
    say("export", "bank-a", "--project", project)
    kit, home = project / "kit-bank-a.tar", tmp_path / "bank-a"
    before = (home / "roster.toml").read_bytes()
    assert run("install", kit, "--home", home, "--fingerprint", authority) == 2
    assert (home / "roster.toml").read_bytes() == before
    assert "- bank-b SHA256:" in say("install", kit, "--home", home, "--fingerprint", authority, "--accept-roster")
    assert b"bank-b" not in (home / "roster.toml").read_bytes()


def test_requests_nobody_expects_or_that_were_changed_are_refused(
    say: Callable[..., str], refused: Refused, project: Path, tmp_path: Path
) -> None:
    enrol(say, project, tmp_path, "bank-a")
    sent = tmp_path / "bank-a.json"
    table = json.loads(sent.read_text())
    changed = tmp_path / "changed.json"
    for field, value in (("silo", "bank-b"), ("expires", "2999-01-01T00:00:00Z"), ("identity", "d7" * 32)):
        changed.write_text(json.dumps({**table, field: value}))
        assert str(changed) in refused("sign", changed, "--project", project)
    assert "its fingerprint is" in refused("sign", sent, "--fingerprint", "AAAAA", "--project", project)
    spoken = say("add-silo", "bank-c", "--project", project)
    write_once(tmp_path / "c", told(spoken, "enrolment code").encode())
    write_once(tmp_path / "code-bank-a-typo", b"ABCDE-FGHJK")
    assert "mistyped" in refused(
        "csr", tmp_path / "z", "--silo", "bank-z", "--code-file", tmp_path / "code-bank-a-typo"
    )
    assert not (tmp_path / "z").exists()
    say("csr", tmp_path / "c-home", "--silo", "bank-c", "--code-file", tmp_path / "c")
    request = tmp_path / "c-home" / "enrolment-request.json"
    say("revoke", "bank-c", "--project", project)
    assert "was revoked" in refused("sign", request, "--project", project)
    say("add-silo", "bank-c", "--project", project)
    assert "not made with the code that was given for bank-c" in refused("sign", request, "--project", project)


def test_a_new_node_key_needs_no_code_and_leaves_the_roster(
    say: Callable[..., str], project: Path, tmp_path: Path
) -> None:
    authority, _ = enrol(say, project, tmp_path, "bank-a")
    home = tmp_path / "bank-a"
    say("export", "bank-a", "--project", project)
    say("install", project / "kit-bank-a.tar", "--home", home, "--fingerprint", authority)
    roster, old = (home / "roster.toml").read_bytes(), (home / "supernode.pub").read_bytes()
    say("csr", home, "--silo", "bank-a", "--new-node-key")
    assert "node key replaced" in say("sign", home / "enrolment-request.json", "--project", project)
    say("export", "bank-a", "--project", project)
    say("install", project / "kit-bank-a.tar", "--home", home, "--fingerprint", authority)
    assert (home / "roster.toml").read_bytes() == roster
    assert (home / "supernode.pub").read_bytes() != old
    assert (home / "supernode.pub").read_bytes() == (project / "silos" / "bank-a.pub").read_bytes()


def test_a_certificate_is_renewed_when_it_is_time_or_names_changed_and_not_before(
    say: Callable[..., str], refused: Refused, project: Path
) -> None:
    served = project / "servers" / "fl.example.org" / "current"
    first = served.resolve()
    assert "good for more than a month" in say("renew", "--project", project)
    assert served.resolve() == first
    declared = project / "federation.toml"
    write(declared, declared.read_bytes().replace(b'["localhost"]', b'["localhost", "superlink"]'))
    assert "names are not the declared ones" in say("renew", "--project", project)
    shake(client((project / "ca" / "ca.crt").read_bytes()), served, "superlink")
    assert "asked for" in say("renew", "--force", "--server", "fl.example.org", "--project", project)
    assert "--server = other" in refused("renew", "--server", "other", "--project", project)


def test_a_passphrase_comes_from_a_file_or_the_keyboard_and_is_needed_to_sign(
    run: Run, say: Callable[..., str], refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, secret, wrong = tmp_path / "locked", tmp_path / "secret", tmp_path / "wrong"
    write_once(secret, b"correct horse\n")
    write_once(wrong, b"battery staple\n")
    shown = say("init", project, *INIT, "--passphrase-file", secret)
    assert "not encrypted" not in shown
    assert b"ENCRYPTED" in (project / "ca" / "ca.key").read_bytes()
    enrol(say, project, tmp_path, "bank-a")
    export = "export", "bank-a", "--project", project
    assert "another passphrase" in refused(*export, "--passphrase-file", wrong)
    say(*export, "--passphrase-file", secret)
    kit = (project / "kit-bank-a.tar").read_bytes()
    monkeypatch.setattr(typer, "prompt", lambda *_, **options: options["hide_input"] and "correct horse")
    say(*export)
    assert (project / "kit-bank-a.tar").read_bytes() == kit
    assert run("init", tmp_path / "asked", *INIT, "--encrypt") == 0
    assert b"ENCRYPTED" in (tmp_path / "asked" / "ca" / "ca.key").read_bytes()
    secret.chmod(0o644)
    assert "chmod 600" in refused(*export, "--passphrase-file", secret)
    write(secret, b"\n")
    assert "empty" in refused(*export, "--passphrase-file", secret)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--name", "Trial", "--server", "*.example.org"), "--server"),
        (("--name", "", "--server", "fl.example.org"), "--name"),
        (("--name", "x" * 65, "--server", "fl.example.org"), "64 bytes"),
        (("--name", "T", "--server", "fl.org", "--ip", "10.0.0.0/8"), "address"),
        (("--name", "T", "--server", "fl.org", "--server-name", "10.0.0.1"), "--ip"),
        (("--name", "T", "--server", "fl.org", "--port", "0"), "port = 0"),
        (("--name", "T", "--server", "fl.org", "--ca-days", "0"), "--ca-days"),
    ],
)
def test_a_bad_declaration_makes_no_project(
    refused: Refused, tmp_path: Path, arguments: tuple[str, ...], reason: str
) -> None:
    assert reason in refused("init", tmp_path / "project", *arguments)
    assert list(tmp_path.iterdir()) == []


def test_commands_outside_a_project_or_with_bad_names_are_one_line(
    refused: Refused, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "federation.toml" in refused("status", "--project", tmp_path)
    for command in (("add-silo", "bank z"), ("revoke", "bank-z"), ("export", "bank-z"), ("note-node", "bank-z", 1)):
        assert "bank" in refused(*command, "--project", project)
    assert "NODE-ID" in refused("note-node", "bank-z", 0, "--project", project)
    assert "cannot be read" in refused("sign", tmp_path / "none.json", "--project", project)
    assert "cannot be read" in refused("install", tmp_path / "none.tar", "--home", tmp_path, "--fingerprint", "x")
    before = (project / "state.json").read_bytes()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert "No space left" in refused("add-silo", "bank-a", "--project", project)
    assert (project / "state.json").read_bytes() == before
