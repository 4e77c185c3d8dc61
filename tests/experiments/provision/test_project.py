"""The operator's folder: whole or not there, for its owner only, and renewals that silos do not notice."""

import os
import stat
from datetime import timedelta
from pathlib import Path

import pytest

from experiments.provision import certificates
from experiments.provision.errors import ProvisionError
from experiments.provision.federation import Institution, Server
from experiments.provision.project import Project
from experiments.provision.status import overview
from privacy import files
from tests.experiments.provision.conftest import DECLARED, NOW, SERVER, Operator
from tests.experiments.provision.handshake import client, shake


def test_a_project_and_everything_in_it_is_for_its_owner_only(operator: Operator) -> None:
    operator.enrol("bank-a")
    root = operator.project.root
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    for path in root.rglob("*"):
        if not path.is_symlink():
            assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_an_authority_is_never_made_over_anything(operator: Operator, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("x")
    for root in (operator.project.root, tmp_path / "file", tmp_path / "link", tmp_path / "full"):
        with pytest.raises(ProvisionError, match="never replaced"):
            Project.create(root, DECLARED, NOW)
    (tmp_path / "empty").mkdir()
    assert Project.create(tmp_path / "empty", DECLARED, NOW).ca()


def test_a_project_that_cannot_be_finished_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def full(handle: int) -> None:
        calls.append(handle)
        if len(calls) == 9:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        Project.create(tmp_path / "project", DECLARED, NOW)
    assert list(tmp_path.iterdir()) == []


def test_a_project_others_may_look_into_is_refused(operator: Operator) -> None:
    operator.project.root.chmod(0o750)
    with pytest.raises(ProvisionError, match="chmod 700"):
        Project.open(operator.project.root)
    with pytest.raises(ProvisionError, match="fcfl provision init"):
        Project.open(operator.root)


def test_two_commands_do_not_change_a_project_at_once(operator: Operator) -> None:
    with (
        operator.project.alone(),
        pytest.raises(ProvisionError, match="another command"),
        Project.open(operator.project.root).alone(),
    ):
        pass
    with operator.project.alone():
        pass


def test_a_renewed_certificate_is_another_key_of_the_same_authority_and_the_old_one_still_works(
    operator: Operator,
) -> None:
    now = NOW.now(NOW.tzinfo)
    old = operator.project.server_folder(SERVER).resolve()
    kit = operator.enrol("bank-a") and operator.kit("bank-a")
    operator.project.renew(SERVER, now)
    new = operator.project.server_folder(SERVER).resolve()
    assert old != new
    assert (old / "server.key").read_bytes() != (new / "server.key").read_bytes()
    context = client(certificates.pem(operator.project.ca()))
    for folder in (old, new):
        assert shake(context, folder, "fl.example.org")
    # What a silo holds is not touched: identity, node key, authority, roster.
    assert operator.kit("bank-a") == kit


def test_a_renewal_that_is_cut_off_leaves_key_and_certificate_together(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = operator.project.server_folder(SERVER)
    before = folder.resolve()
    for step in range(1, 12):
        calls = []

        def broken(handle: int, step: int = step, calls: list[int] = calls) -> None:
            calls.append(handle)
            if len(calls) == step:
                raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", broken)
            try:
                operator.project.renew(SERVER, NOW)
            except OSError:
                pass
            else:
                break
        assert (folder / "server.key").exists()
        shake(client(certificates.pem(operator.project.ca())), folder, "localhost")
    else:
        raise AssertionError("never renewed")
    assert folder.resolve() != before


def test_certificates_are_due_before_they_end_and_when_other_names_are_declared(operator: Operator) -> None:
    project = operator.project
    assert project.why_renew(SERVER, NOW) == ""
    assert project.why_renew(SERVER, NOW + timedelta(days=366)) == ""
    assert project.why_renew(SERVER, NOW + timedelta(days=367)) == "30 days left"
    assert project.why_renew(SERVER, NOW + timedelta(days=500)) == "0 days left"
    other = Server.of(SERVER.host, 443, ["superlink"], [], "server")
    assert "names" in project.why_renew(other, NOW)
    assert project.why_renew(Server.of("second.example.org", 443, [], [], "server"), NOW) == "none yet"


def test_key_and_certificate_of_the_authority_belong_together(operator: Operator, tmp_path: Path) -> None:
    other = Project.create(tmp_path / "other", DECLARED, NOW)
    files.replace(operator.project.ca_file, other.ca_file.read_bytes())
    with pytest.raises(ProvisionError, match="restore both"):
        operator.project.authority()


def test_what_people_wrote_into_the_declaration_stays(operator: Operator) -> None:
    path = operator.project.root / "federation.toml"
    files.replace(path, b"# agreed on 3 May\n" + path.read_bytes() + b"\n# end of part one")
    before = path.read_text()
    operator.project.add(Institution("bank-a", "Bank A"))
    assert path.read_text().startswith(before)
    assert operator.project.add(Institution("bank-a")).silo("bank-a") == Institution("bank-a", "Bank A")
    with pytest.raises(ProvisionError, match="declared as 'Bank A'"):
        operator.project.add(Institution("bank-a", "Bank B"))


def test_what_follows_from_the_state_is_written_again_after_a_crash(operator: Operator) -> None:
    operator.enrol("bank-a")
    project = operator.project
    roster = (project.root / "roster.toml").read_bytes()
    (project.root / "roster.toml").unlink()
    project.public_key("bank-a").unlink()
    project.store(project.state())
    assert (project.root / "roster.toml").read_bytes() == roster
    assert project.public_key("bank-a").exists()
    project.store(project.state().revoke("bank-a", NOW))
    assert not project.public_key("bank-a").exists()


def test_the_overview_says_what_to_do(operator: Operator) -> None:
    project = operator.project
    operator.enrol("bank-a")
    operator.expect("bank-b")
    project.add(Institution("bank-c"))
    _, warnings = overview(project, NOW)
    assert warnings == [
        "bank-a: node id not noted ('fcfl provision note-node'); without it its node cannot be unregistered",
        "bank-c: declared without a code; 'fcfl provision add-silo bank-c' gives it one",
    ]
    project.store(project.state().note_node("bank-a", 5))
    (project.root / "roster.toml").chmod(0o644)
    table, warnings = overview(project, NOW + timedelta(days=3650 - 300))
    text = " ".join(warnings)
    for part in (
        "bank-b: its code has ended",
        "0 days left",
        "Another authority",
        "roster.toml: others than its owner",
    ):
        assert part in text
    assert "bank-a" not in text
    assert table.row_count == 5
