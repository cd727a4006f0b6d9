"""A database as the release of revision 0002 left it: every byte as that release wrote it."""

import json
import zlib
from typing import Any

import msgspec
import numpy as np
from sqlalchemy import Connection, MetaData, Table, insert, select

JOB = "llm-70b"
OTHER = "default"  # named like its later project
SIZES = {"dp_size": 2, "pp_size": 2, "tp_size": 1, "vpp_size": 1, "dsp_size": 1, "ep_size": 1}
WORKERS = range(4)
DUE = "msg_due"


def zipped_json(value: Any) -> bytes:
    return zlib.compress(json.dumps(value, separators=(",", ":")).encode(), 1)


def stored_trace(columns: dict[str, list[int]]) -> bytes:
    """Operations in format 1: compressed by their codec, and once more by the column."""
    packed = {name: _column(np.array(values, np.int64)) for name, values in columns.items()}
    inner = zlib.compress(msgspec.msgpack.encode({"format": 1, "columns": packed}), 1)
    return zlib.compress(inner, 1)


def read_trace(blob: bytes) -> dict[str, list[int]]:
    """A stored trace as that release reads it."""
    message = msgspec.msgpack.decode(zlib.decompress(zlib.decompress(blob)))
    assert message["format"] == 1
    return {
        name: (
            np.frombuffer(column["bytes"], column["dtype"]).astype(np.int64)
            + np.int64(column["least"])
        ).tolist()
        for name, column in message["columns"].items()
    }


def _column(values: Any) -> dict[str, Any]:
    least = int(values.min())
    offsets = values - least
    dtype = np.min_scalar_type(int(offsets.max())).newbyteorder("<")
    return {"least": least, "dtype": dtype.str, "bytes": offsets.astype(dtype).tobytes()}


TRACE = {
    "step": [0, 0, 0, 0],
    "rank": [0, 1, 2, 3],
    "dp_rank": [0, 0, 1, 1],
    "stage": [0, 1, 0, 1],
    "optype": [0, 0, 0, 0],
    "seq_id": [0, 0, 0, 0],
    "mc": [0, 0, 0, 0],
    "mb_id": [-1, -1, -1, -1],
    "start_ns": [2**60, 2**60 + 1, 2**60 + 70_000, 2**60],
    "duration_ns": [5, 2**40, 0, 7],
}
RESULT = {"window": {"epoch": 2}, "slowdown": 0.1 + 0.2, "steps": [0], "m_w": None, "ä": [1e-300]}
PER_STEP = {"stage_slowdown": [[1.0, 1.25]]}


def body(worker: int, batch_seq: int, steps: list[int]) -> bytes:
    """A batch with one operation in each of these steps, all of which it declares."""
    number = len(steps)
    columns = {
        "step": np.array(steps, "<i8").tobytes(),
        "optype": bytes(number),
        "start_ns": np.array([10**9 * step + worker for step in steps], "<i8").tobytes(),
        "duration_ns": np.full(number, 1_000 + worker, "<i8").tobytes(),
        "seq_id": np.zeros(number, "<i4").tobytes(),
        "mc": np.zeros(number, "<i2").tobytes(),
        "mb_id": np.full(number, -1, "<i4").tobytes(),
    }
    dp_rank, stage = divmod(worker, 2)
    message = {
        "version": 1, "epoch": 2, "rank": worker, "dp_rank": dp_rank, "stage": stage,
        "host": f"node-{worker}", "batch_seq": batch_seq,
        "steps_done": [[step, 1] for step in steps],
        "optypes": ["forward-compute"], "columns": columns,
    }  # fmt: skip
    return msgspec.msgpack.encode(message)


def cursors_blob(seen: dict[int, tuple[int, int]], **state: Any) -> bytes:
    """Assembler state of that release, as stored.

    `seen` is each rank's next batch and the last step that it declared.
    """
    cursors = [
        {
            "rank": worker, "worker": worker, "host": f"node-{worker}", "next_seq": next_seq,
            "watermark": watermark, "ahead": {}, "holes": [],
        }
        for worker, (next_seq, watermark) in seen.items()
    ]  # fmt: skip
    return zlib.compress(msgspec.msgpack.encode({"cursors": cursors, **state}), 1)


