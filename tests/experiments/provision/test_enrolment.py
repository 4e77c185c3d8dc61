"""At the silo: keys are made once and stay; a kit changes nothing that is the silo's own."""

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from client_app.errors import SiloError
from client_app.home import SiloHome
from client_app.pinned_roster import pinned
from experiments.provision.enrolment import install, make_request, open_kit, roster_change
from experiments.provision.errors import ProvisionError
from experiments.provision.keys import load_openssh, openssh_public
from experiments.provision.project import Project
from experiments.silos import make_silo
from privacy.errors import IdentityError
from privacy.ledger import verify
from tests.experiments.provision.conftest import DECLARED, NOW, Operator

OWN = ("silo.toml", "identity.key", "identity.pub", "ledger.jsonl", "ledger.anchor", "supernode.key")


@pytest.fixture
def two(operator: Operator) -> Operator:
    operator.enrol("bank-a")
    operator.enrol("bank-b")
    return operator


def own(home: Path) -> dict[str, bytes]:
    return {name: (home / name).read_bytes() for name in OWN if (home / name).exists()}


def settled(home: Path) -> SiloHome:
    """Do what the institution does by hand: accept the example as its policy."""
    shutil.copy(home / "silo.example.toml", home / "silo.toml")
    return SiloHome.open(home)


def test_keys_are_for_their_owner_only_and_a_second_request_has_the_same(operator: Operator, tmp_path: Path) -> None:
    home = tmp_path / "home"
    before = os.umask(0)
    try:
        first = make_request(home, "bank-a", NOW, b"k" * 32)
    finally:
        os.umask(before)
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    for path in home.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    kept = own(home)
    second = make_request(home, "bank-a", NOW + timedelta(days=1), b"k" * 32)
    assert (second.identity, second.node_key) == (first.identity, first.node_key)
    assert second.fingerprint != first.fingerprint
    assert own(home) == kept
    assert verify(home / "ledger.jsonl", home / "ledger.anchor", first.identity).runs == ()


def test_the_request_that_travels_holds_no_private_key(tmp_path: Path) -> None:
    home = tmp_path / "home"
    make_request(home, "bank-a", NOW, b"k" * 32)
    sent = (home / "enrolment-request.json").read_bytes()
    assert len(sent) < 2000
    for path in home.glob("*.key"):
        for line in path.read_bytes().splitlines():
            assert line.startswith(b"-----") or line not in sent


def test_an_existing_silo_keeps_its_identity_ledger_and_policy(operator: Operator) -> None:
    home = operator.home("bank-a")
    made = make_silo(home, "bank-a", operator.root / "data", epsilon=2, delta=1e-6)
    kept = own(home)
    request = operator.enrol("bank-a")
    operator.install("bank-a")
    assert request.identity == made.identity.public_key
    assert {name: content for name, content in own(home).items() if name in kept} == kept
    assert SiloHome.open(home).settings.policy.epsilon == 2
    with pytest.raises(ProvisionError, match="the folder of bank-a, not of bank-b"):
        make_request(home, "bank-b", NOW, b"k" * 32)


def test_no_ledger_is_made_for_an_identity_that_was_there_before(tmp_path: Path) -> None:
    home = tmp_path / "home"
    make_request(home, "bank-a", NOW, b"k" * 32)
    (home / "ledger.jsonl").unlink()
    with pytest.raises(ProvisionError, match="an identity without its ledger; restore"):
        make_request(home, "bank-a", NOW, b"k" * 32)
    assert not (home / "ledger.jsonl").exists()
    (home / "identity.key").unlink()
    with pytest.raises(IdentityError, match="missing; restore"):
        make_request(home, "bank-a", NOW, b"k" * 32)


@pytest.mark.parametrize("name", ["identity.key", "supernode.key"])
def test_keys_that_others_may_read_are_refused(tmp_path: Path, name: str) -> None:
    home = tmp_path / "home"
    make_request(home, "bank-a", NOW, b"k" * 32)
    (home / name).chmod(0o644)
    with pytest.raises((ProvisionError, IdentityError), match="chmod 600"):
        make_request(home, "bank-a", NOW, b"k" * 32)


def test_an_installed_kit_makes_a_silo_that_pins_the_others(two: Operator) -> None:
    for name in ("bank-a", "bank-b"):
        two.install(name)
        assert not (two.home(name) / "silo.toml").exists()
        home = settled(two.home(name))
        roster = pinned(home)
        assert roster is not None
        assert [pin.name for pin in roster.pins] == ["bank-a", "bank-b"]
        home.ledger().close()


def test_a_policy_is_never_made_or_replaced_by_a_kit(two: Operator) -> None:
    two.install("bank-a")
    home = two.home("bank-a")
    settled(home)
    (home / "silo.toml").write_text((home / "silo.toml").read_text().replace("epsilon = 1.0", "epsilon = 0.5"))
    kept = own(home)
    assert set(kept) == set(OWN)
    two.enrol("bank-c")
    two.install("bank-a")
    assert own(home) == kept


def test_another_silos_kit_is_refused(two: Operator) -> None:
    with pytest.raises(ProvisionError, match="for bank-b with the identity"):
        open_kit(two.home("bank-a"), two.kit("bank-b"), two.fingerprint, NOW, "kit")
    assert not (two.home("bank-a") / "ca.crt").exists()


def test_a_kit_for_a_folder_without_keys_is_refused(two: Operator) -> None:
    with pytest.raises(IdentityError):
        open_kit(two.root / "nowhere", two.kit("bank-b"), two.fingerprint, NOW, "kit")


