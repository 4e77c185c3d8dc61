import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.accounting import best_order, rdp
from privacy.chain import OPENING, Entry, seal
from privacy.conversion import order_budget
from privacy.count_filter import CountFilter
from privacy.errors import LedgerError, PrivacyError
from privacy.filter import RenyiFilter
from privacy.ledger import Ledger, verify
from privacy.plan import MechanismPlan
from privacy.records import SEEDED, Release, RunClosed, RunOpened, filter_of
from tests.privacy.signed import KEY

OPENED = RunOpened("run-1", 1.0, 1e-5, 17.0, 0.5, "fcfl 0.1.0")
PLAN = MechanismPlan(0.1, 1.0, 4.0, 5, 1000)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "ledger.jsonl", tmp_path / "ledger.anchor"


def write(files: tuple[Path, Path], epochs: int = 3, opened: RunOpened = OPENED) -> list[bytes]:
    """A ledger of one run; returns the anchor's bytes after each entry, index 0 for the empty ledger (one entry)."""
    anchors = []
    with Ledger.create(*files, signer=KEY) as ledger:
        anchors.append(files[1].read_bytes())
        ledger.append(opened.KIND, opened.body())
        anchors.append(files[1].read_bytes())
        current = opened.filter()
        for epoch in range(epochs):
            release, current = Release.charge(opened.run, epoch, PLAN, current)
            ledger.append(release.KIND, release.body())
            anchors.append(files[1].read_bytes())
    return anchors


def forge(files: tuple[Path, Path], bodies: list[tuple[str, dict[str, object]]]) -> None:
    """A correctly chained ledger with any content, as its owner could write it."""
    with Ledger.create(*files, signer=KEY) as ledger:
        for kind, body in bodies:
            ledger.append(kind, body)


def test_round_trip(files: tuple[Path, Path]) -> None:
    write(files)
    with Ledger.open(*files, signer=KEY) as ledger:
        assert ledger.notice is None
        assert ledger.head[0] == 5
        assert [entry.kind for entry in ledger.entries()] == [OPENING, "run_opened", "release", "release", "release"]
        assert RunOpened.from_body(ledger.entries()[1].body) == OPENED
    summary = verify(*files)
    assert summary.hash == ledger.head[1]
    (run,) = summary.runs
    assert run.releases == 3
    assert run.rdp_spent == pytest.approx(3 * PLAN.rdp(17.0))
    assert summary.epsilon == run.epsilon == OPENED.filter().charge(run.rdp_spent).epsilon(1e-5)
    assert summary.private


def test_an_empty_ledger_states_its_key_and_nothing_else(files: tuple[Path, Path]) -> None:
    with Ledger.create(*files, signer=KEY) as ledger:
        assert ledger.head[0] == 1
    (first,) = Ledger.open(*files, signer=KEY).entries()
    assert first.body["format"] == "fcfl/privacy/ledger/v2"
    assert first.body["public_key"] == KEY.public_key.hex()
    summary = verify(*files)
    assert (summary.runs, summary.epsilon, summary.delta, summary.unknown_kinds) == ((), 0, 0, ())


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.mark.usefixtures("fast")
def test_every_cut_behind_the_anchor_is_refused(files: tuple[Path, Path]) -> None:
    write(files)
    data = files[0].read_bytes()
    for length in range(len(data)):
        files[0].write_bytes(data[:length])
        with pytest.raises(LedgerError, match="restore"):
            Ledger.open(*files, signer=KEY)
        with pytest.raises(LedgerError):
            verify(*files)
        assert files[0].read_bytes() == data[:length], "a refused ledger must stay as evidence"


