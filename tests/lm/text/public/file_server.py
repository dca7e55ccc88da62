"""A small HTTP server on this machine that misbehaves as asked."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FileServer(ThreadingHTTPServer):
    """Serves bytes by path.

    Attributes:
        files: path to content.
        cut_after: bytes after which a connection is closed, if any.
        knows_ranges: whether it answers a Range with a part.
        failures: statuses to answer the next requests with, before serving.
        asked: the Range of each request, "" for all.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.cut_after: int | None = None
        self.knows_ranges = True
        self.failures: list[int] = []
        self.asked: list[str] = []

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{name}"


class _Handler(BaseHTTPRequestHandler):
    server: FileServer

    def do_GET(self) -> None:
        asked = self.headers["Range"] or ""
        self.server.asked.append(asked)
        data = self.server.files.get(self.path.removeprefix("/"))
        if self.server.failures:
            self.send_error(self.server.failures.pop(0))
        elif data is None:
            self.send_error(404)
        else:
            start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked and self.server.knows_ranges else 0
            self._serve(data, start)

    def _serve(self, data: bytes, start: int) -> None:
        if start >= len(data) > 0:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(data)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        end = None if self.server.cut_after is None else start + self.server.cut_after
        self.wfile.write(data[start:end])

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[FileServer]:
    with FileServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
