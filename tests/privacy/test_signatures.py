"""Who does not hold the key cannot write in a ledger."""

import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

import privacy.chain
import privacy.signing
from privacy.anchor import Anchor, read_anchor
from privacy.chain import OPENING, Entry, opening, seal
from privacy.errors import IdentityError, LedgerError
from privacy.ledger import Ledger, verify
from privacy.records import Release, RunClosed
from privacy.signing import Signer, SigningKey
from tests.privacy.signed import KEY, OPENED, OTHER, entries_of, three_releases

NOTE = ("note", {"text": "x"})


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A ledger of four entries after the first, by KEY."""
    return three_releases(tmp_path)


def put(path: Path, entries: Sequence[Entry]) -> None:
    path.write_bytes(b"".join(entry.line() for entry in entries))


def rewritten(entries: Sequence[Entry], signer: Signer, first: Entry | None = None) -> list[Entry]:
    """The whole chain anew with less noise recorded as more, signed by another key."""
    chain = [opening(signer) if first is None else first]
    for entry in entries[1:]:
        body = dict(entry.body) | ({"noise_multiplier": 40.0} if entry.kind == "release" else {})
        chain.append(seal(chain[-1], entry.kind, body).signed(signer))
    return chain


def refused(files: tuple[Path, Path], words: str, *, without_anchor: bool = True) -> None:
    """By the silo and by whoever verifies, whatever they were given, and the file stays as evidence."""
    kept = [path.read_bytes() for path in files]
    with pytest.raises((LedgerError, IdentityError), match=words):
        Ledger.open(*files, signer=KEY)
    for anchor in (files[1], None) if without_anchor else (files[1],):
        for key in (KEY.public_key, None):
            with pytest.raises(LedgerError, match=words):
                verify(files[0], anchor, key)
    assert [path.read_bytes() for path in files] == kept


def resign(entry: Entry, change: Callable[[str], str]) -> Entry:
    return dataclasses.replace(entry, signature=change(entry.signature))


# --- the file -----------------------------------------------------------------------------------------


def test_every_entry_is_signed_and_the_signer_is_named(files: tuple[Path, Path]) -> None:
    for entry in entries_of(files[0]):
        Ed25519PublicKey.from_public_bytes(KEY.public_key).verify(bytes.fromhex(entry.signature), entry.message)
    given, claimed = verify(*files, KEY.public_key), verify(files[0])
    assert given.signer == claimed.signer == KEY.fingerprint
    assert (given.signer_given, given.anchored) == (True, True)
    assert (claimed.signer_given, claimed.anchored) == (False, False)


def test_the_last_signature_byte_by_byte(files: tuple[Path, Path]) -> None:
    """The chain covers every signature but the last one, which is the one that opening a ledger checks."""
    *before, last = entries_of(files[0])
    for position in range(128):
        changed = "1" if last.signature[position] != "1" else "2"
        put(files[0], [*before, resign(last, lambda s, p=position, c=changed: s[:p] + c + s[p + 1 :])])  # type: ignore[misc]
        refused(files, "line 5: the signature is not by key")


@pytest.mark.parametrize("number", range(1, 6))
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: "", "not signed"),
        (lambda s: s[:-1], "128 hexadecimal digits"),
        (lambda s: s + "00", "128 hexadecimal digits"),
        (lambda s: s.upper(), "128 hexadecimal digits"),
        (lambda s: "0" * 128, "signature|matches|match"),
        (lambda s: s[64:] + s[:64], "signature|match"),
    ],
)
def test_no_entry_goes_without_its_signature(
    files: tuple[Path, Path], number: int, change: Callable[[str], str], words: str
) -> None:
    entries = entries_of(files[0])
    entries[number - 1] = resign(entries[number - 1], change)
    put(files[0], entries)
    # What follows no longer fits: the hash of the next line covers the signature before it.
    named = number if number == 5 or words in ("not signed", "128 hexadecimal digits") else number + 1
    refused(files, f"line {named}: .*({words})")


def test_a_signature_of_another_entry_does_not_fit(files: tuple[Path, Path]) -> None:
    *before, last = entries_of(files[0])
    put(files[0], [*before, dataclasses.replace(last, signature=before[-1].signature)])
    refused(files, "line 5: the signature is not by key")
    # Also not with the chain behind it made to fit.
    moved = dataclasses.replace(before[2], signature=before[1].signature)
    put(files[0], [*before[:2], moved, *rewritten([moved, *before[3:], last], KEY, moved)[1:]])
    with pytest.raises(LedgerError, match="line 3: the signature is not by key"):
        verify(files[0], None, KEY.public_key)


def test_an_anchors_signature_is_not_an_entrys(files: tuple[Path, Path]) -> None:
    """Both sign a count and a hash, each under its own label."""
    *before, last = entries_of(files[0])
    anchor = read_anchor(files[1])
    assert (anchor.count, anchor.hash) == (last.count, last.hash)
    dataclasses.replace(anchor, signature=last.signature).write(files[1])
    refused(files, r"ledger\.anchor: the anchor is not signed by the ledger's key", without_anchor=False)
    anchor.write(files[1])
    put(files[0], [*before, dataclasses.replace(last, signature=anchor.signature)])
    refused(files, "line 5: the signature is not by key")


def test_an_entry_of_another_ledger_of_the_same_key_does_not_fit(files: tuple[Path, Path], tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "second", tmp_path / "second.anchor", signer=KEY) as other:
        other.append(OPENED.KIND, OPENED.body())
        foreign = other.entries()
    own = entries_of(files[0])
    assert foreign[1].body == own[1].body
    put(files[0], [own[0], foreign[1], *own[2:]])
    refused(files, "line 2: the previous hash")


# --- who does not hold the key ------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["ledger", "ledger and anchor"])
def test_an_entry_appended_without_the_key_is_refused(files: tuple[Path, Path], where: str) -> None:
    entries = entries_of(files[0])
    forged = seal(entries[-1], RunClosed.KIND, RunClosed("run-1", "over").body()).signed(OTHER)
    put(files[0], [*entries, forged])
    if where == "ledger":
        refused(files, "line 6: the signature is not by key")
    else:
        Anchor.of(forged, OTHER).write(files[1])
        refused(files, "signature is not by key|not signed by", without_anchor=False)


def test_an_anchor_moved_back_without_the_key_is_refused(files: tuple[Path, Path]) -> None:
    entries = entries_of(files[0])
    put(files[0], entries[:3])
    Anchor.of(entries[2], OTHER).write(files[1])
    refused(files, r"ledger\.anchor: the anchor is not signed", without_anchor=False)


def test_a_chain_rewritten_with_another_key_is_caught_by_the_key_and_by_the_anchor(files: tuple[Path, Path]) -> None:
    put(files[0], rewritten(entries_of(files[0]), OTHER))
    with pytest.raises(IdentityError, match="line 1: the ledger is of key"):
        Ledger.open(*files, signer=KEY)
    with pytest.raises(LedgerError, match=r"line 1: the ledger is of key .*, not of the given"):
        verify(files[0], None, KEY.public_key)
    with pytest.raises(LedgerError, match=r"ledger\.anchor: the anchor is not signed by the ledger's key"):
        verify(*files)


def test_a_chain_rewritten_behind_the_stated_key_is_caught_by_its_signatures(files: tuple[Path, Path]) -> None:
    """The first entry, which states KEY, is kept; the rest and the anchor are signed by the forger."""
    entries = entries_of(files[0])
    forged = rewritten(entries, OTHER, entries[0])
    put(files[0], forged)
    Anchor.of(forged[-1], OTHER).write(files[1])
    refused(files, "signature is not by key|not signed by the ledger's key", without_anchor=False)
    with pytest.raises(LedgerError, match="line 2: the signature is not by key"):
        verify(files[0])


def test_only_the_given_key_tells_whose_ledger_it_is(files: tuple[Path, Path]) -> None:
    """With ledger and anchor both written anew under another key, the file alone looks sound, and `verify` says so."""
    with Ledger.create(files[0].with_name("new"), files[0].with_name("new.anchor"), signer=OTHER) as ledger:
        ledger.append(OPENED.KIND, OPENED.body())
    for made, own in zip(("new", "new.anchor"), files, strict=True):
        own.with_name(made).replace(own)
    found = verify(*files)
    assert (found.signer, found.signer_given, found.epsilon) == (OTHER.fingerprint, False, 0)
    with pytest.raises(LedgerError, match=r"line 1: .*not of the given"):
        verify(*files, KEY.public_key)
    with pytest.raises(IdentityError, match="line 1"):
        Ledger.open(*files, signer=KEY)
    # Whoever replaces the key as well has made another silo of it, which the folder alone cannot tell.
    Ledger.open(*files, signer=OTHER).close()


def test_another_key_opens_nothing_and_the_sentence_names_both(files: tuple[Path, Path], tmp_path: Path) -> None:
    wrong = SigningKey.create(tmp_path / "identity.key")
    kept = [path.read_bytes() for path in files]
    with pytest.raises(IdentityError, match="restore the one that belongs to the other") as caught:
        Ledger.open(*files, signer=wrong)
    for part in (str(files[0]), str(tmp_path / "identity.key"), KEY.fingerprint, wrong.fingerprint):
        assert part in str(caught.value)
    assert [path.read_bytes() for path in files] == kept
    Ledger.open(*files, signer=KEY).close()


def test_the_ledger_never_shows_its_key(files: tuple[Path, Path], tmp_path: Path) -> None:
    key = SigningKey.create(tmp_path / "identity.key")
    secret = key._private.private_bytes_raw()
    with Ledger.create(tmp_path / "l", tmp_path / "a", signer=key) as ledger:
        ledger.append(*NOTE)
        shown = repr(ledger) + repr(vars(ledger)) + repr(ledger.entries())
    for path in (tmp_path / "l", tmp_path / "a", tmp_path / "identity.pub"):
        shown += path.read_text()
    assert secret.hex() not in shown
    assert repr(secret)[2:-1] not in shown


# --- versions and the first entry ---------------------------------------------------------------------


def test_an_unsigned_ledger_of_an_older_version_is_refused_with_a_sentence(tmp_path: Path) -> None:
    body = OPENED.body()
    content = privacy.chain.canonical({"body": body, "count": 1, "kind": "run_opened"})
    digest = hashlib.sha256(b"fcfl/privacy/ledger/v1\0" + bytes(32) + content).hexdigest()
    (tmp_path / "l").write_bytes(Entry(1, "run_opened", body, "0" * 64, digest).line())
    (tmp_path / "a").write_text(json.dumps({"count": 1, "hash": digest}))
    for check in (lambda: verify(tmp_path / "l"), lambda: Ledger.open(tmp_path / "l", tmp_path / "a", signer=KEY)):
        with pytest.raises(LedgerError, match=r"line 1: not signed; .*older version"):
            check()


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("note", {}, "expected ledger_opened in line 1"),
        (OPENING, {"format": "fcfl/privacy/ledger/v3"}, "expected ledger_opened of format"),
        (OPENING, {"extra": 1}, "expected ledger_opened of format"),
        (OPENING, {"public_key": "00" * 32}, "not an Ed25519 public key"),
        (OPENING, {"public_key": KEY.public_key.hex().upper() + "A"}, "not an Ed25519 public key"),
        (OPENING, {"public_key": 7}, "not an Ed25519 public key"),
    ],
)
def test_the_first_entry_states_format_and_key(tmp_path: Path, kind: str, change: dict[str, Any], words: str) -> None:
    first = seal(None, kind, dict(opening(KEY).body) | change).signed(KEY)
    put(tmp_path / "l", [first])
    with pytest.raises(LedgerError, match=f"line 1: .*{words}"):
        verify(tmp_path / "l")


def test_a_key_is_stated_once(files: tuple[Path, Path]) -> None:
    with Ledger.open(*files, signer=KEY) as ledger, pytest.raises(LedgerError, match="other than ledger_opened"):
        ledger.append(OPENING, dict(opening(OTHER).body))
    entries = entries_of(files[0])
    put(files[0], [*entries, seal(entries[-1], OPENING, opening(OTHER).body).signed(KEY)])
    refused(files, "line 6: expected ledger_opened in line 1 and nowhere else")


@pytest.mark.parametrize("content", [b"", b'{"body"'])
def test_no_entry_is_no_ledger(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "l").write_bytes(content)
    with pytest.raises(LedgerError, match="no complete entry"):
        verify(tmp_path / "l")


# --- time ---------------------------------------------------------------------------------------------


def test_opening_checks_two_signatures_however_long_the_ledger_is(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[bytes] = []
    real = privacy.signing.usable
    monkeypatch.setattr(privacy.signing, "usable", lambda key: checked.append(key) or real(key))  # type: ignore[func-returns-value]
    Ledger.open(*files, signer=KEY).close()
    assert len(checked) == 2
    checked.clear()
    verify(*files)
    assert len(checked) == 6


def test_ten_thousand_entries_open_in_seconds(tmp_path: Path) -> None:
    chain = [opening(KEY)]
    for epoch in range(10_000):
        chain.append(
            seal(chain[-1], "note", Release("run-1", epoch, 0.1, 4.0, 1.0, 5, 1000, 1e-3, 1.0).body()).signed(KEY)
        )
    put(tmp_path / "l", chain)
    Anchor.of(chain[-1], KEY).write(tmp_path / "a")
    started = time.process_time()
    Ledger.open(tmp_path / "l", tmp_path / "a", signer=KEY).close()
    opened = time.process_time()
    verify(tmp_path / "l", tmp_path / "a", KEY.public_key)
    print(f"open {opened - started:.2f} s, verify {time.process_time() - opened:.2f} s")
    assert opened - started < 10
