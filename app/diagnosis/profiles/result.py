"""Profiles as a result: the same records, None where only a replay has figures."""

import numpy as np
from msgspec.structs import replace

from app.diagnosis.profiles.causes import (
    COMPUTE,
    DATA_WAIT,
    HOST,
    MIN_COVERAGE,
    MIN_MENTIONED_SHARE,
    WORK,
    Causes,
    ProfileCulprit,
    causes,
)
from app.diagnosis.profiles.gpu_time import GpuTimeBreakdown, TransferTotals, transfer_totals
from app.diagnosis.profiles.job import ProfiledJob, RankFigures
from app.engine.arrivals.arrivals import arrivals_record
from app.engine.report import unmeasured_result
from app.formatting import percent, seconds
from app.result.arrivals import ArrivalsRecord, LateRankRecord
from app.result.causes import (
    DATA_LOADING,
    LATE_HOST,
    SEQUENCE_IMBALANCE,
    SLOW_LINK,
    SLOW_WORKER,
    STAGE_IMBALANCE,
)
from app.result.finding import Culprit, Finding, RuledOut
from app.result.profile import (
    BreakdownByStep,
    KernelSpan,
    ProfileBlock,
    RankBreakdown,
    TransfersRecord,
)
from app.result.window_result import JobSizes, StepTimes, WindowHeader, WindowResult
from app.trace.readers.profiles.collective_table import job_sizes
from app.trace.readers.profiles.profile import WHOLE_FILE


def of_finding(job: ProfiledJob, culprit: ProfileCulprit, cost: tuple[float, float]) -> str:
    """The finding of one culprit, without a full stop; `cost` is (low, high)."""
    who = f"rank {culprit.rank}{_where(job, culprit)}"
    is_slow = culprit.kind in (COMPUTE, WORK)
    waited_s = culprit.waited_for_s if is_slow else culprit.alone_s
    waited = f"the others wait {seconds(waited_s)} a step for it"
    low, high = cost
    costs = percent(high) if high - low < 5e-3 else f"{percent(low)} to {percent(high)}"
    costs = f"it costs {costs} of the step"
    if is_slow:
        ratio = culprit.computing_s / culprit.peers_s if culprit.peers_s > 0 else 0.0
        times = f" ({ratio:.1f}x)" if ratio > 0 else ""
        computes = (
            f"{who} computes {seconds(culprit.computing_s)} a step where its peers take "
            f"{seconds(culprit.peers_s)}{times}"
        )
        if culprit.kind == WORK:
            computes += f" because its kernels have {percent(culprit.more_work or 0.0)} more to do"
        return f"{computes}, and {waited}; {costs}"
    if culprit.kind == DATA_WAIT:
        return (
            f"{who} waits {seconds(culprit.data_wait_s)} a step for its data loader where its "
            f"peers wait {seconds(culprit.peers_data_wait_s)}, and {waited}; {costs}"
        )
    return f"{who} computes no longer than its peers, but its host launches late: {waited}; {costs}"


def _where(job: ProfiledJob, culprit: ProfileCulprit) -> str:
    place = job.table.collectives.place(culprit.rank)
    host = f" on {place.host[-48:]}" if place.host else ""
    pipeline = f" (dp {place.dp_rank}, stage {place.stage})" if place.stage else ""
    return f"{pipeline}{host}"


def headline(job: ProfiledJob, found: Causes, unexplained: float | None) -> list[str]:
    """Step time, ranks read and the verdict, in whole sentences."""
    step = seconds(float(job.step_s.mean()))
    read, world = len(job.ranks), job.world_size
    files = f"profiles of {read:,} of {world:,} ranks" if world > 1 else "a profile of one rank"
    sentences = [f"A step of {job.name} takes {step} ({files}, {_steps(job)})."]
    sentences += _verdict(job, found)
    if found.culprits and unexplained is not None and unexplained >= MIN_MENTIONED_SHARE:
        sentences.append(f"{percent(unexplained)} of the step is waiting that no cause explains.")
    return sentences


def _steps(job: ProfiledJob) -> str:
    number = len(job.steps)
    return f"{number:,} step{'' if number == 1 else 's'} by {source(job)}"


def source(job: ProfiledJob) -> str:
    """The source of the steps, in words."""
    return {
        "ProfilerStep": "ProfilerStep marks",
        "Optimizer.step": "optimizer steps",
    }.get(job.steps_from, "the whole file, which marks no steps")


