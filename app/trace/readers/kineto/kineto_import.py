"""Traces of torch.profiler (Kineto): one file a rank, with annotations and collectives.

Names and the groups of collectives say which op type each is, on the rank's position. The
profiler's marks say in which step it is, on the host or on its stream of the GPU.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from app.errors import InvalidTrace
from app.trace.collectives import RECEIVE, SEND
from app.trace.ops import NUM_CODES, OP_CODES
from app.trace.readers.disk_rows import Rows
from app.trace.readers.importing import (
    HOST_TIMES,
    ImportOptions,
    MissingData,
    NameMap,
    NameMeaning,
    missing_data,
)
from app.trace.readers.kineto import event_names
from app.trace.readers.kineto.process_groups import (
    ParallelPosition,
    axis_of,
    is_all_data_parallel,
    position_of,
)
from app.trace.readers.kineto.trace_file import (
    COMM,
    GPU,
    HOST,
    OUTSIDE,
    AnnotatedFile,
    Collective,
    EventName,
    StepBounds,
    StepMark,
)
from app.trace.readers.op_spool import OpSpool
from app.trace.readers.spooled_import import NUMBERED_TYPES, ImportFacts, SpooledImport
from app.trace.window import Ints

_COLLECTIVES = {
    ("dp", "all-gather"): "params-all-gather",
    ("dp", "reduce-scatter"): "grads-reduce-scatter",
    ("dp", "all-reduce"): "grads-reduce-scatter",  # DDP's buckets
    ("partial dp", "all-gather"): "params-all-gather",
    ("partial dp", "reduce-scatter"): "grads-reduce-scatter",
    ("embedding", "all-reduce"): "embedding-grads-all-reduce",
    ("model", "all-reduce"): "optimizer-clip-main-grad",
}
# They are of a model chunk, by whatever name or group they are known.
_GATHERS = [OP_CODES["params-all-gather"], OP_CODES["grads-reduce-scatter"]]
_INNER_AXES = ("tp", "cp", "expert")
_NO_OPERATION = NameMeaning(())
_MAX_COUNTED = 1_000
_MAX_SHOWN_CHARS = 60


class KinetoNames:
    """Operation types of the names in all files, and counts of unknown names."""

    def __init__(self, options: ImportOptions) -> None:
        self._map = NameMap(options, {})
        self._has_patterns = bool(options.patterns)
        self.unknown_collectives: Counter[str] = Counter()
        self.num_inside = 0
        self.num_sums = 0

    def of_file(
        self, where: str, names: Sequence[EventName], place: ParallelPosition
    ) -> list[NameMeaning]:
        """Meaning of each name on this rank; none for names that are no operation.

        Raises:
            InvalidTrace: the rank runs stages of the model that are not those of its place.
        """
        stages = sorted(
            {
                int(action[1])
                for name in names
                if isinstance(name, str)
                and (action := event_names.PIPELINING.match(name))
                and not self._map.meant(name)
            }
        )
        size = place.sizes["pp_size"]
        if stages != [place.stage + chunk * size for chunk in range(len(stages))]:
            shown = ", ".join(map(str, stages[:4]))
            raise InvalidTrace(
                f"{where}: rank {place.rank} runs stages {shown} of the model, and is taken for "
                f"stage {place.stage} of {size}: give --dp and --pp; folded (V) schedules cannot "
                "be read"
            )
        chunk_of = {stage: chunk for chunk, stage in enumerate(stages)}
        return [
            self._collective(name, place)
            if isinstance(name, Collective)
            else self._annotation(name, chunk_of)
            for name in names
        ]

    def count(self, name: EventName, place: ParallelPosition, times: int) -> None:
        """Count operations of an unknown name."""
        if isinstance(name, str):
            if not event_names.WRAPPING.match(name):
                self._map.count_unknown(name, times)
        elif _axis(name, place) in _INNER_AXES:
            self.num_inside += times
        elif len(self.unknown_collectives) < _MAX_COUNTED:
            self.unknown_collectives[_collective_text(name)[:_MAX_SHOWN_CHARS]] += times

    def is_sum(self, name: EventName, place: ParallelPosition) -> bool:
        """Whether it is an all-reduce that is assumed to be of gradients."""
        if isinstance(name, str) or name.kind != "all-reduce" or _axis(name, place) != "dp":
            return False
        return not (self._has_patterns and self._map.meant(_collective_text(name)))

    def missing(self) -> list[MissingData]:
        """Operations that were skipped because of their names."""
        unknown = self.unknown_collectives
        shown = ", ".join(f"{times:,} of {name!r}" for name, times in unknown.most_common(4))
        return self._map.missing("annotations") + missing_data(
            (
                self.num_inside,
                f"parts: {self.num_inside:,} collectives are tensor-, context- or expert-parallel",
                "they are left out: their time is in the computation around them",
            ),
            (
                self.num_sums,
                f"sums: {self.num_sums:,} all-reduces over the data-parallel ranks are taken for "
                "gradients",
                "sums of losses and norms among them are not told apart: data-parallel "
                "communication looks as much longer",
            ),
            (
                len(unknown),
                f"collectives: {unknown.total():,} are of a group whose axis is not known, {shown}",
                "they are left out, their time counts as waiting; name their types with "
                "--map 'COLLECTIVE GROUP=OPTYPE'",
            ),
        )

    def _annotation(self, name: str, chunk_of: dict[int, int]) -> NameMeaning:
        if meant := self._map.meant(name):
            return meant
        if action := event_names.PIPELINING.match(name):
            code = OP_CODES[event_names.PIPELINING_TYPES[action[2]]]
            return NameMeaning((code,), int(action[3]), chunk_of[int(action[1])])
        if event_names.OPTIMIZER.match(name):
            return NameMeaning((OP_CODES["optimizer"],))
        if event_names.LOADER.match(name):
            return NameMeaning((OP_CODES["data-wait"],))
        return _NO_OPERATION

    def _collective(self, collective: Collective, place: ParallelPosition) -> NameMeaning:
        if self._has_patterns and (meant := self._map.meant(_collective_text(collective))):
            return meant
        axis = _axis(collective, place)
        if collective.name in (SEND, RECEIVE):
            optype = _p2p(collective, place) if axis == "pp" else None
        else:
            optype = _COLLECTIVES.get((axis, collective.kind))
        if optype is None:
            return _NO_OPERATION
        code = OP_CODES[optype]
        has_one_chunk = code in _GATHERS and place.sizes.get("vpp_size", 1) == 1
        return NameMeaning((code,), chunk=0 if has_one_chunk else -1)


def _axis(collective: Collective, place: ParallelPosition) -> str:
    """The parallel axis of a collective's group; a lone group has the axis of the whole job."""
    return axis_of(collective.description) or place.only_axis


