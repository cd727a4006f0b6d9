"""Alert rows as the release of revision 0005 wrote them."""

from typing import Any

from sqlalchemy import Connection, MetaData, Table, insert, select

FIRING, PENDING, AT_REST, OTHER = (
    f"{project}/{job}"
    for project, job in (("a", "llm"), ("a", "pending"), ("a", "quiet"), ("b", "llm"))
)
HOOK, OLD_HOOK = "https://receiver.example/new", "https://receiver.example/old"
TABLES = ("alert_states", "alert_events", "outbox")


def _state(job_id: str, state: str) -> dict[str, Any]:
    return {"job_id": job_id, "rule": "slowdown", "state": state}


def _event(job_id: str, kind: str, at_s: float, **given: Any) -> dict[str, Any]:
    values = {
        "job_id": job_id, "rule": "slowdown", "kind": kind, "at_s": at_s, "window_id": "2-1220",
        "slowdown": 1.42, "threshold": 1.2, "since_step": 1204, "sentence": f"It is {kind}: é.",
    }  # fmt: skip
    return values | given


def _delivery(event_id: int, job_id: str, **given: Any) -> dict[str, Any]:
    values = {
        "delivery_id": f"msg_{event_id:032x}", "event_id": event_id, "job_id": job_id,
        "rule": "slowdown", "endpoint": HOOK, "payload": '{"a": "é"}', "state": "delivered",
        "attempt": 1, "next_at_s": 60.0, "lease_until_s": 90.0, "detail": None,
        "created_s": 60.0, "done_s": 61.0,
    }  # fmt: skip
    return values | given


ROWS: dict[str, list[dict[str, Any]]] = {
    "alert_states": [
        _state(
            FIRING,
            '{"is_firing":true,"num_over":4,"epoch":2,"since_step":1204,'
            '"window_id":"2-1220","slowdown":1.42}',
        ),
        _state(
            PENDING,
            '{"is_firing":false,"num_over":2,"epoch":1,"since_step":8,'
            '"window_id":"1-16","slowdown":1.15}',
        ),
        _state(
            AT_REST,
            '{"is_firing":false,"num_over":0,"epoch":1,"since_step":null,'
            '"window_id":"1-8","slowdown":1.01}',
        ),
    ],
    "alert_events": [
        _event(FIRING, "firing", 40.0),
        _event(FIRING, "resolved", 50.0, threshold=1.1),
        _event(FIRING, "firing", 60.0),
        _event(OTHER, "firing", 70.0),
        _event(OTHER, "resolved", 80.0, window_id=None, slowdown=None, since_step=None),
    ],
    "outbox": [
        _delivery(1, FIRING, endpoint=OLD_HOOK, state="outdated", detail="HTTP 500"),
        _delivery(3, FIRING, state="due", attempt=2, detail="HTTP 500", done_s=None),
        _delivery(4, OTHER),
        _delivery(5, OTHER, state="failed", detail="HTTP 410"),
    ],
}


def fill(conn: Connection) -> None:
    """Insert all rows; the jobs exist."""
    for name, rows in ROWS.items():
        conn.execute(insert(_table(conn, name)), rows)


def content(conn: Connection) -> dict[str, list[dict[str, Any]]]:
    """All current rows in key order; events without their ids."""
    found = {}
    for name in TABLES:
        table = _table(conn, name)
        rows = conn.execute(select(table).order_by(*table.primary_key.columns)).mappings()
        found[name] = [{key: row[key] for key in row if (name, key) != _NUMBERED} for row in rows]
    return found


_NUMBERED = ("alert_events", "event_id")


def _table(conn: Connection, name: str) -> Table:
    return Table(name, MetaData(), autoload_with=conn)
