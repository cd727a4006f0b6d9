"""Alerts of many rules: rules, states by fingerprint, groups, silences, endpoints, attempts, audit.

What fired goes on firing, and what was to be told is told, to the endpoint "settings".
"""

import hashlib
import itertools
import json
import re
import time
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.types import TypeEngine

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

SETTINGS = "settings"
SEVERITY = "warning"
THRESHOLD = 1.1  # of the only rule there was, unless an event says otherwise
_AT_ONCE = 500
_TOLD = ("firing", "resolved")  # the kinds of events that there were
_NEW = (
    "service_keys",
    "audit",
    "delivery_attempts",
    "outbox",
    "endpoints",
    "muting",
    "alert_told",
    "alert_groups",
    "alert_events",
    "alerts",
    "alert_rules",
)
Values = dict[str, Any]


def upgrade() -> None:
    conn = op.get_bind()
    for table in ("outbox", "alert_events", "alert_states"):
        _set_aside(table)
    _create_alerts()
    _create_telling()
    _create_outbox()
    _create_audit()
    _create_keys()
    _copy(conn, "alert_events", "event_id", _event)
    _count_on(conn)
    for row in conn.execute(sa.text("SELECT * FROM kept_alert_states")).mappings().all():
        _take_over(conn, row)
    _upgrade_outbox(conn)
    for table in ("outbox", "alert_events", "alert_states"):
        op.execute(f"DROP TABLE kept_{table}")


def downgrade() -> None:
    conn = op.get_bind()
    for table in ("outbox", "alert_events", "alerts", "endpoints"):
        _set_aside(table, drop=False)
    for table in _NEW:
        op.drop_table(table)
    _create_old()
    _copy(conn, "alert_events", "event_id", _old_event, "kind IN ('firing', 'resolved')")
    _count_on(conn)
    op.execute("CREATE INDEX kept_by_alert ON kept_alert_events (fingerprint, event_id)")
    of_the_rule = "SELECT * FROM kept_alerts WHERE rule = 'slowdown' AND subject = ''"
    rows = conn.execute(sa.text(of_the_rule)).mappings().all()
    _insert(conn, "alert_states", [_old_state(row) for row in rows])
    _downgrade_outbox(conn)
    for table in ("outbox", "alert_events", "alerts", "endpoints"):
        op.execute(f"DROP TABLE kept_{table}")


def _set_aside(table: str, *, drop: bool = True) -> None:
    """Copy the table's rows, so that one of other columns can have its name."""
    op.execute(f"CREATE TEMPORARY TABLE kept_{table} AS SELECT * FROM {table}")  # noqa: S608
    if drop:
        op.drop_table(table)


def _copy(conn: sa.Connection, table: str, key: str, changed: Any, where: str = "1 = 1") -> None:
    """Write the kept rows into the new table, in the order of their key."""
    for rows in _kept(conn, table, key, where):
        _insert(conn, table, [changed(row) for row in rows])


def _kept(conn: sa.Connection, table: str, key: str, where: str) -> Iterator[list[Any]]:
    # In parts: the payloads of years need not be in memory at once.
    conn.execute(sa.text(f"CREATE INDEX kept_{table}_in_order ON kept_{table} ({key})"))
    query = sa.text(
        f"SELECT * FROM kept_{table} WHERE {where} ORDER BY {key} LIMIT :size OFFSET :after"  # noqa: S608
    )
    for after in itertools.count(0, _AT_ONCE):
        rows = conn.execute(query, {"size": _AT_ONCE, "after": after}).mappings().all()
        if not rows:
            return
        yield list(rows)


def _insert(conn: sa.Connection, name: str, rows: list[Values]) -> None:
    if rows:
        conn.execute(sa.insert(sa.table(name, *map(sa.column, rows[0]))), rows)


def _fingerprint(job_id: str, rule: str, subject: str = "") -> str:
    return hashlib.sha256("\0".join((job_id, rule, subject)).encode()).hexdigest()[:16]


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _detail(slowdown: float | None, since_step: int | None, window_id: str | None) -> Values:
    wasted = None if not slowdown else 1.0 - 1.0 / slowdown
    known = {
        "value": slowdown,
        "slowdown": slowdown,
        "gpu_time_wasted": wasted,
        "since_step": since_step,
        "window_id": window_id,
    }
    return {name: value for name, value in known.items() if value is not None}