def _collective_text(collective: Collective) -> str:
    """A collective as patterns and messages name it."""
    return f"{collective.name} {collective.description or collective.group}"


def _p2p(collective: Collective, place: ParallelPosition) -> str | None:
    """The op type of a transfer to or from a neighbouring stage."""
    peer = collective.target if collective.name == SEND else collective.source
    size = place.sizes["pp_size"]
    if peer < 0 or len(place.stages) != size or place.sizes.get("vpp_size", 1) > 1:
        return None  # under interleaving the last stage sends to the first one: which way?
    # PyTorch names the peer's global rank; a number that is none of the group's is one within it.
    stage = place.stages.index(peer) if peer in place.stages else peer
    if stage == place.stage + 1:
        return "forward-send" if collective.name == SEND else "backward-recv"
    if stage == place.stage - 1:
        return "backward-send" if collective.name == SEND else "forward-recv"
    return None


Columns = dict[str, Ints]
# In place of a type's stream on the GPU.
_NO_STREAM, _BY_HOST = -2, -3


@dataclass(slots=True)
class KinetoOmissions:
    """Counts of operations, over all files, that are skipped or inexact."""

    num_ops: int = 0
    num_outside: int = 0
    num_on_host: int = 0
    num_gpu_unused: int = 0
    num_by_host_steps: int = 0
    num_other_streams: int = 0
    num_without_group: int = 0

    @property
    def is_host_alone(self) -> bool:
        """Whether all times are host-side."""
        return self.num_on_host == self.num_ops

    def missing(self) -> list[MissingData]:
        """The counts in words."""
        return missing_data(
            (
                self.num_on_host,
                f"GPU times: {self.num_on_host:,} of {self.num_ops:,} operations are timed by the "
                "host alone",
                "a host's time has waits for receives in it, and on a GPU it is that of launching: "
                "record with CUDA activities, or trust the order more than the durations",
            ),
            (
                self.num_gpu_unused,
                f"GPU spans: {self.num_gpu_unused:,} computations have one and others of their "
                "rank have none",
                "the host's times are taken for all computations of such a rank, since the two "
                "clocks' times have no common order: autograd launches the backward pass from a "
                "thread of its own, where no annotation is known",
            ),
            (
                self.num_outside,
                f"steps: {self.num_outside:,} operations are in no ProfilerStep",
                "they are left out: the first and last step of a profile may be incomplete",
            ),
            (
                self.num_by_host_steps,
                f"steps on the GPU: {self.num_by_host_steps:,} operations are put into steps by "
                "the host's marks",
                "a GPU runs behind its host: operations at a step's end may be in the next one",
            ),
            (
                self.num_other_streams,
                f"streams: {self.num_other_streams:,} annotations are on another stream",
                "the stream with most of an operation's time is taken, the others are left out",
            ),
            (
                self.num_without_group,
                f"groups: {self.num_without_group:,} NCCL kernels do not say of which group they "
                "are",
                "they are left out: communication looks like waiting; record with a newer PyTorch",
            ),
        )


