"""One file as it is or not at all: nothing left out, nothing repaired."""

from __future__ import annotations

from pathlib import Path

from data_prep.bars import Bars
from data_prep.check.findings import Level
from data_prep.check.series import judge_series
from data_prep.errors import DataError
from data_prep.readers.series import read_series

__all__ = ["read_bars"]

# Short files can be read; they only give no samples.
_HARMLESS = frozenset({"too short"})


def read_bars(path: Path, *, region: str, shown: str | None = None, layout: str | None = None) -> Bars:
    """Read the only ticker of a file, refusing it for anything that a check would leave out or repair.

    Parameters
    ----------
    path : Path
        Text or Parquet file.
    region : str
        Region bucket to write into the result.
    shown : str, optional
        Name of the file in messages, by default `path`.
    layout : str, optional
        Name of the layout, by default detected.

    Returns
    -------
    Bars
        Sorted by day, all four prices on one basis, with volume NaN where the file gives none.

    Raises
    ------
    DataError
        Naming the first cell, row or series that is not as it should be.
    """
    name = shown or str(path)
    series = read_series(path, name, layout=layout)
    if len(series) > 1:
        raise DataError(
            f"{name}: holds {len(series)} tickers ({series[0].ticker}, {series[1].ticker}, ...), expected one; read it "
            "as a folder of files"
        )
    judged = judge_series(series[0], region)
    for finding in judged.findings:
        if finding.level is not Level.NOTE and finding.kind not in _HARMLESS:
            raise DataError(finding.text)
    return judged.bars
