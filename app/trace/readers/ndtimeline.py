"""Imports veScale's ndtimeline: its records as JSON (lines or a list), or its Chrome file.

The names of its metrics are mapped to op types. All files must agree in the values that describe
the run.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from typing_extensions import override

from app.errors import InvalidTrace
from app.trace.ops import OP_CODES
from app.trace.readers.importing import (
    ImportOptions,
    MissingData,
    NameMap,
    NameMeaning,
    missing_data,
)
from app.trace.readers.json_stream import UNDECODABLE, InputFile, JsonStream
from app.trace.readers.op_spool import OpSpool
from app.trace.readers.spooled_import import ImportFacts, SpooledImport

KNOWN_METRICS: dict[str, tuple[str, ...]] = {
    # Names in the open-source version, and in its timeline writer (predefined.py).
    "unshard-all-gather": ("params-all-gather",),
    "grad-reduce-scatter": ("grads-reduce-scatter",),
    "grad-all-reduce": ("separate-grads-all-reduce",),
    "grads-reduce-scatter-nonoverlapping": ("grads-reduce-scatter",),
    "params-all-gather-nonoverlapping": ("params-all-gather",),
    # Calls that wait for several transfers.
    "forward-send-backward-recv": ("forward-send", "backward-recv"),
    "backward-send-forward-recv": ("backward-send", "forward-recv"),
    "forward-send-forward-recv": ("forward-send", "forward-recv"),
    "backward-send-backward-recv": ("backward-send", "backward-recv"),
    # Parts of a computation or of the optimizer, in whose time theirs is; "special" marks a flush.
    **dict.fromkeys(("tp-allreduce", "tp-allgather", "tp-reducescatter", "special"), ()),
    **dict.fromkeys(("optimizer-inner-step", "optimizer-copy-to-main-grad"), ()),
    "optimizer-copy-main-to-model-params": (),
}
_MAX_VALUE_CHARS = 200
_MAX_VALUES = 8

T = TypeVar("T")

_NO_OPERATION = NameMeaning(())
_MAX_TIME = 1e17  # microseconds or seconds: beyond all clocks, and convertible to nanoseconds
_FIRST_LINE_BYTES = 1 << 20  # a first line that is an object is a record
# Only an interleaved schedule has these on the first stage.
_ROUND_TRIP = (OP_CODES["forward-recv"], OP_CODES["backward-send"])
_MAX_HOST_CHARS = 255
_HAVE_CHUNKS = ("forward-compute", "backward-compute", "params-all-gather", "grads-reduce-scatter")
_WITH_CHUNK = frozenset(OP_CODES[name] for name in _HAVE_CHUNKS)


class _Args(msgspec.Struct, gc=False):
    """Args of an event of the Chrome file."""

    rank: int
    step: int
    pp: int
    tp: int = 0


class _Element(msgspec.Struct, gc=False):
    """A record, which has a `metric`, or an event of the Chrome file, which has a `ph`."""

    metric: str | None = None
    rank: int | None = None
    step: int | None = None
    start_ts: list[float] | None = None
    duration: list[float] | None = None
    model_chunk: int | None = None
    stage: int | None = None
    dp_rank: int | None = None
    tp_rank: int | None = None
    ip: str | None = None
    role: str | int | None = None
    trial: str | int | None = None
    run_id: str | int | None = None
    ph: str | None = None
    name: str | None = None
    pid: int | None = None
    ts: float | None = None
    dur: float | None = None
    args: msgspec.Raw = msgspec.Raw(b"")


_ELEMENTS = msgspec.json.Decoder(list[_Element])
_ELEMENT = msgspec.json.Decoder(_Element)
_ARGS = msgspec.json.Decoder(_Args)


class NdtimelineImport(SpooledImport):
    """One run's files; micro-batches are numbered in order, since the format has no ids."""

    def __init__(self, paths: Sequence[Path], options: ImportOptions) -> None:
        super().__init__(paths, options)
        self._names = NameMap(options, KNOWN_METRICS)
        # Values that describe the run; there is one id and one trial.
        self._run: dict[str, list[str]] = {"run_id": [], "trial": [], "role": []}
        self._num_fused = 0
        self._num_parts = 0
        self._num_round_trips = 0
        self._num_ops = 0
        self._places: dict[int, tuple[int, int, int, str | None]] = {}

    @override
    def read(self, spool: OpSpool) -> ImportFacts:
        for path in self.paths:
            self._read_file(path, spool)
        roles = self._run["role"]
        return ImportFacts(
            missing=self._missing(),
            name=next(iter(self._run["trial"]), None),
            run_key=next(iter(self._run["run_id"]), None),
            labels={"role": ", ".join(roles)[:_MAX_VALUE_CHARS]} if roles else {},
            numbers_microbatches=True,
            is_interleaved=self._num_round_trips > 0,
        )

    def _read_file(self, path: Path, spool: OpSpool) -> None:
        source = InputFile(path)
        stream = JsonStream(source)
        spool.at = stream.place
        try:
            for element in _elements(stream):
                if element.metric is not None:
                    self._take_record(spool, element, element.metric)
                elif element.ph == "X":
                    self._take_event(spool, element)
                elif element.ph is None:
                    raise InvalidTrace(
                        f"{spool.at()}: has neither metric nor ph: want records of ndtimeline, "
                        "or the events of its Chrome file"
                    )
        finally:
            source.close()

    def _take_record(self, spool: OpSpool, record: _Element, metric: str) -> None:
        rank, step = _required(spool, "rank", record.rank), _required(spool, "step", record.step)
        dp_rank = _required(spool, "dp_rank", record.dp_rank)
        stage = _required(spool, "stage", record.stage)
        starts = _required(spool, "start_ts", record.start_ts)
        lengths = _required(spool, "duration", record.duration)
        if len(starts) != len(lengths):
            raise InvalidTrace(
                f"{spool.at()}: start_ts has {len(starts):,} values and duration "
                f"{len(lengths):,}: want as many of each"
            )
        self._note_run(spool, record)
        host = record.ip[:_MAX_HOST_CHARS] if record.ip else None
        self._place(spool, rank, (dp_rank, stage, record.tp_rank or 0, host))
        meaning = self._meaning(metric, len(starts))
        for code in meaning.codes:
            self._count(code, stage, len(starts))
            mc, mb_id, number = _numbers(meaning, code, record.model_chunk or 0, step)
            for start_s, length_s in zip(starts, lengths, strict=True):
                times = _nanoseconds(spool, start_s, length_s, 1e9)
                spool.add(rank, number, code, *times, mc, mb_id)

    def _note_run(self, spool: OpSpool, record: _Element) -> None:
        for key, known in self._run.items():
            value = getattr(record, key)
            text = "" if value is None else str(value)[:_MAX_VALUE_CHARS]
            if not text or text in known:
                continue
            if known and key != "role":
                raise InvalidTrace(
                    f"{spool.at()}: {key} is {text!r} here and {known[0]!r} before: give the files "
                    "of one run"
                )
            if len(known) < _MAX_VALUES:
                known.append(text)

    def _take_event(self, spool: OpSpool, event: _Element) -> None:
        try:
            args = _ARGS.decode(event.args or b"{}")
        except UNDECODABLE as error:
            raise InvalidTrace(
                f"{spool.at()}: args: {str(error)[:120]}: want rank, step, tp and pp as "
                "ndtimeline writes them"
            ) from error
        dp_rank = _required(spool, "pid", event.pid)
        self._place(spool, args.rank, (dp_rank, args.pp, args.tp, None))
        meaning = self._meaning(_required(spool, "name", event.name), 1)
        for code in meaning.codes:
            self._count(code, args.pp, 1)
            mc, mb_id, number = _numbers(meaning, code, 0, args.step)
            ts, dur = _required(spool, "ts", event.ts), _required(spool, "dur", event.dur)
            spool.add(args.rank, number, code, *_nanoseconds(spool, ts, dur, 1e3), mc, mb_id)

    def _place(self, spool: OpSpool, rank: int, where: tuple[int, int, int, str | None]) -> None:
        if self._places.get(rank) != where:
            dp_rank, stage, tp_rank, host = where
            spool.place(rank, dp_rank, stage, peer=tp_rank, host=host)
            self._places[rank] = where

    def _meaning(self, metric: str, times: int) -> NameMeaning:
        meaning = self._names.meaning(metric)
        if meaning is None:
            self._names.count_unknown(metric, times)
            return _NO_OPERATION
        if not meaning.codes:
            self._num_parts += times
        elif len(meaning.codes) > 1:
            self._num_fused += times
        return meaning

    def _count(self, code: int, stage: int, times: int) -> None:
        self._num_ops += times
        if stage == 0 and code in _ROUND_TRIP:
            self._num_round_trips += times

    def _missing(self) -> list[MissingData]:
        clocks = MissingData(
            f"clocks: {self._num_ops:,} starts are seconds since 1970 of each host's own clock",
            "they are good to 0.24 us, and offsets between hosts are estimated from the operations "
            "themselves (docs/clocks.md)",
        )
        first_step = MissingData(
            f"first step: the first NCCL operation of each stream of {len(self._places):,} ranks",
            "ndtimeline loses it: leave the first step out of what is analysed",
        )
        always = [clocks, *self._names.missing("operations"), first_step]
        return always + missing_data(
            (
                self._num_fused,
                f"transfers: {self._num_fused:,} calls wait for a send and a receive at once",
                "each is taken as both, with the same times: their transfer times are at most too "
                "long, and pipeline communication looks slower than it is",
            ),
            (
                self._num_parts,
                f"parts: {self._num_parts:,} operations ran inside others (tensor-parallel "
                "collectives, parts of the optimizer)",
                "their time is in the operation around them and not told apart",
            ),
        )


