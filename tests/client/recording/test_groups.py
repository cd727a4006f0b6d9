"""Group collectives: recorded on every member, in sampled steps, with limits, without errors."""

import logging
import os

import pytest
from paceline_client import NULL, Topology
from paceline_client.recorder import Recorder
from paceline_client.recording import groups as client_groups
from paceline_client.recording.buffer import Buffer
from paceline_client.recording.cuda import CudaTiming
from paceline_client.recording.groups import (
    FULL,
    INVALID,
    MAX_GROUPS,
    MAX_ROWS_OF_STEP,
    STEP_FULL,
    GroupBuffer,
)
from paceline_client.recording.sampling import RecordingPlans
from paceline_client.recording.wire import CONTENT_TYPE, NO_GROUP, Worker, batch_of, encode
from paceline_client.topology import group_ranks, local_rank

from app.ingest.wire.codec import decode
from app.trace.collectives import RankGroup
from tests.client.conftest import SIZES
from tests.client.recorders import WITHIN_S, recorder
from tests.client.recording.cuda.fake_cuda import FakeTorch, Gpu

MS = 10**6
EXTENSIONS = ["packed", "dropped", "at_step", "collectives"]
PEER = Topology(
    rank=3, dp_rank=1, stage=0, dp_size=2, pp_size=1, tp_size=2, vpp_size=1, records=False
)
WORKER = Topology(rank=2, dp_rank=1, stage=0, dp_size=2, pp_size=1, tp_size=2, vpp_size=1)


@pytest.fixture(autouse=True)
def _quiet(caplog, monkeypatch):
    caplog.set_level(logging.WARNING)
    for name in ("PACELINE_GROUP_EVERY", "LOCAL_RANK", "SLURM_LOCALID"):
        monkeypatch.delenv(name, raising=False)


def started(paceline, place=PEER, **options):
    return recorder(paceline.url, topology=place, groups=True, group_every=1, **options)


def offline(**options):
    """A recorder without a sender, and its buffer of group rows."""
    groups = GroupBuffer(every=1, **options)
    return Recorder(Buffer(10_000, 60.0), None, groups=groups, rank=1), groups


def decoded(body, encoding):
    return decode(body, CONTENT_TYPE, SIZES, content_encoding=encoding).batch


def rows_of(taken):
    """Group, kind, step, sequence and bytes of recorded or decoded rows."""
    if hasattr(taken, "collectives"):
        rows = taken.collectives
        columns = [rows.group, rows.kind, rows.step, rows.sequence, rows.num_bytes]
        kinds, names = rows.kinds, [group.name for group in rows.groups]
    else:
        size = taken.num_rows
        columns = [
            taken.columns.get(name, [-1] * size)
            for name in ("group", "kind", "step", "sequence", "bytes")
        ]
        kinds, names = taken.kinds, [group.name for group in taken.groups]
    return [
        (names[group], kinds[kind], *map(int, rest))
        for group, kind, *rest in zip(*columns, strict=True)
    ]


def test_peer_sends_only_its_group_collectives(paceline, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "5")
    paceline.accepts = EXTENSIONS
    run = started(paceline)
    tp = run.group("tp", "tp", [2, 3])
    for step in range(2):
        with run.step(step):
            assert not run.is_recording
            with run.op("forward-compute", microbatch=0):
                for _ in range(2):
                    with run.op("all-reduce", group=tp, bytes=64):
                        pass
            run.end(run.begin("all-gather", group=tp), bytes=7)
    assert run.flush(WITHIN_S)
    batches = paceline.batches
    assert all(batch.is_alone and not batch.columns.num_ops for batch in batches)
    assert paceline.steps_done == []
    assert {batch.collectives.local_rank for batch in batches} == {5}
    assert {batch.collectives.groups for batch in batches} == {(RankGroup("tp", "tp", (2, 3)),)}
    assert [row for batch in batches for row in rows_of(batch)] == [
        ("tp", kind, step, number, size)
        for step in range(2)
        for kind, number, size in [
            ("all-reduce", 0, 64),
            ("all-reduce", 1, 64),
            ("all-gather", 0, 7),
        ]
    ]
    starts = [start for batch in batches for start in batch.collectives.start_ns.tolist()]
    assert starts == sorted(starts)
    assert abs(starts[0] - run.now_ns()) < 3600 * 10**9
    assert run.dropped == 0


