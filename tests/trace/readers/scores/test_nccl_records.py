"""The Inspector's records as the table of collectives, and whom the others waited for by it."""

import json

import numpy as np
import pytest

from app.trace.collectives import RankGroup, RankPlace
from app.trace.readers.input_file import BodyText
from app.trace.readers.scores import nccl_inspector
from app.trace.readers.scores.nccl_records import (
    CollectiveRecord,
    CollectiveTable,
    Process,
    RecordOrigin,
)
from tests.trace.readers.scores.score_texts import collective, header


def texts_of(*files):
    return [
        BodyText(f"{at}.log", "".join(json.dumps(line) + "\n" for line in lines).encode())
        for at, lines in enumerate(files)
    ]


def table_of(*files):
    return nccl_inspector.read(texts_of(*files), keeps_collectives=True).collectives


def rows(table):
    return sorted(
        zip(
            (table.groups[at].name for at in table.group.tolist()),
            (table.kinds[at] for at in table.kind.tolist()),
            table.sequence.tolist(),
            table.rank.tolist(),
            np.round(1e6 * table.stay_s, 6).tolist(),
            strict=True,
        )
    )


def test_every_communicator_and_rank_is_in_the_table():
    """Four processes, in one communicator of all and in two of pairs that count for themselves."""
    files = []
    for rank in range(4):
        world = [header(rank, num_ranks=4), collective(5, 100 + rank, coll_msg_size_bytes=64)]
        pair = header(rank % 2, num_ranks=2, comm=f"0x{rank // 2}", pid=rank)
        files.append([*world, pair, collective(1, 50 + rank, "AllGather"), collective(1, 9)])
    table = table_of(*files)
    assert table.groups == (
        RankGroup("0x7f", "", (0, 1, 2, 3)),
        RankGroup("0x0", "", (0, 1)),
        RankGroup("0x1", "", (2, 3)),
    )
    assert rows(table) == sorted(
        [
            *(("0x7f", "all-reduce", 5, rank, 100.0 + rank) for rank in range(4)),
            *((f"0x{rank // 2}", "all-gather", 1, rank, 50.0 + rank) for rank in range(4)),
            *((f"0x{rank // 2}", "all-reduce", 1, rank, 9.0) for rank in range(4)),
        ]
    )
    assert np.isnan(table.start_s).all()
    assert sorted(table.num_bytes.tolist()) == [-1] * 8 + [64] * 4
    assert table.place(3) == RankPlace(3, host="host-a")


def verbose(sn, time_us, *channels):
    events = [{"kernel_start_ts": begin, "kernel_stop_ts": end} for begin, end in channels]
    return collective(sn, time_us, event_trace_ts={"coll_start_ts": 1, "kernel_events": events})


def test_a_stay_is_from_the_first_channel_s_start_to_the_last_one_s_end():
    """Its longest channel takes 900 us; a channel that starts early is in it for longer."""
    table = table_of(
        [header(0), verbose(1, 900, (1_000_000, 1_000_400), (1_000_300, 1_001_200))],
        [header(1), verbose(1, 300, (1_000_900, 1_001_200)), verbose(2, 7, (0, 5))],
    )
    assert rows(table) == [
        ("0x7f", "all-reduce", 1, 0, 1200.0),
        ("0x7f", "all-reduce", 1, 1, 300.0),
        ("0x7f", "all-reduce", 2, 1, 7.0),  # of a start that is not known
    ]
    started = dict(zip(table.rank.tolist()[:2], table.start_s.tolist()[:2], strict=True))
    assert started == {0: 0.0, 1: pytest.approx(900e-6)}


def test_without_all_ranks_there_is_no_table():
    pairs = [[header(at % 2, comm=f"0x{at // 2}", pid=at), collective(1, 10)] for at in range(4)]
    assert table_of(*pairs) is None
    assert table_of([header(0, num_ranks=1), collective(1, 10)]) is None
    assert nccl_inspector.read(texts_of([header(0), collective(1, 5)])).collectives is None


def test_a_communicator_that_is_not_whole_and_a_name_used_again_are_left_out():
    world = [[header(rank, num_ranks=3), collective(1, 10 + rank)] for rank in range(3)]
    pair = [header(0, comm="0x1", pid=0), collective(1, 10)]
    again = [collective(2, 5), collective(2, 6)]
    table = table_of(world[0] + pair, world[1] + [header(1, num_ranks=3)] + again, world[2])
    assert [group.name for group in table.groups] == ["0x7f"]
    assert {row[2] for row in rows(table)} == {1}


def test_collectives_beyond_the_limit_are_counted():
    process = Process("n", 1)
    table = CollectiveTable({process: 0}, max_rows=2)
    for sn in range(5):
        table.add(
            CollectiveRecord(RecordOrigin(process, "0x1", 0, 1, None), "AllReduce", sn, 1.0, None)
        )
    table.add(
        CollectiveRecord(
            RecordOrigin(Process("n", 2), "0x1", 0, 1, None), "AllReduce", 1, 1.0, None
        )
    )
    assert table.num_left_out == 4
    assert table.collectives() is None