def _elements(stream: JsonStream) -> Iterator[_Element]:
    first = stream.peek()
    if first == b"[":
        yield from stream.elements(_ELEMENTS)
        stream.end()
    elif first == b"{" and _has_a_record_a_line(stream):
        yield from stream.lines(_ELEMENT)
    elif first == b"{":
        for key in stream.members():
            if key == "traceEvents":
                yield from stream.elements(_ELEMENTS)
            else:
                stream.skip()
        stream.end()
    else:
        raise stream.refusal(
            "is no JSON: want records of ndtimeline, one a line or in a list, or its Chrome file"
            if first
            else "is empty: record at least one step"
        )


def _has_a_record_a_line(stream: JsonStream) -> bool:
    line = stream.begins_with(_FIRST_LINE_BYTES).partition(b"\n")[0]
    try:
        return "traceEvents" not in msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except UNDECODABLE:
        return False


def _required(spool: OpSpool, name: str, value: T | None) -> T:
    if value is None:
        raise InvalidTrace(f"{spool.at()}: {name} is missing: is it a whole record of ndtimeline?")
    return value


def _numbers(meaning: NameMeaning, code: int, chunk: int, step: int) -> tuple[int, int, int]:
    """Chunk, micro-batch and step: numbers in the name take precedence over the record's."""
    if meaning.chunk >= 0 or code not in _WITH_CHUNK:
        chunk = meaning.chunk
    return chunk, meaning.mb_id, meaning.step if meaning.step >= 0 else step


def _nanoseconds(
    spool: OpSpool, start: float, length: float, nanoseconds: float
) -> tuple[int, int]:
    if not (abs(start) < _MAX_TIME and abs(length) < _MAX_TIME):
        raise InvalidTrace(f"{spool.at()}: a time is {max(start, length):.3g}: that is no time")
    return round(start * nanoseconds), round(length * nanoseconds)
