"""PyTorch's flight recorder, read by the sender thread: all groups, durations without starts."""

import json
import logging
import sys
import time
from typing import Any

import pytest
from paceline_client import NULL
from paceline_client.integrations import flight_recorder
from paceline_client.integrations.flight_recorder import (
    OVERWRITTEN,
    UNFINISHED,
    FlightRecorder,
    kind_of,
    parsed,
)
from paceline_client.recording.groups import GroupBuffer

from tests.client.recorders import WITHIN_S
from tests.client.recording.test_groups import EXTENSIONS, PEER, rows_of, started

BEGUN_NS = 1_790_000_000_000_000_000


@pytest.fixture(autouse=True)
def _quiet(caplog):
    caplog.set_level(logging.WARNING)


def entry(record_id, group, seq, ms, *, name="nccl:all_reduce", at_ns=None, **changes):
    """An entry as written by PyTorch 2.13 with NCCL."""
    found = {
        "collective_seq_id": seq,
        "duration_ms": ms,
        "input_dtypes": ["BFloat16"],
        "input_sizes": [[4, 8]],
        "is_p2p": False,
        "op_id": record_id + 1,
        "output_dtypes": ["BFloat16"],
        "output_sizes": [[4, 8]],
        "p2p_seq_id": 0,
        "pg_id": int(group[0]),
        "process_group": group,
        "profiling_name": name,
        "record_id": record_id,
        "retired": True,
        "state": "completed",
        "time_created_ns": BEGUN_NS + 1000 * record_id if at_ns is None else at_ns,
        "time_discovered_completed_ns": 0,
        "time_discovered_started_ns": 0,
        "timeout_ms": 600_000,
    }
    found |= changes
    return {key: value for key, value in found.items() if value is not None}


WORLD, TP, EP = ["0", "default_pg"], ["1", "mesh_tp"], ["2", "EXPERT_MODEL_PARALLEL_GROUP"]
CONFIG = {
    "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"},
    "1": {"name": "1", "desc": "mesh_tp", "ranks": "[2, 3]"},
    "2": {"name": "2", "desc": EP[1], "ranks": "[2, 3]"},
}


def dump_of(entries, config=CONFIG):
    about = {"comm_lib_version": "2.30", "entries": entries, "nccl_comm_state": {}}
    return json.dumps({**about, "pg_config": config, "pg_status": {}, "version": "2.10"}).encode()


class FakeDump:
    """Returns the dumps in order, the last one repeatedly."""

    def __init__(self, *dumps):
        self.dumps = [*dumps]
        self.num_reads = 0

    def __call__(self):
        self.num_reads += 1
        return self.dumps.pop(0) if len(self.dumps) > 1 else self.dumps[0]


def reader(*dumps, ranks=None, axes=None):
    found = FlightRecorder(FakeDump(*dumps), lambda: ranks or {}, axes or {})
    return found, GroupBuffer(every=1)


def poll_rows(found, groups):
    found._next_poll_s = 0.0
    found.poll(groups)
    taken = groups.take()
    return [] if taken is None else rows_of(taken)


def test_collectives_of_every_group_in_a_step_become_rows():
    entries = [
        entry(0, WORLD, 7, 1.5, at_ns=BEGUN_NS - 1),  # before the step
        entry(1, TP, 11, 2.5),
        entry(2, TP, 12, 0.25, name="nccl:_all_gather_base", output_sizes=[[8, 8]]),
        entry(3, EP, 3, 9.0, name="nccl:all_to_all"),
        entry(4, WORLD, 8, 0.0),
        entry(5, WORLD, 8, 4.0, is_p2p=True, name="nccl:send 0->1"),
        entry(6, WORLD, 9, 4.0, name="nccl:coalesced"),
        entry(7, TP, 13, 5.0, at_ns=BEGUN_NS + 10**9),  # after the step
    ]
    found, groups = reader(dump_of(entries))
    found.poll(groups)
    assert found._dump.num_reads == 0  # nothing is read before a step has ended
    found.step_ended(40, BEGUN_NS, BEGUN_NS + 10**9)
    found.poll(groups)
    taken = groups.take()
    assert rows_of(taken) == [
        ("mesh_tp", "all-reduce", 40, 11, 64),
        ("mesh_tp", "all-gather", 40, 12, 128),
        ("EXPERT_MODEL_PARALLEL_GROUP", "all-to-all", 40, 3, 64),
        ("default_pg", "all-reduce", 40, 8, 64),
    ]
    assert "start_ns" not in taken.columns
    assert list(taken.columns["duration_ns"]) == [2_500_000, 250_000, 9_000_000, 0]
    assert [(group.axis, group.ranks) for group in groups.groups] == [
        ("tp", (2, 3)),
        ("ep", (2, 3)),
        ("", (0, 1, 2, 3)),
    ]
    found._next_poll_s = 0.0
    found.poll(groups)
    assert found._dump.num_reads == 1


