"""Sentences of the verdict on profiles."""

from app.diagnosis.profiles.causes import (
    COMPUTE,
    DATA_WAIT,
    MIN_COVERAGE,
    MIN_MENTIONED_SHARE,
    WORK,
    Causes,
    ProfileCulprit,
)
from app.diagnosis.profiles.job import ProfiledJob
from app.formatting import percent, seconds


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
    total_s = sum(float(each.time.step_s.sum()) for each in job.ranks)
    return sum(float(each.time.exposed_s.sum()) for each in job.ranks) / total_s


def _computing_share(job: ProfiledJob) -> float:
    total_s = sum(float(each.time.step_s.sum()) for each in job.ranks)
    return sum(float(each.time.computing_s.sum()) for each in job.ranks) / total_s
