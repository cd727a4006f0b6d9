"""A job from the profiles of some of its ranks."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from app.diagnosis.profiles.gpu_time import (
    GpuTimeBreakdown,
    computing_intervals,
    exposed_waits,
    gpu_time_breakdown,
    kernel_span,
    receives,
    waiting_intervals,
)
from app.engine.arrivals.arrivals import Arrivals, arrivals_of_table
from app.engine.arrivals.waits import WaitIntervals
from app.errors import InvalidRequest, InvalidTrace
from app.trace.collectives import Collectives
from app.trace.readers.kineto import profile
from app.trace.readers.kineto.collective_table import ProfileTable, collective_table
from app.trace.readers.kineto.profile import OPTIMIZER_STEPS, RankProfile
from app.trace.window import Floats, Ints, parse_step_ranges

MAX_FILES = 16_384
_MAX_REFUSALS_SHOWN = 10
# A rank's waiting is known if other files have this share of its communication.
_MIN_SHARED_SHARE = 0.9
# With at least so many steps by optimizer marks the first is left out: it holds the start of the
# profiler, which differs between ranks.
_MIN_STEPS_TO_DROP_FIRST = 3
_BEFORE_RANK = re.compile(r"[-_ ]*rank[\[_-]?\d", re.IGNORECASE)
_STARTS_PROFILE = "the first step without a ProfilerStep mark holds the start of the profiler"
_NOT_ON_ALL = "some of the ranks' files do not have it"


@dataclass(frozen=True)
class RankFigures:
    """One rank's file and its time in the steps of the job; see `GpuTimeBreakdown` for shapes.

    `kernel_span` is the time from the first kernel to the last, as one step. `waiting_s` [steps] is
    the part of exposed communication spent waiting for other ranks; None where files of other
    members lack most of its communication.
    """

    rank: int
    profile: RankProfile
    time: GpuTimeBreakdown
    kernel_span: GpuTimeBreakdown
    waiting_s: Floats | None
    data_wait_s: Floats
    blocks: Floats


@dataclass(frozen=True)
class ProfiledJob:
    """All ranks' files in the steps that all of them have; ranks ascending.

    `refusals` has the reasons for files left out. `waits` has all transfers and the collectives
    of `table` that several files have, with waits shortened by computing; arrivals come from it,
    None where no collective has two members that were read.
    """

    name: str
    world_size: int
    is_world_size_known: bool
    steps: tuple[int, ...]
    steps_from: str
    skipped: tuple[tuple[int, str], ...]
    ranks: tuple[RankFigures, ...]
    table: ProfileTable
    waits: Collectives
    arrivals: Arrivals | None
    refusals: tuple[str, ...]

    @property
    def step_s(self) -> Floats:
        """[steps], the median over ranks."""
        return np.median([figures.time.step_s for figures in self.ranks], axis=0)

    @property
    def coverage(self) -> float:
        """Share of the steps in which the GPUs were busy, mean over ranks."""
        return float(np.mean([figures.time.coverage for figures in self.ranks]))

    @property
    def is_complete(self) -> bool:
        """Whether every rank of the job has its file."""
        return len(self.ranks) == self.world_size

    @property
    def missing(self) -> list[int]:
        """Ranks without a file, ascending."""
        read = {figures.rank for figures in self.ranks}
        return [rank for rank in range(self.world_size) if rank not in read]


def read(paths: Sequence[Path], steps: str | None = None) -> ProfiledJob:
    """The job of these files; `steps` as ranges in text, by default all.

    Raises:
        InvalidRequest: no file or none of the steps can be analysed; the message says why.
    """
    if len(paths) > MAX_FILES:
        raise InvalidRequest(f"{len(paths):,} files: give at most {MAX_FILES:,}")
    ranks: dict[int, _ReadRank] = {}
    refusals = []
    for path in paths:
        try:
            read_profile = profile.read(path)
            rank = _rank(read_profile, ranks, len(paths))
        except InvalidTrace as error:
            refusals.append(str(error))
            continue
        ranks[rank] = _ReadRank(
            read_profile.as_rank(rank),
            gpu_time_breakdown(read_profile.work, read_profile.bounds_ns),
            kernel_span(read_profile),
            computing_intervals(read_profile.work, int(read_profile.bounds_ns[0])),
        )
    if not ranks:
        raise InvalidTrace(_all_refused(refusals))
    return _job(dict(sorted(ranks.items())), refusals, steps)


class _ReadRank(NamedTuple):
    """What a job needs of one rank's file."""

    profile: RankProfile
    time: GpuTimeBreakdown
    kernel_span: GpuTimeBreakdown
    computing: WaitIntervals


