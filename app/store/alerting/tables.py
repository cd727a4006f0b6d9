"""The tables of alerts, their rules, silences, receivers and messages.

app/store/tables.py has all others; both are of one database.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    Table,
    Text,
    UniqueConstraint,
    false,
)

from app.alerts.alert import Detail
from app.alerts.labels import Matcher
from app.alerts.rule import Rule
from app.store.columns import JsonText, Real, key_text, serial
from app.store.tables import metadata


def _job_column() -> Column[str]:
    return Column("job_id", key_text(128), ForeignKey("jobs.job_id"), nullable=False)


# A project's rules are replaced together. Null: the project went back to the service's rules; its
# version still grows.
alert_rules = Table(
    "alert_rules",
    metadata,
    Column("project", key_text(32), primary_key=True),
    Column("version", BigInteger, nullable=False),
    Column("rules", JsonText(list[Rule])),
    Column("text", Text),  # as they were written, comments and all
    Column("updated_s", Real, nullable=False),
)

alerts = Table(
    "alerts",
    metadata,
    Column("fingerprint", key_text(16), primary_key=True),
    _job_column(),
    Column("rule", key_text(64), nullable=False),
    Column("subject", key_text(256), nullable=False),
    Column("phase", Text, nullable=False),  # pending, firing
    Column("severity", Text, nullable=False),
    Column("began_at_s", Real, nullable=False),
    Column("firing_at_s", Real),
    Column("epoch", BigInteger),
    Column("window_id", Text),
    Column("num_windows", BigInteger, nullable=False),
    Column("held_s", Real, nullable=False),
    Column("below_s", Real, nullable=False),
    Column("ceased_s", Real),
    Column("unseen_since_s", Real),
    Column("is_no_data", Boolean, nullable=False),
    Column("threshold", Real),
    Column("labels", JsonText, nullable=False),
    Column("runbook_url", Text),
    Column("detail", JsonText(Detail), nullable=False),
    Column("acked_at_s", Real),
    Column("acked_by", Text),
    Column("assigned_to", Text),
    Column("assigned_at_s", Real),
    Column("assigned_by", Text),
    Column("note", Text),  # the last one; all of them are in alert_events
    Column("noted_at_s", Real),
    Column("noted_by", Text),
    Index(None, "job_id", "rule"),
)

alert_events = Table(
    "alert_events",
    metadata,
    Column("event_id", serial(), primary_key=True),
    Column("fingerprint", key_text(16), nullable=False),
    _job_column(),
    Column("rule", key_text(64), nullable=False),
    Column("subject", key_text(256), nullable=False),
    Column("kind", Text, nullable=False),
    Column("at_s", Real, nullable=False),
    Column("severity", Text, nullable=False),
    Column("sentence", Text, nullable=False),
    Column("threshold", Real),
    Column("detail", JsonText(Detail), nullable=False),
    Column("actor", Text),
    Column("reason", Text),
    Index(None, "job_id", "event_id"),
    Index(None, "fingerprint", "event_id"),
    Index(None, "at_s"),
)

# Alerts of one rule on a job are notified together. Null `next_at_s`: due when woken.
alert_groups = Table(
    "alert_groups",
    metadata,
    Column("job_id", key_text(128), ForeignKey("jobs.job_id"), primary_key=True),
    Column("rule", key_text(64), primary_key=True),
    Column("next_at_s", Real),
    Column("last_at_s", Real),  # of the last notification
    Column("refreshed_at_s", Real),  # when the last refresh was
    Column("lease_until_s", Real, nullable=False),
    Column("num_claims", BigInteger, nullable=False),
    Column("num_wakes", BigInteger, nullable=False),
    Column("held_since_s", Real),  # since when its messages wait for data to be processed
    Index(None, "next_at_s"),
)

# The last notification of an alert; it outlives the alert. No foreign key to
# the event: retention may have taken it.
notified_alerts = Table(
    "alert_told",
    metadata,
    Column("fingerprint", key_text(16), primary_key=True),
    _job_column(),
    Column("rule", key_text(64), nullable=False),
    Column("kind", Text, nullable=False),
    Column("at_s", Real, nullable=False),
    Column("event_id", BigInteger, nullable=False),
    Column("starts_at_s", Real, nullable=False),
    Column("sentence", Text, nullable=False),
    Column("detail", JsonText(Detail), nullable=False),
    Column("labels", JsonText, nullable=False),
    Column("known_as", JsonText, nullable=False),  # labels of its first notification
    Column("first_at_s", Real, nullable=False),  # when that was
    Column("flaps", Boolean, nullable=False, server_default=false()),
    Column("threshold", Real),
    Column("runbook_url", Text),
    Index(None, "job_id", "rule"),
    Index(None, "kind", "at_s"),
)

muting = Table(
    "muting",
    metadata,
    Column("silence_id", key_text(32), primary_key=True),
    Column("project", key_text(32), nullable=False),
    Column("kind", Text, nullable=False),  # silence, maintenance
    Column("matchers", JsonText(tuple[Matcher, ...]), nullable=False),
    Column("starts_s", Real, nullable=False),
    Column("ends_s", Real, nullable=False),
    Column("author", Text, nullable=False),
    Column("comment", Text, nullable=False),
    Column("created_s", Real, nullable=False),
    Column("until_end_of", key_text(128)),  # the job whose run's end ends it, too
    Index(None, "project", "ends_s", "silence_id"),
)

endpoints = Table(
    "endpoints",
    metadata,
    Column("endpoint_id", key_text(32), primary_key=True),
    Column("project", key_text(32)),  # null: of every project
    Column("name", Text, nullable=False),
    Column("format", Text, nullable=False),
    Column("url", Text, nullable=False),  # its public part; the whole is in `sealed`
    Column("matchers", JsonText(tuple[Matcher, ...]), nullable=False),
    Column("min_severity", Text, nullable=False),
    Column("wants_resolved", Boolean, nullable=False),
    Column("is_enabled", Boolean, nullable=False),
    # URL, secrets and headers, encrypted: app/store/credentials/sealing.py.
    Column("sealed", Text, nullable=False),
    Column("old_secret_until_s", Real),
    Column("anew_at_s", Real),  # when it was added or last changed; null: not known
    # Of a dead-man's switch, which gets heartbeats and no alerts: how often, and the last one.
    Column("heartbeat_every_s", Real),
    Column("heartbeat_at_s", Real),
    # Health: failures in a row and since when, no attempt before `probe_at_s`, and when and why it
    # was disabled.
    Column("failures", Integer, nullable=False),
    Column("failing_since_s", Real),
    Column("probe_at_s", Real),
    Column("disabled_at_s", Real),
    Column("disabled_reason", Text),
    Column("last_ok_s", Real),
    Column("last_detail", Text),
    Index(None, "project", "endpoint_id"),
)

outbox = Table(
    "outbox",
    metadata,
    Column("seq", serial(), primary_key=True),  # the order of sending
    Column("delivery_id", key_text(64), nullable=False),  # the receiver's webhook-id
    # No foreign key: messages outlive their receiver.
    Column("endpoint_id", key_text(32), nullable=False),
    Column("notice_id", key_text(64), nullable=False),
    Column("project", key_text(32), nullable=False),
    Column("job_id", key_text(128)),  # with the rule: whose news it is; null of a test
    Column("rule", key_text(64)),
    Column("kind", Text, nullable=False),
    Column("fingerprints", JsonText, nullable=False),  # of the alerts that are news in it
    Column("listed", JsonText, nullable=False),  # of all alerts that it names
    Column("payload", Text, nullable=False),
    Column("content_type", Text, nullable=False),
    Column("headers", JsonText, nullable=False),
    Column("subject", Text),
    Column("state", Text, nullable=False),  # due, delivered, failed, outdated, silenced
    Column("attempt", Integer, nullable=False),  # how many have begun
    Column("next_at_s", Real, nullable=False),
    Column("lease_until_s", Real, nullable=False),
    Column("detail", Text),  # of the last attempt
    Column("created_s", Real, nullable=False),
    Column("done_s", Real),
    UniqueConstraint("delivery_id"),
    UniqueConstraint("endpoint_id", "notice_id"),
    Index(None, "state", "next_at_s"),
    Index(None, "endpoint_id", "state", "next_at_s"),
    Index(None, "job_id", "rule", "endpoint_id", "seq"),
    Index(None, "project", "seq"),
)

delivery_attempts = Table(
    "delivery_attempts",
    metadata,
    Column("attempt_id", serial(), primary_key=True),
    Column("delivery_id", key_text(64), ForeignKey("outbox.delivery_id"), nullable=False),
    Column("attempt", Integer, nullable=False),  # from 1 again after a replay
    Column("at_s", Real, nullable=False),
    Column("took_s", Real, nullable=False),
    Column("status", Integer),  # null where nothing was answered
    Column("detail", Text, nullable=False),
    Index(None, "delivery_id", "attempt_id"),
)

# With the tables above, those of app/store/tables.py included: all that the database has.
all_tables = metadata
