"""Collectives inside groups in a batch: equivalent forms and refusals."""

import json
import re
from typing import Any

import msgspec
import numpy as np
import pytest

from app.errors import InvalidRequest, PacelineError, TooLarge
from app.ingest.batch import MAX_DURATION_NS
from app.ingest.wire import collectives
from app.ingest.wire.codec import BINARY_TYPE, JSON_TYPE, decode, encode, read_entry
from app.ingest.wire.collectives import (
    GROUP_DTYPES,
    MAX_GROUP_ROWS,
    MAX_MEMBERS,
    members_of,
    ranks_of,
)
from app.trace.collectives import RankGroup
from app.trace.job import Parallelism
from tests.ingest.wire.packing import packed
from tests.ingest.wire.test_body_docs import COMMENTS_FROM, PAGE, blocks

SIZES = Parallelism(dp_size=2, pp_size=1, tp_size=4)
COLUMNS: dict[str, list[Any]] = {
    "step": [100, 100, 101],
    "group": [0, 1, 0],
    "kind": ["all-reduce", "all-to-all", "all-reduce"],
    "sequence": [0, 0, 5],
    "start_ns": [1_000_000, 2_000_000, 9_000_000],
    "duration_ns": [3_000, 40, 500],
    "bytes": [4096, -1, 4096],
}
GROUPS: list[dict[str, Any]] = [
    {"name": "tp", "axis": "tp", "ranks": [4, 5, 6, 7]},
    {"name": "world", "runs": [[0, 8, 1]]},
]


def fields(**changes):
    """A batch of rank 7, which records only collectives."""
    about = {"groups": GROUPS, "local_rank": 3, "alone": True, "columns": COLUMNS, **changes}
    return {
        "version": 1, "epoch": 1, "rank": 7, "dp_rank": 1, "stage": 0, "batch_seq": 12,
        "steps_done": [], "rows": [],
        "collectives": {name: value for name, value in about.items() if value is not None},
    }  # fmt: skip


def binary(batch, pack=None):
    """The same as msgpack; `pack` makes a column of (name, values)."""
    batch = json.loads(json.dumps(batch))
    empty = dict.fromkeys(
        ("step", "optype", "start_ns", "duration_ns", "seq_id", "mc", "mb_id"), b""
    )
    del batch["rows"]
    batch |= {"optypes": [], "columns": empty}
    about = batch["collectives"]
    if "columns" in about:
        columns = about["columns"]
        kinds = about["kinds"] = sorted({*columns["kind"]})
        columns["kind"] = [kinds.index(kind) for kind in columns["kind"]]
        about["columns"] = {
            name: pack(name, values) if pack else np.array(values, GROUP_DTYPES[name]).tobytes()
            for name, values in columns.items()
        }
    return msgspec.msgpack.encode(batch)


def decoded(body, media=JSON_TYPE, **options):
    body = json.dumps(body).encode() if media == JSON_TYPE else body
    return decode(body, media, SIZES, **options)


def decoded_binary(body):
    return collectives.groups_from_binary(msgspec.Raw(body))


def content_of(batch):
    rows = batch.collectives
    named = {
        name: getattr(rows, name).tolist() for name in ("step", "group", "sequence", "start_ns")
    }
    return named | {
        "groups": rows.groups,
        "kind": [rows.kinds[at] for at in rows.kind.tolist()],
        "duration_ns": rows.duration_ns.tolist(),
        "bytes": rows.num_bytes.tolist(),
        "about": (rows.local_rank, rows.is_alone),
    }


def test_all_forms_of_collectives_decode_to_the_same_rows():
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in zip(*COLUMNS.values(), strict=True)]
    del rows[1]["bytes"]
    in_binary = binary(fields())
    in_packed = binary(
        fields(),
        lambda name, values: packed(
            values, 2 if name == "start_ns" else 1, durations=COLUMNS["duration_ns"]
        ),
    )
    found = [
        decoded(fields()),
        decoded(fields(columns=None, rows=rows)),
        decoded(in_binary, BINARY_TYPE),
        decoded(in_packed, BINARY_TYPE),
    ]
    assert [(each.rejected, each.errors) for each in found] == [(0, [])] * 4
    expected = {
        **COLUMNS,
        "groups": (
            RankGroup("tp", "tp", (4, 5, 6, 7)),
            RankGroup("world", "", (0, 1, 2, 3, 4, 5, 6, 7)),
        ),
        "about": (3, True),
    }
    for each in found:
        assert content_of(each.batch) == expected
        assert content_of(read_entry(encode(each.batch))) == expected
    assert encode(found[2].batch) == in_binary


def test_the_worked_example_is_the_same_in_both_forms():
    [text] = [text for text in blocks("json") if '"collectives"' in text]
    [block] = re.findall(r"reads exactly this -->\n```\n(.*?)```", PAGE, re.DOTALL)
    body = bytes.fromhex("".join(line[:COMMENTS_FROM] for line in block.splitlines()))
    assert f"in binary, {len(body)} bytes" in PAGE
    rows, batch = decoded_binary(body), decoded(json.loads(text)).batch
    assert content_of(batch)["duration_ns"] == rows.duration_ns.tolist() == [3_000_000]
    assert batch.collectives.groups == rows.groups == (RankGroup("tp", "tp", (4, 5, 6, 7)),)
    assert (rows.local_rank, rows.is_alone, rows.num_bytes.tolist()) == (3, True, [4096])
    for number in (MAX_GROUP_ROWS, MAX_MEMBERS):
        assert f"{number:,}" in PAGE
    assert all(f"| `{name}` |" in PAGE for name in GROUP_DTYPES)


