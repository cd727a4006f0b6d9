"""docs/wire-format.md matches the code."""

import json
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest

from app.ingest.batch import unpack_values
from app.ingest.wire import body as wire_body
from app.ingest.wire.codec import BINARY_TYPE, JSON_TYPE, decode, encode
from app.trace.job import Parallelism
from app.trace.window import WIRE_DTYPES
from tests.ingest.wire.packing import packed

PAGE = (Path(__file__).parents[3] / "docs" / "wire-format.md").read_text()
SIZES = Parallelism(dp_size=8, pp_size=2)
COMMENTS_FROM = 54  # the column of the hex block


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def body():
    [block] = [block for block in blocks("") if block.startswith("8a")]
    return bytes.fromhex("".join(line[:COMMENTS_FROM] for line in block.splitlines()))


def test_worked_example_equals_the_msgpack_library_output(body):
    columns = {
        "step": [100, 100],
        "optype": [0, 1],
        "start_ns": [1_000_000, 4_000_000],
        "duration_ns": [3_000_000, 6_000],
        "seq_id": [0, 0],
        "mc": [0, -1],
        "mb_id": [5, -1],
        "tokens": [4096, -1],
    }
    batch = {
        "version": 1,
        "epoch": 1,
        "rank": 6,
        "dp_rank": 3,
        "stage": 0,
        "host": "n7",
        "batch_seq": 41,
        "steps_done": [[100, 2]],
        "optypes": ["forward-compute", "gc"],
        "columns": {
            name: np.array(values, WIRE_DTYPES[name]).tobytes() for name, values in columns.items()
        },
    }
    assert msgspec.msgpack.encode(batch) == body
    assert f"A batch of two operations, {len(body)} bytes" in PAGE


def test_worked_example_is_accepted_and_queued_unchanged(body):
    decoded = decode(body, BINARY_TYPE, SIZES)
    assert (decoded.rejected, decoded.batch.columns.num_ops) == (0, 2)
    assert encode(decoded.batch) == body


def test_json_and_binary_batches_are_equal(body):
    expected = decode(body, BINARY_TYPE, SIZES).batch
    examples = [text for text in blocks("json") if '"batch_seq"' in text and "groups" not in text]
    assert len(examples) == 2
    for text in examples:
        batch = decode(text.encode(), JSON_TYPE, SIZES).batch
        for name in ("epoch", "rank", "dp_rank", "stage", "host", "batch_seq", "steps_done"):
            assert getattr(batch, name) == getattr(expected, name)
        assert json.loads(text)["epoch"] == expected.epoch
        for name in WIRE_DTYPES:
            found, wanted = getattr(batch.columns, name), getattr(expected.columns, name)
            assert (found is None) == (wanted is None)
            assert wanted is None or found.tolist() == wanted.tolist()


def test_the_packed_example_unpacks_to_its_column():
    [block] = re.findall(r"unpacks exactly this -->\n```\n(.*?)```", PAGE, re.DOTALL)
    body = bytes.fromhex("".join(line[:COMMENTS_FROM] for line in block.splitlines()))
    column = msgspec.msgpack.decode(body, type=wire_body.PackedColumn)
    duration_ns = np.array([30, 40])
    assert unpack_values("start_ns", column, duration_ns).tolist() == [1000, 1035]
    assert packed([1000, 1035], 2, durations=[30, 40]) == msgspec.msgpack.decode(body)
