"""Imports traces of torch.profiler (Kineto): one file a rank, with annotations and collectives.

The op type of an annotation or collective follows from its name, its group and the rank's position.
Its step follows from the profiler's marks on the host or on its stream of the GPU.
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
# Types that belong to a model chunk.
_GATHERS = [OP_CODES["params-all-gather"], OP_CODES["grads-reduce-scatter"]]
_INNER_AXES = ("tp", "cp", "expert")
_NO_OPERATION = NameMeaning(())
_MAX_COUNTED = 1_000
_MAX_SHOWN_CHARS = 60


class KinetoNames:
    """The meanings of the names in all files, and counts of the unknown ones."""

    def __init__(self, options: ImportOptions) -> None:
        self._map = NameMap(options, {})
        self._has_patterns = bool(options.patterns)
        self.unknown_collectives: Counter[str] = Counter()
        self.num_inside = 0
        self.num_sums = 0

    def of_file(
        self, where: str, names: Sequence[EventName], place: ParallelPosition
    ) -> list[NameMeaning]:
        """The meanings of the names on this rank, `_NO_OPERATION` for other names.

        Raises:
            InvalidTrace: the rank runs stages of the model that do not belong to its place.
        """
        stages = sorted(
            {
                int(action[1])
                for name in names
                if isinstance(name, str)
                and (action := event_names.PIPELINING.match(name))
                and not self._map.meaning(name)
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
        """Whether it is an all-reduce that is assumed to sum gradients."""
        if isinstance(name, str) or name.kind != "all-reduce" or _axis(name, place) != "dp":
            return False
        return not (self._has_patterns and self._map.meaning(_collective_text(name)))

    def missing(self) -> list[MissingData]:
        """The operations that were skipped or are uncertain because of their names."""
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
        if meaning := self._map.meaning(name):
            return meaning
        if action := event_names.PIPELINING.match(name):
            code = OP_CODES[event_names.PIPELINING_TYPES[action[2]]]
            return NameMeaning((code,), int(action[3]), chunk_of[int(action[1])])
        if event_names.OPTIMIZER.match(name):
            return NameMeaning((OP_CODES["optimizer"],))
        if event_names.LOADER.match(name):
            return NameMeaning((OP_CODES["data-wait"],))
        return _NO_OPERATION

    def _collective(self, collective: Collective, place: ParallelPosition) -> NameMeaning:
        if self._has_patterns and (meaning := self._map.meaning(_collective_text(collective))):
            return meaning
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
    """The parallel axis of a collective's group; of the only group, that of the whole job."""
    return axis_of(collective.description) or place.only_axis


def _collective_text(collective: Collective) -> str:
    """The text of a collective for patterns and messages."""
    return f"{collective.name} {collective.description or collective.group}"


def _p2p(collective: Collective, place: ParallelPosition) -> str | None:
    """The op type of a transfer to or from a neighbouring stage."""
    peer = collective.target if collective.name == SEND else collective.source
    size = place.sizes["pp_size"]
    if peer < 0 or len(place.stages) != size or place.sizes.get("vpp_size", 1) > 1:
        return None  # with interleaving, first and last stage are neighbours in both directions
    # The number is a global rank if the group has it, else a rank within the group.
    stage = place.stages.index(peer) if peer in place.stages else peer
    if stage == place.stage + 1:
        return "forward-send" if collective.name == SEND else "backward-recv"
    if stage == place.stage - 1:
        return "backward-send" if collective.name == SEND else "forward-recv"
    return None


Columns = dict[str, Ints]
# In place of a type's stream on the GPU: it has none, or the host's times are used instead.
_NO_STREAM, _BY_HOST = -2, -3