def test_batch_without_collectives_encodes_without_the_field():
    batch = fields()
    del batch["collectives"]
    for body in (batch, {**batch, "collectives": None}):
        found = decoded(body).batch
        assert (found.collectives, found.is_alone, found.num_group_rows) == (None, False, 0)
        assert b"collectives" not in encode(found)
    found = decoded(fields(columns=None)).batch  # a rank that only announces itself
    assert (found.is_alone, found.num_group_rows) == (True, 0)


@pytest.mark.parametrize(
    ("column", "value", "code"),
    [
        ("step", -1, "collectives_step_out_of_range"),
        ("step", 2_000_001, "collectives_step_out_of_range"),
        ("group", 2, "collectives_group_out_of_range"),
        ("group", -1, "collectives_group_out_of_range"),
        ("sequence", -1, "collectives_sequence_out_of_range"),
        ("sequence", 2**31, "collectives_sequence_out_of_range"),
        ("start_ns", -2, "collectives_start_ns_out_of_range"),
        ("duration_ns", MAX_DURATION_NS + 1, "collectives_duration_ns_out_of_range"),
        ("duration_ns", -1, "collectives_duration_ns_out_of_range"),
        ("bytes", 2**53 + 1, "collectives_bytes_out_of_range"),
    ],
)
def test_invalid_row_is_refused_and_the_others_accepted(column, value, code):
    columns = {**COLUMNS, column: [COLUMNS[column][0], value, COLUMNS[column][2]]}
    found = decoded(fields(columns=columns), last_step=1_000_000)
    assert found.rejected == 1
    assert [(each.index, each.code) for each in found.errors] == [(1, code)]
    assert content_of(found.batch)["step"] == [100, 101]
    assert content_of(read_entry(encode(found.batch)))["sequence"] == [0, 5]


def test_a_rank_reports_only_its_own_groups():
    groups = [GROUPS[0], {"name": "tp", "axis": "tp", "ranks": [0, 1, 2, 3]}]
    found = decoded(fields(groups=groups))
    assert [(each.index, each.code) for each in found.errors] == [
        (1, "collectives_rank_not_in_group")
    ]
    pair = {"name": "pair", "axis": "pp", "ranks": [7, 2]}
    batch = decoded(fields(groups=[GROUPS[0], pair])).batch
    assert batch.collectives.groups[1].ranks == (7, 2)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"groups": [{"name": "", "ranks": [7]}]}, "length >= 1 - at `$.collectives.groups"),
        ({"groups": [{"name": "x" * 65, "ranks": [7]}]}, "length <= 64"),
        ({"groups": [{"name": "a\n", "ranks": [7]}]}, "matching regex"),
        ({"groups": [{"name": "tp", "axis": "xp", "ranks": [7]}]}, "Invalid enum value 'xp'"),
        ({"groups": [{"name": "tp", "ranks": [7, 7]}]}, "each rank is in it once"),
        ({"groups": [{"name": "tp", "ranks": [7], "runs": [[0, 8, 1]]}]}, "is in it once"),
        ({"groups": [{"name": "tp", "runs": [[2**31 - 1, 2, 1]]}]}, "at most 2147483647"),
        ({"groups": [{"name": "tp", "runs": [[0, 2, 0]]}]}, ">= 1"),
        ({"groups": [{"name": "tp"}]}, "has no members"),
        ({"groups": [{"name": "tp", "runs": [[0, 65_537, 1]]}]}, "65,536 members"),
        ({"groups": [{"name": str(at), "runs": [[0, 300, 1]]} for at in range(220)]}, "65,536"),
        ({"groups": GROUPS * 200}, "length <= 256"),
        ({"columns": {**COLUMNS, "step": [1]}}, "of equal length"),
        ({"columns": {**COLUMNS, "kind": ["", "a", "b"]}}, "length >= 1"),
        ({"columns": {**COLUMNS, "more": []}}, "unknown field `more`"),
        ({"columns": {"step": []}}, "missing required field"),
        ({"rows": []}, "`columns` or `rows`, not both"),
        ({"local_rank": 5000}, "<= 4096"),
        ({"alone": 1}, "Expected `bool`"),
    ],
)
def test_mismatched_collectives_are_refused_with_their_position(changes, reason):
    with pytest.raises(PacelineError, match=re.escape(reason)):
        decoded(fields(**changes))


def test_too_many_rows_are_refused():
    columns = {name: values[:1] * (MAX_GROUP_ROWS + 1) for name, values in COLUMNS.items()}
    with pytest.raises(TooLarge):
        decoded(binary(fields(columns=columns)), BINARY_TYPE)
    with pytest.raises(PacelineError, match="length <= 20000"):
        decoded(fields(columns=columns))


def test_alone_rank_with_operations_or_done_steps_is_refused():
    batch = fields()
    for changes in ({"steps_done": [[100, 0]]}, {"rows": [
        {"step": 100, "optype": "gc", "start_ns": 1, "duration_ns": 1}
    ]}):  # fmt: skip
        with pytest.raises(InvalidRequest, match="alone: true"):
            decoded({**batch, **changes})
        del batch["collectives"]["alone"]
        assert decoded({**batch, **changes}).batch.num_group_rows == 3
        batch = fields()


@pytest.mark.parametrize(
    "ranks", [[0], [3, 4], [0, 1, 2, 3], [8, 10, 12, 14], [0, 1, 2, 3, 9, 20, 21], [5, 3, 1, 0]]
)
def test_compact_group_members_round_trip(ranks):
    assert ranks_of(*members_of(ranks)) == ranks
    assert members_of(range(65_536)) == ([], [(0, 65_536, 1)])