@pytest.mark.usefixtures("fast")
def test_every_crash_during_the_last_append_is_repaired(files: tuple[Path, Path]) -> None:
    anchors = write(files)
    data = files[0].read_bytes()
    last = data.rindex(b"\n", 0, -1) + 1
    for length in (*range(0, last, 97), *range(last - 3, len(data) + 1)):
        files[0].write_bytes(data[:length])
        files[1].write_bytes(anchors[-2])
        if length < last:
            with pytest.raises(LedgerError):
                Ledger.open(*files, signer=KEY)
            continue
        with Ledger.open(*files, signer=KEY) as ledger:
            complete = length == len(data)
            assert ledger.head[0] == (5 if complete else 4)
            assert (ledger.notice is None) == (length in (last, len(data)))
            assert files[0].read_bytes() == (data if complete else data[:last])
            anchor = json.loads(files[1].read_bytes())
            assert (anchor["count"], anchor["hash"]) == ledger.head
            ledger.append("run_closed", RunClosed("run-1", "test").body())
        assert verify(*files).count == (6 if complete else 5)


@pytest.mark.usefixtures("fast")
def test_every_changed_byte_is_noticed(files: tuple[Path, Path]) -> None:
    write(files, epochs=1)
    data = files[0].read_bytes()
    for position in range(len(data)):
        for change in (1, 0x80) if position % 7 else (1, 0x20, 0x80):
            altered = bytearray(data)
            altered[position] ^= change
            files[0].write_bytes(altered)
            with pytest.raises(LedgerError):
                Ledger.open(*files, signer=KEY)


@pytest.mark.parametrize(
    "order", [[0, 1, 3, 2, 4], [0, 1, 2, 4], [0, 1, 2, 2, 3, 4], [1, 2, 3, 4], [0, 1, 2, 3, 4, 4], [0, 1, 2, 3], [0, 0]]
)
def test_reordered_dropped_and_doubled_lines_are_refused(files: tuple[Path, Path], order: list[int]) -> None:
    write(files)
    lines = files[0].read_bytes().splitlines(keepends=True)
    files[0].write_bytes(b"".join(lines[index] for index in order))
    with pytest.raises(LedgerError, match=r"ledger\.jsonl"):
        Ledger.open(*files, signer=KEY)


def test_damage_names_the_line(files: tuple[Path, Path]) -> None:
    write(files)
    files[0].write_bytes(files[0].read_bytes().replace(b'"epoch":1', b'"epoch":7'))
    with pytest.raises(LedgerError, match="line 4: the hash does not match the content"):
        Ledger.open(*files, signer=KEY)


def test_a_rewritten_chain_is_caught_by_the_anchor(files: tuple[Path, Path]) -> None:
    write(files)
    lines, before = [], None
    for line in files[0].read_bytes().splitlines():
        fields = json.loads(line)
        body = fields["body"] | ({"noise_multiplier": 9.0} if fields["kind"] == "release" else {})
        before: Entry | None = seal(before, fields["kind"], body).signed(KEY)
        lines.append(before.line())
    files[0].write_bytes(b"".join(lines))
    with pytest.raises(LedgerError, match="differs from the anchor"):
        Ledger.open(*files, signer=KEY)


@pytest.mark.parametrize(
    "junk", [b"null\n", b"[]\n", b"{}\n", b"\n", b'{"a":NaN}\n', b"\xff\n", b"[" * 100_000 + b"\n"]
)
def test_junk_lines_are_damage(files: tuple[Path, Path], junk: bytes) -> None:
    write(files, epochs=0)
    with files[0].open("ab") as handle:
        handle.write(junk)
    with pytest.raises(LedgerError, match="line 3"):
        Ledger.open(*files, signer=KEY)


@given(st.binary(max_size=200))
@settings(max_examples=100, deadline=None)
def test_no_bytes_crash_the_reader(tmp_path_factory: pytest.TempPathFactory, junk: bytes) -> None:
    folder = tmp_path_factory.mktemp("junk")
    path, anchor = folder / "l", folder / "a"
    Ledger.create(path, anchor, signer=KEY).close()
    with path.open("ab") as file:
        file.write(junk)
    try:
        with Ledger.open(path, anchor, signer=KEY) as ledger:
            assert b"\n" not in junk
            assert (ledger.notice is not None) == bool(junk)
    except LedgerError:
        assert b"\n" in junk


