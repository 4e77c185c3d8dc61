"""A real server on this machine that gives the answers, and the faults, of the sources."""

from __future__ import annotations

import io
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

STOOQ_CSV = "Date,Open,High,Low,Close,Volume\n" + "".join(
    f"2024-01-{day:02d},10.5,11.25,10,11,{1000 + day}\n" for day in (2, 3, 4, 5, 8, 9)
)
POLISH_CSV = STOOQ_CSV.replace(
    "Date,Open,High,Low,Close,Volume", "Data,Otwarcie,Najwyzszy,Najnizszy,Zamkniecie,Wolumen"
)


def fred_csv(series: str, value: float = 5.33) -> str:
    return f"observation_date,{series}\n2024-01-01,{value}\n2024-02-01,.\n2024-03-01,{value + 1}\n"


def factor_csv(names: str, rows: int = 3) -> str:
    cells = ",".join(["   0.12"] * len(names.split(",")))
    days = "".join(f"{20000103 + 100 * i},{cells}\r\n" for i in range(rows))
    return f"This file was created by hand.\r\n\r\n,{names}\r\n{days}\r\nCopyright\r\n"


FIVE = factor_csv("Mkt-RF,SMB,HML,RMW,CMA,RF")
MOMENTUM = factor_csv("Mom   ")


def zipped(**files: str | bytes) -> bytes:
    """An archive of files whose names are given with `/` and `.` as they are."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


FIVE_ZIP = zipped(**{"F-F_Research_Data_5_Factors_2x3_daily.CSV": FIVE})
MOMENTUM_ZIP = zipped(**{"F-F_Momentum_Factor_daily.CSV": MOMENTUM})


@dataclass(frozen=True)
class Reply:
    """One answer. With `etag` the server honours Range and If-Range; after `cut` bytes of the body it hangs up."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    etag: str = ""
    cut: int | None = None
    stall: int | None = None
    raw: bytes | None = None


def text(body: str, **settings: object) -> Reply:
    return replace(Reply(body.encode()), **settings)  # type: ignore[arg-type]


class Site:
    """Answers per path, in turn; the last one is given for ever."""

    def __init__(self) -> None:
        self.replies: dict[str, list[Reply]] = {}
        self.default = Reply(b"<!DOCTYPE html><html>404</html>", 404)
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.stalled = threading.Event()
        self.release = threading.Event()
        self.url = ""

    def give(self, path: str, *replies: Reply) -> None:
        self.replies[path] = list(replies)

    def paths(self) -> list[str]:
        return [path for path, _ in self.asked]

    def next(self, path: str) -> Reply:
        waiting = self.replies.get(path)
        if not waiting:
            return self.default
        return waiting.pop(0) if len(waiting) > 1 else waiting[0]


@contextmanager
def serving() -> Iterator[Site]:
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            site.asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
            reply = site.next(self.path)
            if reply.raw is not None:
                self.wfile.write(reply.raw)
                self.close_connection = True
                return
            status, body, extra = reply.status, reply.body, dict(reply.headers)
            if reply.etag:
                extra["ETag"] = reply.etag
                first = self.headers.get("Range", "").removeprefix("bytes=").removesuffix("-")
                if first and self.headers.get("If-Range") == reply.etag:
                    status, body = 206, body[int(first) :]
                    extra["Content-Range"] = f"bytes {first}-{len(reply.body) - 1}/{len(reply.body)}"
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(body))} | extra).items():
                self.send_header(name, value)
            self.end_headers()
            end = reply.cut if reply.cut is not None else reply.stall
            self.wfile.write(body[:end])
            self.wfile.flush()
            if reply.stall is not None:
                site.stalled.set()
                site.release.wait(30)
            if end is not None:
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            pass  # the client went away, as some tests want

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    site.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield site
    finally:
        site.release.set()
        server.shutdown()
        server.server_close()
        thread.join()
