"""All tables. A change here needs a migration; a test compares the two.

projects ─< tokens               who may do what
projects ─< jobs
jobs ─< runs ─< windows          what was analysed, one row a window, replaced by revision
             ─< steps            one row a training step
             ─< spool            batches taken from the queue, window still open
             ─< cursors          what the assembler of a run knows beside them
             ─< ingest_counts    what became of every operation that was taken
             ─< hosts            which machine each worker is on
             ─< histories        what is remembered of a run's earlier windows
             ─< run_hosts        which hosts a run was on, to be looked up by host
             ─< drops            operations that the recorders of a run have dropped
windows ─< window_briefs         what a line of the fleet says of it
        ─< window_losses         what was lost in it, by cause, operation type and host
jobs ─< saved_questions          what-if questions that somebody wants to see again
     ── recordings               which steps the job is to record, now and from when on
     ─< score_reports            what other tools have measured of its ranks: score_tables.py
alerts, rules, outbox            app/store/alert_tables.py
dead_letters                     queue entries that nobody could take
shards, consumers                which background process works on what
totals                           counts of the whole service
service_keys                     secrets that its processes share

A `job_id` is "project/job" in every table, so no key of one project can name what is another's.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from app.store import alert_tables as alert_tables  # so that the metadata has its tables, too
from app.store import score_tables as score_tables
from app.store.columns import JsonText, PackedBytes, PackedJson, Real, key_text, serial
from app.store.metadata import metadata as metadata
from app.store.metadata import of_job, of_run


def _of_window() -> ForeignKeyConstraint:
    key = ("job_id", "epoch", "first_step")
    return ForeignKeyConstraint(key, [f"windows.{name}" for name in key])


projects = Table(
    "projects",
    metadata,
    Column("project", key_text(32), primary_key=True),
    Column("created_s", Real, nullable=False),
    Column("keep_raw_days", Real),  # retention; null: the service's own
    Column("keep_results_days", Real),
)

tokens = Table(
    "tokens",
    metadata,
    Column("token_id", key_text(32), primary_key=True),  # the readable part of the token
    Column("project", key_text(32), ForeignKey("projects.project"), nullable=False),
    Column("name", Text, nullable=False),
    Column("digest", Text, nullable=False),  # of the secret part; the secret is kept nowhere
    Column("scopes", JsonText, nullable=False),
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
)

runs = Table(
    "runs",
    metadata,
    of_job(),
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
    # By the consumer's clock: ranks of which nothing comes while others go on and their workers
    # (dp_rank * pp_size + stage), since when the first of them is silent, and since when nothing
    # comes of any.
    Column("silent_ranks", JsonText),
    Column("silent_workers", JsonText),
    Column("silent_since_s", Real),
    Column("stalled_since_s", Real),
    UniqueConstraint("job_id", "run_key"),
)
# Asked for every second by every consumer; runs that are done are not in it.
Index("ix_runs_not_closed", runs.c.job_id, runs.c.epoch,
      sqlite_where=text("is_closed = 0"), postgresql_where=text("NOT is_closed"))  # fmt: skip

windows = Table(
    "windows",
    metadata,
    *of_run(),
    Column("first_step", BigInteger, primary_key=True, autoincrement=False),
    Column("last_step", BigInteger, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("num_steps", Integer, nullable=False),
    Column("num_ops", BigInteger, nullable=False),
    Column("slowdown", Real),
    Column("verdict", Text),
    Column("updated_s", Real, nullable=False),
    # The large ones last: whoever reads the columns before them need not read these pages.
    Column("result", PackedJson, nullable=False),
    Column("per_step", PackedJson),
    Column("trace", LargeBinary),  # packed by app.ingest.trace_codec; null once retention took it
)
Index("ix_windows_updated", windows.c.updated_s)
Index("ix_windows_with_trace", windows.c.updated_s,
      sqlite_where=windows.c.trace.is_not(None),
      postgresql_where=windows.c.trace.is_not(None))  # fmt: skip
# The newest window with figures is wanted for every job of a page.
Index("ix_windows_with_figures", windows.c.job_id, windows.c.epoch, windows.c.first_step,
      sqlite_where=windows.c.slowdown.is_not(None),
      postgresql_where=windows.c.slowdown.is_not(None))  # fmt: skip

# What a line of the fleet says of a window with figures, open or closed: app/store/briefs.py.
# Not a column of `windows`: SQLite would have to read past the large ones to find it.
window_briefs = Table(
    "window_briefs",
    metadata,
    Column("job_id", key_text(128), primary_key=True),
    Column("epoch", BigInteger, primary_key=True, autoincrement=False),
    Column("first_step", BigInteger, primary_key=True, autoincrement=False),
    Column("brief", JsonText, nullable=False),
    _of_window(),
)

# What closed windows lost, so that the fleet over time is summed by the database. `kind` is
# "total" (name ""), "cause", "optype" or "host"; `gpu_s` are GPU-seconds lost, for "total" of
# `gpu_s_recorded` in all; `slowdown` is the window's, for "host" how slow the host was.
window_losses = Table(
    "window_losses",
    metadata,
    Column("job_id", key_text(128), primary_key=True),
    Column("epoch", BigInteger, primary_key=True, autoincrement=False),
    Column("first_step", BigInteger, primary_key=True, autoincrement=False),
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
    *of_run(),
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

steps = Table(
    "steps",
    metadata,
    *of_run(),
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("recorded_s", Real),
    Column("simulated_s", Real),
    Column("ideal_s", Real),
    Column("slowdown", Real),
    Column("window_id", Text, nullable=False),
    Column("skipped_reason", Text),
)

# What one turn of a consumer took of one run. After a crash, open windows are built from it again.
spool = Table(
    "spool",
    metadata,
    *of_run(),
    Column("turn", BigInteger, primary_key=True, autoincrement=False),  # ascending
    Column("last_step", BigInteger, nullable=False),  # the row can go once this step's window is
    Column("blob", LargeBinary, nullable=False),  # packed by app.ingest.spool
)

ingest_counts = Table(
    "ingest_counts",
    metadata,
    *of_run(),
    # Operations: each one that was taken from the queue is in exactly one of these.
    Column("accepted", BigInteger, nullable=False),
    Column("duplicate", BigInteger, nullable=False),
    Column("conflict", BigInteger, nullable=False),
    Column("late", BigInteger, nullable=False),
    Column("dead", BigInteger, nullable=False),
    # Batches whose number was skipped by their worker's later ones and that never came.
    Column("lost_batches", BigInteger, nullable=False),
    Column("last_conflict", JsonText),  # a sample: rank, batch_seq, at
    # Collectives inside groups by what became of them; null: none has come.
    Column("in_groups", JsonText),
)

# Which machine each worker of a run is on, as far as the workers have said.
# `placements` are their racks and switches ([dp_rank, stage, rack, switch]); null: nobody says.
hosts = Table(
    "hosts",
    metadata,
    *of_run(),
    Column("names", PackedJson, nullable=False),
    Column("placements", PackedJson),
)

# What the recorders of a run have dropped before it was sent, as far as they have said so: in all,
# by the workers that dropped most ([dp_rank, stage, operations], a few), and by every rank
# ([rank, dp_rank, stage, operations]).
drops = Table(
    "drops",
    metadata,
    *of_run(),
    Column("total", BigInteger, nullable=False),
    Column("num_workers", BigInteger, nullable=False),
    Column("worst", JsonText, nullable=False),
    Column("by_rank", PackedJson, nullable=False),
)

# Which steps a job is to record: its last few plans, ascending by version: app/store/recordings.py.
recordings = Table("recordings", metadata, of_job(), Column("plans", JsonText, nullable=False))

# Packed by app.diagnosis.history_codec; all that a later window needs of the ones before it.
histories = Table(
    "histories",
    metadata,
    *of_run(),
    Column("through_step", BigInteger, nullable=False),  # the last one in it
    Column("blob", PackedBytes, nullable=False),
)

cursors = Table("cursors", metadata, *of_run(), Column("blob", PackedBytes, nullable=False))

shards = Table(
    "shards",
    metadata,
    Column("shard", Integer, primary_key=True, autoincrement=False),
    Column("owner", Text),
    Column("fence", BigInteger, nullable=False),
    Column("lease_until_s", Real, nullable=False),
    Column("committed", JsonText),  # entries of the last commit, if the queue has not heard of it
)

consumers = Table(
    "consumers",
    metadata,
    Column("owner", key_text(256), primary_key=True),
    Column("lease_until_s", Real, nullable=False),
    # Extensions of the wire format that it reads (app.ingest.wire); null: it is an older version.
    Column("knows", JsonText),
)

dead_letters = Table(
    "dead_letters",
    metadata,
    Column("letter_id", serial(), primary_key=True),
    # No foreign key: it may be of a job that nobody knows.
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

# What links are signed with, and the like: no route and no list ever reads it out.
service_keys = Table(
    "service_keys",
    metadata,
    Column("name", key_text(64), primary_key=True),
    Column("key", LargeBinary, nullable=False),
)
