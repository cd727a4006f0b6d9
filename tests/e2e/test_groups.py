"""Tensor-parallel peers record inside their groups, and the stored window has all their rows."""

import io
import zipfile

import numpy as np
import paceline_client
import pytest
from paceline_client import Topology

from app.api.service.replays import ReplayCache, window_key
from app.store.database import Store
from app.trace.readers.published import trace_files
from tests.client.recorders import WITHIN_S
from tests.e2e.stack import TOKEN, Stack, wait_until

pytestmark = pytest.mark.nightly

JOB, DP, TP, STEPS, PER_STEP = "inside", 2, 4, 8, 3
COMPILED_WITHIN_S = 180.0  # the first analysis in a checkout compiles


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    directory = tmp_path_factory.mktemp("groups")
    with Stack(directory, f"sqlite:///{directory / 'paceline.db'}", window_steps="4") as found:
        yield found


def start(stack, rank):
    topology = Topology(
        rank=rank, dp_rank=rank // TP, stage=0, dp_size=DP, pp_size=1, tp_size=TP,
        records=rank % TP == 0,
    )  # fmt: skip
    return paceline_client.start(
        JOB, stack.url, TOKEN, topology=topology, run_key="r", host=f"n{rank // TP}",
        local_rank=rank % TP, groups=True, group_every=2, gc_pauses=False,
    )  # fmt: skip


def train(runs, steps):
    groups = [
        run.group("tp", "tp", range(rank // TP * TP, rank // TP * TP + TP))
        for rank, run in enumerate(runs)
    ]
    for step in steps:
        for run, group in reversed([*zip(runs, groups, strict=True)]):
            with run.step(step):
                for optype in ("forward-compute", "backward-compute"):
                    with run.op(optype, microbatch=0, chunk=0):
                        for _ in range(PER_STEP):
                            with run.op("all-reduce", group=group, bytes=64):
                                pass
                with run.op("optimizer"):
                    pass


def downloaded(stack, window, directory):
    """The window, read from the trace files that the server exports."""
    answer = stack.http.get(f"/jobs/{JOB}/windows/{window}/trace").raise_for_status()
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        archive.extractall(directory)
    [trace] = directory.glob("trace-*.parquet")
    return trace_files.read(trace)


def test_every_member_of_a_group_is_in_the_stored_window(stack, tmp_path):
    runs = [start(stack, rank) for rank in range(DP * TP)]
    train(runs, range(STEPS))
    assert all(run.flush(WITHIN_S) for run in runs)
    store = Store(stack.database_url)

    def windows():
        found = stack.get(f"/jobs/{JOB}/windows")["items"]
        return [each for each in found if each["state"] == "complete"]

    def collectives(first_step):
        with store.read() as conn:
            key = window_key(conn, f"default/{JOB}", f"1-{first_step}")
        return ReplayCache(store).load(key).collectives

    def is_whole():
        if len(windows()) < STEPS // 4:
            return False
        tables = [collectives(first) for first in (0, 4)]
        return all(each and each.num_rows == 2 * 2 * PER_STEP * DP * TP for each in tables)

    wait_until(is_whole, "both windows have all rows", within_s=COMPILED_WITHIN_S)
    for first in (0, 4):
        table = collectives(first)
        assert [(each.name, each.axis, each.ranks) for each in table.groups] == [
            ("tp (ranks 0, 1, 2, 3)", "tp", (0, 1, 2, 3)),
            ("tp (ranks 4, 5, 6, 7)", "tp", (4, 5, 6, 7)),
        ]
        assert table.kinds == ("all-reduce",)
        assert sorted({*table.step.tolist()}) == [first, first + 2]
        for rank in range(DP * TP):
            mine = table.select(table.rank == rank)
            assert {*mine.group.tolist()} == {rank // TP}
            for step in (first, first + 2):
                numbers = mine.sequence[mine.step == step].tolist()
                assert sorted(numbers) == [*range(2 * PER_STEP)]
            worker = table.place(rank)
            assert (worker.dp_rank, worker.stage) == (rank // TP, 0)
            assert (worker.host, worker.local_rank) == (f"n{rank // TP}", rank % TP)
        assert (table.stay_s >= 0).all()
        assert np.isfinite(table.start_s).all()
        assert {*table.num_bytes.tolist()} == {64}
    read, stored = downloaded(stack, "1-4", tmp_path).collectives, collectives(4)
    assert (read.groups, read.places, read.num_rows) == (
        stored.groups, stored.places, stored.num_rows
    )  # fmt: skip
    assert sorted(read.stay_s.tolist()) == sorted(stored.stay_s.tolist())
    job = stack.get(f"/jobs/{JOB}")
    num_rows = 2 * 2 * 2 * PER_STEP * DP * TP
    assert job["ingest"]["in_groups"] == {
        "accepted": num_rows, "duplicate": 0, "late": 0, "refused": 0
    }  # fmt: skip
    assert job["ingest"]["accepted"] == DP * 3 * STEPS
    assert job["ingest"]["late"] == job["ingest"]["conflict"] == job["ingest"]["lost_batches"] == 0
    assert job["silent_ranks"] == []
    for run in runs:
        run.close()
    assert [run.dropped for run in runs] == [0] * DP * TP