def _all_refused(refusals: Sequence[str]) -> str:
    if len(refusals) == 1:
        return refusals[0]
    shown = list(refusals[:_MAX_REFUSALS_SHOWN])
    if len(refusals) > len(shown):
        shown.append(f"and {len(refusals) - len(shown):,} more files")
    return f"none of the {len(refusals):,} files can be analysed: {'; '.join(shown)}"


def _rank(added: RankProfile, ranks: Mapping[int, _ReadRank], num_files: int) -> int:
    """The rank of one more file, which agrees with those before."""
    rank, file = added.rank, added.file
    if rank is None and num_files > 1:
        raise InvalidTrace(
            f"{file}: does not say of which rank it is: put it into the name, as rank3.json"
        )
    rank = rank or 0
    if rank in ranks:
        raise InvalidTrace(
            f"{file}: is of rank {rank}, as {ranks[rank].profile.file} is: give one file of each "
            "rank"
        )
    if added.world_size is not None and rank >= added.world_size:
        raise InvalidTrace(
            f"{file}: is of rank {rank}, but of a job of {added.world_size:,} ranks: record it "
            "again"
        )
    for other, *_ in ranks.values():
        sizes = added.world_size, other.world_size
        if None not in sizes and added.world_size != other.world_size:
            raise InvalidTrace(
                f"{file}: is of a job of {added.world_size:,} ranks, {other.file} of "
                f"{other.world_size:,}: give the files of one run"
            )
        if added.steps_from != other.steps_from:
            raise InvalidTrace(
                f"{file}: its steps come from {added.steps_from}, those of {other.file} from "
                f"{other.steps_from}: record all ranks in the same way"
            )
    return rank


def _job(
    ranks: Mapping[int, _ReadRank], refusals: Sequence[str], chosen_steps: str | None
) -> ProfiledJob:
    profiles = [of_rank.profile for of_rank in ranks.values()]
    steps, skipped = _steps(profiles, chosen_steps)
    named = next((of_rank.world_size for of_rank in profiles if of_rank.world_size), None)
    world_size = named or max(ranks) + 1
    table = collective_table(profiles, steps, world_size)
    computing = {rank: of_rank.computing for rank, of_rank in ranks.items()}
    step_s = np.median([of_rank.step_s[_at(of_rank, steps)] for of_rank in profiles], axis=0)
    # Rows of collectives that several files have, and of transfers.
    sizes = np.array([len(group.ranks) for group in table.collectives.groups], np.int64)
    rows = np.flatnonzero(sizes[table.collectives.group] > 1)
    shared = exposed_waits(table.collectives, computing).select(rows)
    recorded = table.collectives.select(rows)
    waiting_of = waiting_intervals(shared)
    for rank in ranks:
        if not _is_mostly_shared(ranks[rank].profile, steps, recorded):
            waiting_of.pop(rank, None)
    return ProfiledJob(
        name=_name([of_rank.file for of_rank in profiles]),
        world_size=world_size,
        is_world_size_known=named is not None,
        steps=steps,
        steps_from=profiles[0].steps_from,
        skipped=skipped,
        ranks=tuple(
            _figures(rank, of_rank, waiting_of.get(rank), steps) for rank, of_rank in ranks.items()
        ),
        table=table,
        waits=shared,
        arrivals=arrivals_of_table(shared, steps, step_s, receives(shared))
        if shared.num_rows
        else None,
        refusals=tuple(refusals),
    )


