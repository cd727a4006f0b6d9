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
from app.diagnosis.profiles.gpu_time import transfer_totals
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
from app.result.profile import BreakdownByStep, KernelSpan, ProfileBlock, RankBreakdown
from app.result.window_result import JobSizes, StepTimes, WindowHeader, WindowResult
from app.trace.readers.kineto.collective_table import job_sizes
from app.trace.readers.kineto.profile import OPTIMIZER_STEPS, PROFILER_STEPS, WHOLE_FILE


def of_finding(job: ProfiledJob, culprit: ProfileCulprit, cost: tuple[float, float]) -> str:
    """The finding of one culprit, without a full stop; `cost` is (low, high)."""
    name = f"rank {culprit.rank}{_where(job, culprit)}"
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
            f"{name} computes {seconds(culprit.computing_s)} a step where its peers take "
            f"{seconds(culprit.peers_s)}{times}"
        )
        if culprit.kind == WORK:
            computes += f" because its kernels have {percent(culprit.more_work or 0.0)} more to do"
        return f"{computes}, and {waited}; {costs}"
    if culprit.kind == DATA_WAIT:
        return (
            f"{name} waits {seconds(culprit.data_wait_s)} a step for its data loader where its "
            f"peers wait {seconds(culprit.peers_data_wait_s)}, and {waited}; {costs}"
        )
    return (
        f"{name} computes no longer than its peers, but its host launches late: {waited}; {costs}"
    )


def _where(job: ProfiledJob, culprit: ProfileCulprit) -> str:
    place = job.table.collectives.place(culprit.rank)
    host = f" on {place.host[-48:]}" if place.host else ""
    pipeline = f" (dp {place.dp_rank}, stage {place.stage})" if place.stage else ""
    return f"{pipeline}{host}"


_SOURCES = {
    PROFILER_STEPS: "ProfilerStep marks",
    OPTIMIZER_STEPS: "optimizer steps",
    WHOLE_FILE: "the whole file, which marks no steps",
}


def headline(job: ProfiledJob, verdict: Causes, unexplained: float | None) -> list[str]:
    """Step time, ranks read and the verdict, in whole sentences."""
    step = seconds(float(job.step_s.mean()))
    read, world = len(job.ranks), job.world_size
    files = f"profiles of {read:,} of {world:,} ranks" if world > 1 else "a profile of one rank"
    number = len(job.steps)
    steps = f"{number:,} step{'' if number == 1 else 's'} by {_SOURCES[job.steps_from]}"
    sentences = [f"A step of {job.name} takes {step} ({files}, {steps})."]
    sentences += _verdict(job, verdict)
    if verdict.culprits and unexplained is not None and unexplained >= MIN_MENTIONED_SHARE:
        sentences.append(f"{percent(unexplained)} of the step is waiting that no cause explains.")
    return sentences


def _verdict(job: ProfiledJob, verdict: Causes) -> list[str]:
    idle = 1.0 - job.coverage
    if job.coverage < MIN_COVERAGE:
        return [
            f"No verdict: the GPUs work for {percent(job.coverage)} of the step and idle for "
            f"{percent(idle)}. Look at the hosts first: they launch kernels late, wait for data or "
            "wait for the GPU."
        ]
    exposed = _share(job, "communicating_exposed_s")
    if job.world_size == 1:
        return [
            "The job has one rank, so there are no stragglers. Its GPU computes for "
            f"{percent(_share(job, 'computing_s'))} of the step and idles for {percent(idle)}."
        ]
    if verdict.reason:
        return [
            f"{percent(exposed)} of the step is communication that hides behind no computation. "
            f"Stragglers are unknown: {verdict.reason}."
        ]
    if verdict.culprits:
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


def _share(job: ProfiledJob, part: str) -> float:
    """Share of all ranks' steps of one part of `GpuTimeBreakdown`."""
    total_s = sum(float(figures.time.step_s.sum()) for figures in job.ranks)
    return sum(float(figures.time.parts()[part].sum()) for figures in job.ranks) / total_s


MAX_TRANSFERS = 200
MAX_RANKS_LISTED = 4_096
_CAUSE = {COMPUTE: SLOW_WORKER, WORK: SEQUENCE_IMBALANCE, DATA_WAIT: DATA_LOADING, HOST: LATE_HOST}
# Above this difference of the two cost figures both are given.
_MAX_COST_DIFFERENCE = 0.02
_SCORE, _CONFIDENCE = 0.9, 0.9
# Causes that a profile cannot show.
_NOT_SHOWN = (
    (SLOW_LINK, "a profile has no other time to compare transfers with"),
    (STAGE_IMBALANCE, "a profile does not name the computations of a micro-batch"),
)


def profile_result(job: ProfiledJob) -> WindowResult:
    """The whole result; unknown is None, never 0 or NaN."""
    verdict = causes(job)
    unexplained = _unexplained(job, verdict)
    findings = tuple(_finding(job, culprit) for culprit in verdict.culprits)
    return replace(
        _without_figures(job),
        step_time_s=StepTimes(recorded=tuple(job.step_s.tolist()), simulated=(), ideal=()),
        findings=None if verdict.reason else findings,
        ruled_out=tuple(_ruled_out(job, verdict)),
        arrivals=_arrivals(job, verdict),
        unexplained_share=unexplained,
        coverage=job.coverage,
        profile=_profile(job, verdict, unexplained),
    )


