"""All results of a study in one Parquet file, one row for each evaluation; tables and figures read nothing else."""

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from data_prep.files import write_whole
from experiments.arena.errors import StudyError
from experiments.arena.methods import Method, Settings
from experiments.arena.references import LABELS
from experiments.arena.study import Case, Study

METRICS = ("count", "mse", "mae", "directional_accuracy", "mse_zero", "mse_optimal")
SCHEMA = pa.schema(
    [
        ("alpha", pa.float64()),
        ("epsilon", pa.float64()),
        ("role", pa.string()),  # reference, tuning, report
        ("method", pa.string()),
        ("label", pa.string()),
        ("baseline", pa.bool_()),
        ("tuned", pa.bool_()),
        ("trial", pa.int32()),
        ("chosen", pa.bool_()),
        ("settings", pa.string()),
        ("seed", pa.int64()),
        ("run", pa.string()),  # name of the cached result
        ("failed", pa.string()),
        ("epsilon_of_silos", pa.float64()),
        ("seconds", pa.float64()),
        ("cpu_seconds", pa.float64()),
        ("round", pa.int32()),
        ("contributors", pa.int32()),
        ("sigma", pa.float64()),
        ("divergence", pa.float64()),
        ("update_norm", pa.float64()),
        ("weights", pa.string()),  # served, broadcast
        ("split", pa.string()),
        ("count", pa.int64()),
        *((name, pa.float64()) for name in METRICS[1:]),
    ]
)


@dataclass(frozen=True)
class Done:
    """A run of a study that is done.

    Attributes
    ----------
    case, method, settings, seed
        What was run.
    role : {"tuning", "report"}
    trial : int
        Number of the settings among those tried.
    chosen : bool
        Whether they are the ones that are reported.
    key : str
        Name of the cached result.
    result : mapping
    """

    case: Case
    method: Method
    settings: Settings
    seed: int
    role: str
    trial: int
    chosen: bool
    key: str
    result: Mapping[str, Any]

    def rows(self) -> Iterable[dict[str, Any]]:
        """One row for every round, split and kind of weights."""
        common = {
            "alpha": self.case.alpha,
            "epsilon": self.case.epsilon,
            "role": self.role,
            "method": self.method.name,
            "label": self.method.label,
            "baseline": self.method.baseline,
            "tuned": bool(self.method.tune),
            "trial": self.trial,
            "chosen": self.chosen,
            "settings": json.dumps(dict(sorted(self.settings.items()))),
            "seed": self.seed,
            "run": self.key,
            **{name: self.result[name] for name in ("failed", "epsilon_of_silos", "seconds", "cpu_seconds")},
        }
        for line in self.result["rounds"]:
            history = {name: line.get(name) for name in ("round", "contributors", "sigma", "divergence", "update_norm")}
            for weights in ("served", "broadcast"):
                for split, metrics in line[weights].items():
                    yield {**common, **history, "weights": weights, "split": split, **metrics}


def reference_rows(case: Case, key: str, found: Mapping[str, Mapping[str, Any]]) -> Iterable[dict[str, Any]]:
    """One row for every reference and split."""
    for name, splits in found.items():
        for split, metrics in splits.items():
            yield {
                "alpha": case.alpha,
                "epsilon": case.epsilon,
                "role": "reference",
                "method": name,
                "label": LABELS[name],
                "run": key,
                "split": split,
                **metrics,
            }


def write(path: Path, study: Study, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the Parquet file of a study, whole or not at all; what the tables need of the study goes along."""
    facts = {
        "name": study.name,
        "title": study.title,
        "skills": list(study.skills),
        "seeds": list(study.seeds),
        "trials": study.tuning.trials,
        "select": study.tuning.select,
        "delta": study.delta,
        "paper": {method.name: dict(method.paper) for method in study.methods},
    }
    # Columns of a missing key are null.
    full = [{name: row.get(name) for name in SCHEMA.names} for row in rows]
    table = pa.Table.from_pylist(full, schema=SCHEMA.with_metadata({"study": json.dumps(facts)}))
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, buffer.getvalue())


@dataclass(frozen=True)
class Results:
    """A study's results.

    Attributes
    ----------
    facts : mapping
        What `write` kept of the study.
    rows : DataFrame
        With the columns of `SCHEMA`.
    """

    facts: Mapping[str, Any]
    rows: pd.DataFrame

    @classmethod
    def read(cls, path: Path) -> "Results":
        """Read a study's Parquet file.

        Raises
        ------
        StudyError
            If it is not there, or not one of these.
        """
        try:
            table = pq.read_table(path)
            facts = json.loads(table.schema.metadata[b"study"])
        except FileNotFoundError:
            raise StudyError(f"{path}: no results yet; run the study: fcfl experiment run {path.stem}") from None
        except (OSError, pa.ArrowInvalid, KeyError, TypeError, ValueError):
            raise StudyError(f"{path}: not the results of a study; remove it and run the study again") from None
        if table.schema.names != SCHEMA.names:
            raise StudyError(f"{path}: results of another version; run the study again, what is cached is kept")
        return cls(facts, table.to_pandas())
