"""Trains eight processes on this machine and returns the windows of their recordings."""

import argparse
import importlib.util
import json
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from app.diagnosis.job_history import History
from app.ingest.assembly.assembler import RunAssembler, WindowRules
from app.ingest.wire.body import EXTENSIONS
from app.ingest.wire.codec import decode
from app.monitor import analysed
from app.trace.job import Job, Parallelism
from app.trace.window import Window
from tests.harness.ranks import TrainingFailed, run_ranks

MODULE = "benchmarks.peers.train"
SIZES = Parallelism(dp_size=2, pp_size=1, tp_size=4)
WINDOW_STEPS = 8
TRAINED_WITHIN_S = 300.0


def recorded_windows(
    slow_ranks: Sequence[int] = (),
    *,
    slowdown: float = 1.6,
    num_windows: int = 2,
    group_every: int = 2,
) -> list[Window]:
    """Closed windows of a training of 4 tensor-parallel peers x 2 replicas, in their last revision.

    The first step, in which processes start up, is in none of them. `collectives` hold the rows of
    all members of all groups, in one of `group_every` steps.

    Raises:
        TrainingFailed: a process failed, or they were not done in time.
    """
    collector = Collector()
    num_steps = num_windows * WINDOW_STEPS
    arguments = ["--steps", str(num_steps), "--slowdown", str(slowdown)]
    arguments += ["--group-every", str(group_every), "--slow", *map(str, slow_ranks)]
    with TemporaryDirectory(prefix="paceline-") as directory, _served(collector) as url:
        run_ranks(MODULE, ["--url", url, *arguments], SIZES.world_size, Path(directory),
                  TRAINED_WITHIN_S)  # fmt: skip
    return collector.windows()


class Collector:
    """Accepts batches like the server, and assembles them like the consumer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._windows: dict[int, Window] = {}
        self._stored: dict[int, bytes] = {}
        job = Job.of("peers", SIZES)
        self._run = RunAssembler(job, 1, WindowRules(WINDOW_STEPS, 30.0), self._stored.__getitem__)

    def take(self, body: bytes, content_type: str, encoding: str) -> int:
        """Add one request's body; returns its number of rows."""
        decoded = decode(body, content_type, SIZES, content_encoding=encoding)
        # The first step is none that training takes: processes wait there for each other to start.
        with self._lock:
            self._run.add(decoded.batch, 0.0)
            self._store(self._run.settle(0.0, tells_open=False))
        return decoded.batch.columns.num_ops + decoded.batch.num_group_rows

    def windows(self) -> list[Window]:
        """Closed windows, without the first step."""
        with self._lock:
            self._store(self._run.finish(0.0, "complete"))
        windows = []
        for _, window in sorted(self._windows.items()):
            steps = [step for step in window.steps if step > 0]
            if steps:
                windows.append(window.only(steps) if len(steps) < len(window.steps) else window)
        return windows

    def _store(self, changes: Sequence[Any]) -> None:
        for change in changes:
            if change.ops is not None:
                self._windows[change.window.first_step] = change.window
                self._stored[change.window.first_step] = change.ops


@contextmanager
def _served(collector: Collector) -> Iterator[str]:
    """The address at which the collector takes batches, while this is entered."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(200, {"epoch": 1, "accepts": EXTENSIONS, "recording": None})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            kind, encoding = self.headers["Content-Type"], self.headers.get("Content-Encoding", "")
            accepted = collector.take(body, kind, encoding)
            self._answer(202, {"accepted": accepted, "rejected": 0, "errors": []})

        def log_message(self, *_: object) -> None:
            """Nothing is printed."""

        def _answer(self, status: int, fields: object) -> None:
            body = json.dumps(fields).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def named(window: Window) -> list[dict[str, Any]]:
    """The causes that Paceline finds in a window, and the ranks that it names for each."""
    _, result, _ = analysed(window, History())
    return [
        {
            "cause": finding["cause"],
            "ranks": [culprit["rank"] for culprit in finding["culprits"]],
            "sentence": finding["sentence"],
        }
        for finding in result["findings"] or []
    ]


def mean_stays_s(window: Window) -> dict[int, float]:
    """Mean stay of each rank in its tensor-parallel collectives; a late rank has the shortest."""
    table = window.collectives
    stays: dict[int, list[float]] = defaultdict(list)
    if table is not None:
        for rank, group, stay_s in zip(table.rank, table.group, table.stay_s, strict=True):
            if table.groups[int(group)].axis == "tp":
                stays[int(rank)].append(float(stay_s))
    return {rank: sum(each) / len(each) for rank, each in sorted(stays.items())}


def main(arguments: list[str]) -> int:
    """Print the ranks named in each window; 1 where they are not the slow ones."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks peers")
    parser.add_argument("--slow", type=int, nargs="*", default=[6], help="ranks (6)")
    parser.add_argument("--slowdown", type=float, default=1.6)
    parser.add_argument("--group-every", type=int, default=1, help="steps (1)")
    options = parser.parse_args(arguments)
    if importlib.util.find_spec("torch") is None:
        print("PyTorch is not installed: pip install torch==2.13.0", file=sys.stderr)
        return 2
    try:
        windows = recorded_windows(
            options.slow, slowdown=options.slowdown, group_every=options.group_every
        )
    except TrainingFailed as failed:
        print(failed.output, file=sys.stderr)
        raise
    found = [
        {"window": each.id, "named": named(each), "mean_stay_s": mean_stays_s(each)}
        for each in windows
    ]
    print(json.dumps(found))
    ranks = [[rank for each in named(one) for rank in each["ranks"]] for one in windows]
    is_right = [each == options.slow for each in ranks]
    return 0 if windows and all(is_right) else 1