def _event(row: Any) -> Values:
    same = ("event_id", "job_id", "rule", "kind", "at_s", "sentence", "threshold")
    return {name: row[name] for name in same} | {
        "fingerprint": _fingerprint(row["job_id"], row["rule"]),
        "subject": "",
        "severity": SEVERITY,
        "detail": _json(_detail(row["slowdown"], row["since_step"], row["window_id"])),
    }


def _old_event(row: Any) -> Values:
    detail = json.loads(row["detail"])
    same = ("event_id", "job_id", "rule", "kind", "at_s", "sentence")
    return {name: row[name] for name in same} | {
        "threshold": 0.0 if row["threshold"] is None else row["threshold"],
        **{name: detail.get(name) for name in ("window_id", "slowdown", "since_step")},
    }


def _take_over(conn: sa.Connection, row: Any) -> None:
    """Make an alert of the state of the only rule there was, unless it is at rest."""
    state = json.loads(row["state"])
    if not state.get("is_firing") and not state.get("num_over"):
        return
    key = {"job_id": row["job_id"], "rule": row["rule"]}
    began = sa.text(
        "SELECT * FROM kept_alert_events WHERE job_id = :job_id AND rule = :rule"
        " AND kind = 'firing' ORDER BY event_id DESC LIMIT 1"
    )
    event = conn.execute(began, key).mappings().one_or_none()
    alert = _alert(conn, row, state, event)
    _insert(conn, "alerts", [alert])
    group = {"lease_until_s": 0.0, "num_claims": 0, "num_wakes": 0}
    _insert(conn, "alert_groups", [key | group | {"next_at_s": 0.0}])
    if state.get("is_firing") and event is not None:
        same = {name: alert[name] for name in ("fingerprint", "detail", "labels", "threshold")}
        told = {name: event[name] for name in ("event_id", "at_s", "sentence")}
        begun = {"kind": "firing", "known_as": alert["labels"]}
        begun |= {"starts_at_s": event["at_s"], "first_at_s": event["at_s"]}
        _insert(conn, "alert_told", [key | same | told | begun])


def _alert(conn: sa.Connection, row: Any, state: Values, event: Any) -> Values:
    is_firing = bool(state.get("is_firing"))
    at_s = time.time() if event is None or not is_firing else event["at_s"]
    figures = [state.get(name) for name in ("slowdown", "since_step", "window_id")]
    return {
        "fingerprint": _fingerprint(row["job_id"], row["rule"]),
        "job_id": row["job_id"],
        "rule": row["rule"],
        "subject": "",
        "phase": "firing" if is_firing else "pending",
        "severity": SEVERITY,
        "began_at_s": at_s,
        "firing_at_s": at_s if is_firing else None,
        "epoch": state.get("epoch"),
        "window_id": state.get("window_id"),
        "num_windows": state.get("num_over", 0),
        "held_s": 0.0,
        "below_s": 0.0,
        "is_no_data": False,
        "threshold": THRESHOLD if event is None else event["threshold"],
        "labels": _json(_labels(conn, row["job_id"], row["rule"])),
        "detail": _json(_detail(*figures)),
    }


def _labels(conn: sa.Connection, job_id: str, rule: str) -> Values:
    newest = "SELECT labels FROM runs WHERE job_id = :job_id ORDER BY epoch DESC LIMIT 1"
    of_job = conn.execute(sa.text(newest), {"job_id": job_id}).scalar_one_or_none()
    project, _, job = job_id.partition("/")
    own: Values = json.loads(of_job or "{}")
    return own | {
        "alertname": f"Paceline{rule.title().replace('-', '')}",
        "project": project,
        "job": job,
        "rule": rule,
        "severity": SEVERITY,
    }


def _old_state(row: Any) -> Values:
    detail = json.loads(row["detail"])
    state = {
        "is_firing": row["phase"] == "firing",
        "num_over": row["num_windows"],
        "epoch": row["epoch"],
        "since_step": detail.get("since_step"),
        "window_id": row["window_id"],
        "slowdown": detail.get("slowdown"),
    }
    known = {name: value for name, value in state.items() if value is not None}
    return {"job_id": row["job_id"], "rule": row["rule"], "state": _json(known)}


def _upgrade_outbox(conn: sa.Connection) -> None:
    """All were for the environment's one endpoint; of several addresses the last one holds."""
    last = conn.execute(
        sa.text("SELECT endpoint FROM kept_outbox ORDER BY event_id DESC LIMIT 1")
    ).scalar_one_or_none()
    if last is None:
        return
    _insert(conn, "endpoints", [_endpoint(last)])
    for rows in _kept(conn, "outbox", "event_id, delivery_id", "1 = 1"):
        _insert(conn, "outbox", [_delivery(conn, row) for row in rows])