def _without_figures(job: ProfiledJob) -> WindowResult:
    sizes = {"vpp_size": 1, "ep_size": 1} | job_sizes(job.ranks[0].profile, job.world_size)
    header = WindowHeader(
        id=None,
        epoch=None,
        revision=None,
        state="complete" if job.is_complete else "incomplete",
        missing=tuple(job.missing[:MAX_RANKS_LISTED]),
    )
    named = JobSizes(name=job.name, world_size=job.world_size, **sizes)
    reason = "profiles are not replayed"
    return unmeasured_result(header, named, job.steps, job.skipped, reason=reason)


def _arrivals(job: ProfiledJob, verdict: Causes) -> ArrivalsRecord | None:
    if job.arrivals is None:
        return None
    # Culprits by the profiles, as a member that was not read may have come later.
    culprits = tuple(_late_rank(job, culprit) for culprit in verdict.culprits)
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


def _unexplained(job: ProfiledJob, verdict: Causes) -> float | None:
    if job.arrivals is None or verdict.reason:
        return None
    lost_s = job.arrivals.lost_without_s(verdict.explained).max(axis=0)
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
    if high - low <= _MAX_COST_DIFFERENCE:
        high = low
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
    return Finding(
        cause=_CAUSE[culprit.kind],
        score=_SCORE,
        confidence=_CONFIDENCE,
        culprits=(Culprit(place.dp_rank, place.stage, place.host, culprit.rank, place.local_rank),),
        onset_step=None,
        end_step=None,
        persistence=None,
        cost=low,
        cost_range=(low, high) if high > low else None,
        evidence=evidence,
        sentence=of_finding(job, culprit, (low, high)),
        basis="recorded" if culprit.kind == DATA_WAIT else "concluded",
    )


def _ruled_out(job: ProfiledJob, verdict: Causes) -> list[RuledOut]:
    kinds = {culprit.kind for culprit in verdict.culprits}
    unseen = (
        (SLOW_WORKER, {COMPUTE}, _no_slow_worker),
        (LATE_HOST, {HOST, DATA_WAIT}, _no_late_host),
        (SEQUENCE_IMBALANCE, {WORK}, _no_imbalance),
    )
    ruled_out = []
    for cause, kinds_of_cause, why in unseen:
        if not kinds & kinds_of_cause:
            reason, is_open = (verdict.reason, True) if verdict.reason else why(job, verdict)
            ruled_out.append(RuledOut(cause, reason, insufficient=is_open))
    return [*ruled_out, *(RuledOut(*not_shown, insufficient=True) for not_shown in _NOT_SHOWN)]


# Each of these has the reason, and whether it only says that the data do not show the cause.


def _no_slow_worker(job: ProfiledJob, verdict: Causes) -> tuple[str, bool]:
    return "no rank that the others wait for computes longer than its peers", False


def _no_imbalance(job: ProfiledJob, verdict: Causes) -> tuple[str, bool]:
    if not all(np.isfinite(figures.blocks).all() for figures in job.ranks):
        return "the files do not say how large the kernels' grids are", True
    return "kernels of late ranks are no larger than their peers'", False


def _no_late_host(job: ProfiledJob, verdict: Causes) -> tuple[str, bool]:
    if verdict.minor:
        most = verdict.minor[0]
        share = percent(most.alone_s / float(job.step_s.mean()))
        reason = (
            f"rank {most.rank} launches late and is waited for {seconds(most.alone_s)} a step "
            f"({share}), which the profiler itself may cost"
        )
        return reason, True
    if (idle := _idlest(job)) is not None:
        return idle, True
    return "no host launches late far more often than by chance", False


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


def _profile(job: ProfiledJob, verdict: Causes, unexplained: float | None) -> ProfileBlock:
    table = job.table
    return ProfileBlock(
        ranks_read=tuple(figures.rank for figures in job.ranks),
        world_size=job.world_size,
        is_world_size_known=job.is_world_size_known,
        platform="ROCm" if job.ranks[0].profile.is_amd else "CUDA",
        steps_from=job.steps_from,
        step_time_s=float(job.step_s.mean()),
        headline=tuple(headline(job, verdict, unexplained)),
        refusals=job.refusals,
        notes=(*table.notes, *_notes(job)),
        breakdown=tuple(_breakdown(figures) for figures in job.ranks[:MAX_RANKS_LISTED]),
        collectives=tuple(transfer_totals(table.collectives, table.num_members)[:MAX_TRANSFERS]),
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
    partial = [
        group for group in groups if 1 < len(group.ranks) < job.table.num_members[group.name]
    ]
    if partial:
        notes.append(
            f"groups with members whose files were not given: {len(partial):,}; waits in them are "
            "at least what is shown"
        )
    number = sum(figures.profile.num_unlaunched for figures in job.ranks)
    if number:
        notes.append(
            f"{number:,} kernels have no launch in the files: they belong to the step within which "
            "they start, or to none"
        )
    return notes


def _breakdown(figures: RankFigures) -> RankBreakdown:
    parts, waiting_s = figures.time.parts(), figures.waiting_s
    span = {name: float(part[0]) for name, part in figures.kernel_span.parts().items()}
    return RankBreakdown(
        rank=figures.rank,
        file=figures.profile.file,
        host=figures.profile.host,
        coverage=figures.time.coverage,
        **{name: float(part.mean()) for name, part in parts.items()},
        waiting_s=None if waiting_s is None else float(waiting_s.mean()),
        data_wait_s=float(figures.data_wait_s.mean()),
        kernel_span=KernelSpan(span_s=span.pop("step_s"), **span),
        per_step=BreakdownByStep(
            **{name: tuple(part.tolist()) for name, part in parts.items()},
            waiting_s=None if waiting_s is None else tuple(waiting_s.tolist()),
        ),
    )