def test_it_never_starts_from_zero_by_itself(files: tuple[Path, Path]) -> None:
    with pytest.raises(LedgerError, match=r"Ledger\.create"):
        Ledger.open(*files, signer=KEY)
    write(files)
    with pytest.raises(LedgerError, match="anchor exists"):
        Ledger.create(*files, signer=KEY)
    kept = files[1].read_bytes()
    files[1].unlink()
    with pytest.raises(LedgerError, match="anchor is missing"):
        Ledger.open(*files, signer=KEY)
    with pytest.raises(LedgerError, match="a ledger exists"):
        Ledger.create(*files, signer=KEY)
    files[1].write_bytes(kept)
    files[0].unlink()
    with pytest.raises(LedgerError, match="restore the ledger"):
        Ledger.open(*files, signer=KEY)
    with pytest.raises(LedgerError, match="same file"):
        Ledger.create(files[0], files[0], signer=KEY)


@pytest.mark.parametrize(
    "junk",
    [
        *(b"", b"{", b"[]", b"[" * 100_000, b'{"count":1}', b'{"count":1,"hash":"' + b"0" * 64 + b'"}'),
        *(
            b'{"count":%s,"hash":"%s","signature":"%s"}' % (count, digest, signature)
            for count, digest, signature in [
                (b"true", b"0" * 64, b"0" * 128),
                (b"0", b"0" * 64, b"0" * 128),
                (b"1" * 30, b"0" * 64, b"0" * 128),
                (b"2", b"0" * 63, b"0" * 128),
                (b"2", b"0" * 64, b""),
                (b"2", b"0" * 64, b"A" * 128),
            ]
        ),
    ],
)
def test_a_damaged_anchor_is_refused(files: tuple[Path, Path], junk: bytes) -> None:
    write(files)
    files[1].write_bytes(junk)
    with pytest.raises(LedgerError, match="anchor"):
        Ledger.open(*files, signer=KEY)


def test_one_process_at_a_time(files: tuple[Path, Path]) -> None:
    with Ledger.create(*files, signer=KEY):
        with pytest.raises(LedgerError, match="another process"):
            Ledger.open(*files, signer=KEY)
        code = (
            "import sys; from privacy.ledger import Ledger; from privacy.signing import SigningKey;"
            "Ledger.open(sys.argv[1], sys.argv[2], signer=SigningKey.generate())"
        )
        other = subprocess.run(
            [sys.executable, "-c", code, *map(str, files)], capture_output=True, text=True, check=False
        )
        assert "another process" in other.stderr
    Ledger.open(*files, signer=KEY).close()


def test_append_is_on_disk_before_it_returns(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    real_fsync, real_write = os.fsync, os.write

    def fsync(handle: int) -> None:
        calls.append("fsync")
        real_fsync(handle)

    def write_short(handle: int, data: memoryview) -> int:
        calls.append("write")
        return real_write(handle, data[:50])

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "write", write_short)
    with Ledger.create(*files, signer=KEY) as ledger:
        calls.clear()
        ledger.append("note", {"a": 1})
    first = calls.index("fsync")
    assert set(calls[:first]) == {"write"}, "entry first, then its fsync"
    assert len(calls[:first]) > 1, "short writes are continued"
    assert calls[first + 1] == "write", "the anchor is written only after the entry is safe"
    assert calls[-2:] == ["fsync", "fsync"], "anchor and folder"