def _endpoint(url: str) -> Values:
    return {
        "endpoint_id": SETTINGS,
        "name": SETTINGS,
        "format": "standard",
        "url": url,
        "matchers": "[]",
        "min_severity": "info",
        "wants_resolved": True,
        "is_enabled": True,
        "secrets": '{"secrets":[],"headers":{}}',
        "failures": 0,
    }


def _delivery(conn: sa.Connection, row: Any) -> Values:
    kind = sa.text("SELECT kind FROM kept_alert_events WHERE event_id = :event_id")
    same = ("delivery_id", "job_id", "rule", "payload", "state", "attempt", "next_at_s",
            "lease_until_s", "detail", "created_s", "done_s")  # fmt: skip
    return {name: row[name] for name in same} | {
        "endpoint_id": SETTINGS,
        "notice_id": _notice_id(row["event_id"], row["delivery_id"]),
        "project": row["job_id"].partition("/")[0],
        "kind": conn.execute(kind, {"event_id": row["event_id"]}).scalar_one(),
        "fingerprints": _json([_fingerprint(row["job_id"], row["rule"])]),
        "listed": _json([_fingerprint(row["job_id"], row["rule"])]),
        "content_type": "application/json",
        "headers": "{}",
    }


def _downgrade_outbox(conn: sa.Connection) -> None:
    """What is about an event that there is, once for each event and address."""
    rows = conn.execute(sa.text("SELECT endpoint_id, url FROM kept_endpoints")).all()
    urls = {row.endpoint_id: row.url for row in rows}
    seen: set[tuple[str, int]] = set()
    for part in _kept(conn, "outbox", "seq", "job_id IS NOT NULL"):
        for row in part:
            url, event_id = urls.get(row["endpoint_id"]), _event_id(conn, row)
            if url is None or event_id is None or (url, event_id) in seen:
                continue
            seen.add((url, event_id))
            _insert(conn, "outbox", [_old_delivery(row, url, event_id)])


def _old_delivery(row: Any, url: str, event_id: int) -> Values:
    same = ("delivery_id", "job_id", "rule", "payload", "attempt", "next_at_s", "lease_until_s",
            "detail", "created_s", "done_s")  # fmt: skip
    state = "outdated" if row["state"] == "silenced" else row["state"]
    return {name: row[name] for name in same} | {
        "event_id": event_id,
        "endpoint": url,
        "state": state,
    }


def _notice_id(event_id: int, delivery_id: str) -> str:
    return f"event-{event_id}-{delivery_id}"


def _event_id(conn: sa.Connection, row: Any) -> int | None:
    """The event that a message tells: what it was made of, or the last one of its first alert."""
    made_of = re.match(r"event-(\d+)-", row["notice_id"])
    if made_of is not None:
        return int(made_of[1])
    query = sa.text(
        "SELECT max(event_id) FROM kept_alert_events WHERE fingerprint = :fingerprint"
        " AND kind IN ('firing', 'resolved') AND at_s <= :created_s"
    )
    for fingerprint in json.loads(row["fingerprints"])[:1]:
        at = {"fingerprint": fingerprint, "created_s": row["created_s"]}
        found: int | None = conn.execute(query, at).scalar_one()
        return found
    return None


def _count_on(conn: sa.Connection) -> None:
    # Ids that were copied were not drawn from PostgreSQL's sequence.
    if conn.dialect.name == "postgresql":
        sequence = "pg_get_serial_sequence('alert_events', 'event_id')"
        newest = "(SELECT max(event_id) FROM alert_events)"
        op.execute(f"SELECT setval({sequence}, coalesce({newest}, 1), {newest} IS NOT NULL)")


