"""All tables but those of alerts. A change here needs a migration; a test compares the two.

Those of alerts, receivers and messages: app/store/alerting/tables.py.

projects ─< tokens               permissions
projects ─< jobs
jobs ─< runs ─< windows          analysed windows, one row each, replaced by newer revisions
             ─< steps            one row per training step; of old steps one for several
             ─< spool            batches taken from the queue, window still open
             ─< cursors          state of a run's assembler
             ─< ingest_counts    every operation taken: accepted, duplicate, late and so on
             ─< hosts            which host each worker is on
             ─< histories        figures of a run's earlier windows
             ─< run_hosts        hosts of a run, for queries by host
             ─< drops            operations that the recorders of a run dropped
             ─< rank_exits       how the processes of its ranks ended
windows ─< window_briefs         the part of a window shown in the fleet
        ─< window_losses         GPU time lost in it, by cause, operation type and host
        ─< window_objects        its operations where they are in object storage
        ─< window_remainders     what rounding took from its times, while it may be revised
jobs ─< saved_questions          saved what-if questions
     ─< fixes                    predicted fixes, and their outcomes
     ── recordings               which steps the job is to record, from when on
     ─< annotations              events that people and programs reported; also of a whole project
     ─< share_links              frozen reports that a link shows
     ─< alerts                   pending and firing alerts
     ─< alert_events             every transition of an alert
alert_rules                      rules of a project; none: the service's own rules
alert_groups ─< alert_told       when a rule on a job is due for planning; last notifications
endpoints ─< outbox ─< delivery_attempts      receivers and their messages
muting                           silences and maintenance windows
audit                            actions of people and of the service
saved_views                      named filters of the fleet page
dead_letters                     queue entries that could not be processed
shards, consumers                which background process works on what
refusals                         whose batches were refused of late
totals                           counts of the whole service
service_keys                     secrets that its processes share
service_addresses                where its pages are served
disk_samples                     how full the disk was, for the days left
service_watches                  whether its parts work, and whether people were notified

A `job_id` is "project/job" in every table, so no key of one project can name another's job.
"""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from app.alerts.labels import Matcher
from app.result.brief import JobBrief
from app.result.stored import StoredByStep
from app.result.window_result import WindowResult
from app.store.columns import JsonText, PackedBytes, PackedJson, Real, key_text, serial
from app.trace.exits import EndCause

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _job_key() -> Column[str]:
    """The key of tables with one row per job."""
    return Column("job_id", key_text(128), ForeignKey("jobs.job_id"), primary_key=True)


def _run_key() -> tuple[Column[str], Column[int], ForeignKeyConstraint]:
    """The key, or its beginning, of tables with rows per run."""
    return (
        Column("job_id", key_text(128), primary_key=True),
        Column("epoch", BigInteger, primary_key=True, autoincrement=False),
        ForeignKeyConstraint(["job_id", "epoch"], ["runs.job_id", "runs.epoch"]),
    )


def _window_key() -> tuple[Column[Any], ...]:
    """The key, or its beginning, of tables with rows per window."""
    job_id, epoch, _ = _run_key()
    return job_id, epoch, Column("first_step", BigInteger, primary_key=True, autoincrement=False)


def _of_window() -> ForeignKeyConstraint:
    key = ("job_id", "epoch", "first_step")
    return ForeignKeyConstraint(key, [f"windows.{name}" for name in key])


def _index_where(name: str, *columns: Column[Any], where: Any, unique: bool = False) -> None:
    """Index the rows that are as `where` says."""
    Index(name, *columns, unique=unique, sqlite_where=where, postgresql_where=where)


projects = Table(
    "projects",
    metadata,
    Column("project", key_text(32), primary_key=True),
    Column("created_s", Real, nullable=False),
    Column("keep_raw_days", Real),  # retention; null: the service's own
    Column("keep_results_days", Real),
    Column("keep_gb", Real),
)