class OpsOfFile:
    """A file's operations with their steps.

    Raises:
        InvalidTrace: the file has operations and no steps.
    """

    def __init__(
        self,
        file: AnnotatedFile,
        place: ParallelPosition,
        names: KinetoNames,
        losses: KinetoOmissions,
    ) -> None:
        self._file = file
        self._losses = losses
        meant = names.of_file(file.path.name, file.names, place)
        self._code = np.array([name.codes[0] if name.codes else -1 for name in meant], np.int64)
        self._mb_id = np.array([name.mb_id for name in meant], np.int64)
        self._mc = np.array([name.chunk for name in meant], np.int64)
        self._step = np.array([name.step for name in meant], np.int64)
        if place.sizes.get("vpp_size", 1) == 1:
            has_chunk = np.isin(self._code, [*NUMBERED_TYPES, *_GATHERS])
            self._mc[has_chunk & (self._mc < 0)] = 0
        self._refuse_repeated_steps()
        self._host_steps = _step_bounds(file.steps[HOST])
        self._gpu_steps = _step_bounds(file.steps[GPU])
        marks_of: dict[int, list[StepMark]] = defaultdict(list)
        for mark in file.steps[GPU]:
            if mark.lane >= 0:
                marks_of[mark.lane].append(mark)
        self._stream_steps = {lane: _step_bounds(marks) for lane, marks in marks_of.items()}
        self._stream = self._streams(names, place)
        losses.num_without_group += file.num_without_group
        self.steps = sorted({*self._host_steps.numbers, *self._gpu_steps.numbers})

    def columns(self) -> Iterator[Columns]:
        """Columns in blocks of rows; starts are on the file's own clock."""
        for block in self._file.ranges.blocks():
            rows = block[self._is_op(block)]
            step = self._steps(rows)
            is_inside = step != OUTSIDE
            rows, name = rows[is_inside], rows["name"][is_inside]
            self._losses.num_outside += int((~is_inside).sum())
            self._losses.num_ops += rows.size
            self._losses.num_on_host += int((rows["kind"] == HOST).sum())
            yield {
                "step": step[is_inside],
                "optype": self._code[name],
                "start_ns": rows["start_ns"],
                "duration_ns": rows["duration_ns"],
                "mc": self._mc[name],
                "mb_id": self._mb_id[name],
            }

    def _refuse_repeated_steps(self) -> None:
        seen = set()
        for mark in self._file.steps[HOST]:
            if mark.number in seen:
                raise InvalidTrace(
                    f"{self._file.path.name}: ProfilerStep#{mark.number} is there twice: export "
                    "one cycle"
                )
            seen.add(mark.number)

    def _streams(self, names: KinetoNames, place: ParallelPosition) -> dict[int, int]:
        """For each op type that the GPU annotates, the stream with most of its time."""
        total: Counter[tuple[int, int]] = Counter()
        on_host: set[int] = set()
        for rows in self._file.ranges.blocks():
            code = self._code[rows["name"]]
            on_gpu = rows[(rows["kind"] == GPU) & (code >= 0)]
            for key, length in _summed(self._code[on_gpu["name"]], on_gpu):
                total[key] += length
            on_host.update(np.unique(code[rows["kind"] == HOST]).tolist())
            # A host annotation counts once, though the GPU may repeat it.
            self._count_names(rows[rows["kind"] != GPU], names, place)
        longest_last = sorted(total.items(), key=lambda of_stream: of_stream[1])
        streams = {optype: lane for (optype, lane), _ in longest_last}
        computing = on_host.intersection(NUMBERED_TYPES)
        if not computing <= streams.keys():
            streams |= dict.fromkeys(computing & streams.keys(), _BY_HOST)
        return streams

    def _count_names(self, rows: Rows, names: KinetoNames, place: ParallelPosition) -> None:
        code = self._code[rows["name"]]
        for name, times in _counted(rows["name"][code < 0]):
            names.count(self._file.names[name], place, times)
        for name, times in _counted(rows["name"][(code >= 0) & (rows["kind"] == COMM)]):
            names.num_sums += times * names.is_sum(self._file.names[name], place)

    def _is_op(self, rows: Rows) -> NDArray[np.bool_]:
        code = self._code[rows["name"]]
        stream = np.full(NUM_CODES + 1, _NO_STREAM, np.int64)  # the last one for no code
        stream[list(self._stream)] = list(self._stream.values())
        on_gpu, on_host = rows["kind"] == GPU, rows["kind"] == HOST
        is_main = stream[code] == rows["lane"]
        has_gpu = stream[code] > _NO_STREAM
        is_unused = on_gpu & (stream[code] == _BY_HOST)
        self._losses.num_gpu_unused += int(is_unused.sum())
        is_elsewhere = on_gpu & (code >= 0) & ~is_main & ~is_unused
        self._losses.num_other_streams += int(is_elsewhere.sum())
        return np.asarray((code >= 0) & np.where(on_gpu, is_main, ~on_host | ~has_gpu))

    def _steps(self, rows: Rows) -> Ints:
        by_host = _numbers_at(self._host_steps, rows["start_ns"])
        step = by_host
        on_host = rows["kind"] == HOST
        if self._gpu_steps.numbers:
            step = np.where(on_host, by_host, self._steps_on_gpu(rows))
        else:
            self._losses.num_by_host_steps += int((~on_host & (by_host != OUTSIDE)).sum())
        told = self._step[rows["name"]]
        if not self.steps and (told < 0).any():
            raise InvalidTrace(
                f"{self._file.path.name}: has no ProfilerStep: call profiler.step() after each "
                "step, or name the step in a group (?P<step>[0-9]+) of --map"
            )
        return np.where(told >= 0, told, step)

    def _steps_on_gpu(self, rows: Rows) -> Ints:
        # By the marks of its own stream: the copy stream may enter the next step much earlier.
        step = _numbers_at(self._gpu_steps, rows["start_ns"])
        for lane in np.unique(rows["lane"]).tolist():
            if bounds := self._stream_steps.get(lane):
                is_of_lane = rows["lane"] == lane
                step[is_of_lane] = _numbers_at(bounds, rows["start_ns"][is_of_lane])
        return step


