"""Clock times of findings: when a cause began and ended, beside the steps.

`with_clock_times` adds times to a result where they are known; `in_clock_words` writes them into
the sentences, for a reader of now.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from app import formatting
from app.result.finding import Finding, OnsetForm
from app.result.window_result import WindowResult, step_counts
from app.result.words import onset_words

StepTime = tuple[float, float]  # Unix time at which a step started, seconds that it took


def with_clock_times(result: WindowResult, clock: Mapping[int, StepTime]) -> WindowResult:
    """The result with `step_started_s`, and `onset_at` and `ended_at` of its findings.

    `clock` is of its steps and of earlier ones, as far as known.
    """
    findings = result.findings
    return replace(
        result,
        step_started_s=tuple(clock[step][0] if step in clock else None for step in result.steps),
        findings=findings and tuple(_with_times(finding, clock) for finding in findings),
    )


def _with_times(finding: Finding, clock: Mapping[int, StepTime]) -> Finding:
    # -1 is no step.
    steps = (finding.onset_step, finding.end_step)
    onset, end = (clock.get(-1 if step is None else step) for step in steps)
    return replace(
        finding,
        onset_at=formatting.utc_timestamp(None if onset is None else onset[0]),
        ended_at=formatting.utc_timestamp(None if end is None else sum(end)),
    )


def step_ends_s(result: WindowResult) -> dict[int, float]:
    """Unix times at which the steps of a result ended, as far as known."""
    started_s, recorded_s = result.step_started_s, result.step_time_s.recorded
    if not started_s or not recorded_s:
        return {}
    times = zip(result.steps, started_s, recorded_s, step_counts(result), strict=False)
    return {
        step: at_s + (took_s or 0.0) * count
        for step, at_s, took_s, count in times
        if at_s is not None
    }


def result_ended_s(result: WindowResult) -> float | None:
    """Unix time at which the newest step of a result ended; None where that is not known."""
    return max(step_ends_s(result).values(), default=None)


def in_clock_words(result: WindowResult, now_s: float) -> WindowResult:
    """The result with times in the sentences of its findings, and `lasted_s` of each."""
    if not result.findings:
        return result
    last_s = result_ended_s(result)
    timed = (finding_in_clock_words(finding, last_s, now_s) for finding in result.findings)
    return replace(result, findings=tuple(timed))


def finding_in_clock_words(finding: Finding, last_s: float | None, now_s: float) -> Finding:
    """The finding with times in its sentence, and `lasted_s`; both only as far as known.

    The newest step with figures ended at `last_s`. Times of another day than the reader's, at
    `now_s`, have their date; all are Unix times.
    """
    lasted_s = finding_lasted_s(finding, last_s)
    return replace(finding, lasted_s=lasted_s, sentence=_timed_sentence(finding, lasted_s, now_s))


def finding_lasted_s(finding: Finding, last_s: float | None) -> float | None:
    """Seconds from the onset of a finding to its end, or to the newest step while it lasts."""
    onset_s = formatting.unix_time(finding.onset_at)
    until_s = last_s if finding.end_step is None else formatting.unix_time(finding.ended_at)
    return None if onset_s is None or until_s is None else max(0.0, until_s - onset_s)


def _timed_sentence(finding: Finding, lasted_s: float | None, now_s: float) -> str:
    sentence, onset, end = finding.sentence, finding.onset_step, finding.end_step
    onset_s, end_s = formatting.unix_time(finding.onset_at), formatting.unix_time(finding.ended_at)
    if onset_s is None and end_s is None:
        return sentence
    forms: tuple[OnsetForm, ...] = ("since", "first")
    for form in forms:
        plain = onset_words(onset, end, form, finding.onset_by_step)
        # The last one: names from outside come before it.
        before, words, after = sentence.rpartition(plain)
        if plain and words and not after[:1].isdigit():
            when = (onset, onset_s), (end, end_s)
            timed = clock_onset_words(*when, form, lasted_s, now_s, finding.onset_by_step)
            return f"{before}{timed}{after}"
    if onset is None or onset_s is None:
        return sentence
    before, step, after = sentence.partition(f"step {onset}")
    if not step or after[:1].isdigit():
        return sentence
    return f"{before}{step} ({formatting.utc_time(onset_s, now_s)}){after}"


StepWhen = tuple[int | None, float | None]  # step, Unix time


def clock_onset_words(
    onset: StepWhen,
    end: StepWhen,
    form: OnsetForm,
    lasted_s: float | None,
    now_s: float,
    onset_by_step: int | None = None,
) -> str:
    """Onset and end as they follow the fact: ", since 02:41 UTC, step 30, 12 min".

    As `onset_words` of words.py where the times are not known.
    """
    (onset_step, onset_s), (end_step, end_s) = onset, end
    at = "in" if onset_s is None else "at"
    if end_step is None:
        if onset_step is None:
            return onset_words(None, None, form, onset_by_step)
        since = formatting.since_words(onset_step, onset_s, lasted_s, now_s=now_s)
        return f", {f'first {at}' if form == 'first' else 'since'} {since}"
    until = formatting.since_words(end_step, end_s, now_s=now_s)
    if onset_step is None:
        began = "" if onset_by_step is None else f"from step {onset_by_step} or before "
        return f", {began}{'to' if began else 'until'} {until}"
    if onset_step == end_step:
        return f", {at} {formatting.since_words(onset_step, onset_s, now_s=now_s)}"
    began = formatting.since_words(onset_step, onset_s, now_s=now_s)
    lasted = "" if lasted_s is None else f", {formatting.short_duration(lasted_s)}"
    return f", from {began} to {until}{lasted}"