def _verdict(job: ProfiledJob, found: Causes) -> list[str]:
    idle = 1.0 - job.coverage
    if job.coverage < MIN_COVERAGE:
        return [
            f"No verdict: the GPUs work for {percent(job.coverage)} of the step and idle for "
            f"{percent(idle)}. Look at the hosts first: they launch kernels late, wait for data or "
            "wait for the GPU."
        ]
    exposed = _exposed_share(job)
    if job.world_size == 1:
        return [
            "The job has one rank, so there are no stragglers. Its GPU computes for "
            f"{percent(_computing_share(job))} of the step and idles for {percent(idle)}."
        ]
    if found.reason:
        return [
            f"{percent(exposed)} of the step is communication that hides behind no computation. "
            f"Stragglers are unknown: {found.reason}."
        ]
    if found.culprits:
        return []  # the finding's own sentence comes next
    return _without_blame(job)


def _without_blame(job: ProfiledJob) -> list[str]:
    arrivals = job.arrivals
    if arrivals is None:
        return []
    waited_for_s = arrivals.waited_for_s.mean(axis=1)
    place = int(waited_for_s.argmax())
    rank, share = arrivals.places[place].rank, arrivals.largest_share
    waiting = f"Ranks wait for others for {percent(arrivals.waiting_share)} of the step"
    if not job.is_complete:
        return [
            f"{waiting} at least. Of those read, rank {rank} comes last for {percent(share)} of "
            "the step, but ranks that were not read may come later still: no verdict."
        ]
    if share >= MIN_MENTIONED_SHARE:
        return [
            f"{waiting}. They wait {percent(share)} of it for rank {rank}, which no cause explains."
        ]
    return [f"{waiting}, for no rank for more than {percent(share)} of it."]


def _exposed_share(job: ProfiledJob) -> float:
    total_s = sum(float(rank.time.step_s.sum()) for rank in job.ranks)
    return sum(float(rank.time.exposed_s.sum()) for rank in job.ranks) / total_s


def _computing_share(job: ProfiledJob) -> float:
    total_s = sum(float(rank.time.step_s.sum()) for rank in job.ranks)
    return sum(float(rank.time.computing_s.sum()) for rank in job.ranks) / total_s


MAX_TRANSFERS = 200
MAX_RANKS_LISTED = 4_096
_CAUSE = {
    COMPUTE: SLOW_WORKER,
    WORK: SEQUENCE_IMBALANCE,
    DATA_WAIT: DATA_LOADING,
    HOST: LATE_HOST,
}
# Above this difference of the two cost figures both are given.
_MAX_COST_DIFFERENCE = 0.03
_SCORE, _CONFIDENCE = 0.9, 0.9
# Causes that a profile cannot show.
_NOT_SHOWN = (
    (SLOW_LINK, "a profile has no other time to compare transfers with"),
    (STAGE_IMBALANCE, "a profile does not name the computations of a micro-batch"),
)


def profile_result(job: ProfiledJob) -> WindowResult:
    """The whole result; unknown is None, never 0 or NaN."""
    found = causes(job)
    unexplained = _unexplained(job, found)
    findings = tuple(_finding(job, culprit) for culprit in found.culprits)
    return replace(
        _without_figures(job),
        step_time_s=StepTimes(recorded=tuple(job.step_s.tolist()), simulated=(), ideal=()),
        findings=None if found.reason else findings,
        ruled_out=tuple(_ruled_out(job, found)),
        arrivals=_arrivals(job, found),
        unexplained_share=unexplained,
        coverage=job.coverage,
        profile=_profile(job, found, unexplained),
    )


def _without_figures(job: ProfiledJob) -> WindowResult:
    sizes = {"vpp_size": 1, "ep_size": 1} | job_sizes(job.ranks[0].profile, job.world_size)
    names = ("dp_size", "pp_size", "tp_size", "vpp_size", "dsp_size", "ep_size")
    header = WindowHeader(
        id=None,
        epoch=None,
        revision=None,
        state="complete" if job.is_complete else "incomplete",
        missing=tuple(job.missing[:MAX_RANKS_LISTED]),
    )
    axes = {name: sizes[name] for name in names}
    named = JobSizes(name=job.name, world_size=job.world_size, **axes)
    reason = "profiles are not replayed"
    return unmeasured_result(header, named, job.steps, job.skipped, reason=reason)


def _arrivals(job: ProfiledJob, found: Causes) -> ArrivalsRecord | None:
    if job.arrivals is None:
        return None
    # Culprits by the profiles, as a member that was not read may have come later.
    culprits = tuple(_late_rank(job, culprit) for culprit in found.culprits)
    return replace(arrivals_record(job.arrivals), culprits=culprits)


