"""A shard read back is what was written, and anything else is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from data_prep.errors import DataError
from data_prep.features.table import N_FEATURES, feature_hash
from data_prep.shard_writer import write_shard
from data_prep.shards import SCHEMA_VERSION, Split, open_shard, scale_targets

MANIFEST = {"target_scale": 0.01, "first_date": "2020-01-02", "last_date": "2024-05-06"}


def split(n: int, *, truth: bool = True) -> Split:
    rng = np.random.default_rng(n)
    return Split(
        features=rng.normal(size=(n, N_FEATURES)).astype(np.float32),
        targets=rng.normal(size=n).astype(np.float32),
        truth=rng.normal(size=n).astype(np.float32) if truth else None,
        dates=np.arange(n, dtype=np.int32),
        instruments=np.zeros(n, dtype=np.int32),
    )


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    directory = tmp_path / "silo-00"
    directory.mkdir()
    write_shard(directory, {"train": split(7), "validation": split(3), "test": split(0)}, MANIFEST)
    return directory


def edit(directory: Path, **changes: object) -> None:
    path = directory / "manifest.json"
    manifest = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(manifest))


def test_a_shard_is_read_back_as_written(shard: Path) -> None:
    opened = open_shard(shard, verify=True)
    np.testing.assert_array_equal(opened.train.features, split(7).features)
    np.testing.assert_array_equal(opened.validation.targets, split(3).targets)
    np.testing.assert_array_equal(opened.train.truth, split(7).truth)
    assert opened.test.features.shape == (0, N_FEATURES)
    assert opened.target_scale == 0.01
    assert opened.feature_hash == feature_hash()
    assert str(opened.last_date) == "2024-05-06"


def test_arrays_are_mapped_read_only_float32_in_c_order(shard: Path) -> None:
    features = open_shard(shard).train.features
    assert isinstance(features, np.memmap)
    assert features.dtype == np.float32
    assert features.flags.c_contiguous
    assert not features.flags.writeable


def test_truth_is_none_where_it_is_not_known(tmp_path: Path) -> None:
    write_shard(tmp_path, {name: split(2, truth=False) for name in ("train", "validation", "test")}, MANIFEST)
    assert open_shard(tmp_path).test.truth is None


def test_a_directory_without_manifest_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"manifest\.json: no such file"):
        open_shard(tmp_path)


def test_another_schema_version_is_refused(shard: Path) -> None:
    edit(shard, schema_version=99)
    with pytest.raises(DataError, match=f"found schema version 99, expected {SCHEMA_VERSION}"):
        open_shard(shard)


def test_another_feature_table_is_refused(shard: Path) -> None:
    edit(shard, feature_hash="beef")
    with pytest.raises(DataError, match="found feature hash beef"):
        open_shard(shard)


def test_an_incomplete_manifest_is_refused(shard: Path) -> None:
    path = shard / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["target_scale"]
    path.write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="lacks the entry 'target_scale'"):
        open_shard(shard)
    path.write_text("{")
    with pytest.raises(DataError, match="not a readable manifest"):
        open_shard(shard)


def test_a_missing_array_is_named(shard: Path) -> None:
    (shard / "train.targets.npy").unlink()
    with pytest.raises(DataError, match=r"train\.targets\.npy: no such file"):
        open_shard(shard)


@pytest.mark.parametrize(
    "array", [np.zeros((7, 51), np.float32), np.zeros((7, 52), np.float64), np.zeros((6, 52), np.float32)]
)
def test_an_array_of_other_shape_or_type_is_refused(shard: Path, array: np.ndarray) -> None:
    np.save(shard / "train.features.npy", array)
    with pytest.raises(DataError, match=r"train\.features\.npy: found .*expected float32 \[7, 52\]"):
        open_shard(shard)


def test_arrays_of_unequal_length_are_refused_even_if_the_manifest_agrees(shard: Path) -> None:
    np.save(shard / "train.targets.npy", np.zeros(5, np.float32))
    manifest = json.loads((shard / "manifest.json").read_text())
    manifest["arrays"]["train.targets.npy"]["shape"] = [5]
    edit(shard, arrays=manifest["arrays"])
    with pytest.raises(DataError, match=r"train\.targets\.npy: found shape \(5,\), expected \(7,\)"):
        open_shard(shard)


def test_changed_bytes_are_found_when_asked_to_verify(shard: Path) -> None:
    np.save(shard / "train.targets.npy", np.zeros(7, np.float32))
    open_shard(shard)
    with pytest.raises(DataError, match=r"train\.targets\.npy: SHA-256 differs"):
        open_shard(shard, verify=True)


def test_a_truncated_array_is_refused(shard: Path) -> None:
    path = shard / "train.features.npy"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(DataError, match=r"train\.features\.npy: not a readable array"):
        open_shard(shard)


def test_targets_are_scaled_and_clipped_by_public_constants() -> None:
    scaled = scale_targets(np.array([0.012, -0.5, 0.2]), target_scale=0.01, target_clip=10.0)
    np.testing.assert_allclose(scaled, [1.2, -10.0, 10.0], rtol=1e-6)
    assert scaled.dtype == np.float32
