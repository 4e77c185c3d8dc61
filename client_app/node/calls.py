"""Calls to the coordinator: which failures pass, how long to try, how large an answer may be."""

import logging
import random
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import httpx
from flwr.supercore.error import ApiErrorCode, FlowerError

from client_app.node.errors import MessageLost, NodeError, Stopped

PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
FIRST_WAIT, LONGEST_WAIT = 1.0, 20.0
# A model of a million parameters in an epoch's announcement is a few megabytes.
ANSWER_BYTES = 64 << 20
CERTIFICATE = "CERTIFICATE_VERIFY_FAILED"

T = TypeVar("T")

logger = logging.getLogger("fcfl.node")


class ActivationRefused(Exception):  # noqa: N818 - never leaves this package
    """The key is not registered, or a process with it counts as alive."""


class Calls:
    """Repeats what may pass, and gives what does not a name.

    Parameters
    ----------
    stopping : threading.Event
        Ends every wait.
    """

    def __init__(self, stopping: threading.Event) -> None:
        self._stopping = stopping
        self._away = False
        # Before the first answer a certificate that does not fit is a mistake; later it may be renewed.
        self._met = False

    def __call__(self, method: Callable[[Any], T], request: Any, until: float = float("inf")) -> T:
        """Call, and call again after a failure that may pass, until the monotonic time ``until``.

        Raises
        ------
        NodeError
            If the coordinator no longer accepts this node, or cannot be trusted.
        MessageLost
            If the run of the message has ended, something on the way refuses its size, or its time is over.
        Stopped
            If the node is being stopped.
        """
        longest = FIRST_WAIT
        while True:
            if self._stopping.is_set():
                raise Stopped
            try:
                answer = method(request)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                why = self._passing(error)
            except ValueError:
                raise NodeError("the coordinator's answer is no Flower message; is the address right?") from None
            else:
                self._contact(None)
                return answer
            self._contact(why)
            if time.monotonic() >= until:
                raise MessageLost(f"its time is over ({why})")
            # Full jitter, or all silos come back in the same moment.
            self._stopping.wait(random.uniform(0.1, longest))  # noqa: S311 - spreads load, hides nothing
            longest = min(2 * longest, LONGEST_WAIT)

    def _passing(self, error: Exception) -> str:
        """Say why the call failed, or raise if it will fail again."""
        if isinstance(error, httpx.HTTPStatusError):
            if error.response.status_code in PASSING and flower_code(error) is None:
                return f"status {error.response.status_code}"
            raise meaning(error) from None
        refused = certificate_error(error)
        if refused is not None and not self._met:
            raise NodeError(
                f"the coordinator's certificate is not accepted: {refused}; compare ca.crt and the address with the "
                "coordinator's, and look at the clock"
            ) from None
        if refused is not None:
            return f"its certificate is not accepted: {refused}"
        if isinstance(error, httpx.TransportError):
            return type(error).__name__
        raise NodeError(f"{type(error).__name__}: no Flower SuperLink answers at this address") from None

    def _contact(self, why: str | None) -> None:
        if why is None:
            self._met = True
            if self._away:
                logger.info("the coordinator answers again")
        elif not self._away:
            logger.warning("the coordinator does not answer (%s); trying again until it does", why)
        self._away = why is not None


def meaning(error: httpx.HTTPStatusError) -> Exception:
    """Name an answer that will not change."""
    status, code = error.response.status_code, flower_code(error)
    if code == ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED:
        return ActivationRefused()
    if code == ApiErrorCode.FLEET_RUN_STATUS_NOT_ALLOWED:
        return MessageLost("its run has ended")
    if status == httpx.codes.REQUEST_ENTITY_TOO_LARGE:
        return MessageLost("a proxy on the way refuses its size (413); raise the proxy's limit for request bodies")
    if status == httpx.codes.UNAUTHORIZED:
        return NodeError(
            "the coordinator does not accept this node's key (401): it is not registered or was revoked, or the clocks "
            "are apart; compare the key with the coordinator's, and set the clock"
        )
    if code == ApiErrorCode.RUNTIME_VERSION_INCOMPATIBLE:
        return NodeError("the coordinator runs another version of Flower; install the same release of fcfl")
    if code is None:
        return NodeError(f"something on the way answered {status}, not a Flower SuperLink; look at address and proxies")
    return NodeError(f"the coordinator answered {status} (Flower code {code}), which this node does not know")


def flower_code(error: httpx.HTTPStatusError) -> int | None:
    """Flower's own code of a refusal, None if the answer is not Flower's."""
    found = FlowerError.from_json(error.response.text)
    return None if found is None else int(found.code)


def certificate_error(error: BaseException | None) -> str | None:
    """OpenSSL's reason if a certificate was refused."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return error.verify_message or error.reason
        if CERTIFICATE in str(error):
            return str(error).partition(f"{CERTIFICATE}] ")[2].partition(" (_ssl")[0] or CERTIFICATE
        error = error.__cause__ or error.__context__
    return None


class _Bounded(httpx.SyncByteStream):
    """A body that ends with an error once it is too long."""

    def __init__(self, body: httpx.SyncByteStream, limit: int) -> None:
        self._body, self._limit = body, limit

    def __iter__(self) -> Iterator[bytes]:
        read = 0
        for chunk in self._body:
            read += len(chunk)
            if read > self._limit:
                raise MessageLost(f"an answer of the coordinator is larger than {self._limit >> 20} MiB")
            yield chunk

    def close(self) -> None:
        self._body.close()


def restrict(client: httpx.Client, limit: int = ANSWER_BYTES) -> None:
    """Make a client follow no redirection, and read no answer that is compressed or larger than ``limit`` bytes."""

    def bounded(response: httpx.Response) -> None:
        if response.headers.get("content-encoding", "identity") != "identity":
            raise httpx.DecodingError("a compressed answer", request=response.request)
        if isinstance(response.stream, httpx.SyncByteStream):
            response.stream = _Bounded(response.stream, limit)

    client.follow_redirects = False
    client.headers["accept-encoding"] = "identity"
    client.event_hooks["response"].append(bounded)