def test_worker_sends_collectives_but_steps_count_only_operations(paceline):
    paceline.accepts = EXTENSIONS
    run = started(paceline, WORKER)
    tp = run.group("tp", "tp", [2, 3])
    with run.step(4), run.op("forward-compute", microbatch=0), run.op("all-reduce", group=tp):
        pass
    assert run.flush(WITHIN_S)
    [batch] = paceline.batches
    assert (batch.is_alone, batch.steps_done, batch.columns.num_ops) == (False, ((4, 1),), 1)
    assert rows_of(batch) == [("tp", "all-reduce", 4, 0, -1)]


def test_server_without_collectives_gets_only_operations(paceline, caplog):
    run, alone = started(paceline, WORKER), started(paceline)
    for each in (run, alone):
        tp = each.group("tp", "tp", [2, 3])
        with each.step(0), each.op("optimizer"), each.op("all-reduce", group=tp):
            pass
        assert each.flush(WITHIN_S)
    [batch] = paceline.batches
    assert (batch.rank, batch.columns.num_ops, batch.collectives) == (2, 1, None)
    assert alone.dropped_reasons == {"refused by the server": 1}
    assert "does not accept group collectives" in caplog.text


def test_peer_without_groups_gets_the_null_recorder(paceline):
    assert recorder(paceline.url, topology=PEER) is NULL
    with NULL.step(0), NULL.op("all-reduce", group=NULL.group("tp", "tp", [0, 1])):
        pass


@pytest.mark.parametrize(
    ("plan", "recorded", "grouped"),
    [
        (None, range(40), [0, 10, 20, 30]),
        ({"every": 4, "steps": 1}, range(0, 80, 4), [0, 40]),
        ({"every": 3, "steps": 2}, [s for s in range(30) if s % 3 < 2], [0, 15]),
        ({"every": 2, "steps": 5}, range(21), [0, 10, 20]),
        ({"every": 1, "steps": 1, "enabled": False}, [], []),
    ],
)
def test_groups_are_recorded_in_one_of_ten_recorded_steps(plan, recorded, grouped):
    plans = RecordingPlans()
    if plan is not None:
        settings = {"version": 1, "from_step": 0, "enabled": True, **plan}
        plans.update({"recording": settings})
    last = max([*recorded, 20]) + 1
    assert [step for step in range(last) if plans.records(step)] == [*recorded]
    groups = GroupBuffer()
    found = [step for step in range(last) if plans.records_groups(step, groups.every)]
    assert found == grouped


def test_group_sampling_is_set_by_the_environment(paceline, monkeypatch):
    monkeypatch.setenv("PACELINE_GROUP_EVERY", "3")
    run = recorder(paceline.url, topology=PEER, groups=True)
    tp = run.group("tp", "tp", [2, 3])
    assert [step for step in range(9) if run.records_groups(step)] == [0, 3, 6]
    with run.step(1), run.op("all-reduce", group=tp) as op:
        op.tell(bytes=4)
    with run.step(3):
        assert run.records_groups()
    assert not run._groups.has_rows


@pytest.mark.parametrize(
    ("name", "axis", "ranks", "reason"),
    [
        ("", "tp", [0, 1], "its name must have 1 to 64"),
        ("x" * 65, "tp", [0, 1], "its name must have 1 to 64"),
        ("a\nb", "tp", [0, 1], "unprintable characters"),
        (None, "tp", [0, 1], "its name must have 1 to 64"),
        ("tp", "xp", [0, 1], "its axis is 'xp'"),
        ("tp", "tp", [1], "at least two"),
        ("tp", "tp", [1, 1], "at least two"),
        ("tp", "tp", [-1, 1], "at least two"),
        ("tp", "tp", [0, 2], "rank, 1, is not a member"),
        ("tp", "tp", ["a", 1], "its ranks are unknown"),
        ("tp", "tp", None, "its ranks are unknown"),
        ("tp", "tp", range(65_537), "at most 65536 members"),
    ],
)
def test_invalid_group_is_logged_once_and_not_recorded(name, axis, ranks, reason, caplog):
    run, groups = offline()
    for _ in range(2):
        assert run.group(name, axis, ranks) is NO_GROUP
    with run.step(0), run.op("all-reduce", group=NO_GROUP):
        pass
    run.record_group("all-reduce", NO_GROUP, 0, 5)
    assert not groups.has_rows
    assert run.dropped == 0
    [warning] = caplog.messages
    assert reason in warning