def _step_bounds(marks: Sequence[StepMark]) -> StepBounds:
    """Each GPU stream has its own mark: a step begins at the earliest."""
    spans: dict[int, tuple[int, int]] = {}
    for mark in marks:
        start_ns, end_ns = spans.get(mark.number, mark[-2:])
        spans[mark.number] = min(start_ns, mark.start_ns), max(end_ns, mark.end_ns)
    ordered = sorted((start_ns, number, end_ns) for number, (start_ns, end_ns) in spans.items())
    return StepBounds.of([(start_ns, end_ns, number) for start_ns, number, end_ns in ordered])


def _numbers_at(bounds: StepBounds, time_ns: Ints) -> Ints:
    """[times] number of the last step begun, `OUTSIDE` for none."""
    numbers: Ints = np.array([*bounds.numbers, OUTSIDE], np.int64)[bounds.at(time_ns)]
    return numbers


def _counted(names: Ints) -> list[tuple[int, int]]:
    """Names with their counts."""
    numbers, times = np.unique(names, return_counts=True)
    return list(zip(numbers.tolist(), times.tolist(), strict=True))


def _summed(code: Ints, rows: Rows) -> list[tuple[tuple[int, int], int]]:
    """Total length by (op type, stream)."""
    keys, position = np.unique(code << 32 | (rows["lane"] + 1), return_inverse=True)
    total = np.zeros(keys.size, np.int64)
    np.add.at(total, position, rows["duration_ns"])
    return [
        ((key >> 32, (key & 0xFFFFFFFF) - 1), length)
        for key, length in zip(keys.tolist(), total.tolist(), strict=True)
    ]


