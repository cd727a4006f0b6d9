"""The headline of a job's page: what stragglers cost, what stands out, and what would help."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from app import formatting
from app.charts.job.waits import remarks
from app.result import causes
from app.result.causes import cause_phrase
from app.result.figures import gpu_time_wasted
from app.result.finding import Finding
from app.result.join import leading
from app.result.window_result import (
    Resolution,
    TopFix,
    WindowResult,
    num_steps,
    resolution_of,
)
from app.result.words import (
    MIN_FACT_SHARE,
    fix_wins,
    loses,
    low_fidelity_words,
    observed,
    of_ideal,
    sentence_case,
)

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
            sentence, guess = low_fidelity_words(result)
            facts = [] if result is None else observed(result, MIN_FACT_SHARE)
            text = sentence, " ".join([*facts, guess])
            if result and result.findings:
                text = _leading_cause(result.findings), _explained(text[0], result)
        case "finished":
            text = _finished(known, seen) if known else _finished_unmeasured(result, seen)
        case "crashed" | "preempted":
            text = _cut_off(state, known, seen)
        case "not-analysed" if result and result.skipped_steps:
            text = "None of the newest steps could be analysed.", _last_skipped(result)
            if result.findings:
                text = _leading_cause(result.findings), " ".join(text)
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
    is_named = any(finding.cause == causes.SILENT_WORKER for finding in result.findings or ())
    if not workers or is_named:
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
    runs_at = f"This job runs at {of_ideal(result.slowdown)}."
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
        first = leading(findings) or findings[0]
        action = what_to_do(first, result.advice, pp_size=len(result.stage_share or ()))
        return sentence, action or f"{runs_at} {_loss_sentence(result)}"
    if state == "healthy":
        quiet = "Nothing stands out." if findings is not None else ""
        if quiet and missing_ranks_sentence(result):
            quiet = "Nothing else stands out."
        return f"{runs_at} {remarked or quiet}".rstrip(), ""
    sentence = f"{runs_at} {_loss_sentence(result)} {remarked}".rstrip()
    return sentence, _no_cause(result) if findings is not None else ""


def _against_itself(result: WindowResult) -> str:
    """Why all workers may be far slower than before, and the job yet near its ideal."""
    return (
        "That cost is against the job's own earlier pace: all workers slowed down alike, and the "
        f"ideal with them, so the job runs at {of_ideal(result.slowdown)}."
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


def _no_cause(result: WindowResult) -> str:
    unjudged = [denied.cause for denied in result.ruled_out or () if denied.insufficient]
    if not unjudged:
        return "Paceline cannot say where: no known cause fits."
    return f"Paceline cannot say where; not enough data to judge: {', '.join(unjudged)}."


def _explained(because: str, result: WindowResult) -> str:
    [leading, *_] = result.findings or ()
    explanation = "late launches explain that"
    if "steps_near_record" in leading.evidence or result.wait_coverage == 0:
        explanation = "this cause does not depend on that"
    return f"{because.removesuffix('.')}; {explanation}."


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
    return sentence, f"Until then it ran at {of_ideal(result.slowdown)}."


def _stalled(result: WindowResult | None, seen: JobFacts) -> tuple[str, str]:
    sentence = f"No worker has sent anything{_since(seen)}."
    if result is not None and seen.last_step is not None and not _is_low(result):
        step = formatting.count(seen.last_step)
        sentence += f" It was at {of_ideal(result.slowdown)} by step {step}."
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
    others_at = f"The others run at {of_ideal(result.slowdown, 'their')}"
    sub = f"{others_at}; medians of other workers of the same stage stand in for what is missing."
    named = [finding for finding in result.findings or () if finding.cause != causes.SILENT_WORKER]
    return sentence, f"{_leading_cause(named)} {sub}" if named else sub


def _unknown(result: WindowResult | None, seen: JobFacts) -> tuple[str, str]:
    """That nothing is seen is Paceline's own trouble here: it says nothing of the job."""
    trouble = "cannot take what this job sends" if seen.is_refused else "is behind"
    sentence = f"Paceline {trouble}: what this job does{_since(seen)} is not known."
    once = "it can be taken" if seen.is_refused else "Paceline has caught up"
    sub = f"What its workers send is kept, and analysed once {once}."
    if result is None or _is_low(result):
        return sentence, sub
    return sentence, f"Before, it ran at {of_ideal(result.slowdown)}. {sub}"


