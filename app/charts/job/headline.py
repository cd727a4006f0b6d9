"""The headline of a job's page: what stragglers cost, what stands out, and what would help.

A remedy says what to do against the leading cause, and the GPU time that it would win back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from app import formatting
from app.charts.job.waits import remarks
from app.result import causes
from app.result.causes import cause_of
from app.result.figures import MAX_DISCREPANCY, gpu_time_wasted
from app.result.finding import Finding
from app.result.sentence import sentence_case
from app.result.window_result import Resolution, WindowResult, num_steps, resolution_of

JobState = Literal[
    "healthy",
    "straggling",
    "stalled",
    "silent",
    "unknown",
    "low-fidelity",
    "not-analysed",
    "finished",
    "crashed",
    "preempted",
]


ENDED: tuple[JobState, ...] = ("finished", "crashed", "preempted")


@dataclass(frozen=True, slots=True)
class Headline:
    """A job's state, the sentence and the line under it; `sub` may be empty."""

    state: JobState
    sentence: str
    sub: str


@dataclass(frozen=True, slots=True)
class JobFacts:
    """State of a job besides its last result.

    `since_s` and `now_s` are Unix times: since when it is stalled, silent or unknown, where that
    is known, and now. Of the ranks in `silent_ranks` nothing comes, of the `num_others` it does;
    `silent_who` names the worker or host that they are, where it is one.
    """

    num_steps: int = 0  # complete steps of the open window
    window_steps: int = 8
    last_step: int | None = None
    now_s: float = 0.0
    since_s: float | None = None
    silent_ranks: Sequence[int] = ()
    num_others: int = 0
    silent_who: str | None = None
    step_s: float | None = None  # what a step takes, where earlier ones tell
    num_gpus: int = 0  # of a running job; 0 where no figures a day are given
    ended_by: str | None = None  # what made a job crash, or preempted it
    is_refused: bool = False  # what its workers push, or it cannot be taken from the queue


def headline(state: JobState, result: WindowResult | None, seen: JobFacts) -> Headline:
    """State, sentence and subline of a job.

    `result` is that of its recent steps, of a finished job of its whole run (docs/glossary.md).
    """
    known = None if result is None or result.slowdown is None else result
    match state:
        case "stalled":
            text = _stalled(known, seen)
        case "silent":
            text = _silent(known, seen)
        case "unknown":
            text = _unknown(known, seen)
        case "low-fidelity":
            text = _low_fidelity(result)
            if result and result.findings:
                text = _leading_cause(result.findings), _explained(text[0], result.findings[0])
        case "finished":
            text = _finished(known, seen) if known else _finished_unmeasured(result, seen)
        case "crashed" | "preempted":
            text = _cut_off(state, known, seen)
        case _:
            text = _running(state, known, seen)
    sentence, sub = _with_missing_ranks(state, text, known)
    thinned = "" if known is None else _KEPT_WORDS[resolution_of(known)]
    added = f"{_first_figures(state, known, seen)} {thinned}".strip()
    return Headline(state, sentence, f"{sub} {added}".strip())


# What is no longer stored of old steps.
_KEPT_WORDS: Mapping[Resolution, str] = {
    "step": "",
    "window": "Figures by step are no longer stored of all these steps.",
    "hour": "Old windows are stored by the hour: causes and figures are of whole hours.",
    "day": "Old windows are stored by the day: causes and figures are of whole days.",
}


def _first_figures(state: JobState, result: WindowResult | None, seen: JobFacts) -> str:
    """That the figures are those of the first steps, before a window has closed; else ""."""
    if result is None or state in ENDED or result.window.state != "open":
        return ""
    if result.window.windows is not None:
        return ""  # of several, the last of which is open
    of = formatting.plural(seen.window_steps, "step")
    return f"First figures: {formatting.count(len(result.steps))} of {of}."


# Smallest launch slowdown worth a remark.
_MIN_LAUNCH_SLOWDOWN = 1.03
# Their first sentence is about the whole job.
_SAID_AFTER = ("stalled", "unknown", *ENDED)


def _with_missing_ranks(
    state: JobState, text: tuple[str, str], result: WindowResult | None
) -> tuple[str, str]:
    missing = "" if state == "silent" or result is None else missing_ranks_sentence(result)
    sentence, sub = text
    if state in _SAID_AFTER:
        return sentence, f"{missing} {sub}".strip()
    return f"{missing} {sentence}".strip(), sub


