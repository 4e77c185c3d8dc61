"""The samples and the noise of several releases, drawn in one go: a table that stays in the cache is twice as fast."""

import os
from typing import NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from privacy.checks import whole
from privacy.errors import PrivacyError
from privacy.randomness import RandomStream

_AT_ONCE = 1 << 20  # numbers


class Draws(Protocol):
    """What a release needs of randomness: every call gives fresh, independent numbers.

    Guarantee an implementation must give, for the adjacency of whoever uses it: those of the two methods of
    `RandomStream`, under its assumptions.
    """

    def poisson_sample(self, n_records: int, rate: float) -> npt.NDArray[np.int64]:
        """As `RandomStream.poisson_sample`."""
        ...

    def rounded_normal(self, n: int, scale: float) -> npt.NDArray[np.float64]:
        """As `RandomStream.rounded_normal`."""
        ...


class DrawnAhead:
    """Poisson samples and rounded normals of up to `releases` releases, drawn together and handed out once each.

    Guarantee: those of `RandomStream.poisson_sample` and `RandomStream.rounded_normal`, for the same adjacency (one
    record replaced by the null record): the numbers are cut from long draws, so they are as independent, none is
    handed out twice, and what is drawn depends neither on the records nor on earlier releases. Assumptions: those of
    `RandomStream`, and whoever holds the object may see the noise before it is used. As a stream it is neither copied
    nor used on both sides of a fork, and it refuses both. What is not used is thrown away with it. Memory: at most 8
    MiB each for samples and noise, or what one release takes.

    Parameters
    ----------
    stream : RandomStream
        Source.
    releases : int
        How many, at least 1; public.
    n_records, rate
        Arguments of every `poisson_sample`.
    n, scale
        Arguments of every `rounded_normal`.
    """

    __slots__ = ("_left", "_noise", "_pid", "_planned", "_samples", "_stream")

    def __init__(self, stream: RandomStream, releases: int, n_records: int, rate: float, n: int, scale: float) -> None:
        whole("releases", releases, 1)
        self._planned = (whole("n_records", n_records, 0), rate), (whole("n", n, 0), scale)
        self._left = [releases, releases]
        self._samples: list[npt.NDArray[np.int64]] = []
        self._noise: list[npt.NDArray[np.float64]] = []
        self._stream, self._pid = stream, os.getpid()

    def __repr__(self) -> str:
        return f"DrawnAhead({self._stream!r})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise PrivacyError("what was drawn ahead cannot be copied or pickled: noise would be used twice")

    def _due(self, kind: int, given: tuple[int, float], waiting: int) -> int:
        """Check a request; return for how many releases to draw now."""
        if not self._stream.is_seeded and os.getpid() != self._pid:
            raise PrivacyError("what was drawn ahead crossed a fork: noise would be used twice; draw it anew")
        if given != self._planned[kind]:
            raise PrivacyError("drawn ahead for releases of another size or rate than asked for")
        if waiting:
            return 0
        if self._left[kind] == 0:
            raise PrivacyError("all that was drawn ahead is used: expected at most the planned number of releases")
        now = min(self._left[kind], max(1, _AT_ONCE // max(given[0], 1)))
        self._left[kind] -= now
        return now

    def poisson_sample(self, n_records: int, rate: float) -> npt.NDArray[np.int64]:
        """Return the next sample; guarantee, adjacency and assumptions: see `RandomStream.poisson_sample`.

        Parameters
        ----------
        n_records, rate
            As planned.

        Raises
        ------
        PrivacyError
            If all are used, or the arguments are others.
        """
        if now := self._due(0, (n_records, rate), len(self._samples)):
            every = self._stream.poisson_sample(now * n_records, rate)
            starts = n_records * np.arange(now + 1)
            cuts = np.searchsorted(every, starts)
            self._samples = [every[cuts[k] : cuts[k + 1]] - starts[k] for k in reversed(range(now))]
        return self._samples.pop()

    def rounded_normal(self, n: int, scale: float) -> npt.NDArray[np.float64]:
        """Return the next `n` normals; guarantee, adjacency and assumptions: see `RandomStream.rounded_normal`.

        Parameters
        ----------
        n, scale
            As planned.

        Raises
        ------
        PrivacyError
            If all are used, or the arguments are others.
        """
        if now := self._due(1, (n, scale), len(self._noise)):
            self._noise = list(self._stream.rounded_normal(now * n, scale).reshape(now, n)[::-1])
        return self._noise.pop()