def _is_mostly_shared(of_rank: RankProfile, steps: Sequence[int], shared: Collectives) -> bool:
    """Whether other files have nearly all communication of the rank."""
    chosen = set(steps)
    total_ns = sum(
        collective.end_ns - collective.start_ns
        for collective in of_rank.collectives
        if of_rank.steps[collective.step] in chosen
    )
    shared_s = shared.stay_s[shared.rank == of_rank.rank].sum()
    return bool(shared_s >= _MIN_SHARED_SHARE * total_ns / 1e9)


def _steps(
    profiles: Sequence[RankProfile], named: str | None
) -> tuple[tuple[int, ...], tuple[tuple[int, str], ...]]:
    """Steps to analyse, and skipped steps with the reason."""
    everywhere = set.intersection(*(set(of_rank.steps) for of_rank in profiles))
    anywhere = sorted(set.union(*(set(of_rank.steps) for of_rank in profiles)))
    if not everywhere:
        first, last = profiles[0], profiles[-1]
        raise InvalidTrace(
            f"{first.file} has steps {first.steps[0]} to {first.steps[-1]} and {last.file} "
            f"{last.steps[0]} to {last.steps[-1]}: no step is in all files"
        )
    wanted = set(parse_step_ranges(named, anywhere)) if named is not None else set(anywhere)
    reasons = {step: _NOT_ON_ALL for step in anywhere if step not in everywhere}
    empty = {
        step
        for step in everywhere
        for of_rank in profiles
        if not of_rank.step_s[of_rank.steps.index(step)] > 0
    }
    reasons |= dict.fromkeys(empty, "a rank's GPU did nothing in it")
    is_first_partial = profiles[0].steps_from == OPTIMIZER_STEPS
    if named is None and is_first_partial and len(anywhere) >= _MIN_STEPS_TO_DROP_FIRST:
        reasons[anywhere[0]] = _STARTS_PROFILE
    steps = tuple(step for step in anywhere if step in wanted and step not in reasons)
    if not steps:
        step = next((step for step in anywhere if step in wanted), None)
        why = reasons.get(step, "") if step is not None else "no file has it"
        raise InvalidRequest(f"no step can be analysed: {why}")
    skipped = tuple((step, why) for step, why in sorted(reasons.items()) if step in wanted)
    return steps, skipped


def _at(of_rank: RankProfile, steps: Sequence[int]) -> Ints:
    place = {step: at for at, step in enumerate(of_rank.steps)}
    return np.array([place[step] for step in steps], np.int64)


def _figures(
    rank: int, of_rank: _ReadRank, waits: WaitIntervals | None, steps: Sequence[int]
) -> RankFigures:
    read_profile = of_rank.profile
    at = _at(read_profile, steps)
    time = of_rank.time.of_steps(at)
    waiting_s = None
    if waits is not None:
        bounds_s = (read_profile.bounds_ns - read_profile.bounds_ns[0]) / 1e9
        # A wait is part of communication, and may extend into the next step.
        exposed_s = time.communicating_exposed_s
        waiting_s = np.minimum(np.diff(waits.until(bounds_s))[at], exposed_s)
    return RankFigures(
        rank,
        read_profile,
        time,
        of_rank.kernel_span,
        waiting_s,
        read_profile.data_wait_s[at],
        read_profile.blocks[at],
    )


def _name(files: Sequence[str]) -> str:
    """The common beginning of the file names, before the rank."""
    stems = [_BEFORE_RANK.split(file.split(".")[0])[0] for file in files]
    name = stems[0].strip("-_ ") if len(set(stems)) == 1 else ""
    return name[:100] or "profile"