@dataclass(slots=True)
class KinetoOmissions:
    """Counts of skipped or inexact operations in all files."""

    num_ops: int = 0
    num_outside: int = 0
    num_on_host: int = 0
    num_gpu_unused: int = 0
    num_by_host_steps: int = 0
    num_other_streams: int = 0
    num_without_group: int = 0

    @property
    def has_only_host_times(self) -> bool:
        """Whether all operations have times of the host."""
        return self.num_on_host == self.num_ops

    def missing(self) -> list[MissingData]:
        """The counts as missing data."""
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
    """The operations of a file with their steps.

    Raises:
        InvalidTrace: the file has operations but no steps.
    """

    def __init__(
        self,
        file: AnnotatedFile,
        place: ParallelPosition,
        names: KinetoNames,
        omissions: KinetoOmissions,
    ) -> None:
        self._file = file
        self._omissions = omissions
        meanings = names.of_file(file.path.name, file.names, place)
        # All [names].
        self._code = np.array([name.codes[0] if name.codes else -1 for name in meanings], np.int64)
        self._mb_id = np.array([name.mb_id for name in meanings], np.int64)
        self._mc = np.array([name.chunk for name in meanings], np.int64)
        self._step = np.array([name.step for name in meanings], np.int64)
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
        omissions.num_without_group += file.num_without_group
        self.steps = sorted({*self._host_steps.numbers, *self._gpu_steps.numbers})

    def columns(self) -> Iterator[Columns]:
        """The columns of blocks of rows; starts are by the file's own clock."""
        for block in self._file.ranges.blocks():
            rows = block[self._is_op(block)]
            step = self._steps(rows)
            is_inside = step != OUTSIDE
            rows, name = rows[is_inside], rows["name"][is_inside]
            self._omissions.num_outside += int((~is_inside).sum())
            self._omissions.num_ops += rows.size
            self._omissions.num_on_host += int((rows["kind"] == HOST).sum())
            yield {
                "step": step[is_inside],
                "optype": self._code[name],
                "start_ns": rows["start_ns"],
                "duration_ns": rows["duration_ns"],
                "mc": self._mc[name],
                "mb_id": self._mb_id[name],
            }

    def _refuse_repeated_steps(self) -> None:
        numbers = set()
        for mark in self._file.steps[HOST]:
            if mark.number in numbers:
                raise InvalidTrace(
                    f"{self._file.path.name}: ProfilerStep#{mark.number} is there twice: export "
                    "one cycle"
                )
            numbers.add(mark.number)

    def _streams(self, names: KinetoNames, place: ParallelPosition) -> dict[int, int]:
        """By op type with annotations on the GPU, the stream with most of the type's time."""
        total: Counter[tuple[int, int]] = Counter()
        on_host: set[int] = set()
        for rows in self._file.ranges.blocks():
            code = self._code[rows["name"]]
            on_gpu = rows[(rows["kind"] == GPU) & (code >= 0)]
            total.update(_durations_ns(self._code[on_gpu["name"]], on_gpu))
            on_host.update(np.unique(code[rows["kind"] == HOST]).tolist())
            # The GPU repeats annotations of the host.
            self._count_names(rows[rows["kind"] != GPU], names, place)
        streams = dict(sorted(total, key=total.__getitem__))  # the longest is the last of a type
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
        stream = np.full(NUM_CODES + 1, _NO_STREAM, np.int64)  # [-1] for code -1
        stream[list(self._stream)] = list(self._stream.values())
        on_gpu, on_host = rows["kind"] == GPU, rows["kind"] == HOST
        is_main = stream[code] == rows["lane"]
        has_gpu = stream[code] > _NO_STREAM
        is_unused = on_gpu & (stream[code] == _BY_HOST)
        self._omissions.num_gpu_unused += int(is_unused.sum())
        is_elsewhere = on_gpu & (code >= 0) & ~is_main & ~is_unused
        self._omissions.num_other_streams += int(is_elsewhere.sum())
        return np.asarray((code >= 0) & np.where(on_gpu, is_main, ~on_host | ~has_gpu))

    def _steps(self, rows: Rows) -> Ints:
        by_host = _numbers_at(self._host_steps, rows["start_ns"])
        step = by_host
        on_host = rows["kind"] == HOST
        if self._gpu_steps.numbers:
            step = np.where(on_host, by_host, self._steps_on_gpu(rows))
        else:
            self._omissions.num_by_host_steps += int((~on_host & (by_host != OUTSIDE)).sum())
        in_name = self._step[rows["name"]]
        if not self.steps and (in_name < 0).any():
            raise InvalidTrace(
                f"{self._file.path.name}: has no ProfilerStep: call profiler.step() after each "
                "step, or name the step in a group (?P<step>[0-9]+) of --map"
            )
        return np.where(in_name >= 0, in_name, step)

    def _steps_on_gpu(self, rows: Rows) -> Ints:
        # By the marks of the operation's stream: the copy stream may begin a step much earlier.
        step = _numbers_at(self._gpu_steps, rows["start_ns"])
        for lane in np.unique(rows["lane"]).tolist():
            if bounds := self._stream_steps.get(lane):
                is_of_lane = rows["lane"] == lane
                step[is_of_lane] = _numbers_at(bounds, rows["start_ns"][is_of_lane])
        return step


