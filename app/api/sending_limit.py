"""How often people may have messages sent: tests, and what was sent before."""

import math

from app.errors import TestLimit
from app.store import audit
from app.store.engine import Connection

MOST_BY_HAND = 10
BY_HAND_EVERY_S = 600.0
_DEEDS = ("endpoint.test", "delivery.replay")


def check_by_hand(conn: Connection, project: str, now_s: float) -> None:
    """Returns if the project may send one more: else it could have a receiver flooded by us.

    Raises:
        TestLimit: it has sent as many as it may for now.
    """
    done_s = audit.times(conn, project, _DEEDS, since_s=now_s - BY_HAND_EVERY_S)
    if len(done_s) >= MOST_BY_HAND:
        wait_s = math.ceil(done_s[-MOST_BY_HAND] + BY_HAND_EVERY_S - now_s)
        raise TestLimit(
            f"a project may send {MOST_BY_HAND} tests and replays in {BY_HAND_EVERY_S / 60:g} "
            "minutes",
            retry_after_s=max(1, wait_s),
        )