def missing_ranks_sentence(result: WindowResult) -> str:
    """Which ranks are missing from some steps of a result; "" if none, or if a finding says it."""
    workers = () if result.imputed is None else result.imputed.workers
    found = result.findings or ()
    if not workers or any(finding.cause == causes.SILENT_WORKER for finding in found):
        return ""
    are = "is" if len(workers) == 1 else "are"
    most, of = max(worker.num_steps for worker in workers), num_steps(result)
    steps = f"all {formatting.plural(of, 'step')}" if most >= of else f"{most} of {of} steps"
    up_to = "up to " if len({worker.num_steps for worker in workers}) > 1 else ""
    ranks = formatting.ranks([worker.rank for worker in workers])
    return (
        f"{ranks} {are} missing from {up_to}{steps}; "
        "medians of other workers of the same stage stand in."
    )


def _running(state: JobState, result: WindowResult | None, seen: JobFacts) -> tuple[str, str]:
    if result is None or state == "not-analysed":
        return _not_analysed(seen)
    runs_at = f"This job runs at {_ratio(result)} of its ideal."
    if result.findings and (result.launch_slowdown or 1.0) >= _MIN_LAUNCH_SLOWDOWN:
        # Else a cause that delays launches seems to cost more than the job loses.
        runs_at = f"{runs_at[:-1]}, late launches not counted."
    findings, remarked = result.findings, " ".join(remarks(result))
    if findings:
        if findings[0].cause == causes.UNIFORM_SLOWDOWN:
            runs_at = _against_itself(result)
        sentence = f"{_leading_cause(findings)} {remarked}".rstrip()
        if state != "straggling":
            return sentence, runs_at
        remedied = _remedy_of_leading(findings, result, seen)
        return sentence, remedied or f"{runs_at} {_loss_sentence(result)}"
    if state == "healthy":
        quiet = "Nothing stands out." if findings is not None else ""
        if quiet and missing_ranks_sentence(result):
            quiet = "Nothing else stands out."
        return f"{runs_at} {remarked or quiet}".rstrip(), ""
    sentence = f"{runs_at} {_loss_sentence(result)} {remarked}".rstrip()
    return sentence, _no_cause(result) if findings is not None else ""


def _ratio(result: WindowResult) -> str:
    """The slowdown of a result that has one."""
    return formatting.ratio(result.slowdown or 1.0)


def _against_itself(result: WindowResult) -> str:
    """Why all workers may be far slower than before, and the job yet near its ideal."""
    return (
        "That cost is against the job's own earlier pace: all workers slowed down alike, and the "
        f"ideal with them, so against its ideal the job runs at {_ratio(result)}."
    )


def _leading_cause(findings: Sequence[Finding]) -> str:
    """The most costly cause in its own words, and how many more there are.

    Workers that are missing are said before it.
    """
    if findings[0].cause == causes.SILENT_WORKER and len(findings) > 1:
        return f"{_leading_cause(findings[:1])} {_leading_cause(findings[1:])}"
    first = formatting.bidi_isolated(findings[0].sentence).removesuffix(".")
    more = len(findings) - 1
    others = f" {formatting.plural(more, 'more cause')} found." if more else ""
    return f"{formatting.with_times_sign(first)}.{others}"


def _remedy_of_leading(findings: Sequence[Finding], result: WindowResult, seen: JobFacts) -> str:
    first, *others = findings
    return remedy(
        others[0] if others and first.cause == causes.SILENT_WORKER else first,
        pp_size=len(result.stage_share or ()),
        num_gpus=seen.num_gpus,
        slowdown=result.slowdown,
    )


def _no_cause(result: WindowResult) -> str:
    unjudged = [denied.cause for denied in result.ruled_out or () if denied.insufficient]
    if not unjudged:
        return "Paceline cannot say where: no known cause fits."
    return f"Paceline cannot say where; not enough data to judge: {', '.join(unjudged)}."


def _explained(discrepancy: str, leading: Finding) -> str:
    because = "late launches explain that"
    if "steps_near_record" in leading.evidence:
        because = "this cause does not depend on that"
    return f"{discrepancy.removesuffix('.')}; {because}."


def _not_analysed(seen: JobFacts) -> tuple[str, str]:
    have = "has" if seen.num_steps == 1 else "have"
    num_steps, window_steps = map(formatting.count, (seen.num_steps, seen.window_steps))
    of = f"{num_steps} of {window_steps} complete steps"
    first = (
        "The first complete step brings the first figures; "
        "a step is complete when its workers have reported all their operations."
    )
    return f"{of} {have} arrived.{_time_left(seen)}", first


def _time_left(seen: JobFacts) -> str:
    num_missing = seen.window_steps - seen.num_steps
    if seen.step_s is None or num_missing <= 0:
        return ""
    return f" About {formatting.rough_duration(num_missing * seen.step_s)} more."