def test_a_kit_for_a_silo_of_another_name_is_refused(two: Operator) -> None:
    two.install("bank-a")
    home = two.home("bank-a")
    (home / "silo.toml").write_text((home / "silo.example.toml").read_text().replace("bank-a", "bank-z"))
    with pytest.raises(ProvisionError, match=r"silo\.toml says bank-z"):
        open_kit(home, two.kit("bank-a"), two.fingerprint, NOW, "kit")


def test_an_older_kit_does_not_bring_back_a_revoked_silo(two: Operator) -> None:
    old = two.kit("bank-a")
    two.project.store(two.project.state().revoke("bank-b", NOW))
    two.install("bank-a")
    with pytest.raises(ProvisionError, match=r"older \(revision 2\) than the kit that is installed \(revision 3\)"):
        open_kit(two.home("bank-a"), old, two.fingerprint, NOW, "kit")
    assert b"bank-b" not in (two.home("bank-a") / "roster.toml").read_bytes()


def test_what_a_kit_changes_in_the_roster_is_shown_by_fingerprint(two: Operator, operator: Operator) -> None:
    home = two.home("bank-a")
    kit = open_kit(home, two.kit("bank-a"), two.fingerprint, NOW, "kit")
    assert roster_change(home, kit).first
    install(home, kit)
    assert roster_change(home, kit).lines == ()
    two.project.store(two.project.state().revoke("bank-b", NOW))
    shutil.rmtree(two.home("bank-b"))
    two.enrol("bank-b")
    two.enrol("bank-c")
    lines = roster_change(home, open_kit(home, two.kit("bank-a"), two.fingerprint, NOW, "kit")).lines
    assert [line.split()[:2] for line in lines] == [["+", "bank-c"], ["!", "bank-b"]]
    assert all("SHA256:" in line for line in lines)


def test_a_node_key_is_replaced_once_the_kit_confirms_it(two: Operator) -> None:
    two.install("bank-a")
    home = two.home("bank-a")
    before, identity = load_openssh(home / "supernode.key"), (home / "identity.key").read_bytes()
    request = make_request(home, "bank-a", NOW, b"", new_node_key=True)
    assert request.replaces == openssh_public(before)
    # The node goes on with the old key until the kit is there; an older kit does not switch it.
    old = two.kit("bank-a")
    install(home, open_kit(home, old, two.fingerprint, NOW, "kit"))
    assert openssh_public(load_openssh(home / "supernode.key")) == request.replaces
    two.admit(request)
    two.install("bank-a")
    assert openssh_public(load_openssh(home / "supernode.key")) == request.node_key
    assert (home / "supernode.pub").read_text() == f"{request.node_key} bank-a\n"
    assert not (home / "supernode-next.key").exists()
    assert (home / "identity.key").read_bytes() == identity
    with pytest.raises(ProvisionError, match="for another node key"):
        open_kit(home, old, two.fingerprint, NOW, "kit")


def test_a_first_request_cannot_replace_a_node_key(tmp_path: Path) -> None:
    with pytest.raises(ProvisionError, match="leave out --new-node-key"):
        make_request(tmp_path / "home", "bank-a", NOW, b"", new_node_key=True)


@contextmanager
def power_cut(monkeypatch: pytest.MonkeyPatch, after: int) -> Iterator[list[int]]:
    calls: list[int] = []
    replace = Path.replace

    def cut(self: Path, target: Path) -> Path:
        calls.append(1)
        if len(calls) > after:
            raise KeyboardInterrupt
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", cut)
        yield calls


def test_an_installation_that_is_cut_off_anywhere_is_finished_by_the_next(
    two: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = two.home("bank-a")
    two.install("bank-a")
    settled(home)
    request = make_request(home, "bank-a", NOW, b"", new_node_key=True)
    two.admit(request)
    kit = open_kit(home, two.kit("bank-a"), two.fingerprint, NOW, "kit")
    pristine = two.root / "pristine"
    shutil.copytree(home, pristine)
    for after in range(7):
        shutil.rmtree(home)
        shutil.copytree(pristine, home)
        with power_cut(monkeypatch, after) as calls, pytest.raises(KeyboardInterrupt):
            install(home, kit)
        assert len(calls) == after + 1
        # The node's key is whole at every moment, and the same kit still fits.
        load_openssh(home / "supernode.key")
        install(home, open_kit(home, two.kit("bank-a"), two.fingerprint, NOW, "kit"))
        assert openssh_public(load_openssh(home / "supernode.key")) == request.node_key
        assert set(own(home)) == set(OWN)


def test_requests_that_are_cut_off_leave_keys_that_the_next_one_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    made = make_request(home, "bank-a", NOW, b"k" * 32)
    for after in range(2):
        with power_cut(monkeypatch, after), pytest.raises(KeyboardInterrupt):
            make_request(home, "bank-a", NOW, b"k" * 32)
        again = make_request(home, "bank-a", NOW, b"k" * 32)
        assert (again.identity, again.node_key) == (made.identity, made.node_key)


def test_another_authority_of_the_same_federation_takes_over_with_the_same_keys(two: Operator) -> None:
    two.install("bank-a")
    home = two.home("bank-a")
    kept = own(home)
    other = Operator(Project.create(two.root / "other", DECLARED, NOW), two.root)
    other.enrol("bank-a")
    with pytest.raises(ProvisionError, match="not by the one whose fingerprint was given"):
        open_kit(home, other.kit("bank-a"), two.fingerprint, NOW, "kit")
    # Its revisions begin anew.
    other.install("bank-a")
    assert own(home) == kept
    assert (home / "ca.crt").read_bytes() == other.project.ca_file.read_bytes()


def test_settings_that_cannot_be_read_stop_the_request(two: Operator) -> None:
    (two.home("bank-a") / "silo.toml").write_text("nonsense = ")
    with pytest.raises(SiloError, match="not valid TOML"):
        make_request(two.home("bank-a"), "bank-a", NOW, b"k" * 32)
