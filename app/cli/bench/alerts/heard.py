"""A receiver on loopback with some endpoints: it remembers what each was told, and under which ids.

It understands Standard Webhooks and PagerDuty's events. What it refuses it has not heard.
"""

import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

from app.cli.bench.alerts.refusing import Refusing

Status = Literal["firing", "resolved", "acknowledged"]
Known = Mapping[str, Status]  # by fingerprint
_OF_ACTIONS: Mapping[str, Status] = {"resolve": "resolved", "acknowledge": "acknowledged"}


@dataclass(frozen=True, slots=True)
class Hearing:
    """One message that an endpoint took; `told` is what it says of each alert that it lists.

    `at_s` is by the monotonic clock.
    """

    endpoint: str
    delivery_id: str
    at_s: float
    job: str
    rule: str
    told: Known
    is_repeat: bool = False

    @property
    def topic(self) -> tuple[str, str, str, frozenset[tuple[str, Status]], bool]:
        """What no two messages of different ids say."""
        told = frozenset(self.told.items())
        return self.endpoint, self.job, self.rule, told, self.is_repeat


@dataclass
class Heard:
    """Messages in the order in which they came; ask it from any thread."""

    base_url: str = ""
    refusing: Refusing = field(default_factory=Refusing)
    hearings: list[Hearing] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)  # how often, by endpoint

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, dict[str, Status]] = defaultdict(dict)
        self._of_incidents: dict[str, Hearing] = {}

    def url(self, endpoint: str) -> str:
        """Where the endpoint of this name listens."""
        return f"{self.base_url}/{endpoint}"

    def hear(self, endpoint: str, delivery_id: str, body: bytes) -> None:
        """A message came, and was taken."""
        with self._lock:
            hearing = self._read(endpoint, delivery_id, json.loads(body))
            self.hearings.append(hearing)
            self._known[endpoint].update(hearing.told)

    def refuse(self, endpoint: str) -> None:
        """A message came, and was not taken."""
        with self._lock:
            self.refused[endpoint] += 1

    def knows(self, endpoint: str, fingerprints: Iterable[str], status: Status) -> bool:
        """Whether this is the last that the endpoint was told of all these alerts."""
        with self._lock:
            known = self._known[endpoint]
            return all(known.get(each) == status for each in fingerprints)

    def of_jobs(self, jobs: Collection[str]) -> list[Hearing]:
        """What was heard of these jobs until now, in its order."""
        with self._lock:
            return [each for each in self.hearings if each.job in jobs]

    def first_s(self, job: str, rule: str, num_alerts: int) -> float | None:
        """When somebody was first told of so many alerts of the rule on this job (monotonic)."""
        with self._lock:
            mine = (each for each in self.hearings if (each.job, each.rule) == (job, rule))
            return next((each.at_s for each in mine if len(each.told) >= num_alerts), None)

    def _read(self, endpoint: str, delivery_id: str, message: dict[str, Any]) -> Hearing:
        at_s = time.monotonic()
        action = str(message.get("event_action", ""))
        if action in _OF_ACTIONS:
            # It names the incident alone: what is in it is known by the messages that made it.
            opened = self._of_incidents.get(message["dedup_key"])
            if opened is None:  # its beginning was lost: what was owed says so
                return Hearing(endpoint, delivery_id, at_s, "", "", {})
            known = [each for each in opened.told if opened.told[each] != "resolved"]
            told = dict.fromkeys(known, _OF_ACTIONS[action])
            return Hearing(endpoint, delivery_id, at_s, opened.job, opened.rule, told)
        said = message["payload"]["custom_details"] if action else message["data"]
        told = {each["fingerprint"]: each["status"] for each in said["alerts"]}
        job, rule, is_repeat = said["job_id"], said["rule"], said["is_repeat"]
        hearing = Hearing(endpoint, delivery_id, at_s, job, rule, told, is_repeat)
        if action:
            # One alert of several that is over leaves it open, so that nothing is told of that.
            before = self._of_incidents.get(message["dedup_key"])
            in_it = {**({} if before is None else before.told), **told}
            self._of_incidents[message["dedup_key"]] = replace(hearing, told=in_it)
        return hearing


@contextmanager
def listening(refusing: Refusing | None = None) -> Iterator[Heard]:
    """A receiver until the block ends; it takes everything that `refusing` does not refuse."""
    heard = Heard(refusing=refusing or Refusing())

    class Handler(_Handler):
        """Tells this one."""

    Handler.heard = heard
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    heard.base_url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield heard
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    heard: Heard

    def do_POST(self) -> None:
        """Take a message, or do not."""
        body = self.rfile.read(int(self.headers["content-length"]))
        endpoint, delivery_id = self.path.lstrip("/"), self.headers["webhook-id"]
        refusal = self.heard.refusing.refusal(endpoint, delivery_id)
        if refusal is None:
            self.heard.hear(endpoint, delivery_id, body)
            self._answer(204)
            return
        self.heard.refuse(endpoint)
        if refusal == "reset":
            self.close_connection = True  # without an answer
        else:
            self._answer(refusal)

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""
