"""The three universes of the paper's Table 5, as settings for files and for the synthetic market.

The table gives a title, a number of tickers and the years of the splits. It names no ticker, index, vendor or region
within a universe; "U.S./EU" and 20 silos come from the paper's text. What stands below beside its figures is a choice:
which exchanges make up "developed ex-US" and "global", and in which proportion. It matters for the synthetic market
only. For files a region bucket is a folder, whatever its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from data_prep.errors import DataError
from data_prep.splits import Splits
from data_prep.synthetic.spec import Region

__all__ = ["UNIVERSES", "Universe", "universe_named"]


@dataclass(frozen=True)
class Universe:
    """One universe.

    Attributes
    ----------
    name : str
        As in the paper.
    title : str
        As in the paper.
    tickers : int
        As in the paper; of more, those with most training samples are taken.
    regions : tuple of Region
        Of the synthetic market in its shape: our choice.
    silos : int
        As in the paper.
    splits : Splits
        As in the paper.
    """

    name: str
    title: str
    tickers: int
    regions: tuple[Region, ...]
    silos: int = 20
    splits: Splits = field(default_factory=Splits)

    def shortfall(self, found: int) -> str:
        """Say how far a number of tickers is from that of the universe, empty if it is not."""
        if found >= self.tickers:
            return ""
        return f"{self.name} ({self.title}): {found} of its {self.tickers} tickers"


UNIVERSES: Mapping[str, Universe] = {
    universe.name: universe
    for universe in (
        Universe("U1", "US Large/Mid", 320, (Region("us", 1.0, "XNYS"),)),
        Universe(
            "U2",
            "Dev. ex-US",
            240,
            (
                Region("fr", 0.20, "XPAR"),
                Region("de", 0.20, "XETR"),
                Region("uk", 0.25, "XLON"),
                Region("jp", 0.35, "XTKS"),
            ),
        ),
        Universe(
            "U3",
            "Global Small",
            180,
            (Region("us", 0.5, "XNYS"), Region("eu", 0.25, "XPAR"), Region("jp", 0.25, "XTKS")),
        ),
    )
}


def universe_named(name: str) -> Universe:
    """Return a universe by its name, in either case.

    Raises
    ------
    DataError
        If there is none of that name.
    """
    found = UNIVERSES.get(name.upper())
    if found is None:
        raise DataError(f"universe: found {name!r}, expected one of {', '.join(UNIVERSES)}; correct the name")
    return found