def test_a_step_is_read_when_its_last_collective_has_ended():
    first = [entry(0, TP, 1, 1.0), entry(1, TP, 2, None, retired=False, state="started")]
    later = [entry(0, TP, 1, 1.0), entry(1, TP, 2, 3.0)]
    found, groups = reader(dump_of(first), dump_of(later))
    found.step_ended(0, BEGUN_NS, time.time_ns())
    assert poll_rows(found, groups) == []
    assert poll_rows(found, groups) == [
        ("mesh_tp", "all-reduce", 0, 1, 64),
        ("mesh_tp", "all-reduce", 0, 2, 64),
    ]
    assert groups.dropped == {}


def test_unfinished_collective_is_dropped_and_counted():
    entries = [entry(0, TP, 1, 1.0), entry(1, TP, 2, None, retired=False)]
    found, groups = reader(dump_of(entries))
    found.step_ended(0, BEGUN_NS, BEGUN_NS + 10**9)  # long before now
    assert poll_rows(found, groups) == [("mesh_tp", "all-reduce", 0, 1, 64)]
    assert groups.dropped == {UNFINISHED: 1}


def test_overwritten_entries_are_counted_and_logged_once(caplog):
    found, groups = reader(
        dump_of([entry(at, TP, at, 1.0) for at in range(3)]),
        dump_of([entry(at, TP, at, 1.0) for at in range(50, 53)]),
        dump_of([entry(at, TP, at, 1.0) for at in range(90, 93)]),
    )
    for step, first in enumerate((0, 45, 80)):
        begun_ns = BEGUN_NS + 1000 * first
        found.step_ended(step, begun_ns, begun_ns + 20_000)
        assert len(poll_rows(found, groups)) == 3
    assert groups.dropped == {OVERWRITTEN: 47 + 37}
    [warning] = caplog.messages
    assert "TORCH_FR_BUFFER_SIZE" in warning


def test_entries_overwritten_while_their_step_is_pending_are_counted():
    """Two steps, entries 0 to 4 and 5 to 9; entry 9 is unfinished."""
    running = {"retired": False, "state": "started"}
    ended = [entry(at, TP, at, 1.0) for at in range(9)]
    found, groups = reader(
        dump_of([*ended, entry(9, TP, 9, None, **running)]),
        dump_of([entry(at, TP, at, 1.0) for at in range(7, 12)]),
    )
    now_ns = time.time_ns()  # later than the entries were made
    found.step_ended(0, BEGUN_NS, BEGUN_NS + 5_000)
    found.step_ended(1, BEGUN_NS + 5_000, now_ns)
    assert [row[2:4] for row in poll_rows(found, groups)] == [(0, at) for at in range(5)]
    assert groups.dropped == {}
    assert [row[2:4] for row in poll_rows(found, groups)] == [(1, at) for at in range(7, 12)]
    assert groups.dropped == {OVERWRITTEN: 2}


def test_step_ending_during_a_read_is_read_by_the_next_poll():
    entries = [entry(at, TP, at, 1.0) for at in range(3)]

    def dump():
        if len(found._ended) == 1:
            found.step_ended(1, BEGUN_NS + 2_000, BEGUN_NS + 4_000)
            return dump_of(entries)
        return dump_of([*entries, entry(3, TP, 3, 1.0)])

    found, groups = FlightRecorder(dump, dict, {}), GroupBuffer(every=1)
    found.step_ended(0, BEGUN_NS, BEGUN_NS + 2_000)
    assert [row[2:4] for row in poll_rows(found, groups)] == [(0, 0), (0, 1)]
    found.step_ended(2, BEGUN_NS + 9_000, BEGUN_NS + 9_001)
    assert [row[2:4] for row in poll_rows(found, groups)] == [(1, 2), (1, 3)]


@pytest.mark.parametrize("config", [{}, {"": {"desc": "", "name": "", "ranks": "[]"}}])
def test_dump_without_durations_is_logged_once_and_not_read_again(config, caplog):
    """As with gloo, whose dump also lacks the groups."""
    entries = [entry(0, ["1", "undefined"], 1, None, name="gloo:all_reduce")]
    found, groups = reader(dump_of(entries, config), ranks={"1": [2, 3]})
    for step in range(3):
        found.step_ended(step, BEGUN_NS, BEGUN_NS + 10**9)
        assert poll_rows(found, groups) == []
    assert found._dump.num_reads == 1
    [warning] = caplog.messages
    assert "TORCH_NCCL_ENABLE_TIMING=1" in warning