def _create_alerts() -> None:
    op.create_table(
        "alert_rules",
        sa.Column("project", _key(32), nullable=False),
        _bigint("version"),
        _text("rules", nullable=True),
        _text("text", nullable=True),
        _real("updated_s"),
        _key_of("alert_rules", "project"),
    )
    op.create_table(
        "alerts",
        *_of_alert("alerts"),
        _text("phase"),
        _text("severity"),
        _real("began_at_s"),
        _real("firing_at_s", nullable=True),
        _bigint("epoch", nullable=True),
        _text("window_id", nullable=True),
        _bigint("num_windows"),
        *map(_real, ("held_s", "below_s")),
        _real("ceased_s", nullable=True),
        _real("unseen_since_s", nullable=True),
        sa.Column("is_no_data", sa.Boolean(), nullable=False),
        _real("threshold", nullable=True),
        _text("labels"),
        _text("runbook_url", nullable=True),
        _text("detail"),
        _real("acked_at_s", nullable=True),
        _text("acked_by", nullable=True),
        _key_of("alerts", "fingerprint"),
    )
    _index("alerts", "job_id", "rule")
    op.create_table(
        "alert_events",
        sa.Column("event_id", _serial(), nullable=False),
        *_of_alert("alert_events"),
        _text("kind"),
        _real("at_s"),
        _text("severity"),
        _text("sentence"),
        _real("threshold", nullable=True),
        _text("detail"),
        _text("actor", nullable=True),
        _text("reason", nullable=True),
        _key_of("alert_events", "event_id"),
    )
    _index("alert_events", "job_id", "event_id")
    _index("alert_events", "fingerprint", "event_id")
    _index("alert_events", "at_s")


def _create_telling() -> None:
    op.create_table(
        "alert_groups",
        _job_id(),
        _rule(),
        _real("next_at_s", nullable=True),
        *(_real(name, nullable=True) for name in ("last_at_s", "refreshed_at_s")),
        _real("lease_until_s"),
        *map(_bigint, ("num_claims", "num_wakes")),
        _of_job("alert_groups"),
        _key_of("alert_groups", "job_id", "rule"),
    )
    _index("alert_groups", "next_at_s")
    op.create_table(
        "alert_told",
        sa.Column("fingerprint", _key(16), nullable=False),
        _job_id(),
        _rule(),
        _text("kind"),
        _real("at_s"),
        _bigint("event_id"),
        _real("starts_at_s"),
        *map(_text, ("sentence", "detail", "labels", "known_as")),
        _real("first_at_s"),
        _real("threshold", nullable=True),
        _text("runbook_url", nullable=True),
        _of_job("alert_told"),
        _key_of("alert_told", "fingerprint"),
    )
    _index("alert_told", "job_id", "rule")
    _index("alert_told", "kind", "at_s")
    op.create_table(
        "muting",
        sa.Column("silence_id", _key(32), nullable=False),
        sa.Column("project", _key(32), nullable=False),
        *map(_text, ("kind", "matchers")),
        *map(_real, ("starts_s", "ends_s")),
        *map(_text, ("author", "comment")),
        _real("created_s"),
        _key_of("muting", "silence_id"),
    )
    _index("muting", "project", "ends_s", "silence_id")