def test_redeclared_group_is_reused_and_groups_are_limited():
    run, groups = offline()
    first = run.group("tp", "tp", [0, 1])
    assert run.group("tp", "tp", (0, 1)) is first
    others = [run.group(f"g{at}", "", [1, 2 + at]) for at in range(MAX_GROUPS)]
    assert others[-1] is NO_GROUP
    assert NO_GROUP not in others[:-1]
    assert len(groups.groups) == MAX_GROUPS


def test_concurrent_step_counting_raises_nothing():
    class Changing(dict[int, int]):
        """Changes during iteration, as by the sender thread."""

        is_changing = True

        def __iter__(self):
            steps = super().__iter__()
            if self.is_changing:
                self[min(self) - 1] = 1
            return steps

    run, groups = offline()
    tp = run.group("tp", "tp", [0, 1])
    groups._num_of_step = counted = Changing()
    num_steps = client_groups.MAX_COUNTED_STEPS + 5
    for step in range(num_steps):
        with run.step(step), run.op("all-reduce", group=tp):
            pass
    taken = groups.take()
    assert taken is not None
    assert list(taken.columns["step"]) == list(range(num_steps))
    assert len(counted) > client_groups.MAX_COUNTED_STEPS
    counted.is_changing = False
    with run.step(num_steps), run.op("all-reduce", group=tp):
        pass
    assert len(counted) == client_groups.MAX_COUNTED_STEPS
    assert num_steps in counted


def test_rows_beyond_the_limits_are_dropped_and_counted(monkeypatch):
    run, groups = offline()
    tp = run.group("tp", "tp", [0, 1])
    with run.step(0):
        for _ in range(MAX_ROWS_OF_STEP + 2):
            with run.op("all-reduce", group=tp):
                pass
    monkeypatch.setattr(groups, "max_rows", MAX_ROWS_OF_STEP + 1)
    for _ in range(3):
        run.record_group("all-reduce", tp, 1, 5)
    assert groups.dropped == {STEP_FULL: 2, FULL: 2}
    taken = []
    while (batch := groups.take()) is not None:
        assert batch.num_rows <= client_groups.MAX_ROWS
        taken += rows_of(batch)
    assert len(taken) == MAX_ROWS_OF_STEP + 1
    assert taken[-1] == ("tp", "all-reduce", 1, 0, -1)


def test_invalid_rows_are_dropped_and_the_valid_one_kept(paceline):
    paceline.accepts = EXTENSIONS
    run = started(paceline)
    tp = run.group("tp", "tp", [2, 3])
    with run.step(0):
        for kind in ("", "x" * 65, None, "a\0", 7):
            with run.op(kind, group=tp):
                pass
        for invalid in ({"sequence": -1}, {"sequence": 2**31}, {"sequence": "a"}):
            with run.op("all-reduce", group=tp, **invalid):
                pass
        run.record_group("all-reduce", tp, 0, -5)
        run.record_group("all-reduce", tp, 0, 1.5)
        with run.op("all-reduce", group=tp, bytes="many", sequence=77):
            pass
    assert run.flush(WITHIN_S)
    assert [row for batch in paceline.batches for row in rows_of(batch)] == [
        ("tp", "all-reduce", 0, 77, -1)
    ]
    assert run.dropped_reasons == {INVALID: 10}