class KinetoImport(SpooledImport):
    """All ranks' files: annotations and collectives that are operations, by name and group."""

    def __init__(self, paths: Sequence[Path], options: ImportOptions) -> None:
        super().__init__(paths, options)
        self._names = KinetoNames(options)
        self._losses = KinetoOmissions()
        self._sizes_told: dict[str, int] = {}
        self._file_of: dict[tuple[int, int], str] = {}  # (rank, step)
        self._has_clock = True

    @override
    def read(self, spool: OpSpool) -> ImportFacts:
        for path in self.paths:
            file = AnnotatedFile(path, self.options.spool_dir)
            spool.at = lambda name=path.name: name  # type: ignore[misc]
            try:
                self._take(spool, file)
            finally:
                file.ranges.close()
        return ImportFacts(
            missing=[*self._losses.missing(), *self._names.missing()],
            sizes=self._sizes_told,
            labels=HOST_TIMES if self._losses.is_host_alone else {},
            has_clock=self._has_clock,
            numbers_microbatches=True,
        )

    def _take(self, spool: OpSpool, file: AnnotatedFile) -> None:
        name = file.path.name
        rank = file.rank
        if rank is None:
            if len(self.paths) > 1:
                raise InvalidTrace(
                    f"{name}: does not say of which rank it is: put it into the name, as rank3.json"
                )
            rank = 0
        self._refuse_pipeline_in_default_group(file)
        place = position_of(name, rank, file.info, self.options.sizes)
        self._agree(name, place)
        origin_ns = self._origin_ns(file)
        spool.place(rank, place.dp_rank, place.stage, peer=place.peer, host=file.host)
        ops = OpsOfFile(file, place, self._names, self._losses)
        for step in ops.steps:
            before = self._file_of.setdefault((rank, step), name)
            if before != name:
                raise InvalidTrace(
                    f"{name}: rank {rank} has step {step}, and in {before}, too: give each rank's "
                    "file once"
                )
        for columns in ops.columns():
            columns["start_ns"] += origin_ns
            num_ops = columns["step"].size
            spool.add_rows(np.full(num_ops, rank, np.int64), columns.pop("step"), **columns)

    def _refuse_pipeline_in_default_group(self, file: AnnotatedFile) -> None:
        if self.options.sizes or not is_all_data_parallel(file.info):
            return
        if any(
            isinstance(name, Collective) and name.name in (SEND, RECEIVE) for name in file.names
        ):
            raise InvalidTrace(
                f"{file.path.name}: ranks of its only group send to each other, as stages of a "
                "pipeline do: give --dp and --pp"
            )

    def _agree(self, name: str, place: ParallelPosition) -> None:
        sizes = dict(place.sizes)
        if self._sizes_told and sizes != self._sizes_told:
            key = next(key for key in sizes if sizes[key] != self._sizes_told.get(key))
            raise InvalidTrace(
                f"{name}: {key} is {sizes[key]} here and {self._sizes_told.get(key)} in "
                f"{self.paths[0].name}: give the files of one run, or the sizes"
            )
        self._sizes_told = sizes

    def _origin_ns(self, file: AnnotatedFile) -> int:
        origin_ns = file.origin_ns
        if origin_ns is not None:
            return origin_ns
        if len(self.paths) > 1:
            raise InvalidTrace(
                f"{file.path.name}: has no baseTimeNanoseconds: its times cannot be compared with "
                "those of other ranks"
            )
        self._has_clock = False
        return 0
