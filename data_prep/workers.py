"""A function over many tickers, in this process and in helpers beside it, one ticker at a time in each."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from types import TracebackType
from typing import Any, Self, TypeVar

from data_prep.errors import DataError

__all__ = ["Workers", "end_with_parent", "usable_cores"]

Item = TypeVar("Item")
Result = TypeVar("Result")
# Starting a helper takes about as long as this many tickers.
_LEAST_ITEMS = 64
_CHUNK = 8


def usable_cores() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Workers:
    """Processes for the length of a `with` block; results do not depend on their number.

    This process works, too: it takes a part whenever the helpers have enough to do, and all of it while they start.
    Helpers are started fresh instead of forked, so that locks and threads of this process cannot reach them, and end
    with it, however it ends.

    Parameters
    ----------
    processes : int, optional
        Processes that work, this one included; by default one per usable core. Helpers start with the first `map` over
        many items.
    """

    def __init__(self, processes: int | None = None) -> None:
        self.processes = usable_cores() if processes is None else processes
        if self.processes < 1:
            raise DataError(f"workers: found {self.processes}, expected 1 or more; correct the setting")
        self._pool: ProcessPoolExecutor | None = None
        self._ready: Future[int] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _at: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=error is not None)
            self._pool = None

    def map(
        self, function: Callable[[Item], Result], items: Sequence[Item], *, chunk: int = _CHUNK
    ) -> Iterator[Result]:
        """Yield `function(item)` per item, in the order of the items.

        Parameters
        ----------
        function : callable
            Of the top level of a module, or a partial of one: it is sent to other processes.
        items : sequence
            Sent with it.
        chunk : int
            Items per message.

        Raises
        ------
        DataError
            If a helper is ended from outside.
        """
        if self.processes == 1 or (self._pool is None and len(items) < _LEAST_ITEMS):
            yield from map(function, items)
            return
        chunks = deque(items[first : first + chunk] for first in range(0, len(items), chunk))
        results: deque[Future[list[Result]] | list[Result]] = deque()
        pool, ready = self._started()
        helpers = self.processes - 1
        try:
            while chunks or results:
                busy = sum(isinstance(x, Future) and not x.done() for x in results)
                while chunks and busy < 2 * helpers and ready.done():
                    results.append(pool.submit(_apply, function, chunks.popleft()))
                    busy += 1
                # This process runs ahead of a helper by some messages only: what waits here takes memory.
                waits = not results or (isinstance(results[0], Future) and not results[0].done())
                if waits and chunks and len(results) < 16 * self.processes:
                    results.append(_apply(function, chunks.popleft()))
                    continue
                head = results.popleft()
                yield from head.result() if isinstance(head, Future) else head
        except BrokenProcessPool:
            raise DataError(
                "a process beside this one was ended from outside, most likely for want of memory; run again with "
                "fewer workers, what is finished is kept"
            ) from None

    def _started(self) -> tuple[ProcessPoolExecutor, Future[int]]:
        """Return the helpers, and what is done once one of them is up; before that nothing is sent to them."""
        if self._pool is None or self._ready is None:
            methods = multiprocessing.get_all_start_methods()
            context: Any = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
            self._pool = ProcessPoolExecutor(self.processes - 1, mp_context=context, initializer=_begin)
            self._ready = self._pool.submit(os.getpid)
        return self._pool, self._ready


def _apply(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    return [function(item) for item in items]


def _begin() -> None:
    """Leave Ctrl-C to the process that started this one, and end when it does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()


def end_with_parent() -> None:
    """Let this process end when the one that started it does, however that ends."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