def test_after_a_failed_write_nothing_more_is_appended(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ledger.create(*files, signer=KEY) as ledger:
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device")))
            with pytest.raises(LedgerError, match="No space left"):
                ledger.append("note", {"a": 1})
        with pytest.raises(LedgerError, match="open the ledger again"):
            ledger.append("note", {"a": 2})
        assert ledger.head[0] == 1
    # The line may have reached the disk: then it counts.
    assert Ledger.open(*files, signer=KEY).head[0] == 2


def test_a_closed_ledger_refuses(files: tuple[Path, Path]) -> None:
    ledger = Ledger.create(*files, signer=KEY)
    ledger.close()
    with pytest.raises(LedgerError, match="closed"):
        ledger.append("note", {})


@pytest.mark.parametrize("body", [{"x": float("nan")}, {"x": object()}, {"x": float("inf")}])
def test_bodies_must_be_plain_json(files: tuple[Path, Path], body: dict[str, object]) -> None:
    with Ledger.create(*files, signer=KEY) as ledger:
        with pytest.raises(LedgerError, match="plain JSON"):
            ledger.append("note", body)
        ledger.append("note", {"fine": 1})


def test_entries_cannot_be_changed_through_the_callers_body(files: tuple[Path, Path]) -> None:
    body = {"list": [1]}
    with Ledger.create(*files, signer=KEY) as ledger:
        entry = ledger.append("note", body)
        body["list"].append(2)
        assert entry.body["list"] == [1]
    assert Ledger.open(*files, signer=KEY).entries()[1] == entry


def release(epoch: int = 0, **changed: object) -> tuple[str, dict[str, object]]:
    made, _ = Release.charge("run-1", epoch, PLAN, OPENED.filter())
    return Release.KIND, made.body() | changed


@pytest.mark.parametrize(
    ("bodies", "words"),
    [
        ([release()], "line 2: run 'run-1' is not open"),
        ([(OPENED.KIND, OPENED.body()), release(rdp=1e-3, rdp_total=1e-3)], "line 3: rdp is 0.001, recomputed"),
        ([(OPENED.KIND, OPENED.body()), release(noise_multiplier=2.0)], "line 3: rdp is"),
        ([(OPENED.KIND, OPENED.body()), release(rdp_total=0.4)], "line 3: rdp_total"),
        ([(OPENED.KIND, OPENED.body()), release(), release()], "line 4: epoch 0 is used twice"),
        ([(OPENED.KIND, OPENED.body()), (OPENED.KIND, OPENED.body())], "opened twice"),
        ([(OPENED.KIND, OPENED.body()), (RunClosed.KIND, RunClosed("run-1", "x").body()), release()], "line 4: run"),
        ([(OPENED.KIND, OPENED.body() | {"rdp_budget": 0.6})], "line 2: rdp_budget"),
        ([(OPENED.KIND, OPENED.body() | {"epsilon": float("1e-3")})], "line 2: rdp_budget"),
        ([(OPENED.KIND, OPENED.body() | {"extra": 1})], "unknown keys"),
        ([(OPENED.KIND, OPENED.body() | {"status": "fine"})], "status"),
        ([(OPENED.KIND, OPENED.body() | {"unit": "silo"})], "adjacency"),
        ([(OPENED.KIND, OPENED.body()), release(records=True)], "records"),
    ],
)
def test_verify_recomputes_everything(
    files: tuple[Path, Path], bodies: list[tuple[str, dict[str, object]]], words: str
) -> None:
    forge(files, bodies)
    with pytest.raises(LedgerError, match=words):
        verify(*files)


def test_verify_refuses_a_passed_budget(files: tuple[Path, Path]) -> None:
    cost = PLAN.rdp(17.0)
    forge(
        files,
        [(OPENED.KIND, OPENED.body())]
        + [release(epoch, rdp_total=cost * (epoch + 1)) for epoch in range(int(0.5 / cost) + 1)],
    )
    with pytest.raises(LedgerError, match="the budget is passed"):
        verify(*files)


def test_seeded_runs_are_not_private(files: tuple[Path, Path]) -> None:
    write(files, opened=RunOpened("run-1", 1.0, 1e-5, 17.0, 0.5, "fcfl", status=SEEDED))
    assert b"not private: seeded" in files[0].read_bytes()
    assert not verify(*files).private


def test_runs_add_up_and_unknown_kinds_are_reported(files: tuple[Path, Path]) -> None:
    first, second = OPENED, RunOpened("run-2", 1.0, 1e-5, 17.0, 0.5, "fcfl 0.1.0")
    one, _ = Release.charge("run-1", 0, PLAN, first.filter())
    two, _ = Release.charge("run-2", 0, PLAN, second.filter())
    forge(
        files,
        [
            (first.KIND, first.body()),
            (second.KIND, second.body()),
            (two.KIND, two.body()),
            (one.KIND, one.body()),
            ("note", {"text": "x"}),
            (RunClosed.KIND, RunClosed("run-1", "finished").body()),
        ],
    )
    summary = verify(files[0])
    assert summary.delta == pytest.approx(2e-5)
    assert summary.epsilon == pytest.approx(2 * summary.runs[0].epsilon)
    assert [run.closed for run in summary.runs] == [True, False]
    assert summary.unknown_kinds == ("note",)


def test_a_restarted_silo_goes_on_with_its_filter(files: tuple[Path, Path]) -> None:
    write(files, epochs=3)
    with Ledger.open(*files, signer=KEY) as ledger:
        current = filter_of(ledger.entries(), "run-1")
        assert current == RenyiFilter(17.0, 0.5, verify(*files).runs[0].rdp_spent)
        with pytest.raises(PrivacyError, match="not open"):
            filter_of(ledger.entries(), "run-2")
        ledger.append(RunClosed.KIND, RunClosed("run-1", "done").body())
        with pytest.raises(PrivacyError, match="not open"):
            filter_of(ledger.entries(), "run-1")


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_rounds_of_an_engine_that_is_rebuilt_and_killed_compose_as_one_run(
    files: tuple[Path, Path], accountant: str
) -> None:
    """Three rounds of 10 steps give 1.096 (or 0.5064 by loss distribution), not 1.0353 (reset) or 3.1059 (added)."""
    plan = MechanismPlan(0.01, 1.0, 1.0, 10, 100)
    order = best_order(DEFAULT_RDP_ORDERS, rdp(0.01, 1.0, 30, DEFAULT_RDP_ORDERS), 1e-5)
    if accountant == "rdp":
        opened = RunOpened("run-1", 1.2, 1e-5, order, order_budget(order, 1.2, 1e-5), "fcfl")
    else:
        opened = RunOpened.counted("run-1", 1.2, 1e-5, CountFilter(3, 0.01, 1.0, 10, order), "fcfl")
    with Ledger.create(*files, signer=KEY) as ledger:
        ledger.append(RunOpened.KIND, opened.body())
    for epoch in (1, 2, 3):
        with Ledger.open(*files, signer=KEY) as ledger:  # a new engine for every round
            line, _ = Release.charge("run-1", epoch, plan, filter_of(ledger.entries(), "run-1"))
            ledger.append(Release.KIND, line.body())
        if epoch == 2:  # killed while it entered the third
            with files[0].open("ab") as torn:
                torn.write(b'{"body":{"epoch":3')
    expected = 1.0959 if accountant == "rdp" else 0.5064
    for _ in range(2):
        (run,) = verify(*files).runs
        assert run.releases == 3
        assert run.epsilon == pytest.approx(expected, abs=1e-3)


def test_verify_leaves_a_torn_line_alone(files: tuple[Path, Path]) -> None:
    anchors = write(files)
    data = files[0].read_bytes()[:-5]
    files[0].write_bytes(data)
    files[1].write_bytes(anchors[-2])
    summary = verify(*files)
    assert summary.notice is not None
    assert summary.count == 4
    assert files[0].read_bytes() == data
