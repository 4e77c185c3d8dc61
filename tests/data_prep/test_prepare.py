"""Folders become silo directories: complete, repeatable, and nothing half-written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data_prep.errors import DataError
from data_prep.features.table import FEATURES, MEMORY_ROWS
from data_prep.prepare import FederationSpec, Splits, prepare_files, prepare_synthetic
from data_prep.shards import open_shard

SPEC = FederationSpec(
    silos=3, min_samples=50, splits=Splits(train=(2020, 2021), validation=(2022, 2022), test=(2023, 2023))
)


def contents(out: Path) -> dict[str, str]:
    return {
        path.relative_to(out).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(out.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def folders(write_folder: Callable[..., Path]) -> list[Path]:
    return [write_folder("us", 6), write_folder("eu", 3, seed=50)]


def test_samples_hold_the_next_days_log_return_in_public_units(folders: list[Path], tmp_path: Path) -> None:
    paths = prepare_files(folders, tmp_path / "out", SPEC)
    assert [path.name for path in paths] == ["silo-00", "silo-01", "silo-02"]
    shard = open_shard(paths[0], verify=True)
    ticker, region = shard.manifest["tickers"][0], shard.manifest["regions"][0]
    text = (tmp_path / region / f"{ticker}.csv").read_text().splitlines()[1:]
    closes = {line.split(",")[0]: float(line.split(",")[4]) for line in text}
    assert shard.train.dates is not None
    assert shard.train.instruments is not None
    own = np.flatnonzero(shard.train.instruments == 0)
    days = sorted(closes)
    for row in own[[0, 10, -1]]:
        day = str(shard.train.dates[row].astype("datetime64[D]"))
        expected = np.log(closes[days[days.index(day) + 1]] / closes[day]) / 0.01
        assert shard.train.targets[row] == pytest.approx(expected, rel=1e-5)


def test_changing_one_bar_changes_only_samples_of_its_own_window(folders: list[Path], tmp_path: Path) -> None:
    def samples(out: Path) -> dict[tuple[str, str, int], bytes]:
        found = {}
        for path in prepare_files(folders, out, SPEC):
            shard = open_shard(path)
            for name in ("train", "validation", "test"):
                split = getattr(shard, name)
                for x, y, day, i in zip(split.features, split.targets, split.dates, split.instruments, strict=True):
                    key = (shard.manifest["regions"][0], shard.manifest["tickers"][int(i)], int(day))
                    found[key] = x.tobytes() + y.tobytes()
        return found

    before = samples(tmp_path / "a")
    file = folders[0] / "US2.csv"
    lines = file.read_text().splitlines()
    day, *prices, volume = lines[400].split(",")
    lines[400] = ",".join([day, *(str(float(price) * 1.2) for price in prices), str(10.0 * float(volume))])
    file.write_text("\n".join(lines) + "\n")
    after = samples(tmp_path / "b")
    assert before.keys() == after.keys()
    moved = [key for key in before if before[key] != after[key]]
    limit = open_shard(tmp_path / "a" / "silo-00").manifest["samples_per_bar"]
    number = int(np.datetime64(day).astype(int))
    assert {key[:2] for key in moved} == {("us", "US2")}
    assert 100 < len(moved) <= limit
    assert min(key[2] for key in moved) >= number - 4


def test_silos_together_hold_every_ticker_once_and_stay_in_one_region(folders: list[Path], tmp_path: Path) -> None:
    shards = [open_shard(path) for path in prepare_files(folders, tmp_path / "out", SPEC)]
    assert all(len(shard.manifest["regions"]) == 1 for shard in shards)
    tickers = [ticker for shard in shards for ticker in shard.manifest["tickers"]]
    assert sorted(tickers) == sorted([f"US{i}" for i in range(6)] + [f"EU{i}" for i in range(3)])
    assert all(np.isfinite(shard.train.features).all() for shard in shards)


def test_manifest_tells_counts_units_and_neutral_groups(folders: list[Path], tmp_path: Path) -> None:
    shard = open_shard(prepare_files(folders, tmp_path / "out", SPEC)[0])
    manifest = shard.manifest
    assert manifest["neutral_groups"] == ["factors", "macro"]
    assert manifest["counts"]["train_samples"] == len(shard.train.targets)
    assert manifest["counts"]["left_out"]["warm_up"] > 0
    assert manifest["features"] == [feature.name for feature in FEATURES]
    assert shard.train.truth is None


def test_macro_and_factor_folders_are_recognised_among_the_folders(
    folders: list[Path], macro_folder: Path, factor_folder: Path, tmp_path: Path
) -> None:
    mixed = prepare_files([*folders, macro_folder, factor_folder], tmp_path / "a", SPEC)
    named = prepare_files(folders, tmp_path / "b", SPEC, macro=macro_folder, factors=factor_folder)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    shard = open_shard(mixed[0])
    assert shard.manifest["neutral_groups"] == []
    shared = [i for i, feature in enumerate(FEATURES) if feature.group in ("macro", "factors")]
    assert (np.abs(np.asarray(shard.train.features)[:, shared]).max(axis=0) > 0).all()
    assert open_shard(named[0]).manifest == shard.manifest


def test_equal_input_and_settings_give_equal_bytes(folders: list[Path], tmp_path: Path) -> None:
    prepare_files(folders, tmp_path / "a", SPEC)
    prepare_files(folders, tmp_path / "b", SPEC)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_a_second_run_does_nothing_and_says_so(folders: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare_files(folders, out, SPEC)
    times = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    stages: list[str] = []
    paths = prepare_files(folders, out, SPEC, progress=lambda stage, _done, _total: stages.append(stage))
    assert stages == ["unchanged"]
    assert [path.name for path in paths] == ["silo-00", "silo-01", "silo-02"]
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == times


def test_changed_input_or_settings_are_prepared_again(folders: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare_files(folders, out, SPEC)
    before = contents(out)
    file = folders[0] / "US0.csv"
    file.write_text(file.read_text().rsplit("\n", 2)[0] + "\n")
    prepare_files(folders, out, SPEC)
    assert contents(out) != before
    fewer = FederationSpec(silos=2, min_samples=50, splits=SPEC.splits)
    prepare_files(folders, out, fewer)
    assert sorted(path.name for path in out.iterdir()) == ["federation.json", "silo-00", "silo-01"]


def test_a_missing_silo_is_noticed_and_prepared_again(folders: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare_files(folders, out, SPEC)
    before = contents(out)
    (out / "silo-01" / "manifest.json").unlink()
    prepare_files(folders, out, SPEC)
    assert contents(out) == before


def test_bad_input_leaves_an_earlier_result_as_it_was(folders: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare_files(folders, out, SPEC)
    before = contents(out)
    (folders[0] / "BAD.csv").write_text("Date,Open,High,Low,Close,Volume\n2020-01-02,x,1,1,1,1\n")
    with pytest.raises(DataError, match=r"us/BAD\.csv, line 2, column Open: found 'x'"):
        prepare_files(folders, out, SPEC)
    assert contents(out) == before
    prepare_files(folders, out, SPEC, exclude=["BAD.csv"])
    assert contents(out).keys() == before.keys()


def test_what_a_check_leaves_out_is_left_out_and_counted_in_the_manifests(folders: list[Path], tmp_path: Path) -> None:
    file = folders[0] / "US1.csv"
    lines = file.read_text().splitlines()
    day = lines[300].split(",")[0]
    lines[300] = f"{day},1,2,1,0,5"
    file.write_text("\n".join(lines) + "\n")
    (folders[0] / "EMPTY.csv").write_text("")
    shards = [open_shard(path) for path in prepare_files(folders, tmp_path / "out", SPEC)]
    entries = {e["file"]: e for shard in shards for e in shard.manifest["checked"]}
    assert entries["us/US1.csv"]["left_out"] == {"no positive price": 1}
    assert "us/US1.csv, line 301, column Close: found '0'" in entries["us/US1.csv"]["findings"][0]
    assert entries["us/US2.csv"] == {"file": "us/US2.csv", "layout": "ohlcv", "left_out": {}, "findings": []}
    federation = json.loads((tmp_path / "out" / "federation.json").read_text())
    assert list(federation["tickers_left_out"]) == ["us/EMPTY.csv"]
    assert "the file is empty" in federation["tickers_left_out"]["us/EMPTY.csv"]["ticker_left_out"][0]
    for shard in shards:
        if "US1" in shard.manifest["tickers"]:
            own = np.asarray(shard.train.instruments) == shard.manifest["tickers"].index("US1")
            days = np.asarray(shard.train.dates)[own].astype("datetime64[D]").astype(str)
            assert day not in days
            assert lines[299].split(",")[0] not in days, "its target would have been the missing close"
            assert lines[302].split(",")[0] in days


def test_strict_refuses_what_would_be_left_out(folders: list[Path], tmp_path: Path) -> None:
    (folders[0] / "EMPTY.csv").write_text("")
    with pytest.raises(DataError, match=r"us/EMPTY\.csv: the file is empty"):
        prepare_files(folders, tmp_path / "out", replace(SPEC, strict=True))
    prepare_files(folders, tmp_path / "out", replace(SPEC, strict=True), exclude=["EMPTY.csv"])


def test_nothing_reaches_across_a_split_that_is_not_adjusted_for(folders: list[Path], tmp_path: Path) -> None:
    file = folders[0] / "US1.csv"
    lines = file.read_text().splitlines()
    flat = lines[400].split(",")[4]
    for i in range(401, len(lines)):
        day, *prices, volume = lines[i].split(",")
        values = [float(flat) if i == 401 else float(price) for price in prices]
        lines[i] = ",".join([day, *(f"{value / 4:.6f}" for value in values), volume])
    file.write_text("\n".join(lines) + "\n")
    shards = [open_shard(path) for path in prepare_files(folders, tmp_path / "out", SPEC)]
    (shard,) = [shard for shard in shards if "US1" in shard.manifest["tickers"]]
    own = np.asarray(shard.train.instruments) == shard.manifest["tickers"].index("US1")
    days = list(np.asarray(shard.train.dates)[own].astype("datetime64[D]").astype(str))
    assert lines[399].split(",")[0] in days
    gone = {line.split(",")[0] for line in lines[400 : 400 + MEMORY_ROWS]}
    assert not gone & set(days)
    assert np.abs(np.asarray(shard.train.targets)[own]).max() < SPEC.target_clip


def test_an_interruption_leaves_no_silo_half_written(
    folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"

    def stop(stage: str, done: int, _total: int) -> None:
        if (stage, done) == ("silos", 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_files(folders, out, SPEC, progress=stop)
    assert [path.name for path in out.iterdir()] == [".preparing"]


def test_files_of_others_in_a_silo_directory_are_not_deleted(folders: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    paths = prepare_files(folders, out, SPEC)
    (paths[0] / "ledger.bin").write_text("precious")
    with pytest.raises(DataError, match=r"ledger\.bin: found a file"):
        prepare_files(folders, out, FederationSpec(silos=2, min_samples=50, splits=SPEC.splits))
    assert (paths[0] / "ledger.bin").read_text() == "precious"


def test_an_exchange_calendar_can_be_given_per_region(folders: list[Path], tmp_path: Path) -> None:
    shards = [
        open_shard(path)
        for path in prepare_files(folders, tmp_path / "out", SPEC, markets={"us": "XNYS", "eu": "XPAR"})
    ]
    assert all(shard.manifest["counts"]["rows_off_calendar"] > 0 for shard in shards)
    with pytest.raises(DataError, match="markets names 'asia'"):
        prepare_files(folders, tmp_path / "out", SPEC, markets={"asia": "XTKS"})


def test_unusable_folders_are_named(folders: list[Path], macro_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(DataError, match="nowhere: no such folder"):
        prepare_files([tmp_path / "nowhere"], out, SPEC)
    with pytest.raises(DataError, match="no folder of price files"):
        prepare_files([macro_folder], out, SPEC)
    with pytest.raises(DataError, match="expected distinct names"):
        prepare_files([folders[0], folders[0]], out, SPEC)
    early = FederationSpec(silos=3, splits=Splits(train=(2000, 2001), validation=(2002, 2002), test=(2003, 2003)))
    with pytest.raises(DataError, match="eu, us: none of 9 instruments has a sample"):
        prepare_files(folders, out, early)
    assert not out.exists() or list(out.iterdir()) == []


@pytest.mark.parametrize(
    "setting", [{"silos": 0}, {"alpha": float("nan")}, {"target_scale": 0.0}, {"embargo_days": -1}, {"seed": -1}]
)
def test_settings_out_of_range_are_refused_by_name(setting: dict[str, float]) -> None:
    with pytest.raises(DataError, match=next(iter(setting))):
        FederationSpec(**setting)  # type: ignore[arg-type]


def test_the_synthetic_market_takes_the_same_way_and_brings_the_truth(tmp_path: Path) -> None:
    spec = FederationSpec(silos=4)
    paths = prepare_synthetic(tmp_path / "a", spec, tickers=24, seed=1)
    prepare_synthetic(tmp_path / "b", spec, tickers=24, seed=1)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    shard = open_shard(paths[0], verify=True)
    assert shard.test.truth is not None
    assert shard.test.truth.shape == shard.test.targets.shape
    assert set(shard.manifest["sectors"]) != {None}
    federation = json.loads((tmp_path / "a" / "federation.json").read_text())
    assert [silo["silo"] for silo in federation["silos"]] == ["silo-00", "silo-01", "silo-02", "silo-03"]
    assert federation["spec"]["alpha"] == 0.2
    stages: list[str] = []
    prepare_synthetic(tmp_path / "a", spec, tickers=24, seed=1, progress=lambda stage, *_: stages.append(stage))
    assert stages == ["unchanged"]
