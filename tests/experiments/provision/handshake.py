"""A TLS handshake in memory, by the same library and settings as Flower's HTTP client and server."""

import ssl
from pathlib import Path


def client(*authorities: bytes, strict: bool = False) -> ssl.SSLContext:
    """What Flower's client makes of --root-certificates (flwr/supercore/protobuf/client.py)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=b"".join(authorities).decode("ascii"))
    if strict:
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


def shake(context: ssl.SSLContext, folder: Path, host: str) -> str:
    """Connect to a server that holds the certificate of a folder; return the TLS version."""
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(folder / "server.crt", folder / "server.key")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = context.wrap_bio(to_client, to_server, server_hostname=host)
    there = server_context.wrap_bio(to_server, to_client, server_side=True)
    waiting = [here, there]
    for _ in range(10):
        for side in list(waiting):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(side)
        if not waiting:
            return here.version() or ""
    raise AssertionError("the handshake did not end")
