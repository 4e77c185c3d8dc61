"""Asking a server for one file over HTTP: one connection, paced, resumed, tried again."""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from urllib.parse import urljoin, urlsplit

import httpx

from data_prep.fetch.answers import HEAD_BYTES, fault_of_status
from data_prep.fetch.errors import FetchError, LimitReachedError, UnexpectedAnswerError, UnreachableError
from data_prep.fetch.partial import Partial, continues, validator
from data_prep.fetch.retry import RETRIED, Policy, back_off, retry_after
from data_prep.fetch.sources import Target, request_url, shown_host

__all__ = ["Downloader"]

_REDIRECTS = 5


class _AgainError(Exception):
    """An attempt that failed in a way that the next may not."""

    def __init__(self, fault: FetchError, after: float | None = None) -> None:
        super().__init__()
        self.fault = fault
        self.after = after


class Downloader:
    """Gets whole answers into files; use as a context manager.

    Parameters
    ----------
    policy : Policy
        How the source is asked.
    clock, sleep, jitter : callable
        Time in seconds, waiting, and numbers uniform in [0, 1).
    """

    def __init__(
        self,
        policy: Policy,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.policy = policy
        self._clock = clock
        self._sleep = sleep
        self._jitter = jitter
        self._last: float | None = None
        # These two write whole addresses, the key included, to whoever listens.
        for noisy in ("httpx", "httpcore"):
            logging.getLogger(noisy).setLevel(logging.WARNING)
        try:
            self._client = httpx.Client(
                headers={"User-Agent": _user_agent(), "Accept-Encoding": "identity", "Accept": "*/*"},
                timeout=httpx.Timeout(policy.timeout),
                limits=httpx.Limits(max_connections=1, max_keepalive_connections=1),
                follow_redirects=False,
            )
        except (ValueError, ImportError) as error:  # from the proxies named in the environment
            raise UnreachableError(
                f"the proxy settings of the environment cannot be used ({error}); correct HTTPS_PROXY, HTTP_PROXY"
            ) from None

    def __enter__(self) -> Downloader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def download(self, target: Target, part: Path) -> bool:
        """Get the whole answer into a file, continuing what an earlier call or process left there.

        Parameters
        ----------
        target : Target
            What to ask for.
        part : Path
            Where the bytes go. After a fault it holds what can be continued, or does not exist.

        Returns
        -------
        bool
            Whether the file was put together from several answers.

        Raises
        ------
        FetchError
            After all attempts, or at once where another would not help.
        """
        failed = 0
        while True:
            try:
                return self._attempt(target, part)
            except _AgainError as again:
                failed += 1
                wait = again.after if again.after is not None else back_off(self.policy, failed, self._jitter())
                if failed >= self.policy.attempts:
                    raise _told(again.fault, f"given up after {failed} attempts") from None
                if wait > self.policy.longest_wait:
                    raise LimitReachedError(
                        f"{shown_host(target)}, {target.what}: the server asks to wait {wait:.0f} seconds; run the "
                        "command again after that"
                    ) from None
                self._sleep(wait)

    def _attempt(self, target: Target, part: Path) -> bool:
        partial = Partial.load(part, target.url)
        have = part.stat().st_size if partial else 0
        headers = {"Range": f"bytes={have}-", "If-Range": partial.validator} if partial else {}
        until = self._clock() + self.policy.deadline
        with self._asked(target, headers) as answer:
            if answer.status_code == 416 or (
                answer.status_code == 206 and not (partial and continues(partial, have, answer.headers))
            ):
                # The file has changed or ends elsewhere: what is there is of no use.
                Partial.discard(part)
                raise _AgainError(
                    UnexpectedAnswerError(
                        _line(target, "the file changed while it was fetched; run the command again")
                    ),
                    0.0,
                )
            if answer.status_code not in (200, 206):
                fault = fault_of_status(target, answer.status_code, self._head(answer, until))
                if answer.status_code in RETRIED and type(fault) in (UnreachableError, LimitReachedError):
                    raise _AgainError(fault, retry_after(answer.headers.get("retry-after"), datetime.now(UTC)))
                raise fault
            resumed = answer.status_code == 206
            if not resumed:
                Partial.discard(part)
                self._note(target, part, answer)
            self._receive(target, part, answer, until)
        Partial.note_of(part).unlink(missing_ok=True)
        return resumed

    def _note(self, target: Target, part: Path, answer: httpx.Response) -> None:
        """Keep what a later request for the rest has to agree with, if the server gives it."""
        mark, length = validator(answer.headers), answer.headers.get("content-length", "")
        if mark and length.isascii() and length.isdigit() and "content-encoding" not in answer.headers:
            Partial(target.url, mark, int(length)).save(part)

    def _receive(self, target: Target, part: Path, answer: httpx.Response, until: float) -> None:
        with part.open("ab", buffering=0) as stream:
            for block in self._blocks(target, answer, until):
                if stream.tell() + len(block) > target.limit:
                    break
                stream.write(block)
            else:
                os.fsync(stream.fileno())
                return
        Partial.discard(part)
        raise UnexpectedAnswerError(
            _line(
                target,
                f"the answer is larger than {target.limit} bytes, which this file cannot be; look at {target.url}",
            )
        )

    def _blocks(self, target: Target, answer: httpx.Response, until: float) -> Iterator[bytes]:
        with _transport_faults(target):
            for block in answer.iter_bytes():
                yield block
                if self._clock() > until:
                    slow = f"the answer took longer than {self.policy.deadline:g} seconds; run the command again later"
                    raise _AgainError(UnreachableError(_line(target, slow)))

    def _head(self, answer: httpx.Response, until: float) -> bytes:
        head = b""
        try:
            for block in answer.iter_bytes():
                head += block
                if len(head) >= HEAD_BYTES or self._clock() > until:
                    break
        except httpx.HTTPError:
            pass  # the status says enough
        return head[:HEAD_BYTES]

    @contextmanager
    def _asked(self, target: Target, headers: dict[str, str]) -> Iterator[httpx.Response]:
        """Send the request, follow redirects, and give the answer before its body is read."""
        url = request_url(target)
        for _ in range(_REDIRECTS):
            self._pace()
            with _transport_faults(target):
                request = self._client.build_request("GET", url, headers=headers)
                answer = self._client.send(request, stream=True)
            try:
                location = answer.headers.get("location")
                if answer.status_code not in (301, 302, 303, 307, 308) or location is None:
                    yield answer
                    return
            finally:
                answer.close()
            url = _redirected(target, url, location)
        raise UnexpectedAnswerError(_line(target, f"more than {_REDIRECTS} redirects; look at {target.url}"))

    def _pace(self) -> None:
        now = self._clock()
        if self._last is not None and now < self._last + self.policy.delay:
            self._sleep(self._last + self.policy.delay - now)
        self._last = self._clock()


@contextmanager
def _transport_faults(target: Target) -> Iterator[None]:
    """Turn what goes wrong between here and the server into faults."""
    try:
        yield
    except httpx.InvalidURL:
        raise UnexpectedAnswerError(
            _line(target, "redirected to no address; look at the source in a browser")
        ) from None
    except httpx.HTTPError as error:
        reason = _reason(error)
        if "CERTIFICATE_VERIFY_FAILED" in reason:
            hint = "where a company's proxy has its own certificate, name it in SSL_CERT_FILE"
            raise UnreachableError(_line(target, f"the certificate is not trusted; {hint}")) from None
        told = f"no whole answer ({reason}); check the network and HTTPS_PROXY, and run the command again"
        raise _AgainError(UnreachableError(_line(target, told))) from None


def _reason(error: httpx.HTTPError) -> str:
    if isinstance(error, httpx.TimeoutException):
        return "the server was silent for too long"
    return f"{type(error).__name__}: {str(error)[:120]!r}"


def _redirected(target: Target, url: str, location: str) -> str:
    """Return where a redirect leads if that is https or the same host, never from https to http."""
    try:
        there = urljoin(url, location)
        old, new = urlsplit(url), urlsplit(there)
        same = (new.scheme, new.hostname, new.port) == (old.scheme, old.hostname, old.port)
        allowed = same or (new.scheme == "https" and bool(new.hostname) and "@" not in new.netloc)
    except ValueError:
        allowed = False
    if not allowed:
        raise UnexpectedAnswerError(
            _line(
                target, "redirected to an address that is neither https nor on the same host; look at it in a browser"
            )
        )
    return there


def _line(target: Target, told: str) -> str:
    return f"{shown_host(target)}, {target.what}: {told}"


def _told(fault: FetchError, more: str) -> FetchError:
    told, _, hint = str(fault).partition("; ")
    return type(fault)(f"{told}, {more}; {hint}")


def _user_agent() -> str:
    try:
        return f"fcfl/{version('fcfl')}"
    except PackageNotFoundError:
        return "fcfl"