def test_rows_with_external_durations_need_no_start(paceline):
    paceline.accepts = EXTENSIONS
    run = started(paceline)
    tp, world = run.group("tp", "tp", [2, 3]), run.group("world", "", range(4))
    for number in range(2):
        run.record_group("all-reduce", tp, 0, 500 + number)
        run.record_group("all-reduce", world, 0, 900, sequence=40 + number, num_bytes=8)
    run.step_done(0)
    assert run.flush(WITHIN_S)
    [batch] = paceline.batches
    assert rows_of(batch) == [
        ("tp", "all-reduce", 0, 0, -1),
        ("world", "all-reduce", 0, 40, 8),
        ("tp", "all-reduce", 0, 1, -1),
        ("world", "all-reduce", 0, 41, 8),
    ]
    assert {*batch.collectives.start_ns.tolist()} == {-1}
    assert batch.collectives.duration_ns.tolist() == [500, 900, 501, 900]


def test_gpu_row_duration_is_the_time_on_the_stream():
    torch = FakeTorch(Gpu())
    groups = GroupBuffer(every=1)
    run = Recorder(Buffer(1000, 60.0), None, cuda=CudaTiming(torch), groups=groups, rank=1)
    tp = run.group("tp", "tp", [0, 1])
    with run.op("all-reduce", step=0, group=tp, bytes=3):
        torch.cuda.work(20 * MS)
    assert groups.take() is None or groups.is_stalled
    taken = None
    while taken is None:
        taken = groups.take()
    assert rows_of(taken) == [("tp", "all-reduce", 0, 0, 3)]
    assert taken.columns["duration_ns"][0] >= 20 * MS
    assert not groups.is_stalled


@pytest.mark.parametrize("end", [Recorder.turn_off, lambda run: run._buffer.abandon()])
def test_turned_off_and_abandoned_recorders_hold_no_rows(end):
    run, groups = offline()
    tp = run.group("tp", "tp", [0, 1])
    run.record_group("all-reduce", tp, 0, 5)
    end(run)
    run.record_group("all-reduce", tp, 0, 5)
    assert not groups.has_rows


def test_peer_with_a_spool_sends_group_rows(paceline, tmp_path):
    paceline.accepts = EXTENSIONS
    run = started(paceline, spool_dir=tmp_path)
    tp = run.group("tp", "tp", [2, 3])
    run.record_group("all-reduce", tp, 0, 5)
    run.step_done(0)
    assert run.flush(WITHIN_S)
    [batch] = paceline.batches
    assert rows_of(batch) == [("tp", "all-reduce", 0, 0, -1)]


class Mesh:
    mesh_dim_names = ("tp",)

    def get_group(self):
        return [4, 5]


def test_group_ranks_are_read_from_a_mesh_or_a_sequence():
    assert group_ranks(Mesh()) == [4, 5]
    assert group_ranks(range(2)) == [0, 1]


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [("LOCAL_RANK", "3", 3), ("SLURM_LOCALID", "0", 0), ("LOCAL_RANK", "x", None), ("", "", None)],
)
def test_local_rank_is_read_from_the_launcher(monkeypatch, name, text, found):
    monkeypatch.setattr(os, "environ", {name: text})
    assert local_rank() == found


def test_server_decodes_packed_and_plain_group_rows_the_same():
    run, groups = offline()
    run.group("tp", "tp", [0, 1])
    odd = run.group("odd", "ep", [1, 5, 6])
    for number in range(300):
        start_ns = 10**18 + number * 1000 - (number % 7) * 5000
        run.record_group("all-to-all", odd, number // 100, 900 + number % 5, start_ns, None, number)
    batch, worker = batch_of([], [], groups=groups.take()), Worker(1, 0, 0, "n", local_rank=1)
    sizes = []
    for accepts in (["collectives"], ["collectives", "packed"]):
        body = encode(worker, 1, 0, batch, accepts)
        sizes.append(len(body))
        read = decoded(body, "gzip" if "packed" in accepts else "")
        assert read.collectives.groups == (RankGroup("odd", "ep", (1, 5, 6)),)
        assert read.collectives.duration_ns.tolist() == [900 + at % 5 for at in range(300)]
        assert rows_of(read) == [
            ("odd", "all-to-all", at // 100, at % 100, at) for at in range(300)
        ]
    assert sizes[1] < sizes[0] / 8
