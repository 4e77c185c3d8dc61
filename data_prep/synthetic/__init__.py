"""A seeded market whose conditional mean is known."""

from data_prep.synthetic.market import GENERATOR_VERSION, MarketSpec, simulate
from data_prep.synthetic.signal import SECTORS, Loadings, sector_loadings

__all__ = ["GENERATOR_VERSION", "SECTORS", "Loadings", "MarketSpec", "sector_loadings", "simulate"]