def _late_rank(job: ProfiledJob, culprit: ProfileCulprit) -> LateRankRecord:
    place = job.table.collectives.place(culprit.rank)
    groups = {group.name: group for group in job.table.collectives.groups}
    return LateRankRecord(
        rank=culprit.rank,
        dp_rank=place.dp_rank,
        stage=place.stage,
        host=place.host,
        local_rank=place.local_rank,
        group=culprit.group,
        axis=groups[culprit.group].axis,
        kind=COMPUTE if culprit.kind == WORK else culprit.kind,
        waited_for_s=culprit.waited_for_s,
        share=culprit.waited_for_s / float(job.step_s.mean()),
        late_share=culprit.late_share,
        steps_late=culprit.steps_late,
        own_delay_s=culprit.longer_s if culprit.kind in (COMPUTE, WORK) else culprit.alone_s,
    )


def _unexplained(job: ProfiledJob, found: Causes) -> float | None:
    if job.arrivals is None or found.reason:
        return None
    lost_s = job.arrivals.lost_without_s(found.explained).max(axis=0)
    return float(lost_s.mean() / job.step_s.mean())


def cost(job: ProfiledJob, culprit: ProfileCulprit) -> tuple[float, float]:
    """Low and high cost of the rank as a share of the step, by its computing and by the waits."""
    step_s = float(job.step_s.mean())
    if culprit.kind not in (COMPUTE, WORK):
        return (min(culprit.alone_s / step_s, 1.0),) * 2
    waited = min(max(culprit.waited_for_s, culprit.lost_s) / step_s, 1.0)
    longer = min(culprit.longer_s / step_s, 1.0)
    return min(waited, longer), max(waited, longer)


def _finding(job: ProfiledJob, culprit: ProfileCulprit) -> Finding:
    low, high = cost(job, culprit)
    place = job.table.collectives.place(culprit.rank)
    evidence: dict[str, float | str] = {
        "waited_for_s": culprit.waited_for_s,
        "late_share": culprit.late_share,
        "steps_late": culprit.steps_late,
        "computing_s": culprit.computing_s,
        "peers_computing_s": culprit.peers_s,
        "group": culprit.group,
    }
    if culprit.more_work is not None:
        evidence["more_work"] = culprit.more_work
    if culprit.kind == HOST:
        evidence["late_because"] = "unknown host work"
    if culprit.kind == DATA_WAIT:
        evidence |= {
            "data_wait_s": culprit.data_wait_s,
            "peers_data_wait_s": culprit.peers_data_wait_s,
        }
    is_apart = high - low > _MAX_COST_DIFFERENCE
    return Finding(
        cause=_CAUSE[culprit.kind],
        score=_SCORE,
        confidence=_CONFIDENCE,
        culprits=(Culprit(place.dp_rank, place.stage, place.host, culprit.rank, place.local_rank),),
        onset_step=None,
        end_step=None,
        persistence=None,
        cost=low,
        cost_range=(low, high) if is_apart else None,
        evidence=evidence,
        sentence=of_finding(job, culprit, (low, high) if is_apart else (low, low)),
    )


def _ruled_out(job: ProfiledJob, found: Causes) -> list[RuledOut]:
    kinds = {culprit.kind for culprit in found.culprits}
    ruled_out = []
    if COMPUTE not in kinds:
        ruled_out.append(_no_slow_worker(found))
    if not kinds & {HOST, DATA_WAIT}:
        ruled_out.append(_no_late_host(job, found))
    if WORK not in kinds:
        ruled_out.append(_no_imbalance(job, found))
    return [*ruled_out, *(RuledOut(*not_shown, insufficient=True) for not_shown in _NOT_SHOWN)]


def _no_slow_worker(found: Causes) -> RuledOut:
    if found.reason:
        return RuledOut(SLOW_WORKER, found.reason, insufficient=True)
    return RuledOut(SLOW_WORKER, "no rank that the others wait for computes longer than its peers")


def _no_imbalance(job: ProfiledJob, found: Causes) -> RuledOut:
    if found.reason:
        return RuledOut(SEQUENCE_IMBALANCE, found.reason, insufficient=True)
    if not all(np.isfinite(figures.blocks).all() for figures in job.ranks):
        reason = "the files do not say how large the kernels' grids are"
        return RuledOut(SEQUENCE_IMBALANCE, reason, insufficient=True)
    return RuledOut(SEQUENCE_IMBALANCE, "kernels of late ranks are no larger than their peers'")


def _no_late_host(job: ProfiledJob, found: Causes) -> RuledOut:
    if found.reason:
        return RuledOut(LATE_HOST, found.reason, insufficient=True)
    if found.minor:
        most = found.minor[0]
        share = percent(most.alone_s / float(job.step_s.mean()))
        reason = (
            f"rank {most.rank} launches late and is waited for {seconds(most.alone_s)} a step "
            f"({share}), which the profiler itself may cost"
        )
        return RuledOut(LATE_HOST, reason, insufficient=True)
    if (idle := _idlest(job)) is not None:
        return RuledOut(LATE_HOST, idle, insufficient=True)
    return RuledOut(LATE_HOST, "no host launches late far more often than by chance")


