"""The silo's way to its coordinator: TLS and certificate, clock, and whether the node's key is let in."""

import ssl
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

import httpx
from cryptography import x509
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE

from client_app.node.calls import certificate_error
from client_app.node.errors import NodeError, Stopped
from client_app.node.fleet import connect
from client_app.node.settings import Connection, load_authority
from client_app.node.status import is_running, only_node, read
from experiments.silo_check.findings import Finding, failed, guarded, ok, warning

ANSWER_SECONDS = 15.0
SOON_DAYS = 14
SILENT_SECONDS = 90.0


@dataclass(frozen=True)
class Met:
    """What a server showed of itself.

    Attributes
    ----------
    certificate : Certificate
        Verified against the authority.
    tls : str
        Version of the protocol.
    date : datetime or None
        Its clock, in whole seconds.
    sent, received : datetime
        This machine's clock when it asked and when it had the answer.
    """

    certificate: x509.Certificate
    tls: str
    date: datetime | None
    sent: datetime
    received: datetime


def check_network(home: Path, connection: Connection) -> list[Finding]:
    """Check everything that needs the coordinator; without an answer the rest is left out."""
    try:
        met = meet(connection)
    except (NodeError, httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        return [_no_server(connection, error)]
    return [
        _server(connection, met, datetime.now(UTC)),
        _clock(met),
        guarded("registration", lambda: _registration(home, connection), NodeError),
    ]


def meet(connection: Connection) -> Met:
    """Ask the server for ``/health`` over TLS that is verified as the node does it.

    Raises
    ------
    NodeError, httpx.HTTPError
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=load_authority(connection.root_certificates).decode("ascii"))
    with httpx.Client(verify=context, timeout=ANSWER_SECONDS) as client:
        sent = datetime.now(UTC)
        with client.stream("GET", f"https://{connection.superlink}/health") as response:
            received = datetime.now(UTC)
            secured: ssl.SSLObject | ssl.SSLSocket = response.extensions["network_stream"].get_extra_info("ssl_object")
            shown = secured.getpeercert(True)
            if shown is None:
                raise NodeError("the server shows no certificate")
            certificate, tls = x509.load_der_x509_certificate(shown), secured.version() or "TLS"
            return Met(certificate, tls, _date(response.headers.get("date")), sent, received)


def _date(header: str | None) -> datetime | None:
    try:
        return parsedate_to_datetime(header or "").astimezone(UTC)
    except ValueError:
        return None


def _no_server(connection: Connection, error: Exception) -> Finding:
    if isinstance(error, NodeError):
        return failed("server", str(error))
    if (why := certificate_error(error)) is not None:
        return failed(
            "server",
            f"{connection.superlink}: its certificate is not accepted: {why}",
            "compare ca.crt with the operator",
        )
    return failed(
        "server",
        f"{connection.superlink}: no answer ({type(error).__name__})",
        "allow outbound TCP to this port; behind a web proxy set HTTPS_PROXY; look at the name service",
    )


def _server(connection: Connection, met: Met, now: datetime) -> Finding:
    days = (met.certificate.not_valid_after_utc - now).days
    text = f"{connection.superlink} answers by {met.tls}, its certificate is good for {days} days"
    if days < SOON_DAYS:
        return warning("server", text, "remind the operator to renew it")
    return ok("server", text)


def _clock(met: Met) -> Finding:
    if met.date is None:
        return warning("clock", "the server does not tell its time", "keep this machine's clock set by NTP")
    # The header is cut to whole seconds and was written some time between question and answer.
    least = (met.sent - met.date).total_seconds() - 1.0
    most = (met.received - met.date).total_seconds()
    ahead = 0.0 if least <= 0.0 <= most else least if least > 0 else most
    text = "no difference to the server's clock can be seen" if ahead == 0 else f"{ahead:+.1f} s to the server's clock"
    # flwr/superlink/routers/fleet/node_auth.py: a request may be signed at most 5 s after and 305 s before it arrives.
    if ahead >= SYSTEM_TIME_TOLERANCE or -ahead >= TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE:
        return failed("clock", f"{text}: its requests are refused", "set this machine's clock by NTP")
    if abs(ahead) >= SYSTEM_TIME_TOLERANCE / 2:
        return warning("clock", text, "set this machine's clock by NTP; 5 s ahead or 305 s behind is refused")
    return ok("clock", text)


def _registration(home: Path, connection: Connection) -> Finding:
    if is_running(home):
        said = read(home)
        try:
            silent = (datetime.now(UTC) - datetime.fromisoformat(str(said.get("contact")))).total_seconds()
        except (ValueError, TypeError):
            silent = float("inf")
        text = f"the node is running, last contact {said.get('contact', 'never')}"
        if silent > SILENT_SECONDS:
            return warning("registration", text, "read the node's log")
        return ok("registration", text)
    stopping = threading.Event()
    limit = threading.Timer(ANSWER_SECONDS, stopping.set)
    limit.start()
    try:
        # A node that starts meanwhile waits for this one's leaving, or finds the lock.
        with only_node(home), connect(connection, stopping, patience=0) as link:
            return ok("registration", f"the node's key is let in, as node {link.node_id}")
    except Stopped:
        return failed("registration", "no answer in time", "try again; if it stays so, tell the operator")
    finally:
        limit.cancel()
