"""Traces of torch.profiler (Kineto): one file a rank, JSON or JSON packed by gzip."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from typing_extensions import override

from app.errors import InvalidTrace
from app.trace.readers.foreign import HOST_TIMES, Import, Options
from app.trace.readers.kineto_file import Collective, KinetoFile
from app.trace.readers.kineto_groups import RankPlace, is_all_data_parallel, place_of
from app.trace.readers.kineto_names import KinetoNames
from app.trace.readers.kineto_ops import Losses, OpsOfFile
from app.trace.readers.kineto_sample import sample
from app.trace.readers.op_spool import OpSpool
from app.trace.readers.spooled import Facts, SpooledImport

__all__ = ["NAME", "open_files", "sample"]

NAME = "kineto"


def open_files(paths: Sequence[Path], options: Options) -> Import:
    """The import of all ranks' files of one run."""
    return KinetoImport(paths, options)


class KinetoImport(SpooledImport):
    """All ranks' files: annotations and collectives that are operations, by name and group."""

    def __init__(self, paths: Sequence[Path], options: Options) -> None:
        super().__init__(paths, options)
        self._names = KinetoNames(options)
        self._losses = Losses()
        self._sizes_told: dict[str, int] = {}
        self._file_of: dict[tuple[int, int], str] = {}  # (rank, step)
        self._has_clock = True

    @override
    def read(self, spool: OpSpool) -> Facts:
        for path in self.paths:
            file = KinetoFile(path, self.options.spool_dir)
            spool.at = lambda name=path.name: name  # type: ignore[misc]
            try:
                self._take(spool, file)
            finally:
                file.rows.close()
        return Facts(
            lacks=[*self._losses.lacks(), *self._names.lacks()],
            sizes=self._sizes_told,
            labels=HOST_TIMES if self._losses.is_host_alone else {},
            has_clock=self._has_clock,
            numbers_microbatches=True,
        )

    def _take(self, spool: OpSpool, file: KinetoFile) -> None:
        name = file.path.name
        rank = file.rank
        if rank is None:
            if len(self.paths) > 1:
                raise InvalidTrace(
                    f"{name}: does not say of which rank it is: put it into the name, as rank3.json"
                )
            rank = 0
        self._refuse_pipeline_in_default_group(file)
        place = place_of(name, rank, file.info, self.options.sizes)
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

    def _refuse_pipeline_in_default_group(self, file: KinetoFile) -> None:
        if self.options.sizes or not is_all_data_parallel(file.info):
            return
        kinds = {each.name for each in file.names if isinstance(each, Collective)}
        if kinds & {"send", "recv"}:
            raise InvalidTrace(
                f"{file.path.name}: ranks of its only group send to each other, as stages of a "
                "pipeline do: give --dp and --pp"
            )

    def _agree(self, name: str, place: RankPlace) -> None:
        sizes = dict(place.sizes)
        if self._sizes_told and sizes != self._sizes_told:
            key = next(key for key in sizes if sizes[key] != self._sizes_told.get(key))
            raise InvalidTrace(
                f"{name}: {key} is {sizes[key]} here and {self._sizes_told.get(key)} in "
                f"{self.paths[0].name}: give the files of one run, or the sizes"
            )
        self._sizes_told = sizes

    def _origin_ns(self, file: KinetoFile) -> int:
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
