"""fcfl roster: a file that grows by one silo at a time, is never half written, and is checked before it is trusted."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from client_app.home import SiloHome
from experiments.silos import make_silo, make_silos
from privacy.signing import SigningKey, fingerprint
from secagg.pins import PinnedRoster
from tests.experiments.tiny import fcfl

Run = Callable[..., int]
HEX = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    return lambda *arguments: fcfl(monkeypatch, "roster", *arguments)


@pytest.fixture
def refused(run: Run, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that must fail; return its one line."""

    def check(*arguments: object) -> str:
        capsys.readouterr()
        assert run(*arguments) == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.startswith("fcfl: ")
        assert shown.err.count("\n") == 1
        return shown.err

    return check


@pytest.fixture
def silos(tmp_path: Path) -> list[SiloHome]:
    return [make_silo(tmp_path / name, name, tmp_path / "data", epsilon=1, delta=1e-5) for name in ("bank-a", "bank-b")]


@pytest.fixture
def file(run: Run, tmp_path: Path) -> Path:
    assert run("create", tmp_path / "roster.toml") == 0
    return tmp_path / "roster.toml"


def read(file: Path) -> PinnedRoster:
    return PinnedRoster.parse(file.read_text(encoding="utf-8"), str(file))


def test_a_roster_is_made_filled_and_shown_by_fingerprint(
    run: Run, silos: list[SiloHome], file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = silos
    add = "add", file, "--name", "bank-a", "--key", first.root / "identity.pub"
    assert run(*add, "--comment", "Bank [/b] Zürich") == 0
    assert run("add", file, "--name=bank-b", f"--key={second.identity.public_key.hex()}") == 0
    shown = capsys.readouterr().out
    assert first.identity.fingerprint in shown
    pins = read(file).pins
    assert [(pin.name, pin.identity) for pin in pins] == [(h.settings.name, h.identity.public_key) for h in silos]
    assert pins[0].comment == "Bank [/b] Zürich"
    assert run("check", file) == 0
    shown = capsys.readouterr().out
    for text in ("bank-a", "bank-b", first.identity.fingerprint, second.identity.fingerprint, "Bank [/b] Zürich"):
        assert text in shown
    assert [path.name for path in file.parent.iterdir() if path.name.endswith(".new")] == []
    assert stat.S_IMODE(file.stat().st_mode) & 0o400


def test_what_people_wrote_into_the_file_stays(run: Run, file: Path) -> None:
    file.write_text("# agreed on 3 May\n" + file.read_text() + "\n# end of part one")
    before = file.read_text()
    assert run("add", file, "--name", "bank-a", "--key", HEX.upper()) == 0
    assert file.read_text().startswith(before)
    assert read(file).identity("bank-a") == bytes.fromhex(HEX)


def test_a_roster_is_never_made_over_another_file(refused: Run, file: Path) -> None:
    before = file.read_bytes()
    assert "exists already" in str(refused("create", file))
    link = file.with_name("link.toml")
    link.symlink_to(file.with_name("nothing"))
    assert "exists already" in str(refused("create", link))
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "key", "reason"),
    [
        ("bank-a", HEX, "the name is that of number 1"),
        ("bank-z", "taken", "the identity is that of number 1 (bank-a)"),
        ("bank z", HEX, "name = 'bank z'"),
        ('x"\n[evil]', HEX, "not valid TOML"),
        ("bank-z", HEX[:-1], "--key"),
        ("bank-z", HEX + "00", "64 hexadecimal digits"),
        ("bank-z", "01" + "00" * 31, "low order"),
        ("bank-z", "02" + "00" * 31, "no Ed25519 public key"),
        ("bank-z", "nowhere/identity.pub", "cannot be read"),
        ("bank-z", "private", "expected a silo's identity.pub"),
        ("bank-z", "", "identity.pub"),
    ],
)
def test_what_cannot_be_added_is_named_and_the_file_stays(
    run: Run, refused: Run, silos: list[SiloHome], file: Path, name: str, key: str, reason: str
) -> None:
    taken = silos[0].identity.public_key.hex()
    assert run("add", file, "--name", "bank-a", "--key", taken) == 0
    before = file.read_bytes()
    key = {"taken": taken, "private": str(silos[1].root / "identity.key")}.get(key, key)
    assert reason in str(refused("add", file, "--name", name, "--key", key))
    assert file.read_bytes() == before


def test_a_comment_that_is_too_long_is_refused(refused: Run, file: Path) -> None:
    assert "--comment" in str(refused("add", file, "--name=a", f"--key={HEX}", "--comment", "x" * 201))
    assert "--comment" in str(refused("add", file, "--name=a", f"--key={HEX}", "--comment", "x\ny"))


def test_a_roster_that_cannot_be_read_or_is_damaged_is_named(refused: Run, tmp_path: Path) -> None:
    bad = tmp_path / "bad.toml"
    for command in (("check",), ("add", "--name=a", f"--key={HEX}")):
        assert f"{tmp_path / 'no.toml'}: not found" in str(refused(command[0], tmp_path / "no.toml", *command[1:]))
        bad.write_text("[[silo]]\nname = 'a'\n= 5\n")
        assert "line 3" in str(refused(command[0], bad, *command[1:]))
        bad.write_bytes(b"\xff\xfe")
        assert "UTF-8" in str(refused(command[0], bad, *command[1:]))
        assert str(tmp_path) in str(refused(command[0], tmp_path, *command[1:]))
    bad.write_text("")
    assert "no silo in it" in str(refused("check", bad))


def test_a_folder_that_is_not_there_or_not_ours_is_one_line(refused: Run, tmp_path: Path) -> None:
    assert "cannot be written" in str(refused("create", tmp_path / "nowhere" / "roster.toml"))


def test_a_full_disk_leaves_the_old_roster(refused: Run, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = file.read_bytes()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left" in str(refused("add", file, "--name", "bank-a", "--key", HEX))
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir() if path.name.endswith(".new")] == []


def test_a_silo_is_checked_against_the_roster(
    run: Run, refused: Run, silos: list[SiloHome], file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = silos
    run("add", file, "--name", "bank-a", "--key", first.root / "identity.pub")
    assert "bank-b" in str(refused("check", file, "--silo", second.root))
    run("add", file, "--name", "bank-b", "--key", SigningKey.generate().public_key.hex())
    assert "another identity" in str(refused("check", file, "--silo", second.root))
    assert run("check", file, "--silo", first.root) == 0
    shown = capsys.readouterr().out
    assert "bank-a is in it with its own identity" in shown
    assert f"names {first.root / 'roster.toml'}, not this file" in shown
    (first.root / "roster.toml").write_bytes(file.read_bytes())
    assert run("check", first.root / "roster.toml", "--silo", first.root) == 0
    assert "not this file" not in capsys.readouterr().out
    assert "silo.toml" in str(refused("check", file, "--silo", file.parent))


def test_simulated_silos_pin_each_other(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = make_silos([tmp_path / "a", tmp_path / "b"], tmp_path / "silos", epsilon=1, delta=1e-5)
    for home in made:
        assert home.settings.roster == (tmp_path / "silos" / "roster.toml").resolve()
        assert not home.settings.policy.allow_unpinned
        assert run("check", tmp_path / "silos" / "roster.toml", "--silo", home.root) == 0
        assert fingerprint(home.identity.public_key) in capsys.readouterr().out
