"""A server that accepts and counts everything that recorders send, in a separate process."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

ACCEPTS = ["packed", "dropped", "step_kinds", "dictionary"]


@contextmanager
def counting_server() -> Iterator[str]:
    """Its address, while this is entered; `GET /` gives `{"requests", "bytes", "http_bytes"}`."""
    command = [sys.executable, "-m", __name__]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None  # noqa: S101, PIPE was asked for
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


class CountingHandler(BaseHTTPRequestHandler):
    """Accepts everything."""

    protocol_version = "HTTP/1.1"
    counted: ClassVar[dict[str, int]] = {"requests": 0, "bytes": 0, "http_bytes": 0}

    def do_GET(self) -> None:
        """Counts so far."""
        self._answer(200, self.counted)

    def do_PUT(self) -> None:
        """Register a run."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200, {"epoch": 1, "accepts": ACCEPTS})

    def do_POST(self) -> None:
        """Accept a batch; or the report of an end, which is no recording and is not counted."""
        size = int(self.headers["Content-Length"])
        self.rfile.read(size)
        if self.path.endswith("/exits"):
            self._answer(200, {"job_state": "running"})
            return
        self.counted["requests"] += 1
        self.counted["bytes"] += size
        self.counted["http_bytes"] += size + len(self.requestline) + 2 + len(bytes(self.headers))
        self._answer(202, {"accepted": 1, "rejected": 0, "errors": []})

    def log_message(self, *args: object) -> None:
        """Nothing is printed."""

    def _answer(self, status: int, fields: object) -> None:
        body = json.dumps(fields).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    """Print the port, and serve until killed."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), CountingHandler)
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
