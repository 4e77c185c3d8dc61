"""A preparation is taken up where it was killed, does not depend on the number of processes, and holds one ticker."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from data_prep import samples
from data_prep.check import file as check_file
from data_prep.errors import DataError
from data_prep.files import work_directory
from data_prep.prepare import FederationSpec, Splits, check_folders, prepare_files, prepare_synthetic
from data_prep.workers import Workers

ROOT = Path(__file__).resolve().parents[2]
SPEC = FederationSpec(
    silos=3, min_samples=50, splits=Splits(train=(2020, 2021), validation=(2022, 2022), test=(2023, 2023))
)
# The same call in a process of its own; with a third argument it kills itself at that step of that stage.
SCRIPT = """
import os, resource, signal, sys
from pathlib import Path
from data_prep.prepare import FederationSpec, Splits, prepare_files
folder, out = map(Path, sys.argv[1:3])
workers, stage, step = int(sys.argv[3]), sys.argv[4], int(sys.argv[5])
def progress(at, done, total):
    if (at, done) == (stage, step):
        os.kill(os.getpid(), signal.SIGKILL)
if __name__ == "__main__":
    spec = FederationSpec(
        silos=3, min_samples=50, splits=Splits(train=(2020, 2021), validation=(2022, 2022), test=(2023, 2023))
    )
    prepare_files([folder], out, spec, workers=workers, progress=progress)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def contents(out: Path) -> dict[str, str]:
    return {
        path.relative_to(out).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(out.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    script = tmp_path / "prepare.py"
    script.write_text(SCRIPT)

    def run(folder: Path, out: Path, *, workers: int = 1, kill: tuple[str, int] = ("", 0)) -> object:
        command = [sys.executable, str(script), str(folder), str(out), str(workers), kill[0], str(kill[1])]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    return run  # type: ignore[return-value]


def counting(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Count the files that are read and the tickers whose features are computed in this process."""
    counts = {"read": 0, "computed": 0}
    read, compute = check_file.read_series, samples.compute_features

    def read_series(*args: object, **options: object) -> object:
        counts["read"] += 1
        return read(*args, **options)  # type: ignore[arg-type]

    def compute_features(*args: object) -> object:
        counts["computed"] += 1
        return compute(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(check_file, "read_series", read_series)
    monkeypatch.setattr(samples, "compute_features", compute_features)
    return counts


@pytest.mark.parametrize(
    ("kill", "read", "computed"),
    [(("files", 5), 3, 8), (("tickers", 5), 0, 3), (("silos", 1), 0, 0), (("silos", 3), 0, 0)],
    ids=str,
)
def test_a_killed_preparation_is_taken_up_without_doing_finished_tickers_again(
    write_folder: Callable[..., Path],
    run: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kill: tuple[str, int],
    read: int,
    computed: int,
) -> None:
    folder = write_folder("us", 8)
    out = tmp_path / "killed"
    assert run(folder, out, kill=kill).returncode == -signal.SIGKILL
    assert not (out / "federation.json").exists()
    assert not list(out.glob("silo-*"))
    counts = counting(monkeypatch)
    prepare_files([folder], out, SPEC)
    assert counts == {"read": read, "computed": computed}
    prepare_files([folder], tmp_path / "whole", SPEC)
    assert contents(out) == contents(tmp_path / "whole")
    assert ".preparing" not in {path.name for path in out.iterdir()}


def test_a_file_that_changed_after_the_kill_is_read_again_and_no_other(
    write_folder: Callable[..., Path],
    run: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = write_folder("us", 8)
    assert run(folder, tmp_path / "killed", kill=("tickers", 5)).returncode == -signal.SIGKILL
    file = folder / "US3.csv"
    file.write_text(file.read_text().rsplit("\n", 2)[0] + "\n")
    counts = counting(monkeypatch)
    prepare_files([folder], tmp_path / "killed", SPEC)
    assert counts == {"read": 1, "computed": 8}
    prepare_files([folder], tmp_path / "whole", SPEC)
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_what_a_power_cut_left_damaged_is_made_again(
    write_folder: Callable[..., Path],
    run: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = write_folder("us", 8)
    out = tmp_path / "killed"
    assert run(folder, out, kill=("tickers", 8)).returncode == -signal.SIGKILL
    (work,) = out.glob(".preparing/silos-*")
    (journal,) = work.glob("*.jsonl")
    journal.write_bytes(journal.read_bytes()[:-20])
    array = work / "silo-01" / "train.targets.npy"
    array.write_bytes(array.read_bytes()[:-4] + b"\0\0\0\0")
    bars = sorted((out / ".preparing" / "bars").glob("*.npy"))
    bars[0].write_bytes(bars[0].read_bytes()[:-8] + bytes(8))
    bars[1].unlink()
    next((out / ".preparing" / "bars").glob("*.json")).write_text("{")
    counts = counting(monkeypatch)
    prepare_files([folder], out, SPEC)
    assert 2 <= counts["read"] <= 3
    assert counts["computed"] == 2, "the torn line, and the samples that are not what their line says"
    prepare_files([folder], tmp_path / "whole", SPEC)
    assert contents(out) == contents(tmp_path / "whole")


def test_a_refusal_leaves_nothing_behind_and_two_preparations_do_not_share_a_folder(
    write_folder: Callable[..., Path], tmp_path: Path
) -> None:
    folder, out = write_folder("us", 4), tmp_path / "out"
    with work_directory(out), pytest.raises(DataError, match="another preparation is writing there"):
        prepare_files([folder], out, SPEC)
    (folder / "BAD.csv").write_text("Date,Open,High,Low,Close\n2020-01-02,x,1,1,1\n")
    with pytest.raises(DataError, match="BAD"):
        prepare_files([folder], out, SPEC)
    assert not out.exists()


def test_bytes_and_findings_do_not_depend_on_the_number_of_processes(
    write_folder: Callable[..., Path], tmp_path: Path
) -> None:
    folder = write_folder("us", 80, n=700)
    for number in (3, 40, 77):
        (folder / f"US{number}.csv").write_text("" if number == 3 else (folder / "US5.csv").read_text())
    one, three = (check_folders([folder], workers=workers) for workers in (1, 3))
    assert one.findings == three.findings
    assert [item.figures for item in one.judged] == [item.figures for item in three.judged]
    assert len(one.findings) > 3
    stages: dict[int, list[tuple[str, int, int]]] = {}
    for workers in (1, 3):

        def progress(stage: str, done: int, total: int, workers: int = workers) -> None:
            stages.setdefault(workers, []).append((stage, done, total))

        prepare_files([folder], tmp_path / str(workers), SPEC, workers=workers, progress=progress)
    assert contents(tmp_path / "1") == contents(tmp_path / "3")
    assert stages[1] == stages[3]


def test_the_synthetic_market_does_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    for workers in (1, 2):
        prepare_synthetic(tmp_path / str(workers), FederationSpec(silos=4), tickers=70, seed=1, workers=workers)
    assert contents(tmp_path / "1") == contents(tmp_path / "2")


def _identity(item: int) -> tuple[int, int]:
    if item == -1:
        os.kill(os.getpid(), signal.SIGKILL)
    return item, os.getpid()


def _slow(item: int) -> tuple[int, int]:
    time.sleep(0.02)
    return item, os.getpid()


def test_workers_keep_the_order_and_this_process_works_too() -> None:
    with Workers(3) as workers:
        found = list(workers.map(_slow, list(range(300))))
        assert [item for item, _ in found] == list(range(300))
        assert os.getpid() in {process for _, process in found}
        assert len({process for _, process in found}) > 1
    with pytest.raises(DataError, match="workers: found 0"):
        Workers(0)


def test_helpers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import os, signal, sys\nfrom data_prep.workers import Workers\n"
        "from multiprocessing import active_children\n"
        "def work(item):\n    import time; time.sleep(0.01); return os.getpid()\n"
        "if __name__ == '__main__':\n"
        "    with Workers(2) as workers:\n"
        "        seen = set(workers.map(work, list(range(400))))\n"
        "        print(*(seen - {os.getpid()}), flush=True)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL
    (helper,) = map(int, ended.stdout.split())
    for _ in range(200):
        if not Path(f"/proc/{helper}").exists():
            break
        time.sleep(0.05)
    else:
        pytest.fail("the helper is still there")


@pytest.mark.slow
def test_peak_memory_does_not_grow_with_the_tickers_but_for_an_index(
    write_folder: Callable[..., Path], run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    peaks, sizes = {}, {}
    for number in (20, 200):
        folder = write_folder(f"m{number}", number, n=900)
        out = tmp_path / f"out{number}"
        done = run(folder, out)
        assert done.returncode == 0, done.stderr
        peaks[number] = int(done.stdout) / 1024
        sizes[number] = sum(path.stat().st_size for path in out.rglob("*.npy")) / 2**20
    grown, written = peaks[200] - peaks[20], sizes[200] - sizes[20]
    print(f"peak {peaks[20]:.0f} and {peaks[200]:.0f} MiB for 20 and 200 tickers, samples {sizes[200]:.0f} MiB")
    assert written > 20
    # Names, counts and findings of 180 more tickers; their bars alone are 7 MiB, their samples over 20 MiB.
    assert grown < 6