def _idlest(job: ProfiledJob) -> str | None:
    """The rank whose GPU idles much longer than the others', in words; None for none."""
    idle_s = np.array([figures.time.idle_s.mean() for figures in job.ranks])
    at = int(idle_s.argmax())
    others_s = float(np.median(np.delete(idle_s, at)))
    step_s = float(job.step_s.mean())
    if idle_s[at] - others_s < MIN_MENTIONED_SHARE * step_s:
        return None
    return (
        f"the GPU of rank {job.ranks[at].rank} idles {seconds(float(idle_s[at]))} a step, "
        f"the others {seconds(others_s)}: its host launches late, but that is not what the others "
        "wait for most"
    )


def _profile(job: ProfiledJob, found: Causes, unexplained: float | None) -> ProfileBlock:
    table = job.table
    totals = transfer_totals(table.collectives, table.num_members)[:MAX_TRANSFERS]
    return ProfileBlock(
        ranks_read=tuple(figures.rank for figures in job.ranks),
        world_size=job.world_size,
        is_world_size_known=job.is_world_size_known,
        platform="ROCm" if job.ranks[0].profile.is_amd else "CUDA",
        steps_from=job.steps_from,
        step_time_s=float(job.step_s.mean()),
        headline=tuple(headline(job, found, unexplained)),
        refusals=job.refusals,
        notes=(*table.notes, *_notes(job)),
        breakdown=tuple(_breakdown(figures) for figures in job.ranks[:MAX_RANKS_LISTED]),
        collectives=tuple(_transfers(total) for total in totals),
    )


def _notes(job: ProfiledJob) -> list[str]:
    notes = []
    if not job.is_world_size_known:
        notes.append(
            f"the files do not say how many ranks the job has: taken to be {job.world_size:,}"
        )
    if job.steps_from == WHOLE_FILE:
        notes.append(
            "the files mark no steps: each is taken as one; call profiler.step() after each"
        )
    groups = job.table.collectives.groups
    partial = [each for each in groups if 1 < len(each.ranks) < job.table.num_members[each.name]]
    if partial:
        notes.append(
            f"groups with members whose files were not given: {len(partial):,}; waits in them are "
            "at least what is shown"
        )
    number = sum(each.profile.num_unlaunched for each in job.ranks)
    if number:
        notes.append(
            f"{number:,} kernels have no launch in the files: they belong to the step within which "
            "they start, or to none"
        )
    return notes


def _breakdown(figures: RankFigures) -> RankBreakdown:
    time, waiting_s = figures.time, figures.waiting_s
    return RankBreakdown(
        rank=figures.rank,
        file=figures.profile.file,
        host=figures.profile.host,
        coverage=time.coverage,
        step_s=float(time.step_s.mean()),
        computing_s=float(time.computing_s.mean()),
        communicating_exposed_s=float(time.exposed_s.mean()),
        communicating_hidden_s=float(time.hidden_s.mean()),
        waiting_s=None if waiting_s is None else float(waiting_s.mean()),
        copying_s=float(time.copying_s.mean()),
        idle_s=float(time.idle_s.mean()),
        data_wait_s=float(figures.data_wait_s.mean()),
        kernel_span=_span(figures.kernel_span),
        per_step=BreakdownByStep(
            step_s=tuple(time.step_s.tolist()),
            computing_s=tuple(time.computing_s.tolist()),
            communicating_exposed_s=tuple(time.exposed_s.tolist()),
            communicating_hidden_s=tuple(time.hidden_s.tolist()),
            waiting_s=None if waiting_s is None else tuple(waiting_s.tolist()),
            copying_s=tuple(time.copying_s.tolist()),
            idle_s=tuple(time.idle_s.tolist()),
        ),
    )


def _span(time: GpuTimeBreakdown) -> KernelSpan:
    return KernelSpan(
        span_s=float(time.step_s[0]),
        computing_s=float(time.computing_s[0]),
        communicating_exposed_s=float(time.exposed_s[0]),
        communicating_hidden_s=float(time.hidden_s[0]),
        copying_s=float(time.copying_s[0]),
        idle_s=float(time.idle_s[0]),
    )


def _transfers(total: TransferTotals) -> TransfersRecord:
    return TransfersRecord(
        group=total.group,
        axis=total.axis,
        kind=total.kind,
        num_ranks=total.num_members,
        num_read=total.num_read,
        num_bytes=total.num_bytes if total.num_bytes >= 0 else None,
        num_occurrences=total.num_occurrences,
        stay_s=total.stay_s,
        transfer_s=total.transfer_s,
        bandwidth_bytes_s=total.bandwidth_bytes_s,
    )