def _since(seen: JobFacts) -> str:
    return "" if seen.since_s is None else f" since {formatting.utc_time(seen.since_s, seen.now_s)}"


def _after(seen: JobFacts) -> str:
    return "" if seen.last_step is None else f" after step {formatting.count(seen.last_step)}"


def _finished_unmeasured(result: WindowResult | None, seen: JobFacts) -> tuple[str, str]:
    """Of a job without figures: who is to blame for that, as far as that is known."""
    sentence = f"This job has finished{_after(seen)}. None of its steps was analysed"
    if result is None:
        return f"{sentence}.", ""
    sub, findings = _last_skipped(result), result.findings or ()
    silent = next((silent for silent in findings if silent.cause == causes.SILENT_WORKER), None)
    if silent is None:
        return f"{sentence}.", f"{_leading_cause(findings)} {sub}" if findings else sub
    onset = silent.onset_step
    since = "" if onset is None else f" from step {formatting.count(onset)} on"
    return f"{sentence}, as {_silent_ranks(silent)} sent nothing{since}.", sub


def _last_skipped(result: WindowResult) -> str:
    skipped = result.skipped_steps
    return f"The last step was skipped: {skipped[-1].reason}." if skipped else ""


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
        text = low_fidelity_words(result)[0]
        return f"This job has finished{after}.", _leading_cause(findings) if findings else text
    over_run = f"Over the run it ran at {of_ideal(result.slowdown)}."
    remarked = " ".join(remarks(result))
    if findings and findings[0].cause == causes.UNIFORM_SLOWDOWN:
        remarked = f"{_against_itself(result)} {remarked}"
    named = _leading_cause(findings) if findings else ""
    return f"This job has finished{after}. {over_run}", f"{named} {remarked}".strip()


def _is_low(result: WindowResult) -> bool:
    return result.fidelity.verdict == "low"


def _loss_sentence(result: WindowResult) -> str:
    return f"It {loses(gpu_time_wasted(result.slowdown or 1.0))}."


# What to check on a host that launches late, by the known reason.
_CHECKS = {
    "data-wait": "Its launches wait for data: check its data loader.",
    "gc": "Python's garbage collector pauses there: collect on all ranks in the same step.",
}
_CHECK_ALL = (
    "Check its data loader, garbage collection, other processes on the host, CPU frequency, and "
    "Python work between operations."
)


def what_to_do(finding: Finding, fix: TopFix | None, *, pp_size: int) -> str:
    """What to check, and the advised fix with what it wins; "" where neither is known.

    Args:
        finding: the leading cause.
        fix: the one that wins most, of this cause or of another.
        pp_size: number of stages.
    """
    if fix is None:
        return _reason(finding, pp_size)
    wins = fix_wins(fix.gpu_hours_per_day, fix.gpu_hours_per_day_range)
    won = f"{formatting.bidi_isolated(fix.title)}: {wins}."
    if fix.cause in (finding.cause, None):
        return f"{_reason(finding, pp_size)} {won}".lstrip()
    other = f"What wins most is against another cause, {cause_phrase(str(fix.cause))}."
    return f"{other} {won}"


def _reason(finding: Finding, pp_size: int) -> str:
    match finding.cause:
        case causes.LATE_HOST:
            return _CHECKS.get(str(finding.evidence.get("late_because")), _CHECK_ALL)
        case causes.STAGE_IMBALANCE if finding.is_of_microbatches and any(
            culprit.stage == pp_size - 1 for culprit in finding.culprits
        ):
            return "Give the last stage fewer layers: it also computes the loss."
        case causes.SEQUENCE_IMBALANCE:
            r = finding.evidence.get("pearson_r_with_lengths_squared")
            fit = "" if r is None else f" (r\u00b2 {r * r:.2f})"
            follows = "Micro-batch time follows the sum of squared sequence lengths"
            return f"No host is at fault. {follows}{fit}."
    return ""