tokens = Table(
    "tokens",
    metadata,
    Column("token_id", key_text(32), primary_key=True),  # the readable part of the token
    Column("project", key_text(32), ForeignKey("projects.project"), nullable=False),
    Column("name", Text, nullable=False),
    Column("digest", Text, nullable=False),  # of the secret part; the secret is kept nowhere
    Column("scopes", JsonText(tuple[str, ...]), nullable=False),
    Column("job", Text),  # the only job that it is good for, without its project
    Column("created_s", Real, nullable=False),
    Column("expires_s", Real),
    Column("revoked_s", Real),
    Column("last_used_s", Real),  # to the minute
    Index(None, "project", "token_id"),
)

jobs = Table(
    "jobs",
    metadata,
    Column("job_id", key_text(128), primary_key=True),
    Column("epoch", BigInteger, nullable=False),  # of the current run
    # Archived and deleted jobs are not listed; retention removes the rows of a deleted one, which
    # has begun once `removal_began_s` is set. The job's own row stays.
    Column("archived_s", Real),
    Column("deleted_s", Real),
    Column("removal_began_s", Real),
    # Set on the page or by the API; they win over the labels that its runs register.
    Column("edited_labels", JsonText, nullable=False, server_default="{}"),
)
_index_where("ix_jobs_deleted", jobs.c.job_id, where=jobs.c.deleted_s.is_not(None))

