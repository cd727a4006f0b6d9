"""Logs of the NCCL Inspector: JSON, one collective of one process a line.

A collective is the same on all its ranks if communicator, kind and sequence number are: the
numbers are counted for each kind apart. All leave a collective together, so whoever was in it for
the shortest time came last, and the others waited for them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from app.errors import InvalidTrace
from app.trace.readers.foreign import Lack, Options
from app.trace.readers.nccl_collectives import MAX_ROWS, CollectiveTable
from app.trace.readers.nccl_lines import Collective, Counts, Place, Process, collectives
from app.trace.readers.nccl_times import MAX_BLOCKS, JoinedTimes
from app.trace.readers.nccl_worlds import Worlds
from app.trace.readers.score_files import ScoreFiles
from app.trace.readers.score_text import Text
from app.trace.scores import LATE, MAX_SERIES, Collected, Group, ScoreReport

NAME = "nccl-inspector"
TIME = "time-inside"
BANDWIDTH = "bus-bandwidth"
_METRICS = {TIME: "ms", BANDWIDTH: "GB/s", LATE: "ms"}


def open_files(paths: Sequence[Path], options: Options) -> ScoreFiles:
    """The files, to be read when they are asked for."""
    return ScoreFiles(paths, options, partial(read, keeps_collectives=True))


def read(
    texts: Sequence[Text], *, most_blocks: int = MAX_BLOCKS, keeps_collectives: bool = False
) -> ScoreReport:
    """How late each process comes to its collectives, and how long these take.

    The report has each of the collectives, too, where `keeps_collectives` asks for them and all
    processes have global ranks. The texts are read twice: a process's file says nothing of when the
    others came.

    Raises:
        InvalidTrace: a line breaks the format, or there is no collective in any text.
    """
    _refuse_pipes(texts)
    joined, worlds, counts = JoinedTimes(most_blocks=most_blocks), Worlds(), Counts()
    seen: Place | None = None
    for each in collectives(texts, counts):
        if each.place is not seen:
            seen = each.place
            worlds.see(seen.process, seen.comm, seen.rank, seen.num_ranks)
        joined.see(each)
    if not counts.num_collectives:
        names = ", ".join(text.name for text in texts[:3])
        raise InvalidTrace(
            f"{names}: no collective in it: set NCCL_INSPECTOR_ENABLE=1, "
            "and leave NCCL_INSPECTOR_PROM_DUMP unset"
        )
    ranks = worlds.ranks()
    collected = Collected()
    collected.begin()
    rows = _Rows(joined, ranks, collected)
    table = CollectiveTable(ranks) if keeps_collectives and ranks is not None else None
    for each in collectives(texts, Counts()):
        rows.add(each)
        if table is not None:
            table.add(each)
    lacks = [*_lacks(counts, joined, worlds, rows.num_joined, has_ranks=ranks is not None)]
    if table is not None and table.num_left_out:
        what = f"{table.num_left_out:,} collectives beyond the first {MAX_ROWS:,}"
        lacks.append(Lack(what, "whom the others waited for is told without them"))
    report = collected.report(NAME, lacks)
    return report if table is None else replace(report, collectives=table.collectives())


def _refuse_pipes(texts: Sequence[Text]) -> None:
    for text in texts:
        if not text.can_be_read_again:
            raise InvalidTrace(
                f"{text.name}: is a pipe, and these logs are read twice: write it to a file first"
            )


class _Groups(NamedTuple):
    """Where the measures of one kind of collective of one process go."""

    time: Group
    bandwidth: Group
    late: Group
    rank: int | None
    node: str


class _Rows:
    """Collects the second time, when it is known of each collective who was in it longest."""

    def __init__(
        self, joined: JoinedTimes, ranks: Mapping[Process, int] | None, collected: Collected
    ) -> None:
        self._joined, self._ranks, self._collected = joined, ranks, collected
        self._groups: dict[tuple[Process, str, int, str], _Groups] = {}
        self.num_joined = 0

    def add(self, each: Collective) -> None:
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

    def _groups_of(self, each: Collective) -> _Groups:
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
            found = self._groups[key] = _Groups(time, bandwidth, late, rank, node)
        return found


def _lacks(
    counts: Counts, joined: JoinedTimes, worlds: Worlds, num_joined: int, *, has_ranks: bool
) -> Iterator[Lack]:
    num = counts.num_collectives
    if num_joined < num:
        what = f"the other ranks of {num - num_joined:,} of {num:,} records of collectives"
        yield Lack(what, "who came late is known of the others only: give all processes' files")
    if joined.num_left_out:
        what = f"collectives of more than {joined.most:,}"
        yield Lack(what, f"{joined.num_left_out:,} records have times and no lateness")
    what = f"the global ranks of {worlds.num_processes:,} processes"
    if has_ranks:
        yield Lack(what, f"those in {worlds.largest} are taken: wrong if it has not all of the job")
    else:
        yield Lack(what, "no communicator has all of them: they are named by host and process")
    if counts.num_dropped:
        what = f"{counts.num_dropped:,} records that the Inspector itself dropped"
        yield Lack(what, "means are over the others: enlarge NCCL_INSPECTOR_DUMP_COLL_RING_SIZE")
    if counts.num_p2p:
        what = f"steps and stages of {counts.num_p2p:,} sends and receives"
        yield Lack(what, "left out: their waits depend on the pipeline's schedule")


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
