"""A whole Paceline whose parts are broken on purpose: when are people told, and how often?

`WatchedStack` has two API and two consumer processes, a receiver of alerts, a dead-man's switch and
a check of healthchecks, all on loopback, and a canary every ten seconds.
"""

import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from app.diagnosis import diagnose
from app.store.alerting import service_watches
from app.store.alerting.service_watches import Watch, WatchName
from app.store.database import Store
from tests.alerts.http_receiver import Receiver, receiver
from tests.harness.http_client import HttpClient
from tests.harness.processes import wait_until
from tests.harness.stack import TOKEN, Stack, StoreKind

DEAD_AFTER_S = 20.0
CANARY_EVERY_S = 10.0
CANARY_MISSING_AFTER_S = 30.0
HEARTBEAT_EVERY_S = 10.0
# A round may wait a minute for its window, and the next one begins after the interval.
ROUND_WITHIN_S = 150.0


@dataclass(frozen=True, slots=True)
class ReceivedNews:
    """A message of the service's own: when it came, where, its type and its sentence."""

    at_s: float
    path: str
    kind: str
    sentence: str


class WatchedStack:
    """The stack and what its receivers have got."""

    def __init__(self, stack: Stack, hook: Receiver) -> None:
        self.stack = stack
        self._hook = hook
        self._came_s: list[float] = []

    def received(self) -> list[ReceivedNews]:
        """All messages so far; of a healthchecks ping the kind is its last path segment."""
        now_s = time.monotonic()
        requests = list(self._hook.requests)
        # As exact as this is called often: callers poll.
        self._came_s += [now_s] * (len(requests) - len(self._came_s))
        return [
            _news(at_s, path, body)
            for at_s, (path, _, body) in zip(self._came_s, requests, strict=True)
        ]

    def told(self, kind: str, *, path: str = "/alerts", part: str = "") -> list[ReceivedNews]:
        """Messages of this type to this receiver, whose sentence has `part` in it."""
        return [
            each
            for each in self.received()
            if each.kind == kind and each.path == path and part in each.sentence
        ]

    def watch(self, name: WatchName) -> Watch | None:
        """What is stored of it."""
        with closing(Store(self.stack.store_url)) as store, store.read() as conn:
            return service_watches.read(conn).get(name)

    def rounds(self, outcome: str) -> int:
        """Rounds of the canary so far, `found` or `missed`."""
        with closing(HttpClient(self.stack.api_ports[0], TOKEN)) as client:
            text = client.request("GET", "/metrics").body.decode()
        prefix = f"paceline_canary_{outcome}_total "
        values = [line for line in text.splitlines() if line.startswith(prefix)]
        return int(float(values[0].removeprefix(prefix))) if values else 0

    def wait_for(self, what: str, is_so: Any, within_s: float = ROUND_WITHIN_S) -> float:
        """Seconds until it is so."""
        return wait_until(is_so, what, within_s)

    def is_quiet(self) -> bool:
        """Whether the end of every outage was notified."""
        watches = (self.watch("consumers"), self.watch("canary"))
        return all(watch is None or watch.notified_s is None for watch in watches)

    def canary_state(self) -> str:
        """As the status page says."""
        state: str = self.stack.get("/status")["canary"]["state"]
        return state


@contextmanager
def watched_stack(directory: Path, store: StoreKind) -> Iterator[WatchedStack]:
    """A running stack with its receivers; the canary has been found once."""
    with receiver() as hook:
        base = hook.url.removesuffix("/hook")
        settings = {
            "consumers_dead_after_s": str(DEAD_AFTER_S),
            "canary_every_s": str(CANARY_EVERY_S),
            "canary_missing_after_s": str(CANARY_MISSING_AFTER_S),
            "webhook_allow": "127.0.0.0/8",
            "webhook_allow_http": "true",
            "webhook_ports": str(urlsplit(base).port),
        }
        with Stack(directory, store=store, num_apis=2, num_consumers=2, settings=settings) as stack:
            with closing(HttpClient(stack.api_ports[0], TOKEN)) as client:
                for body in _receivers(base):
                    client.ask("POST", "/receivers", body)
            watched = WatchedStack(stack, hook)
            # The first analysis of a machine compiles for a while.
            watched.wait_for(
                "the canary is found", lambda: watched.canary_state() == "found", 400.0
            )
            watched.wait_for("no outage is left of the start", watched.is_quiet)
            yield watched


def _receivers(base: str) -> list[dict[str, Any]]:
    return [
        {"name": "on-call", "url": f"{base}/alerts"},
        {"name": "switch", "url": f"{base}/switch", "heartbeat_every_s": HEARTBEAT_EVERY_S},
        {
            "name": "check",
            "format": "healthchecks",
            "url": f"{base}/check",
            "heartbeat_every_s": HEARTBEAT_EVERY_S,
        },
    ]


def _news(at_s: float, path: str, body: bytes) -> ReceivedNews:
    if path.startswith("/check"):
        text = body.decode()
        return ReceivedNews(at_s, "/check", path.removeprefix("/check") or "/ping", text)
    content = json.loads(body)
    return ReceivedNews(at_s, path, content["type"], content["data"]["sentence"])


def find_nothing() -> None:
    """A patch: no detector of this process suspects anything."""
    patched: Any = diagnose
    patched.DETECTORS = patched.ARRIVALS_DETECTORS = ()


FIND_NOTHING = f"{__name__}:{find_nothing.__name__}"
