"""A webhook listener on loopback: records every notification it takes, by receiver and delivery id.

It understands Standard Webhooks and PagerDuty's events. Receivers named in `FlakyReplies` fail now
and then: with an error, without an answer, or with 503. The message's id decides, and each message
is accepted in the end. Refused messages are not recorded.
"""

import hashlib
import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

FlakyReply = int | Literal["reset"]

# Of this many messages, one each gets these replies, attempt by attempt; all others are accepted.
_OUT_OF = 12
_REPLIES: Sequence[Sequence[FlakyReply]] = ((500,), ("reset",), (500, "reset"), (503,))
Status = Literal["firing", "resolved", "acknowledged"]
StatusByAlert = Mapping[str, Status]  # by fingerprint
_STATUS_OF_ACTION: Mapping[str, Status] = {"resolve": "resolved", "acknowledge": "acknowledged"}


@dataclass
class FlakyReplies:
    """Receivers of these names refuse a third of all messages, once or twice each."""

    names: Collection[str] = ()
    _attempts: Counter[tuple[str, str]] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def refusal(self, receiver: str, delivery_id: str) -> FlakyReply | None:
        """Reply to the next attempt of this message; None: it is accepted."""
        if receiver not in self.names:
            return None
        with self._lock:
            attempt = self._attempts[receiver, delivery_id]
            self._attempts[receiver, delivery_id] += 1
        number = hashlib.sha256(delivery_id.encode()).digest()[0] % _OUT_OF
        replies = _REPLIES[number] if number < len(_REPLIES) else ()
        return replies[attempt] if attempt < len(replies) else None


@dataclass(frozen=True, slots=True)
class ReceivedNotification:
    """One accepted message; `statuses` has the status of each alert in it.

    `at_s` is by the monotonic clock.
    """

    receiver: str
    delivery_id: str
    at_s: float
    job: str
    rule: str
    statuses: StatusByAlert
    is_repeat: bool = False

    @property
    def topic(self) -> tuple[str, str, str, frozenset[tuple[str, Status]], bool]:
        """The content: no two delivery ids may have the same."""
        statuses = frozenset(self.statuses.items())
        return self.receiver, self.job, self.rule, statuses, self.is_repeat


@dataclass
class Inbox:
    """Received messages in their order; thread-safe."""

    base_url: str = ""
    flaky: FlakyReplies = field(default_factory=FlakyReplies)
    received: list[ReceivedNotification] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)  # attempts by receiver

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._last_statuses: dict[str, dict[str, Status]] = defaultdict(dict)
        self._incidents: dict[str, ReceivedNotification] = {}

    def url(self, receiver: str) -> str:
        """URL of the receiver of this name."""
        return f"{self.base_url}/{receiver}"

    def receive(self, receiver: str, delivery_id: str, body: bytes) -> None:
        """Record an accepted message."""
        with self._lock:
            notification = self._read(receiver, delivery_id, json.loads(body))
            self.received.append(notification)
            self._last_statuses[receiver].update(notification.statuses)

    def refuse(self, receiver: str) -> None:
        """Count a refused message."""
        with self._lock:
            self.refused[receiver] += 1

    def has_status(self, receiver: str, fingerprints: Iterable[str], status: Status) -> bool:
        """Whether this is the last status that the receiver has of all these alerts."""
        with self._lock:
            alerts = self._last_statuses[receiver]
            return all(alerts.get(each) == status for each in fingerprints)

    def of_jobs(self, jobs: Collection[str]) -> list[ReceivedNotification]:
        """Messages of these jobs received so far, in their order."""
        with self._lock:
            return [each for each in self.received if each.job in jobs]

    def first_notified_s(self, job: str, rule: str, num_alerts: int) -> float | None:
        """Time of the first message with this many alerts of the rule on the job (monotonic)."""
        with self._lock:
            matching = (each for each in self.received if (each.job, each.rule) == (job, rule))
            return next((each.at_s for each in matching if len(each.statuses) >= num_alerts), None)

    def _read(
        self, receiver: str, delivery_id: str, message: dict[str, Any]
    ) -> ReceivedNotification:
        at_s = time.monotonic()
        action = str(message.get("event_action", ""))
        if action in _STATUS_OF_ACTION:
            # It has only the incident key: its alerts are those of the messages that opened it.
            opened = self._incidents.get(message["dedup_key"])
            if opened is None:  # its trigger was lost, which the judge finds
                return ReceivedNotification(receiver, delivery_id, at_s, "", "", {})
            alerts = [each for each in opened.statuses if opened.statuses[each] != "resolved"]
            statuses = dict.fromkeys(alerts, _STATUS_OF_ACTION[action])
            return ReceivedNotification(
                receiver, delivery_id, at_s, opened.job, opened.rule, statuses
            )
        data = message["payload"]["custom_details"] if action else message["data"]
        statuses = {each["fingerprint"]: each["status"] for each in data["alerts"]}
        job, rule, is_repeat = data["job_id"], data["rule"], data["is_repeat"]
        notification = ReceivedNotification(
            receiver, delivery_id, at_s, job, rule, statuses, is_repeat
        )
        if action:
            # The incident stays open until its last alert resolves.
            before = self._incidents.get(message["dedup_key"])
            incident_statuses = {**({} if before is None else before.statuses), **statuses}
            self._incidents[message["dedup_key"]] = replace(
                notification, statuses=incident_statuses
            )
        return notification


@contextmanager
def webhook_listener(flaky: FlakyReplies | None = None) -> Iterator[Inbox]:
    """A listener until the block ends; accepts every message that `flaky` does not refuse."""
    inbox = Inbox(flaky=flaky or FlakyReplies())

    class Handler(_Handler):
        """Records into this inbox."""

    Handler.inbox = inbox
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    inbox.base_url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield inbox
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    inbox: Inbox

    def do_POST(self) -> None:
        """Accept or refuse a message."""
        body = self.rfile.read(int(self.headers["content-length"]))
        receiver, delivery_id = self.path.lstrip("/"), self.headers["webhook-id"]
        refusal = self.inbox.flaky.refusal(receiver, delivery_id)
        if refusal is None:
            self.inbox.receive(receiver, delivery_id, body)
            self._answer(204)
            return
        self.inbox.refuse(receiver)
        if refusal == "reset":
            self.close_connection = True  # without an answer
        else:
            self._answer(refusal)

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """No log."""
