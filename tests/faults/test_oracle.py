"""The oracle finds no violation in a sound store, and one in each unsound store."""

from dataclasses import replace

import pytest
from msgspec import structs
from sqlalchemy import update

from app.ingest.assembly.window_codec import pack_window, unpack_window
from app.ingest.wire import codec
from app.store import windows
from app.store.migrations import migrate
from app.store.tables import windows as table
from app.synth.job import SimulatedJob
from app.trace.job import DEFAULT_PROJECT, Parallelism, job_key
from tests.consumer.twin import ConsumerTwin, step_batches
from tests.harness.judge import Obligations, judge
from tests.harness.oracle import RevisionWatch

JOB = "a"
KEY = job_key(DEFAULT_PROJECT, JOB)
SIMULATED = SimulatedJob(Parallelism(2, 2), 2)
NUM_STEPS = 7
ITEM = {"window_id": "1-0", "revision": 2, "state": "open", "num_steps": 2}


@pytest.fixture
def owed():
    return Obligations()


@pytest.fixture
def twin(tmp_path, owed):
    """A store with every owed operation: three windows, the last with one step."""
    url = f"sqlite:///{tmp_path / 'paceline.db'}"
    migrate(url)
    twin = ConsumerTwin(url)
    twin.register(KEY, SIMULATED.parallelism)
    twin.push(KEY, SIMULATED, *range(NUM_STEPS))
    twin.end(KEY)
    twin.turns(twin.consumer())
    for step in range(NUM_STEPS):
        for batch in step_batches(SIMULATED, step):
            owed.owe(JOB, codec.encode(batch))
    yield twin
    twin.store.close()


def violations(twin, owed):
    return judge(twin.store, owed, [JOB]).violations


def test_sound_store_has_no_violations(twin, owed):
    judgement = judge(twin.store, owed, [JOB])
    assert judgement.violations == []
    assert judgement.windows == 3
    assert judgement.rows_judged == owed.rows > 0


def test_operations_never_sent_are_spurious(twin, owed):
    less = Obligations()
    for step in range(NUM_STEPS):
        for batch in step_batches(SIMULATED, step)[1:]:
            less.owe(JOB, codec.encode(batch))
    judgement = judge(twin.store, less, [JOB])
    assert judgement.spurious == owed.rows - less.rows
    assert judgement.missing == 0


def test_changed_operation_is_missing_and_spurious(twin, owed):
    with twin.store.read() as conn:
        ops = unpack_window(windows.trace(conn, KEY, "1-0") or b"").ops
    ops.duration_ns[0] += 1000  # what is stored is rounded to it
    change(twin, update(table).where(table.c.first_step == 0).values(trace=pack_window(ops)))
    judgement = judge(twin.store, owed, [JOB])
    assert (judgement.missing, judgement.spurious) == (1, 1)


def test_result_that_differs_in_the_last_bit_is_a_violation(twin, owed):
    with twin.store.read() as conn:
        result = windows.get(conn, KEY, "1-0")
    assert result.slowdown is not None
    result = structs.replace(result, slowdown=result.slowdown * (1 + 2**-52))
    change(twin, update(table).where(table.c.first_step == 0).values(result=result))
    (violation,) = violations(twin, owed)
    assert "another result" in violation


def test_first_batch_under_a_key_is_the_one_owed(owed):
    (batch, *_) = step_batches(SIMULATED, 0)
    longer = replace(batch.columns, duration_ns=batch.columns.duration_ns + 1)
    other = codec.encode(replace(batch, columns=longer))
    for body in (codec.encode(batch), codec.encode(batch), other):
        owed.owe(JOB, body)
    assert (owed.batches, owed.resent, owed.conflicts) == (1, 1, 1)
    assert owed.table(JOB, 1)[:, -1].sum() == batch.columns.duration_ns.sum()


@pytest.mark.parametrize(
    ("next_", "found"),
    [
        ([ITEM], 0),
        ([ITEM | {"revision": 3, "num_steps": 3}], 0),
        ([ITEM | {"revision": 1}], 1),
        ([ITEM | {"state": "complete"}], 1),
        ([ITEM, ITEM], 1),
    ],
)
def test_every_change_of_a_window_must_increase_its_revision(next_, found):
    watch = RevisionWatch()
    watch.add_page(JOB, [ITEM])
    watch.add_page(JOB, next_)
    assert len(watch.violations) == found


def change(twin, statement):
    with twin.store.write() as conn:
        conn.execute(statement)