def _step_bounds(marks: Sequence[StepMark]) -> StepBounds:
    """The steps of marks on several streams, from the earliest start to the latest end."""
    spans: dict[int, tuple[int, int]] = {}
    for mark in marks:
        start_ns, end_ns = spans.get(mark.number, mark[-2:])
        spans[mark.number] = min(start_ns, mark.start_ns), max(end_ns, mark.end_ns)
    ordered = sorted((start_ns, number, end_ns) for number, (start_ns, end_ns) in spans.items())
    return StepBounds.of([(start_ns, end_ns, number) for start_ns, number, end_ns in ordered])


def _numbers_at(bounds: StepBounds, time_ns: Ints) -> Ints:
    """[times] number of the last step begun, or `OUTSIDE`."""
    numbers: Ints = np.array([*bounds.numbers, OUTSIDE], np.int64)[bounds.at(time_ns)]
    return numbers


def _counted(names: Ints) -> list[tuple[int, int]]:
    """The distinct names with their counts."""
    numbers, times = np.unique(names, return_counts=True)
    return list(zip(numbers.tolist(), times.tolist(), strict=True))


def _durations_ns(code: Ints, rows: Rows) -> dict[tuple[int, int], int]:
    """The total duration by (op type, stream)."""
    keys, position = np.unique(code << 32 | (rows["lane"] + 1), return_inverse=True)
    total_ns = np.zeros(keys.size, np.int64)
    np.add.at(total_ns, position, rows["duration_ns"])
    pairs = zip((keys >> 32).tolist(), ((keys & 0xFFFFFFFF) - 1).tolist(), strict=True)
    return dict(zip(pairs, total_ns.tolist(), strict=True))


class KinetoImport(SpooledImport):
    """The files of all ranks; operations are their annotations and collectives."""

    def __init__(self, paths: Sequence[Path], options: ImportOptions) -> None:
        super().__init__(paths, options)
        self._names = KinetoNames(options)
        self._omissions = KinetoOmissions()
        self._known_sizes: dict[str, int] = {}
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
            missing=[*self._omissions.missing(), *self._names.missing()],
            sizes=self._known_sizes,
            labels=HOST_TIMES if self._omissions.has_only_host_times else {},
            has_clock=self._has_clock,
            numbers_microbatches=True,
        )

    def _take(self, spool: OpSpool, file: AnnotatedFile) -> None:
        name, rank = file.path.name, file.rank
        if rank is None:
            if len(self.paths) > 1:
                raise InvalidTrace(
                    f"{name}: does not say of which rank it is: put it into the name, as rank3.json"
                )
            rank = 0
        self._refuse_pipeline_in_default_group(file)
        place = position_of(name, rank, file.info, self.options.sizes)
        self._refuse_other_sizes(name, place)
        origin_ns = self._origin_ns(file)
        spool.place(rank, place.dp_rank, place.stage, peer=place.peer, host=file.host)
        ops = OpsOfFile(file, place, self._names, self._omissions)
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
        collectives = (name for name in file.names if isinstance(name, Collective))
        if any(collective.name in (SEND, RECEIVE) for collective in collectives):
            raise InvalidTrace(
                f"{file.path.name}: ranks of its only group send to each other, as stages of a "
                "pipeline do: give --dp and --pp"
            )

    def _refuse_other_sizes(self, name: str, place: ParallelPosition) -> None:
        sizes = dict(place.sizes)
        if self._known_sizes and sizes != self._known_sizes:
            key = next(key for key in sizes if sizes[key] != self._known_sizes.get(key))
            raise InvalidTrace(
                f"{name}: {key} is {sizes[key]} here and {self._known_sizes.get(key)} in "
                f"{self.paths[0].name}: give the files of one run, or the sizes"
            )
        self._known_sizes = sizes

    def _origin_ns(self, file: AnnotatedFile) -> int:
        if (origin_ns := file.origin_ns) is not None:
            return origin_ns
        if len(self.paths) > 1:
            raise InvalidTrace(
                f"{file.path.name}: has no baseTimeNanoseconds: its times cannot be compared with "
                "those of other ranks"
            )
        self._has_clock = False
        return 0
