"""Tasks that are done once, in this process or in several, with a progress bar; an interrupted study goes on."""

import multiprocessing
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from data_prep.workers import end_with_parent
from experiments.arena.cache import Cache
from experiments.arena.errors import StudyError


class Task(Protocol):
    """Work with a result in JSON; equal keys mean equal results."""

    @property
    def key(self) -> str:
        """Hash of all that decides the result."""
        ...

    @property
    def content(self) -> Mapping[str, Any]:
        """What the key is the hash of."""
        ...

    def do(self) -> dict[str, Any]:
        """Do the work."""
        ...


@dataclass(frozen=True)
class Pool:
    """Where tasks are done.

    Attributes
    ----------
    cache : Cache
    jobs : int
        Processes; 1 is this one. Results do not depend on it.
    console : Console
    """

    cache: Cache
    jobs: int
    console: Console

    def results(self, what: str, tasks: Sequence[Task]) -> list[Mapping[str, Any]]:
        """Return the results in the order of the tasks; what the cache holds is not done again.

        Raises
        ------
        StudyError
            If a process is ended from outside. What is finished is kept.
        """
        found = {task.key: self.cache.get(task.key) for task in tasks}
        missing = [task for task in {task.key: task for task in tasks}.values() if found[task.key] is None]
        with self._progress() as progress:
            line = progress.add_task(what, total=len(found), completed=len(found) - len(missing))
            for task, result in self._done(missing):
                found[task.key] = result
                progress.advance(line)
        if not self.console.is_terminal:
            self.console.print(f"{what}: {len(found)} runs, {len(found) - len(missing)} of them known", highlight=False)
        return [result for result in (found[task.key] for task in tasks) if result is not None]

    def _progress(self) -> Progress:
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=32),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )

    def _done(self, tasks: Sequence[Task]) -> Iterable[tuple[Task, Mapping[str, Any]]]:
        if self.jobs == 1 or len(tasks) < 2:
            yield from ((task, _do(self.cache, task)) for task in tasks)
            return
        # Fresh processes: a fork would copy torch's threads and locks.
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(min(self.jobs, len(tasks)), mp_context=context, initializer=_begin)
        try:
            waiting = {pool.submit(_do, self.cache, task): task for task in tasks}
            for future in as_completed(waiting):
                yield waiting[future], future.result()
        except BrokenProcessPool:
            raise StudyError(
                "a process of the study was ended from outside, most likely for want of memory; run it again, with "
                "fewer --jobs: what is finished is kept"
            ) from None
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _do(cache: Cache, task: Task) -> Mapping[str, Any]:
    """Do a task and keep its result before anybody hears of it."""
    result = task.do()
    cache.put(task.key, task.content, result)
    return result


def _begin() -> None:
    """One torch thread in each process, which ends with the one that started it."""
    torch.set_num_threads(1)
    end_with_parent()