def _cut_off(state: JobState, result: WindowResult | None, seen: JobFacts) -> tuple[str, str]:
    what = "It crashed" if state == "crashed" else "It was stopped from outside"
    at = "" if seen.since_s is None else f" at {formatting.utc_time(seen.since_s, seen.now_s)}"
    step = "" if seen.last_step is None else f", by step {formatting.count(seen.last_step)}"
    sentence = f"{what}{at}{step}: {seen.ended_by or 'its ranks did not say why'}."
    if result is None or _is_low(result):
        return sentence, "No figures of it are known."
    return sentence, f"Until then it ran at {_ratio(result)} of its ideal."


def _stalled(result: WindowResult | None, seen: JobFacts) -> tuple[str, str]:
    sentence = f"No worker has sent anything{_since(seen)}."
    if result is not None and seen.last_step is not None and not _is_low(result):
        step = formatting.count(seen.last_step)
        sentence += f" It was at {_ratio(result)} of its ideal by step {step}."
    return sentence, "It has ended, hangs or lost its network; Paceline cannot tell which."


def _silent(result: WindowResult | None, seen: JobFacts) -> tuple[str, str]:
    have = "has" if len(seen.silent_ranks) == 1 else "have"
    others = f"{formatting.plural(seen.num_others, 'other')} go{'es' * (seen.num_others == 1)}"
    who = sentence_case(seen.silent_who or formatting.ranks(seen.silent_ranks))
    sentence = f"{who} {have} been silent{_since(seen)}; {others} on."
    if result is None:
        return sentence, "No step could be analysed so far, so there are no figures."
    if result.imputed is None or not result.imputed.workers:
        return sentence, "The figures are those of before."
    others_at = f"The others run at {_ratio(result)} of their ideal"
    sub = f"{others_at}; medians of other workers of the same stage stand in for what is missing."
    found = [finding for finding in result.findings or () if finding.cause != causes.SILENT_WORKER]
    return sentence, f"{_leading_cause(found)} {sub}" if found else sub


def _unknown(result: WindowResult | None, seen: JobFacts) -> tuple[str, str]:
    """That nothing is seen is Paceline's own trouble here: it says nothing of the job."""
    trouble = "cannot take what this job sends" if seen.is_refused else "is behind"
    sentence = f"Paceline {trouble}: what this job does{_since(seen)} is not known."
    once = "it can be taken" if seen.is_refused else "Paceline has caught up"
    sub = f"What its workers send is kept, and analysed once {once}."
    if result is None or _is_low(result):
        return sentence, sub
    return sentence, f"Before, it ran at {_ratio(result)} of its ideal. {sub}"


def _since(seen: JobFacts) -> str:
    return "" if seen.since_s is None else f" since {formatting.utc_time(seen.since_s, seen.now_s)}"


def _low_fidelity(result: WindowResult | None) -> tuple[str, str]:
    discrepancy = None if result is None else result.fidelity.discrepancy
    limit = formatting.percent(MAX_DISCREPANCY)
    off = f"more than {limit}" if discrepancy is None else formatting.percent(discrepancy)
    return (
        f"The simulated steps differ from the recorded ones by {off}.",
        f"The limit is {limit}. Naming a worker or a stage would be a guess.",
    )


def _after(seen: JobFacts) -> str:
    return "" if seen.last_step is None else f" after step {formatting.count(seen.last_step)}"


def _finished_unmeasured(result: WindowResult | None, seen: JobFacts) -> tuple[str, str]:
    """Of a job without figures: who is to blame for that, as far as that is known."""
    sentence = f"This job has finished{_after(seen)}. None of its steps was analysed"
    if result is None:
        return f"{sentence}.", ""
    skipped, findings = result.skipped_steps, result.findings or ()
    sub = f"The last step was skipped: {skipped[-1].reason}." if skipped else ""
    silent = next((found for found in findings if found.cause == causes.SILENT_WORKER), None)
    if silent is None:
        return f"{sentence}.", sub
    onset = silent.onset_step
    since = "" if onset is None else f" from step {formatting.count(onset)} on"
    return f"{sentence}, as {_silent_ranks(silent)} sent nothing{since}.", sub


def _silent_ranks(finding: Finding) -> str:
    """The ranks of a silent-worker finding, with worker and host where one culprit has all."""
    numbers = tuple(finding.evidence["ranks"])
    if len(finding.culprits) != 1:
        return formatting.lower_first(formatting.ranks(numbers))
    return replace(finding.culprits[0], ranks=numbers).name()


def _finished(result: WindowResult, seen: JobFacts) -> tuple[str, str]:
    """Of a finished job: the result is that of its whole run."""
    after, findings = _after(seen), result.findings
    if _is_low(result):
        text = _low_fidelity(result)[0]
        return f"This job has finished{after}.", _leading_cause(findings) if findings else text
    over_run = f"Over the run it ran at {_ratio(result)} of its ideal."
    remarked = " ".join(remarks(result))
    if findings and findings[0].cause == causes.UNIFORM_SLOWDOWN:
        remarked = f"{_against_itself(result)} {remarked}"
    causes_found = _leading_cause(findings) if findings else ""
    return f"This job has finished{after}. {over_run}", f"{causes_found} {remarked}".strip()