def run(job_id: str, epoch: int, **given: Any) -> dict[str, Any]:
    values = {
        "job_id": job_id, "epoch": epoch, "run_key": f"run-{epoch}", "name": "LLM", **SIZES,
        "num_gpus": 4, "framework": None, "labels": '{"ä":"b"}', "op_types": "[]",
        "registered_s": 10.0, "ended_s": None, "superseded_s": None, "is_closed": False,
        "last_data_s": 11.5, "last_step": 4,
    }  # fmt: skip
    return values | given


def window(job_id: str, epoch: int, first_step: int, **given: Any) -> dict[str, Any]:
    values = {
        "job_id": job_id, "epoch": epoch, "first_step": first_step, "last_step": first_step,
        "revision": 1, "state": "complete", "num_steps": 1, "num_ops": 4, "slowdown": 1.25,
        "verdict": "ok", "updated_s": 100.25, "result": zipped_json(RESULT),
        "per_step": zipped_json(PER_STEP), "trace": stored_trace(TRACE),
    }  # fmt: skip
    return values | given


def _step(job_id: str, epoch: int, step: int, **given: Any) -> dict[str, Any]:
    values = {
        "job_id": job_id, "epoch": epoch, "step": step, "recorded_s": 1.5, "simulated_s": 1.4,
        "ideal_s": 1.0, "slowdown": 1.4, "window_id": f"{epoch}-{step}", "skipped_reason": None,
    }  # fmt: skip
    return values | given


def _event(job_id: str, event_id: int, kind: str) -> dict[str, Any]:
    return {
        "event_id": event_id, "job_id": job_id, "rule": "slowdown", "kind": kind, "at_s": 5.5,
        "window_id": "2-0", "slowdown": 1.42, "threshold": 1.1, "since_step": 0,
        "sentence": "It is slow: 1.42.",
    }  # fmt: skip


def _delivery(delivery_id: str, job_id: str, event_id: int, state: str) -> dict[str, Any]:
    return {
        "delivery_id": delivery_id, "event_id": event_id, "job_id": job_id, "rule": "slowdown",
        "endpoint": "https://a.example", "payload": '{"a": "é"}', "state": state, "attempt": 0,
        "next_at_s": 1.0, "lease_until_s": 0.0, "detail": None, "created_s": 1.0, "done_s": None,
    }  # fmt: skip


# Steps 1 to 4 of run 2 are in its open window, of which 1 was skipped: all but rank 3 had sent
# it in time. Step 5 has come from ranks 0 to 2. Rank 2's second batch came too late for step 1.
LATE_STEP, LAST_STEP = 1, 5
BATCHES = [
    *((worker, 7, body(worker, 7, [1, 2, 3, 4])) for worker in (0, 1)),
    (2, 7, body(2, 7, [2, 3, 4])),
    (2, 8, body(2, 8, [LATE_STEP, LAST_STEP])),
    (3, 7, body(3, 7, [2, 3, 4])),
    *((worker, 8, body(worker, 8, [LAST_STEP])) for worker in (0, 1)),
]
SKIPPED = {"step": 1, "reason": "ranks 2, 3 did not report the step in time", "missing": [2, 3]}
STATE: dict[str, Any] = {
    "settled_through": 4, "closed_through": 0, "longest_span_s": 0.5, "late_ops": 1,
    "late": [[[2, 8], [LATE_STEP]]],
    "settled": [[1, SKIPPED], [2, None], [3, None], [4, None]],
}  # fmt: skip
_DEFAULTS: dict[str, Any] = {
    "cursors": [], "settled_through": -1, "closed_through": -1, "longest_span_s": None,
    "late_ops": 0, "late": [], "settled": [],
}  # fmt: skip
MISSING = body(3, 8, [LAST_STEP])

