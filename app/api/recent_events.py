"""The latest events of this process under numbers, for a page whose connection broke off."""

import json
import re
import secrets
from collections import deque
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

MAX_KEPT = 1024  # of all projects: some minutes of a busy service, more than a reconnect takes
_ID = re.compile(r"(?P<boot>[0-9a-f]{1,32})-(?P<number>[0-9]{1,15})")


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event, for the pages of one project; of none, for all.

    `event_id` is the id from which a page can go on; "" where it has none yet.
    """

    name: str
    data: dict[str, Any] = field(default_factory=dict)
    project: str | None = None
    event_id: str = ""

    def encoded(self) -> bytes:
        """The event as a stream says it."""
        data = json.dumps(self.data, allow_nan=False, separators=(",", ":"))
        own = f"id: {self.event_id}\n" if self.event_id else ""
        return f"{own}event: {self.name}\ndata: {data}\n\n".encode()


class RecentEvents:
    """Numbers events from 1 and keeps the last ones.

    An id is "<boot>-<number>". Another process, or this one after a restart, has another boot, so
    that it never takes the ids of one for its own.
    """

    def __init__(self, *, most: int = MAX_KEPT) -> None:
        self._boot = secrets.token_hex(6)
        self._number = 0
        self._kept: deque[Event] = deque(maxlen=most)

    @property
    def last_id(self) -> str:
        """The id of the latest event; before the first, one that all events come after."""
        return f"{self._boot}-{self._number}"

    def keep(self, event: Event) -> Event:
        """The event with its id."""
        self._number += 1
        kept = replace(event, event_id=self.last_id)
        self._kept.append(kept)
        return kept

    def since(self, last_id: str) -> list[Event] | None:
        """What came after this id, oldest first; None where that cannot be told (any more)."""
        found = _ID.fullmatch(last_id)
        if found is None or found["boot"] != self._boot:
            return None
        num_missed = self._number - int(found["number"])
        if not 0 <= num_missed <= len(self._kept):
            return None
        return list(islice(self._kept, len(self._kept) - num_missed, None))
