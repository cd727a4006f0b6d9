"""Logs of the NCCL Inspector: JSON, one collective of one process a line.

A collective is the same on all its ranks if communicator, kind and sequence number are: the
numbers are counted for each kind apart. All leave a collective together, so whoever was in it for
the shortest time came last, and the others waited for them. A process's global rank is its rank in
the largest communicator, where each process is in that.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.errors import InvalidTrace
from app.trace.readers.importing import ImportOptions, MissingData
from app.trace.readers.input_file import TextLines
from app.trace.readers.scores.nccl_records import (
    MAX_ROWS,
    CollectiveRecord,
    CollectiveTable,
    Process,
    RecordCounts,
    RecordOrigin,
    collective_records,
)
from app.trace.readers.scores.score_report import (
    LATE,
    MAX_SERIES,
    MetricReadings,
    ScoreCollector,
    ScoreFiles,
    ScoreReport,
)

# Small, so that made-up numbers far apart in a request cost little each.
_BLOCK = 128
# 16 million collectives of all communicators together, in some 260 MB.
MAX_BLOCKS = 1 << 17


class LongestTimes:
    """The longest time of each collective and its number of ranks, in blocks of arrays."""

    def __init__(self, *, max_blocks: int = MAX_BLOCKS) -> None:
        self._most_blocks = max_blocks
        self._blocks: dict[tuple[str, str, int], tuple[NDArray[np.float64], NDArray[np.int32]]] = {}
        self.num_left_out = 0

    @property
    def most(self) -> int:
        """Capacity in collectives, if their numbers are successive."""
        return self._most_blocks * _BLOCK

    def add(self, each: CollectiveRecord) -> None:
        """Add one rank's record of a collective."""
        key = (each.place.comm, each.kind, each.sn // _BLOCK)
        block = self._blocks.get(key)
        if block is None:
            if len(self._blocks) >= self._most_blocks:
                self.num_left_out += 1
                return
            block = self._blocks[key] = (np.zeros(_BLOCK, np.float64), np.zeros(_BLOCK, np.int32))
        longest_us, num_ranks = block
        at = each.sn % _BLOCK
        longest_us[at] = max(longest_us[at], each.time_us)
        num_ranks[at] += 1

    def longest_us(self, each: CollectiveRecord) -> float | None:
        """The longest time in this collective; None unless each of its ranks has spoken once.

        Fewer: who was last may be among the others. More: the communicator's name was used again
        after a restart, and these are two collectives.
        """
        block = self._blocks.get((each.place.comm, each.kind, each.sn // _BLOCK))
        at = each.sn % _BLOCK
        if each.place.num_ranks < 2 or block is None or block[1][at] != each.place.num_ranks:
            return None
        return float(block[0][at])


# More processes than any job has: a limit against made-up files.
MAX_PROCESSES = 1 << 20


class GlobalRanks:
    """Processes and their ranks in the largest communicator."""

    def __init__(self) -> None:
        self._largest: tuple[int, str] = (0, "")
        self._ranks: dict[Process, int] = {}
        self._processes: set[Process] = set()

    def add(self, process: Process, comm: str, rank: int, num_ranks: int) -> None:
        """Add a process's rank in a communicator."""
        if len(self._processes) < MAX_PROCESSES:
            self._processes.add(process)
        if num_ranks > self._largest[0]:
            self._largest = (num_ranks, comm)
            self._ranks = {}
        if comm == self._largest[1] and len(self._ranks) < MAX_PROCESSES:
            self._ranks.setdefault(process, rank)

    @property
    def num_processes(self) -> int:
        """Number of processes."""
        return len(self._processes)

    @property
    def largest(self) -> str:
        """The largest communicator, for messages."""
        num_ranks, comm = self._largest
        return f"the largest communicator ({comm}, {num_ranks:,} ranks)"

    def ranks(self) -> dict[Process, int] | None:
        """Global rank of each process; None where no communicator has them all."""
        numbers = self._ranks.values()
        is_one = self._ranks.keys() == self._processes and len({*numbers}) == len(numbers)
        return dict(self._ranks) if is_one else None


NAME = "nccl-inspector"
TIME_INSIDE = "time-inside"
BANDWIDTH = "bus-bandwidth"
_METRICS = {TIME_INSIDE: "ms", BANDWIDTH: "GB/s", LATE: "ms"}


def open_files(paths: Sequence[Path], options: ImportOptions) -> ScoreFiles:
    """The import of these files; opened lazily."""
    return ScoreFiles(paths, options, partial(read, keeps_collectives=True))


def read(
    texts: Sequence[TextLines], *, max_blocks: int = MAX_BLOCKS, keeps_collectives: bool = False
) -> ScoreReport:
    """How late each process comes to its collectives, and how long these take.

    The report has each of the collectives, too, where `keeps_collectives` asks for them and all
    processes have global ranks. The texts are read twice: a process's file says nothing of when the
    others came.

    Raises:
        InvalidTrace: a line breaks the format, or there is no collective in any text.
    """
    _refuse_pipes(texts)
    joined, worlds, counts = LongestTimes(max_blocks=max_blocks), GlobalRanks(), RecordCounts()
    seen: RecordOrigin | None = None
    for each in collective_records(texts, counts):
        if each.place is not seen:
            seen = each.place
            worlds.add(seen.process, seen.comm, seen.rank, seen.num_ranks)
        joined.add(each)
    if not counts.num_collectives:
        names = ", ".join(text.name for text in texts[:3])
        raise InvalidTrace(
            f"{names}: no collective in it: set NCCL_INSPECTOR_ENABLE=1, "
            "and leave NCCL_INSPECTOR_PROM_DUMP unset"
        )
    ranks = worlds.ranks()
    collected = ScoreCollector()
    collected.begin()
    rows = _ScoreRows(joined, ranks, collected)
    table = CollectiveTable(ranks) if keeps_collectives and ranks is not None else None
    for each in collective_records(texts, RecordCounts()):
        rows.add(each)
        if table is not None:
            table.add(each)
    missing = [*_missing_data(counts, joined, worlds, rows.num_joined, has_ranks=ranks is not None)]
    if table is not None and table.num_left_out:
        what = f"{table.num_left_out:,} collectives beyond the first {MAX_ROWS:,}"
        missing.append(MissingData(what, "whom the others waited for is told without them"))
    report = collected.report(NAME, missing)
    return report if table is None else replace(report, collectives=table.collectives())


def _refuse_pipes(texts: Sequence[TextLines]) -> None:
    for text in texts:
        if not text.can_be_read_again:
            raise InvalidTrace(
                f"{text.name}: is a pipe, and these logs are read twice: write it to a file first"
            )


class _ProcessReadings(NamedTuple):
    """Readings of one process for one kind of collective."""

    time: MetricReadings
    bandwidth: MetricReadings
    late: MetricReadings
    rank: int | None
    node: str


class _ScoreRows:
    """Second pass: readings against the longest time of each collective."""

    def __init__(
        self, joined: LongestTimes, ranks: Mapping[Process, int] | None, collected: ScoreCollector
    ) -> None:
        self._joined, self._ranks, self._collected = joined, ranks, collected
        self._groups: dict[tuple[Process, str, int, str], _ProcessReadings] = {}
        self.num_joined = 0

    def add(self, each: CollectiveRecord) -> None:
        place = each.place
        self._collected.at(place.at_s)
        time, bandwidth, late, rank, node = self._groups_of(each)
        time.add(rank, each.time_us / 1e3, node=node)
        if each.bandwidth_gbs is not None:
            bandwidth.add(rank, each.bandwidth_gbs, node=node)
        longest_us = self._joined.longest_us(each)
        if longest_us is not None:
            self.num_joined += 1
            late.add(rank, (longest_us - each.time_us) / 1e3, node=node)

    def _groups_of(self, each: CollectiveRecord) -> _ProcessReadings:
        place = each.place
        key = (place.process, place.comm, place.num_ranks, each.kind)
        found = self._groups.get(key)
        if found is None:
            if len(self._groups) >= MAX_SERIES:
                self._groups.clear()
            section = f"{each.kind}, {place.num_ranks} ranks, {place.comm}"
            time, bandwidth, late = (
                self._collected.group(section, metric, unit) for metric, unit in _METRICS.items()
            )
            rank = None if self._ranks is None else self._ranks.get(place.process)
            node = str(place.process) if rank is None else place.process.host
            found = self._groups[key] = _ProcessReadings(time, bandwidth, late, rank, node)
        return found


def _missing_data(
    counts: RecordCounts,
    joined: LongestTimes,
    worlds: GlobalRanks,
    num_joined: int,
    *,
    has_ranks: bool,
) -> Iterator[MissingData]:
    num = counts.num_collectives
    if num_joined < num:
        what = f"the other ranks of {num - num_joined:,} of {num:,} records of collectives"
        yield MissingData(
            what, "who came late is known of the others only: give all processes' files"
        )
    if joined.num_left_out:
        what = f"collectives of more than {joined.most:,}"
        yield MissingData(what, f"{joined.num_left_out:,} records have times and no lateness")
    what = f"the global ranks of {worlds.num_processes:,} processes"
    if has_ranks:
        yield MissingData(
            what, f"those in {worlds.largest} are taken: wrong if it has not all of the job"
        )
    else:
        yield MissingData(
            what, "no communicator has all of them: they are named by host and process"
        )
    if counts.num_dropped:
        what = f"{counts.num_dropped:,} records that the Inspector itself dropped"
        yield MissingData(
            what, "means are over the others: enlarge NCCL_INSPECTOR_DUMP_COLL_RING_SIZE"
        )
    if counts.num_p2p:
        what = f"steps and stages of {counts.num_p2p:,} sends and receives"
        yield MissingData(what, "left out: their waits depend on the pipeline's schedule")


def sample() -> Mapping[str, bytes]:
    """Files of two processes: one that repeats its header on each line, one that does not."""
    of_rank = '{"header":{"id":"0x7f","rank":%d,"n_ranks":2,"nnodes":2},"metadata":{%s}'
    metadata = (
        '"inspector_output_format_version":"%s","dump_timestamp_us":1758464000500000,'
        '"hostname":"host-%s","pid":%d'
    )
    perf = (
        '"coll_perf":{"coll":"%s","coll_sn":%d,"coll_msg_size_bytes":1024,'
        '"coll_exec_time_us":%d,"coll_algobw_gbs":1.5,"coll_busbw_gbs":2.5}}\n'
    )
    old = of_rank % (0, metadata % ("v4.0", "a", 11))
    every = "".join(
        f"{old},{perf % each}" for each in [("AllReduce", 1, 900), ("AllReduce", 2, 950)]
    )
    stats = (
        '"dump_stats":{"coll_records":3,"coll_dropped_total":2,"coll_dropped_since_last_dump":2}}\n'
    )
    new = of_rank % (1, metadata % ("v4.3", "b", 12))
    own = [("AllReduce", 1, 100), ("AllReduce", 2, 50), ("AllGather", 1, 70)]
    once = f"{new},{stats}" + "".join("{" + perf % each for each in own)
    return {"host-a-11.log": every.encode(), "host-b-12.log": once.encode()}
