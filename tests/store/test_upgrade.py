"""What release 0.1.0 leaves behind is taken over: its database, backup and stored window.

The files in release_0_1_0/ were written by that release's own code (`git worktree add` of commit
9e9ddf12, its `app`, `tests` and `client` on PYTHONPATH): its `ConsumerTwin` took five simulated
jobs (a slow worker with an open window, sequence lengths, collectives in groups, a rank that
reports nothing of two steps, an ended job with thinned windows), its `NotifierTwin` told two
receivers, and its store's functions added a row to nearly every other table. Then came `backup`;
`window.bin` has the operations of window 1-0 of the job with groups, and spool/ is of its client
(tests/client/sending/test_spool.py).
"""

import gzip
import shutil
import sqlite3
from contextlib import ExitStack, closing
from pathlib import Path

import msgspec
import pytest
import zstandard
from sqlalchemy import func, select

from app.api.service.replays import ReplayCache
from app.engine.replays import prepare
from app.ingest.assembly.window_codec import unpack_window
from app.result.record import Record
from app.result.window_result import WindowResult
from app.store import fleet, service_state, windows
from app.store.alerting import alerts, notifications, outbox, receivers
from app.store.alerting.tables import all_tables
from app.store.backup import restore
from app.store.database import Store, is_migrated
from app.store.migrations import migrate
from app.trace.job import Job, Parallelism
from app.trace.window import Window
from tests.consumer.twin import ConsumerTwin
from tests.postgres import database
from tests.secret_keys import KEYS
from tests.store.test_backup import TRANSIENT_TABLES, content

FILES = Path(__file__).parent / "release_0_1_0"
SLOW, OLD = "default/slow", "default/old"
ROUNDING_S = 20e-6  # of stored times, each by up to 1 us, along a step's chain


@pytest.fixture(scope="module")
def left_file(tmp_path_factory):
    """The database as the release left it."""
    path = tmp_path_factory.mktemp("left") / "paceline.db"
    path.write_bytes(gzip.decompress((FILES / "paceline.db.gz").read_bytes()))
    return path