ROWS: dict[str, list[dict[str, Any]]] = {
    "jobs": [{"job_id": JOB, "epoch": 2}, {"job_id": OTHER, "epoch": 1}],
    "runs": [
        run(JOB, 1, superseded_s=9.0, is_closed=True),
        run(JOB, 2, num_gpus=8),
        run(OTHER, 1, ended_s=20.0, is_closed=True, framework="x"),
    ],
    "windows": [
        window(JOB, 1, 0, state="superseded"),
        window(JOB, 2, 0),
        window(JOB, 2, 1, last_step=4, state="open", revision=4, num_steps=3, trace=None),
        window(OTHER, 1, 2**53, slowdown=None, verdict=None, per_step=None),
    ],
    "steps": [
        _step(JOB, 1, 0),
        _step(JOB, 2, 0),
        _step(JOB, 2, 1, recorded_s=None, simulated_s=None, ideal_s=None, slowdown=None,
              window_id="2-1", skipped_reason=SKIPPED["reason"]),
        _step(OTHER, 1, 2**53),
    ],
    "batches": [
        {"job_id": JOB, "epoch": 2, "rank": rank, "batch_seq": seq, "body": bytes_}
        for rank, seq, bytes_ in BATCHES
    ],
    "cursors": [
        {"job_id": JOB, "epoch": 2,
         "blob": cursors_blob({0: (9, 5), 1: (9, 5), 2: (9, 5), 3: (8, 4)}, **STATE)},
        {"job_id": OTHER, "epoch": 1, "blob": cursors_blob({0: (3, 2)}, closed_through=2)},
    ],
    "hosts": [
        {"job_id": JOB, "epoch": 2,
         "names": zipped_json([[*divmod(worker, 2), f"node-{worker}"] for worker in WORKERS])},
    ],
    "shards": [{"shard": 1, "owner": "me", "fence": 7, "lease_until_s": 99.0}],
    "consumers": [{"owner": "me", "lease_until_s": 99.0}],
    "alert_states": [
        {"job_id": JOB, "rule": "slowdown",
         "state": '{"is_firing":true,"num_over":4,"epoch":2,"since_step":0}'},
    ],
    "alert_events": [_event(JOB, 1, "firing"), _event(OTHER, 2, "firing")],
    "outbox": [_delivery("msg_done", JOB, 1, "delivered"), _delivery(DUE, OTHER, 2, "due")],
}  # fmt: skip


_NUMBERED = ("alert_events", "event_id")


def fill(conn: Connection) -> None:
    """Insert all rows."""
    for name, rows in ROWS.items():
        # The database numbers events itself, from 1 on.
        given = [{key: row[key] for key in row if (name, key) != _NUMBERED} for row in rows]
        conn.execute(insert(_table(conn, name)), given)


def content(conn: Connection) -> dict[str, list[dict[str, Any]]]:
    """All current rows in key order, decompressed."""
    found = {}
    for name in ROWS:
        table = _table(conn, name)
        rows = conn.execute(select(table).order_by(*table.primary_key.columns)).all()
        found[name] = [_readable(name, row._mapping) for row in rows]
    return found


def expected() -> dict[str, list[dict[str, Any]]]:
    """`content` right after `fill`."""
    return {
        name: sorted((_readable(name, row) for row in rows), key=lambda row: _key(name, row))
        for name, rows in ROWS.items()
    }


def _key(name: str, row: dict[str, Any]) -> tuple[Any, ...]:
    names = ("event_id",) if name == "alert_events" else ("job_id", "epoch", "first_step", "step")
    names = ("delivery_id",) if name == "outbox" else names
    return tuple(row[each] for each in (*names, "rank", "batch_seq") if each in row)


def _readable(name: str, row: Any) -> dict[str, Any]:
    values = dict(row)
    for column in {"result", "per_step", "names"} & values.keys():
        blob = values[column]
        values[column] = None if blob is None else json.loads(zlib.decompress(blob))
    if values.get("trace") is not None:
        values["trace"] = read_trace(values["trace"])
    if name == "cursors":
        state = msgspec.msgpack.decode(zlib.decompress(values["blob"]))
        # It reads the known fields of a state and ignores the rest.
        values["blob"] = {key: state.get(key, _DEFAULTS[key]) for key in _DEFAULTS}
    return values


def _table(conn: Connection, name: str) -> Table:
    return Table(name, MetaData(), autoload_with=conn)
