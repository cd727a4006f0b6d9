"""Damaged batches: payload number n of a seed is always the same one."""

import gzip
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import msgspec
import numpy as np
import zstandard

from app.ingest.wire.body import GZIP, ZSTD
from app.ingest.wire.codec import BINARY_TYPE, JSON_TYPE, encode
from app.ingest.wire.collectives import GROUP_DTYPES
from app.trace.window import WIRE_DTYPES
from tests.harness.batches import simulated_batch
from tests.harness.fuzz.bombs import bombs

# A bomb takes as long as hundreds of other payloads.
ONE_BOMB_IN = 500
_SPREAD = 2**40  # of the numbers of one seed
_ROWS = 4
_LENGTHS = (b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\x7f\xff\xff\xff", b"\xdb\xff")
_NUMBERS = ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1e-400", "1.5", "1e3", "-0")
_INTEGERS = ("9" * 400, str(2**63), str(-(2**63) - 1), str(2**64), str(2**53 + 1), "-1", "00", "+1")
_TEXTS = ('"\\ud800"', '"\\udfff\\ud800"', '"\\u0000"', '"\\ud83d\\ude00"', '"\\x"', '"\\u12"')
_BYTES = (b"\xed\xa0\x80", b"\xff\xfe", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\x00", b"\x1f")


@dataclass(frozen=True, slots=True)
class Payload:
    """What is posted: `kind` says how it was damaged."""

    kind: str
    content_type: str
    content_encoding: str
    body: bytes


class Payloads:
    """All payloads of one seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._damages: list[Callable[[random.Random, int], Payload]] = [
            self._flipped,
            self._cut,
            self._spliced,
            self._lengthened,
            self._retyped,
            self._repeated,
            self._number,
            self._text,
            self._nested,
            self._noise,
            self._packed,
        ]

    def __getitem__(self, number: int) -> Payload:
        """Payload of this number."""
        if number % ONE_BOMB_IN == 0:
            all_bombs = bombs()
            name, media, encoding, body = all_bombs[number // ONE_BOMB_IN % len(all_bombs)]
            return Payload(f"bomb: {name}", media, encoding, body)
        rng = random.Random(self._seed * _SPREAD + number)
        damage = self._damages[number % len(self._damages)]
        return damage(rng, number // len(self._damages))

    @cached_property
    def good(self) -> list[Payload]:
        """Undamaged batches in every format and encoding."""
        fields = _fields()
        bodies = [
            (BINARY_TYPE, encode(replace(simulated_batch(_ROWS), rank=0, dp_rank=0))),
            (BINARY_TYPE, _binary(fields)),
            (BINARY_TYPE, _packed(fields)),
            (JSON_TYPE, _columnar(fields)),
            (JSON_TYPE, _rowwise(fields)),
        ]
        compress: dict[str, Callable[[bytes], bytes]] = {
            "": bytes,
            GZIP: partial(gzip.compress, mtime=0),
            ZSTD: zstandard.compress,
        }
        return [
            Payload("good", media, encoding, make(body))
            for media, body in bodies
            for encoding, make in compress.items()
        ]

    def _any(self, rng: random.Random) -> Payload:
        return rng.choice(self.good)

    def _flipped(self, rng: random.Random, _: int) -> Payload:
        good = self._any(rng)
        body = bytearray(good.body)
        for _ in range(rng.randint(1, 8)):
            body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
        return _damaged("flipped", good, body)

    def _cut(self, _: random.Random, number: int) -> Payload:
        # In turn, so that each is cut at every byte.
        good = self.good[number % len(self.good)]
        return _damaged("cut", good, good.body[: number // len(self.good) % len(good.body)])

    def _spliced(self, rng: random.Random, _: int) -> Payload:
        good, other = self._any(rng), self._any(rng)
        at, to = rng.randrange(len(good.body)), rng.randrange(len(other.body))
        return _damaged("spliced", good, good.body[:at] + other.body[to:])

    def _lengthened(self, rng: random.Random, _: int) -> Payload:
        good = self._any(rng)
        at = rng.randrange(len(good.body))
        wrong_length = rng.choice(_LENGTHS)
        return _damaged(
            "lengthened", good, good.body[:at] + wrong_length + good.body[at + len(wrong_length) :]
        )

    def _retyped(self, rng: random.Random, _: int) -> Payload:
        fields, is_binary = _fields(), rng.random() < 0.5
        groups = fields["collectives"]
        targets = [fields, fields["columns"], groups, groups["groups"][0], groups["columns"]]
        target = rng.choice(targets)
        target[rng.choice(sorted(target))] = _value(rng, is_binary=is_binary)
        if is_binary:
            return Payload("retyped", BINARY_TYPE, "", _binary(fields))
        return Payload("retyped", JSON_TYPE, "", json.dumps(fields).encode())

    def _repeated(self, rng: random.Random, _: int) -> Payload:
        fields = _fields()
        key = rng.choice(sorted(fields))
        if rng.random() < 0.5:
            again = f"{json.dumps(key)}:{json.dumps(fields[key])},".encode()
            return Payload("repeated", JSON_TYPE, "", b"{" + again * 3 + _columnar(fields)[1:])
        body = _binary(fields)
        pair = msgspec.msgpack.encode(key) + b"\x01"
        return Payload("repeated", BINARY_TYPE, "", bytes([body[0] + 1]) + pair + body[1:])

    def _number(self, rng: random.Random, _: int) -> Payload:
        text = rng.choice([_columnar, _rowwise])(_fields())
        number = rng.choice(_NUMBERS + _INTEGERS).encode()
        positions = [at for at in range(1, len(text) - 1) if _is_number(text, at)]
        at = rng.choice(positions)
        end = at + 1
        while text[end : end + 1].isdigit():
            end += 1
        return Payload("number", JSON_TYPE, "", text[:at] + number + text[end:])

    def _text(self, rng: random.Random, _: int) -> Payload:
        if rng.random() < 0.5:
            text = _columnar(_fields())
            damaged_text = rng.choice(_TEXTS).encode()
            name = rng.choice([b'"optimizer"', b'"node-0"', b'"version"'])
            return Payload("text", JSON_TYPE, "", text.replace(name, damaged_text, 1))
        good = self._any(rng)
        at = rng.randrange(len(good.body))
        return _damaged("text", good, good.body[:at] + rng.choice(_BYTES) + good.body[at:])

    def _nested(self, rng: random.Random, _: int) -> Payload:
        depth = rng.choice([10, 500, 1023, 1024, 5_000, 50_000])
        bracket = rng.choice([b"[", b'{"a":', b'{"columns":', b'{"rows":['])
        if rng.random() < 0.5:
            return Payload("nested", JSON_TYPE, "", b'{"host":' + bracket * depth)
        return Payload("nested", BINARY_TYPE, "", b"\x81\xa4host" + b"\x91" * depth)

    def _noise(self, rng: random.Random, _: int) -> Payload:
        body = rng.randbytes(rng.randint(0, 300))
        media = rng.choice([BINARY_TYPE, JSON_TYPE, "text/plain", "", ";", "application/json;a"])
        return Payload("noise", media, rng.choice(["", GZIP, ZSTD, "br", "gzip, gzip"]), body)

    def _packed(self, rng: random.Random, _: int) -> Payload:
        """Columns whose packing contradicts their header, or is impossible."""
        batch = msgspec.msgpack.decode(_packed(_fields()))
        columns = rng.choice([batch, batch["collectives"]])["columns"]
        for name in rng.sample(sorted(columns), rng.randint(1, 3)):
            kind, width = rng.randint(0, 3), rng.randint(0, 9)
            planes = rng.randbytes(rng.choice([_ROWS * width, rng.randint(0, 80)]))
            if rng.random() < 0.3:
                planes = rng.choice([b"\xff", b"\x00", b"\x80", b"\x7f"]) * len(planes)
            columns[name] = rng.choice([[kind, width, planes], [kind, width], [planes, kind]])
        return Payload("packed", BINARY_TYPE, "", msgspec.msgpack.encode(batch))


def _damaged(kind: str, good: Payload, body: bytes | bytearray) -> Payload:
    return Payload(kind, good.content_type, good.content_encoding, bytes(body))


def _is_number(text: bytes, at: int) -> bool:
    return text[at : at + 1].isdigit() and text[at - 1 : at] in (b":", b"[", b",", b" ")


def _fields() -> dict[str, Any]:
    integers = {
        "step": [7, 7, 7, 8],
        "start_ns": [10**18, 10**18 + 1, 10**18 + 5, 10**18 + 9],
        "duration_ns": [5, 6, 7, 8],
        "seq_id": [0, 0, 1, 0],
        "mc": [0, 0, -1, -1],
        "mb_id": [3, -1, 0, -1],
        "tokens": [4096, -1, 4096, -1],
        "bytes": [-1, 10**9, -1, -1],
    }
    names = ["forward-compute", "optimizer", "forward-compute", "gc"]
    return {
        "version": 1,
        "epoch": 1,
        "rank": 0,
        "dp_rank": 0,
        "stage": 0,
        "host": "node-0",
        "batch_seq": 0,
        "steps_done": [[7, 3], [8, 1]],
        "dropped": 17,
        "step_kinds": [[8, "eval"]],
        "columns": {**integers, "optype": names},
        "collectives": {
            "groups": [
                {"name": "tp", "axis": "tp", "ranks": [0, 1]},
                {"name": "ep", "axis": "ep", "runs": [[0, 3, 4]]},
            ],
            "local_rank": 0,
            "columns": {
                "step": [7, 7, 8, 8],
                "group": [0, 1, 0, 0],
                "kind": ["all-reduce", "all-to-all", "all-reduce", "all-reduce"],
                "sequence": [0, 0, 0, 1],
                "start_ns": [10**18, 10**18 + 2, -1, -1],
                "duration_ns": [5, 6, 7, 8],
                "bytes": [64, -1, 64, 64],
            },
        },
    }


def _columnar(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields).encode()


def _rowwise(fields: dict[str, Any]) -> bytes:
    return json.dumps(_in_rows({**fields, "collectives": _in_rows(fields["collectives"])})).encode()


def _in_rows(fields: dict[str, Any]) -> dict[str, Any]:
    columns = fields["columns"]
    rows = [{name: column[row] for name, column in columns.items()} for row in range(_ROWS)]
    rest = {key: value for key, value in fields.items() if key != "columns"}
    return {**rest, "rows": rows}


def _binary(fields: dict[str, Any]) -> bytes:

    def buffer(name: str, column: Any, dtypes: dict[str, str]) -> Any:
        if name == "optype" and isinstance(column, list):
            column = list(range(len(column)))
        if name == "kind" and isinstance(column, list):
            column = [int(each != "all-reduce") for each in column]
        try:
            with np.errstate(invalid="ignore"):
                return np.array(column).astype(dtypes[name]).tobytes()
        except (ValueError, TypeError, OverflowError, KeyError):
            return column  # damaged on purpose

    def buffers(columns: Any, dtypes: dict[str, str]) -> Any:
        if not isinstance(columns, dict):
            return columns
        return {name: buffer(name, column, dtypes) for name, column in columns.items()}

    names = ["forward-compute", "optimizer", "forward-send", "gc"]
    columns = buffers(fields["columns"], WIRE_DTYPES)
    groups = fields["collectives"]
    if isinstance(groups, dict):
        kinds = ["all-reduce", "all-to-all"]
        groups = {"kinds": kinds, **groups, "columns": buffers(groups.get("columns"), GROUP_DTYPES)}
    return msgspec.msgpack.encode(
        {**fields, "optypes": names, "columns": columns, "collectives": groups}
    )


def _packed(fields: dict[str, Any]) -> bytes:
    """Every column by its values, but for starts by the ends before them, in eight bytes each."""
    batch = msgspec.msgpack.decode(_binary(fields))
    columns = {**fields["columns"], "optype": range(_ROWS)}
    columns = {name: np.array(column, np.int64) for name, column in columns.items()}
    start_ns = columns["start_ns"]
    start_ns[1:] -= start_ns[:-1] + columns["duration_ns"][:-1]
    for name, column in columns.items():
        planes = column.view(np.uint8).reshape(_ROWS, 8).T.tobytes()
        batch["columns"][name] = [2 if name == "start_ns" else 0, 8, planes]
    groups = batch["collectives"]["columns"]
    for name, dtype in GROUP_DTYPES.items():
        column = np.frombuffer(groups[name], dtype).astype(np.int64)
        groups[name] = [0, 8, column.view(np.uint8).reshape(_ROWS, 8).T.tobytes()]
    return msgspec.msgpack.encode(batch)


def _value(rng: random.Random, *, is_binary: bool) -> Any:
    values: list[Any] = [
        None, True, -1, 0, 2**63 - 1, -(2**63), 1.5, "", "x" * 300, [], {}, [[]], [None],
        {"step": 1}, [1, 2, 3], ["gc"] * 5,
    ]  # fmt: skip
    if is_binary:
        values += [b"", b"\xff" * 31, b"\x00" * 8, b"\xff" * 32, float("nan"), 2**64 - 1]
    return rng.choice(values)