@pytest.fixture(scope="module")
def left(left_file):
    """Its rows by table, as they were stored."""
    with closing(sqlite3.connect(left_file)) as conn:
        conn.row_factory = sqlite3.Row
        names = [
            name for (name,) in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        return {name: conn.execute(f"SELECT * FROM {name}").fetchall() for name in names}


@pytest.fixture(scope="module")
def upgraded_file(left_file, tmp_path_factory):
    path = shutil.copy(left_file, tmp_path_factory.mktemp("upgraded") / "paceline.db")
    migrate(f"sqlite:///{path}")
    return path


@pytest.fixture
def url(upgraded_file, tmp_path):
    return f"sqlite:///{shutil.copy(upgraded_file, tmp_path / 'paceline.db')}"


@pytest.fixture
def upgraded(url):
    with closing(Store(url, keys=KEYS)) as store:
        yield store


def as_json(blob):
    return msgspec.json.decode(zstandard.decompress(blob))


def known(value):
    """A record or JSON without nulls: some of what was null is absent now."""
    if isinstance(value, Record):
        return known(value.as_json())
    if isinstance(value, dict):
        return {name: known(part) for name, part in value.items() if part is not None}
    return [known(part) for part in value] if isinstance(value, list | tuple) else value


def test_every_row_is_there_after_the_upgrade(upgraded, url, left):
    assert is_migrated(url)
    with upgraded.read() as conn:
        found = {
            table.name: conn.scalar(select(func.count()).select_from(table))
            for table in all_tables.sorted_tables
        }
    assert found == {name: len(left.get(name, ())) for name in found}
    assert left.keys() - found.keys() == {"alembic_version", "score_reports"}


def test_every_result_has_the_figures_that_were_stored(upgraded, left):
    assert len(left["windows"]) == 13
    with upgraded.read() as conn:
        for row in left["windows"]:
            job_id, window_id = row["job_id"], f"{row['epoch']}-{row['first_step']}"
            stored = as_json(row["result"])
            assert known(msgspec.convert(stored, WindowResult)) == known(stored)
            result = windows.get(conn, job_id, window_id, per_step=True)
            assert (result.slowdown, list(result.steps)) == (stored["slowdown"], stored["steps"])
            assert known(result.findings) == known(stored["findings"])
            if row["per_step"] is None:
                assert result.thinned is not None
                continue
            by_step = as_json(row["per_step"])
            assert result.per_step is not None
            assert result.arrivals is not None
            assert result.arrivals.per_step is not None
            assert known(result.per_step) | known(result.arrivals.per_step) == known(by_step)


def test_causes_and_thinned_windows_are_those_of_the_jobs(upgraded):
    with upgraded.read() as conn:
        slow = windows.get(conn, SLOW, "1-16")
        thinned = windows.get(conn, OLD, "1-0")
    [finding] = slow.findings or ()
    [culprit] = finding.culprits
    assert (finding.cause, finding.onset_step) == ("slow-worker", 8)
    assert (culprit.dp_rank, culprit.stage) == (1, 1)
    assert slow.slowdown == pytest.approx(1.264, abs=0.001)
    assert thinned.thinned is not None
    assert (thinned.thinned.resolution, len(thinned.steps)) == ("day", 24)
    assert thinned.slowdown == pytest.approx(1.027, abs=0.001)


def test_fleet_shows_the_briefs_that_were_stored(upgraded, left):
    stored = {
        (row["job_id"], row["first_step"]): msgspec.json.decode(row["brief"])
        for row in left["window_briefs"]
    }
    with upgraded.read() as conn:
        lines = fleet.lines(conn, "default")
    assert [line.job_id for line in lines] == sorted(row["job_id"] for row in left["jobs"])
    for line in lines:
        assert line.latest is not None
        _, first_step = map(int, line.latest.window_id.split("-"))
        assert known(line.brief) == known(stored[line.job_id, first_step])


def test_alerts_and_messages_go_on(upgraded, left):
    with upgraded.write() as conn:
        firing = {state.rule: state for state in alerts.of_job(conn, SLOW)}
        assert {rule: state.phase for rule, state in firing.items()} == {
            "cause": "firing", "slowdown": "firing", "step-time": "pending",
        }  # fmt: skip
        cause = firing["cause"]
        assert (cause.acked_by, cause.assigned_to, cause.note) == ("ops", "ana", "node is drained")
        assert cause.detail.blame is not None
        assert cause.detail.blame.cause == "slow-worker"
        assert len(alerts.event_page(conn, limit=100)[0]) == len(left["alert_events"])
        [last] = notifications.last_notifications(conn, SLOW, "slowdown").values()
        assert (last.kind, last.flaps) == ("firing", False)
        assert receivers.get(conn, "default", "hook").url == "http://127.0.0.1:9/hook"
        assert service_state.find_key(conn, "pictures") is not None
        due = outbox.claim(conn, now_s=2e9, lease_s=1.0, limit=10)
        assert {(delivery.endpoint_id, delivery.attempt) for delivery in due} == {
            ("hook", 2), ("pager", 2),
        }  # fmt: skip


def test_consumer_goes_on_with_the_open_window(upgraded, url):
    twin = ConsumerTwin(url, window_steps=8)
    twin.unix_clock.now_s += 3600.0
    with upgraded.read() as conn:
        before = windows.summary(conn, SLOW, "1-24")
    twin.end(SLOW)
    twin.turns(twin.consumer())
    twin.store.close()
    with upgraded.read() as conn:
        after = windows.summary(conn, SLOW, "1-24")
    assert (before.state, before.num_steps) == ("open", 3)
    assert (after.state, after.num_steps) == ("complete", 3)
    assert after.revision > before.revision


def test_every_closed_window_replays_to_its_figures(upgraded, left):
    closed = [
        row for row in left["windows"] if row["state"] != "open" and row["per_step"] is not None
    ]
    assert len(closed) == 10
    replays = ReplayCache(upgraded)
    with upgraded.read() as conn:
        for row in closed:
            window_id = f"{row['epoch']}-{row['first_step']}"
            times = windows.get(conn, row["job_id"], window_id).step_time_s
            replay = replays.get(row["job_id"], window_id)
            assert times is not None
            assert replay.simulated_s == pytest.approx(times.simulated, abs=ROUNDING_S)


def test_stored_window_replays(left):
    stored = unpack_window((FILES / "window.bin").read_bytes())
    [row] = [row for row in left["windows"] if row["job_id"] == "default/groups"]
    result = as_json(row["result"])
    steps, origin_ns = tuple(result["steps"]), stored.ops.origins_ns(result["steps"])
    job = Job.of("groups", Parallelism(2, 2, tp_size=2))
    assert stored.groups is not None
    collectives = stored.groups.collectives(steps, origin_ns)
    window = Window(
        job, 1, 0, steps, stored.ops.trace(steps), origin_ns=origin_ns, collectives=collectives
    )
    assert collectives is not None
    assert prepare(window).simulated_s == pytest.approx(
        result["step_time_s"]["simulated"], abs=ROUNDING_S
    )
    assert (collectives.num_rows, {group.axis for group in collectives.groups}) == (192, {"tp"})


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_store(request, tmp_path):
    with ExitStack() as stack:
        if request.param == "sqlite":
            file = request.getfixturevalue("migrated_file")
            url = f"sqlite:///{shutil.copy(file, tmp_path / 'restored.db')}"
        else:
            server = request.getfixturevalue("pg_server")
            template = request.getfixturevalue("migrated_pg")
            url = stack.enter_context(database(server, template_url=template))
        yield stack.enter_context(closing(Store(url, keys=KEYS)))


@pytest.mark.sql_sensitive
def test_backup_of_the_release_before_is_restored(empty_store, upgraded):
    manifest = restore(empty_store, FILES / "backup.zip")
    assert (manifest.revision, manifest.version) == ("0024", "0.1.0")
    assert content(empty_store) == content(upgraded) | {name: [] for name in TRANSIENT_TABLES}
    with empty_store.read() as conn:
        assert windows.get(conn, SLOW, "latest").slowdown == pytest.approx(1.264, abs=0.001)