runs = Table(
    "runs",
    metadata,
    _job_key(),
    Column("epoch", BigInteger, primary_key=True, autoincrement=False),
    Column("run_key", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("dp_size", Integer, nullable=False),
    Column("pp_size", Integer, nullable=False),
    Column("tp_size", Integer, nullable=False),
    Column("vpp_size", Integer, nullable=False),
    Column("dsp_size", Integer, nullable=False),
    Column("ep_size", Integer, nullable=False, server_default="1"),
    Column("num_gpus", BigInteger, nullable=False),
    Column("framework", Text),
    Column("labels", JsonText, nullable=False),
    Column("op_types", JsonText, nullable=False, server_default="[]"),  # the job's own ones
    Column("registered_s", Real, nullable=False),
    Column("ended_s", Real),
    Column("superseded_s", Real),
    Column("is_closed", Boolean, nullable=False),  # ended, and its last window closed
    Column("last_data_s", Real),
    Column("last_step", BigInteger),
    # By the consumer's clock: silent ranks, their workers (dp_rank * pp_size + stage), since when
    # the first of them is silent, and since when all ranks are.
    Column("silent_ranks", JsonText(tuple[int, ...])),
    Column("silent_workers", JsonText(tuple[int, ...])),
    Column("silent_since_s", Real),
    Column("stalled_since_s", Real),
    # By the ranks' own reports (`rank_exits`): the newest one's time and their number; and if the
    # run has ended by them, how ("finished", "crashed", "preempted") and by which rank.
    Column("exit_reported_s", Real),
    Column("num_exits", Integer),
    Column("ended_as", Text),
    Column("end_cause", JsonText(EndCause)),
    UniqueConstraint("job_id", "run_key"),
)
# Queried every second by every consumer; closed runs are not in it.
Index("ix_runs_not_closed", runs.c.job_id, runs.c.epoch,
      sqlite_where=text("is_closed = 0"), postgresql_where=text("NOT is_closed"))  # fmt: skip

windows = Table(
    "windows",
    metadata,
    *_run_key(),
    Column("first_step", BigInteger, primary_key=True, autoincrement=False),
    Column("last_step", BigInteger, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("num_steps", Integer, nullable=False),
    Column("num_ops", BigInteger, nullable=False),
    Column("slowdown", Real),
    Column("verdict", Text),
    Column("updated_s", Real, nullable=False),
    # Large columns last: reading the others skips their pages.
    Column("result", PackedJson(WindowResult), nullable=False),
    Column("per_step", PackedJson(StoredByStep)),
    # Packed by app.ingest.assembly.window_codec; null once retention took it.
    Column("trace", LargeBinary),
)
Index("ix_windows_updated", windows.c.updated_s)
# For thinning: which windows have figures by step, and how old those of a run are.
_HAS_STEPS = windows.c.per_step.is_not(None)
_index_where("ix_windows_with_per_step", windows.c.updated_s, where=_HAS_STEPS)
Index("ix_windows_age", *windows.primary_key.columns, windows.c.updated_s)
_index_where("ix_windows_with_trace", windows.c.updated_s, where=windows.c.trace.is_not(None))
# For the newest window with figures of every job of a page.
_HAS_FIGURES = windows.c.slowdown.is_not(None)
_index_where("ix_windows_with_figures", *windows.primary_key.columns, where=_HAS_FIGURES)

# What rounding took from the times of `windows.trace`, while late operations may still revise the
# window: its results come from unrounded times. For minutes; retention removes forgotten ones.
window_remainders = Table(
    "window_remainders",
    metadata,
    *_window_key(),
    Column("stored_s", Real, nullable=False),
    Column("remainders", LargeBinary, nullable=False),
)

# Operations of windows that moved into object storage, or are about to: app/store/objects/moves.py.
# Not bound to `windows`: an object outlives the row of its window until it is deleted. The key is
# of the window that it was moved from, and names the object; `window_first_step` and
# `window_revision` are of the window that has the operations: that one, or one that it is part of.
window_objects = Table(
    "window_objects",
    metadata,
    *_window_key(),
    Column("revision", BigInteger, primary_key=True, autoincrement=False),
    Column("window_first_step", BigInteger, nullable=False),
    Column("window_revision", BigInteger, nullable=False),
    Column("updated_s", Real, nullable=False),  # that of the window
    Column("size_bytes", BigInteger, nullable=False),
    Column("sha256", Text, nullable=False),
    Column("claimed_s", Real, nullable=False),  # when a process began to move it
    Column("is_stored", Boolean, nullable=False),  # whether the window's own copy is gone
    Column("is_removed", Boolean, nullable=False),  # past retention: the object is to be deleted
    Index(None, "updated_s"),
)

# The part of a fleet line about a window with figures, open or closed: app/store/fleet.py.
# Not a column of `windows`: SQLite would have to read past the large ones to find it.
window_briefs = Table(
    "window_briefs",
    metadata,
    *_window_key(),
    Column("brief", JsonText(JobBrief), nullable=False),
    _of_window(),
)

# Losses of closed windows, so that the database can sum them over the fleet. `kind` is
# "total" (name ""), "cause", "optype" or "host"; `gpu_s` are GPU-seconds lost, for "total" of
# `gpu_s_recorded` in all; `slowdown` is the window's, for "host" how slow the host was.
window_losses = Table(
    "window_losses",
    metadata,
    *_window_key(),
    Column("kind", key_text(16), primary_key=True),
    Column("name", key_text(256), primary_key=True),
    Column("updated_s", Real, nullable=False),
    Column("gpu_s", Real, nullable=False),
    Column("gpu_s_recorded", Real),
    Column("num_gpus", BigInteger, nullable=False),
    Column("slowdown", Real),
    _of_window(),
    Index("ix_window_losses_kind", "kind", "updated_s"),
    Index("ix_window_losses_name", "kind", "name", "updated_s"),
)

run_hosts = Table(
    "run_hosts",
    metadata,
    *_run_key(),
    Column("host", key_text(256), primary_key=True),
    Index(None, "host"),
)

saved_questions = Table(
    "saved_questions",
    metadata,
    Column("question_id", key_text(32), primary_key=True),
    Column("job_id", key_text(128), ForeignKey("jobs.job_id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("window_id", Text, nullable=False),
    Column("question", JsonText, nullable=False),  # as POST .../what-if takes it
    Column("saved_s", Real, nullable=False),
    Index(None, "job_id", "saved_s"),
)

# Predictions of fixes and their outcomes: app/store/fixes.py.
fixes = Table(
    "fixes",
    metadata,
    Column("fix_id", key_text(32), primary_key=True),
    Column("job_id", key_text(128), ForeignKey("jobs.job_id"), nullable=False),
    Column("fix", key_text(64), nullable=False),
    Column("title", Text, nullable=False),
    Column("tracked_by", Text),  # null: the top fix of a window
    # The window of the prediction, T there, and T with the fix: predicted, least, most.
    Column("epoch", BigInteger, nullable=False),
    Column("first_step", BigInteger, nullable=False),
    Column("before_s", Real, nullable=False),
    Column("step_s", Real, nullable=False),
    Column("least_step_s", Real, nullable=False),
    Column("most_step_s", Real, nullable=False),
    Column("gpu_hours_per_day", Real, nullable=False),
    Column("predicted_s", Real, nullable=False),  # since when
    Column("renewed_s", Real, nullable=False),  # predicted last
    Column("updated_s", Real, nullable=False),
    Column("sign", JsonText, nullable=False),  # what to look for: app.advice.signs
    Column("state", Text, nullable=False),
    Column("windows", JsonText, nullable=False),  # as they showed it: app.advice.outcome
    Column("num_there", BigInteger, nullable=False),
    Column("applied_epoch", BigInteger),
    Column("applied_step", BigInteger),
    Column("achieved", Real),
    Column("note", Text),
    Column("notice", Text),  # due, notified; null: no notification
    Index(None, "job_id", "predicted_s", "fix_id"),
)
# At most one prediction of each fix of a job is followed.
_IS_LIVE = text("state IN ('open', 'applied')")
_index_where("ix_fixes_live", fixes.c.job_id, fixes.c.fix, where=_IS_LIVE, unique=True)

steps = Table(
    "steps",
    metadata,
    *_run_key(),
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("recorded_s", Real),
    Column("simulated_s", Real),
    Column("ideal_s", Real),
    Column("slowdown", Real),
    Column("window_id", Text, nullable=False),
    Column("skipped_reason", Text),
    Column("started_s", Real),  # Unix time by the workers' clocks; null: not known
    # Of means over several steps (app/store/shrinking/thinning.py): the last of these,
    # and how many have figures; null: one step.
    Column("last_step", BigInteger),
    Column("num_steps", BigInteger),
)

# Batches of one run in one turn of a consumer. After a crash, open windows are rebuilt from them.
spool = Table(
    "spool",
    metadata,
    *_run_key(),
    Column("turn", BigInteger, primary_key=True, autoincrement=False),  # ascending
    Column("last_step", BigInteger, nullable=False),  # the row can go once this step's window is
    Column("blob", LargeBinary, nullable=False),  # packed by app.ingest.assembly.assembler
)

ingest_counts = Table(
    "ingest_counts",
    metadata,
    *_run_key(),
    # Each operation taken from the queue counts in exactly one of these.
    Column("accepted", BigInteger, nullable=False),
    Column("duplicate", BigInteger, nullable=False),
    Column("conflict", BigInteger, nullable=False),
    Column("late", BigInteger, nullable=False),
    Column("dead", BigInteger, nullable=False),
    # Batches whose number was skipped and that never came.
    Column("lost_batches", BigInteger, nullable=False),
    Column("last_conflict", JsonText),  # a sample: rank, batch_seq
    # Collectives inside groups: accepted, duplicate, late or refused; null: none has come.
    Column("in_groups", JsonText),
)

# The host of each worker of a run, if reported.
# `placements` are their racks and switches ([dp_rank, stage, rack, switch]); null: not reported.
hosts = Table(
    "hosts",
    metadata,
    *_run_key(),
    Column("names", PackedJson, nullable=False),
    Column("placements", PackedJson),
)

# Operations that the recorders of a run have dropped before sending, if reported: in total, by the
# workers that dropped most ([dp_rank, stage, operations], a few), and by every rank
# ([rank, dp_rank, stage, operations]).
drops = Table(
    "drops",
    metadata,
    *_run_key(),
    Column("total", BigInteger, nullable=False),
    Column("num_workers", BigInteger, nullable=False),
    Column("worst", JsonText, nullable=False),
    Column("by_rank", PackedJson, nullable=False),
)

# How the process of each rank ended, as it or its watcher has reported: app/trace/exits.py.
rank_exits = Table(
    "rank_exits",
    metadata,
    *_run_key(),
    Column("rank", BigInteger, primary_key=True, autoincrement=False),
    Column("dp_rank", BigInteger, nullable=False),
    Column("stage", BigInteger, nullable=False),
    Column("host", Text),
    Column("outcome", Text, nullable=False),
    Column("at_s", Real, nullable=False),
    Column("error_type", Text),
    Column("message", Text),
    Column("signal", Integer),
    Column("exit_code", Integer),
)

# Which steps a job is to record: its last few plans, ascending by version: app/store/recordings.py.
recordings = Table("recordings", metadata, _job_key(), Column("plans", JsonText, nullable=False))

# Packed by app.diagnosis.job_history; all that a later window needs of the ones before it.
histories = Table(
    "histories",
    metadata,
    *_run_key(),
    Column("through_step", BigInteger, nullable=False),  # the last one in it
    Column("blob", PackedBytes, nullable=False),
)

cursors = Table("cursors", metadata, *_run_key(), Column("blob", PackedBytes, nullable=False))

shards = Table(
    "shards",
    metadata,
    Column("shard", Integer, primary_key=True, autoincrement=False),
    Column("owner", Text),
    Column("fence", BigInteger, nullable=False),
    Column("lease_until_s", Real, nullable=False),
    Column("committed", JsonText),  # entries of the last commit, which may not be acknowledged
    Column("taken_s", JsonText),  # when it was taken, the last few times
    Column("as_of_s", Real),  # up to when all batches are taken; null: no consumer has said so
)

# Whose batches were refused of late, for want of room: app/store/as_of.py.
refusals = Table(
    "refusals",
    metadata,
    Column("job_id", key_text(128), primary_key=True),  # "*": of any job
    Column("since_s", Real, nullable=False),
    Column("last_s", Real, nullable=False),
)

consumers = Table(
    "consumers",
    metadata,
    Column("owner", key_text(256), primary_key=True),
    Column("lease_until_s", Real, nullable=False),
    # Extensions of the wire format that it reads (app.ingest.wire.body); null: an older version.
    Column("knows", JsonText),
    Column("last_turn_s", Real),  # when it last finished a turn with shards; null: not yet
)

# Parts of the service whose outages people are notified of: app/store/alerting/service_watches.py.
service_watches = Table(
    "service_watches",
    metadata,
    Column("name", key_text(32), primary_key=True),  # consumers, canary, backlog, api
    Column("ok_s", Real),  # when it last worked; null: not since the first start
    Column("since_s", Real, nullable=False),  # since when an outage counts, if it is later
    Column("checked_s", Real),  # the last check, or the end of the last round
    Column("lease_until_s", Real, nullable=False),  # of the process that is at a round
    # When people were notified of this outage; null: there is none.
    Column("told_s", Real),
    Column("took_s", Real),  # the last good round
    Column("rounds", BigInteger, nullable=False),
    Column("detail", Text),  # what is wrong by the last check; null: nothing
)

dead_letters = Table(
    "dead_letters",
    metadata,
    Column("letter_id", serial(), primary_key=True),
    # No foreign key: the job may be unknown.
    Column("job_id", key_text(128), nullable=False),
    Column("epoch", BigInteger),
    Column("entry_id", Text, nullable=False),
    Column("num_ops", BigInteger, nullable=False),  # 0 where even that cannot be read
    Column("deliveries", Integer, nullable=False),
    Column("reason", Text, nullable=False),
    Column("received_s", Real, nullable=False),
    Column("died_s", Real, nullable=False),
    Column("state", Text, nullable=False),  # dead, replayed, dropped
    Column("settled_s", Real),  # when it was replayed or dropped
    Column("body", LargeBinary, nullable=False),
    UniqueConstraint("job_id", "entry_id"),
    Index(None, "state", "letter_id"),
)

# fenced_commits, entries_lost and the like: they only grow.
totals = Table(
    "totals",
    metadata,
    Column("name", key_text(64), primary_key=True),
    Column("value", BigInteger, nullable=False),
)

# Keys that sign links and the like; no route ever returns them.
service_keys = Table(
    "service_keys",
    metadata,
    Column("name", key_text(64), primary_key=True),
    Column("key", LargeBinary, nullable=False),
)

# Addresses that the processes of the service know of each other.
service_addresses = Table(
    "service_addresses",
    metadata,
    Column("name", key_text(64), primary_key=True),
    Column("url", Text, nullable=False),
)

# Of signed-in pages: app/store/credentials/sessions.py.
sessions = Table(
    "sessions",
    metadata,
    Column("session_id", key_text(32), primary_key=True),
    Column("digest", key_text(64), nullable=False),  # of the cookie, which is kept nowhere
    Column("token_id", key_text(32), nullable=False),  # no foreign key: the root token has no row
    Column("project", key_text(32), nullable=False),
    Column("user_agent", Text, nullable=False),
    Column("address", Text, nullable=False),
    Column("created_s", Real, nullable=False),
    Column("expires_s", Real, nullable=False),
    Column("last_used_s", Real),
    Column("ended_s", Real),
    Index(None, "project", "created_s"),
    Index(None, "token_id", "created_s"),
    Index(None, "expires_s"),
)

saved_views = Table(
    "saved_views",
    metadata,
    Column("view_id", key_text(32), primary_key=True),
    Column("project", key_text(32), nullable=False),
    Column("name", key_text(100), nullable=False),
    Column("query", JsonText, nullable=False),  # parameters of the fleet's address, by name
    Column("author", Text, nullable=False),
    Column("saved_s", Real, nullable=False),
    UniqueConstraint("project", "name"),
)

audit = Table(
    "audit",
    metadata,
    Column("audit_id", serial(), primary_key=True),
    Column("project", key_text(32), nullable=False),
    Column("at_s", Real, nullable=False),
    Column("actor", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("object_kind", Text, nullable=False),
    Column("object_id", Text, nullable=False),
    Column("detail", JsonText, nullable=False),
    Index(None, "project", "audit_id"),
    Index(None, "project", "at_s"),
)


# Deploys, checkpoints, drained nodes: app/store/annotations.py. Without `job_id`, of every job of
# the project that the matchers fit.
annotations = Table(
    "annotations",
    metadata,
    Column("annotation_id", key_text(32), primary_key=True),
    Column("project", key_text(32), nullable=False),
    Column("job_id", key_text(128), ForeignKey("jobs.job_id")),
    Column("matchers", JsonText(tuple[Matcher, ...]), nullable=False),
    Column("kind", key_text(32), nullable=False),
    Column("text", Text, nullable=False),
    Column("host", Text),
    Column("at_s", Real, nullable=False),
    Column("ends_s", Real),
    Column("epoch", BigInteger),  # of the step; null: placed by its time
    Column("step", BigInteger),
    Column("source", Text, nullable=False),
    Column("author", Text, nullable=False),
    Column("created_s", Real, nullable=False),
    Index(None, "project", "at_s", "annotation_id"),
    Index(None, "job_id", "at_s"),
)

# Reports, frozen as they were when a link was made: app/store/credentials/share_links.py.
share_links = Table(
    "share_links",
    metadata,
    Column("share_id", key_text(32), primary_key=True),
    Column("project", key_text(32), nullable=False),
    Column("job_id", key_text(128), ForeignKey("jobs.job_id"), nullable=False),
    Column("digest", key_text(64), nullable=False),  # of the link's token, which is kept nowhere
    Column("author", Text, nullable=False),
    Column("created_s", Real, nullable=False),
    Column("expires_s", Real, nullable=False),
    Column("revoked_s", Real),
    Column("window_id", Text, nullable=False),
    Column("first_step", BigInteger, nullable=False),
    Column("last_step", BigInteger, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("page", PackedBytes),  # null once the link is revoked
    Index(None, "digest", unique=True),
    Index(None, "project", "created_s", "share_id"),
)

# One row every ten minutes of the last week: app/store/disk/forecast.py.
disk_samples = Table(
    "disk_samples",
    metadata,
    Column("at_s", Real, primary_key=True),
    Column("used_bytes", BigInteger, nullable=False),
)