def test_groups_missing_from_the_dump_are_resolved_by_torch():
    groups_of = [["7", "undefined"], ["8", "undefined"], ["9", "data"], ["10", "alone"]]
    ranks = {"7": [2, 3], "8": [2, 3], "9": [1, 3], "10": [3]}
    entries = [entry(at, group, at, 1.0) for at, group in enumerate(groups_of)]
    found, groups = reader(dump_of(entries, {}), ranks=ranks, axes={"data": "ep"})
    found.step_ended(0, BEGUN_NS, BEGUN_NS + 10**9)
    assert [row[0] for row in poll_rows(found, groups)] == ["group", "group 2", "data"]
    assert [group.axis for group in groups.groups] == ["", "", "ep"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nccl:all_reduce", "all-reduce"),
        ("nccl:_all_gather_base", "all-gather"),
        ("nccl:_reduce_scatter_base", "reduce-scatter"),
        ("gloo:barrier", "barrier"),
        ("nccl:recv 1<-0", ""),
        ("nccl:coalesced", ""),
        (None, ""),
    ],
)
def test_collective_kinds_use_the_names_of_the_client(name, kind):
    assert kind_of(name) == kind


def test_dump_is_parsed_in_any_json_layout():
    many = [entry(at, TP, at, 1.0) for at in range(200)]
    for indent in (None, 2):
        entries, about = parsed(json.dumps(json.loads(dump_of(many)), indent=indent))
        assert entries == many
        assert (about["entries"], about["version"]) == ([], "2.10")
    assert parsed('{"entries": [], "version": "1"}') == ([], {"entries": [], "version": "1"})
    assert parsed('{"version": "1"}') == ([], {"version": "1"})


@pytest.mark.parametrize(
    "dump",
    [
        b"", b"{", b"[]", b'{"entries": [', b'{"entries": [1]}', b'{"entries": [{}', b"\xff",
        b'{"entries": [{"process_group": 5, "time_created_ns": "x", "retired": 1}]}',
        dump_of([{**entry(0, TP, 1, 1.0), "input_sizes": 3, "profiling_name": 5}]),
        dump_of([entry(0, TP, 1, 1.0, process_group=[["a"], "b"])]),
        dump_of([entry(0, TP, -5, 1.0)]), dump_of([entry(0, TP, 1, "x")]),
        dump_of([entry(0, TP, 1, 1.0)], {"1": {"ranks": "[2, 2]"}}),
        dump_of([entry(0, TP, 1, 1.0)], {"1": {"ranks": "{"}}),
    ],
)  # fmt: skip
def test_invalid_dump_does_not_stop_recording(dump, paceline, caplog):
    paceline.accepts = EXTENSIONS
    run = started(paceline)
    assert run.read_collectives(FlightRecorder(lambda: dump, dict, {}))
    for step in range(2):
        with run.step(step):
            pass
    tp = run.group("tp", "tp", [2, 3])
    run.record_group("all-reduce", tp, 5, 1)
    run.step_done(5)
    assert run.flush(WITHIN_S)
    assert [row for batch in paceline.batches for row in rows_of(batch)] == [
        ("tp", "all-reduce", 5, 0, -1)
    ]


def test_rows_of_each_step_reach_the_server(paceline):
    """An entry belongs to the step during which it was created, by the clock of PyTorch."""
    paceline.accepts = EXTENSIONS
    run = started(paceline)
    entries: list[dict[str, Any]] = []
    assert run.read_collectives(FlightRecorder(lambda: dump_of(entries), dict, {}))
    for step in range(3):
        with run.step(step):
            entries.append(entry(step, TP, step, 1.0, at_ns=time.time_ns()))
    paceline.wait_for(
        lambda: sum(batch.num_group_rows for batch in paceline.batches) == 3, WITHIN_S
    )
    assert [row for batch in paceline.batches for row in rows_of(batch)] == [
        ("mesh_tp", "all-reduce", step, step, 64) for step in range(3)
    ]
    run.close()


def test_attach_needs_a_recorder_and_pytorch(paceline, monkeypatch, caplog):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    run = started(paceline, PEER)
    assert not flight_recorder.attach(run)
    assert "PyTorch has not been imported" in caplog.text
    monkeypatch.setattr(flight_recorder, "_dump", lambda: FakeDump(b"{}"))
    assert flight_recorder.attach(run)
    assert not flight_recorder.attach(NULL)
