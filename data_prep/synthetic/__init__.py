"""A seeded market whose conditional mean is known."""

from data_prep.synthetic.market import GENERATOR_VERSION, simulate
from data_prep.synthetic.signal import SECTORS, Loadings, sector_loadings
from data_prep.synthetic.spec import MarketSpec, Region, Stress

__all__ = [
    "GENERATOR_VERSION",
    "SECTORS",
    "Loadings",
    "MarketSpec",
    "Region",
    "Stress",
    "sector_loadings",
    "simulate",
]
