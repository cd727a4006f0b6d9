"""Windows do not depend on batch order, repetition, boundaries or crashes."""

import random
from dataclasses import fields

from hypothesis import given
from hypothesis import strategies as st

from app.ingest.assembly.assembler import EarlierBatch, RunAssembler, WindowRules
from app.ingest.assembly.window_codec import unpack_window
from app.ingest.wire.codec import encode, read_entry
from tests.example_counts import many
from tests.ingest.factories import (
    DEADLINE_S,
    JOB,
    WINDOW_STEPS,
    ClosedWindows,
    assembler,
    cut_batches,
    step_batches,
)

NUM_STEPS = 5
LONG_AGO_S, NOW_S = 0.0, 1e6
# A restart extends the time to revise closed windows, so here it is unlimited.
RULES = WindowRules(WINDOW_STEPS, DEADLINE_S, revise_for_s=1e9)


def last_revisions(changes):
    """The last revision of each window, comparable bit by bit."""
    windows = {change.window.id: change.window for change in changes}
    return {
        window.id: (
            window.revision,
            window.state,
            window.steps,
            window.skipped,
            dict(window.hosts) if window.steps else None,
            window.origin_ns,
            *(
                (f.name, None if column is None else column.tobytes())
                for f in fields(window.trace)
                for column in [getattr(window.trace, f.name)]
            ),
        )
        for window in windows.values()
    }


def windows_of(batches, order):
    run = assembler()
    changes = []
    for at in order:
        run.add(batches[at], 0.0)
        changes += run.settle(0.0)
    return last_revisions(changes + run.finish(1.0, "complete"))


def without_revisions(windows):
    """Without the revision number, which depends on how often the run was settled."""
    return {name: figures[1:] for name, figures in windows.items()}


ALL_BATCHES = [each for step in range(NUM_STEPS) for each in step_batches(step)]
EXPECTED = windows_of(ALL_BATCHES, range(len(ALL_BATCHES)))
NUM_OPS = sum(batch.columns.num_ops for batch in ALL_BATCHES)


@st.composite
def arrivals(draw, most_times=5):
    """Batches with random boundaries, and an order with each one to five times."""
    random_ = random.Random(draw(st.integers(0, 2**32)))
    batches = cut_batches(NUM_STEPS, random_)
    times = draw(st.integers(1, most_times))
    order = [at for at in range(len(batches)) for _ in range(random_.randint(1, times))]
    return batches, draw(st.permutations(order))


@many(500)
@given(arrivals())
def test_any_order_repetition_and_cutting_gives_the_same_windows(arrival):
    batches, order = arrival
    assert without_revisions(windows_of(batches, order)) == without_revisions(EXPECTED)


@many(100)
@given(arrivals(2), st.data())
def test_crash_anywhere_does_not_change_the_windows(arrival, data):
    batches, order = arrival
    crashes = set(data.draw(st.lists(st.integers(0, len(order)), max_size=6)))
    # At some points everything is overdue, so that steps settle by deadline as well.
    overdue = set(data.draw(st.lists(st.integers(0, len(order)), max_size=3)))
    expected = CrashingRun(batches, order, overdue).play()
    assert CrashingRun(batches, order, overdue).play(crashes) == expected


@many(200)
@given(arrivals(2), st.data())
def test_any_order_of_late_data_gives_the_same_operations(arrival, data):
    batches, order = arrival
    overdue = set(data.draw(st.lists(st.integers(0, len(order)), max_size=3)))
    crashing_run = CrashingRun(batches, order, overdue)
    windows, num_late = crashing_run.play()
    stored = [unpack_window(*packed).ops for packed in crashing_run.closed.ops.values()]
    assert sum(table.num_ops for table in stored) + num_late == NUM_OPS
    settled = [*(step for window in windows.values() for step in window[2])]
    settled += [each.step for window in windows.values() for each in window[3]]
    # A step that no worker had begun when a later one was skipped is in no window.
    assert len(settled) == len(set(settled))
    assert num_late or sorted(settled) == list(range(NUM_STEPS))


class CrashingRun:
    """A run that may crash, with the state that its consumer stores."""

    def __init__(self, batches, order, overdue):
        self.batches, self.order, self.overdue = batches, order, overdue
        self.closed = ClosedWindows()
        self.spool: list[tuple[int, int, EarlierBatch]] = []  # last step, turn, batch
        self.blob: bytes | None = None
        self.hosts: dict[tuple[int, int], str] = {}
        self.turn = 0

    def play(self, crashes=frozenset()):
        """The last revision of each window, and the number of late operations."""
        run, changes, num_late = RunAssembler(JOB, 1, RULES, self.closed), [], 0
        for count, at in enumerate(self.order):
            if count in crashes:
                run = self.restored()
            num_late += self.add(run, self.batches[at])
            changes += self.settle(run, NOW_S if count in self.overdue else LONG_AGO_S)
        last = run.finish(LONG_AGO_S, "superseded")
        self.closed.save(last)
        return last_revisions(changes + last), num_late

    def add(self, run, batch):
        added = run.add(batch, LONG_AGO_S)
        if added.verdict == "new":
            self.turn += 1
            decoded = read_entry(encode(batch))
            before = EarlierBatch(self.turn, decoded, 0, added.dropped)
            self.spool.append((added.last_step, self.turn, before))
        return added.num_late

    def settle(self, run, now_s):
        changes = run.settle(now_s)
        self.closed.save(changes)
        if changes:
            self.blob = run.dump(self.turn)
            self.hosts = run.tracker.hosts()
            self.spool = [each for each in self.spool if each[0] > run.closed_through]
        return changes

    def restored(self):
        before = [each for _, _, each in self.spool]
        return RunAssembler.restore(
            JOB,
            1,
            RULES,
            self.closed,
            blob=self.blob,
            before=before,
            hosts=self.hosts,
            now_s=LONG_AGO_S,
        )