def _is_low(result: WindowResult) -> bool:
    return result.fidelity.verdict == "low"


def _loss_sentence(result: WindowResult) -> str:
    lost = gpu_time_wasted(result.slowdown or 1.0)
    return f"It loses {formatting.percent(lost)} of its GPU time."


# What to check on a host that launches late, by the known reason.
_CHECKS = {
    "data-wait": "Its launches wait for data: check its data loader.",
    "gc": "Python's garbage collector pauses there: collect on all ranks in the same step.",
}
_CHECK_ALL = (
    "Check its data loader, garbage collection, other processes on the host, CPU frequency, and "
    "Python work between operations."
)
_MIN_COST = 0.005
_HOURS_A_DAY = 24
# Less apart than this, rounding may show both as the same.
_CLEARLY_MORE = 1.01


def remedy(finding: Finding, *, pp_size: int, num_gpus: int, slowdown: float | None = None) -> str:
    """One or two sentences; "" where nothing would be won back, or that is not known.

    With `num_gpus` of a running job they say what that is a day. With the job's `slowdown` no more
    is won back than counts as lost.
    """
    act = _action(finding)
    won = _won_back(finding, num_gpus, slowdown)
    if not act or not won:
        return ""
    return " ".join(filter(None, (_reason(finding, pp_size), f"{act} would {won}.")))


def won_back_gpu_hours(
    finding: Finding, num_gpus: int, slowdown: float | None = None
) -> float | None:
    """GPU-hours a day that are won back without the finding; None where its cost is unknown.

    A cost is against peers, a loss against the ideal, a mean that the fault itself raises: with
    the job's `slowdown` the loss is the most that can be won.
    """
    if finding.cost is None or not num_gpus:
        return None
    lost = _exceeded_loss(finding, slowdown)
    return (finding.cost if lost is None else lost) * num_gpus * _HOURS_A_DAY


def _won_back(finding: Finding, num_gpus: int, slowdown: float | None) -> str:
    cost = finding.cost
    if cost is None or cost < _MIN_COST:
        return ""
    lost = _exceeded_loss(finding, slowdown)
    a_day = won_back_gpu_hours(finding, num_gpus, slowdown)
    if a_day is not None:
        all_of_it = "" if lost is None else "all of the loss, "
        return f"win back {all_of_it}{formatting.rough_gpu_hours(a_day)} a day"
    if lost is not None:
        return "win back all of the loss"
    share = finding.evidence.get("share_of_loss")
    if share is None or share > 1:
        return f"win back {formatting.percent(cost)} of the GPU time"
    return f"win back {formatting.percent(share)} of the loss"


def _exceeded_loss(finding: Finding, slowdown: float | None) -> float | None:
    """The job's loss, a share of its GPU time, where a cost is more than it; else None.

    The cost of a uniform slowdown is against the job's earlier pace, and no part of the loss.
    """
    lost = None if slowdown is None else max(0.0, 1 - 1 / slowdown)
    if lost is None or finding.cause == causes.UNIFORM_SLOWDOWN:
        return None
    return lost if (finding.cost or 0.0) > _CLEARLY_MORE * lost else None


def _action(finding: Finding) -> str:
    culprits = finding.culprits
    match finding.cause:
        case causes.SLOW_WORKER:
            of_workers = any(culprit.stage is not None for culprit in culprits)
            return f"Fixing {_these_nouns(len(culprits), 'worker' if of_workers else 'host')}"
        case causes.SLOW_LINK | causes.FLAPPING_LINK:
            return f"Fixing {_these_nouns(len(culprits), 'link')}"
        case causes.STAGE_IMBALANCE:
            return f"Fixing {_these_nouns(len(culprits), 'stage')}" if culprits else ""
    return cause_of(finding.cause).remedy


def _reason(finding: Finding, pp_size: int) -> str:
    match finding.cause:
        case causes.LATE_HOST:
            return _CHECKS.get(str(finding.evidence.get("late_because")), _CHECK_ALL)
        case causes.STAGE_IMBALANCE if any(
            culprit.stage == pp_size - 1 for culprit in finding.culprits
        ):
            return "Give the last stage fewer layers: it also computes the loss."
        case causes.SEQUENCE_IMBALANCE:
            r = finding.evidence.get("pearson_r_with_lengths_squared")
            fit = "" if r is None else f" (r\u00b2 {r * r:.2f})"
            follows = "Micro-batch time follows the sum of squared sequence lengths"
            return f"No host is at fault. {follows}{fit}."
    return ""


def _these_nouns(number: int, noun: str) -> str:
    return f"this {noun}" if number <= 1 else f"these {formatting.plural(number, noun)}"