def _create_outbox() -> None:
    op.create_table(
        "endpoints",
        sa.Column("endpoint_id", _key(32), nullable=False),
        sa.Column("project", _key(32)),
        *map(_text, ("name", "format", "url", "matchers", "min_severity")),
        sa.Column("wants_resolved", sa.Boolean(), nullable=False),
        sa.Column("is_enabled", sa.Boolean(), nullable=False),
        _text("secrets"),
        *(_real(f"{name}_s", nullable=True) for name in ("old_secret_until", "anew_at")),
        sa.Column("failures", sa.Integer(), nullable=False),
        *(_real(f"{name}_s", nullable=True) for name in ("failing_since", "probe_at")),
        _real("disabled_at_s", nullable=True),
        _text("disabled_reason", nullable=True),
        _real("last_ok_s", nullable=True),
        _text("last_detail", nullable=True),
        _key_of("endpoints", "endpoint_id"),
    )
    _index("endpoints", "project", "endpoint_id")
    op.create_table(
        "outbox",
        sa.Column("seq", _serial(), nullable=False),
        sa.Column("delivery_id", _key(64), nullable=False),
        sa.Column("endpoint_id", _key(32), nullable=False),
        sa.Column("notice_id", _key(64), nullable=False),
        sa.Column("project", _key(32), nullable=False),
        sa.Column("job_id", _key(128)),
        sa.Column("rule", _key(64)),
        *map(_text, ("kind", "fingerprints", "listed", "payload", "content_type", "headers")),
        _text("subject", nullable=True),
        *_how_it_goes(),
        _key_of("outbox", "seq"),
        sa.UniqueConstraint("delivery_id", name="uq_outbox_delivery_id"),
        sa.UniqueConstraint("endpoint_id", "notice_id", name="uq_outbox_endpoint_id_notice_id"),
    )
    _index("outbox", "state", "next_at_s")
    _index("outbox", "endpoint_id", "state", "next_at_s")
    _index("outbox", "job_id", "rule", "endpoint_id", "seq")
    _index("outbox", "project", "seq")
    op.create_table(
        "delivery_attempts",
        sa.Column("attempt_id", _serial(), nullable=False),
        sa.Column("delivery_id", _key(64), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        *map(_real, ("at_s", "took_s")),
        sa.Column("status", sa.Integer()),
        _text("detail"),
        _key_of("delivery_attempts", "attempt_id"),
        sa.ForeignKeyConstraint(
            ["delivery_id"], ["outbox.delivery_id"], name="fk_delivery_attempts_outbox"
        ),
    )
    _index("delivery_attempts", "delivery_id", "attempt_id")


def _create_audit() -> None:
    op.create_table(
        "audit",
        sa.Column("audit_id", _serial(), nullable=False),
        sa.Column("project", _key(32), nullable=False),
        _real("at_s"),
        *map(_text, ("actor", "action", "object_kind", "object_id", "detail")),
        _key_of("audit", "audit_id"),
    )
    _index("audit", "project", "audit_id")
    _index("audit", "project", "at_s")


def _create_keys() -> None:
    op.create_table(
        "service_keys",
        sa.Column("name", _key(64), nullable=False),
        sa.Column("key", sa.LargeBinary(), nullable=False),
        _key_of("service_keys", "name"),
    )


def _create_old() -> None:
    op.create_table(
        "alert_states",
        _job_id(),
        _rule(),
        _text("state"),
        _key_of("alert_states", "job_id", "rule"),
        _of_job("alert_states"),
    )
    op.create_table(
        "alert_events",
        sa.Column("event_id", _serial(), nullable=False),
        _job_id(),
        _rule(),
        _text("kind"),
        _real("at_s"),
        _text("window_id", nullable=True),
        _real("slowdown", nullable=True),
        _real("threshold"),
        _bigint("since_step", nullable=True),
        _text("sentence"),
        _key_of("alert_events", "event_id"),
        _of_job("alert_events"),
    )
    _index("alert_events", "job_id", "event_id")
    op.create_table(
        "outbox",
        sa.Column("delivery_id", _key(64), nullable=False),
        sa.Column("event_id", _serial(), nullable=False, autoincrement=False),
        _job_id(),
        _rule(),
        *map(_text, ("endpoint", "payload")),
        *_how_it_goes(),
        _key_of("outbox", "delivery_id"),
        sa.ForeignKeyConstraint(
            ["event_id"], ["alert_events.event_id"], name="fk_outbox_alert_events"
        ),
        sa.UniqueConstraint("endpoint", "event_id", name="uq_outbox_endpoint_event_id"),
    )
    _index("outbox", "state", "next_at_s")
    _index("outbox", "job_id", "rule", "endpoint", "event_id")


def _how_it_goes() -> tuple[sa.Column[Any], ...]:
    return (
        _text("state"),
        sa.Column("attempt", sa.Integer(), nullable=False),
        _real("next_at_s"),
        _real("lease_until_s"),
        _text("detail", nullable=True),
        _real("created_s"),
        _real("done_s", nullable=True),
    )


def _of_alert(table: str) -> tuple[Any, ...]:
    return (
        sa.Column("fingerprint", _key(16), nullable=False),
        _job_id(),
        _rule(),
        sa.Column("subject", _key(256), nullable=False),
        _of_job(table),
    )


def _key(length: int) -> TypeEngine[str]:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def _serial() -> TypeEngine[int]:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _job_id() -> sa.Column[str]:
    return sa.Column("job_id", _key(128), nullable=False)


def _rule() -> sa.Column[str]:
    return sa.Column("rule", _key(64), nullable=False)


def _text(name: str, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=nullable)


def _bigint(name: str, *, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=nullable, autoincrement=False)


def _real(name: str, *, nullable: bool = False) -> sa.Column[float]:
    return sa.Column(name, sa.Double(), nullable=nullable)


def _key_of(table: str, *columns: str) -> sa.PrimaryKeyConstraint:
    return sa.PrimaryKeyConstraint(*columns, name=f"pk_{table}")


def _of_job(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], name=f"fk_{table}_jobs")


def _index(table: str, *columns: str) -> None:
    op.create_index(f"ix_{table}_{'_'.join(columns)}", table, list(columns))
