"""The one sentence that opens a job's page: what it costs, and what stands out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from app import words
from app.charts.arrivals import remarks
from app.charts.remedy import remedy
from app.engine.metrics import MAX_DISCREPANCY

JobState = Literal[
    "healthy",
    "straggling",
    "stalled",
    "silent",
    "stale",
    "low-fidelity",
    "not-analysed",
    "finished",
]


@dataclass(frozen=True, slots=True)
class Headline:
    """A job's state, the sentence and the line under it; `sub` may be empty."""

    state: JobState
    sentence: str
    sub: str


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of a job besides its last result.

    `since_s` and `now_s` are Unix times: since when it is stalled, silent or stale, where that is
    known, and now. Of the ranks in `silent_ranks` nothing comes, of the `num_others` it does;
    `silent_place` says in words which worker or host that is, where it is one.
    """

    num_steps: int = 0  # complete steps of the open window
    window_steps: int = 8
    last_step: int | None = None
    now_s: float = 0.0
    since_s: float | None = None
    silent_ranks: Sequence[int] = ()
    num_others: int = 0
    silent_place: str | None = None
    step_s: float | None = None  # what a step takes, where earlier ones tell
    num_gpus: int = 0  # of a running job; 0 where nothing is to be said of a day


def headline(state: JobState, result: Mapping[str, Any] | None, seen: Seen) -> Headline:
    """What the reader is told first; `result` is the last window's, as in section 7."""
    known = result if result and result.get("slowdown") is not None else None
    match state:
        case "stalled":
            told = _stalled(known, seen)
        case "silent":
            told = _silent(known, seen)
        case "stale":
            told = _stale(seen)
        case "low-fidelity":
            told = _low_fidelity(result)
            if result and result.get("findings"):
                told = _named(result["findings"]), _explained(told[0])
        case "finished":
            told = _finished(known)
        case _:
            told = _running(state, known, seen)
    return Headline(state, *told)


def _running(state: JobState, result: Mapping[str, Any] | None, seen: Seen) -> tuple[str, str]:
    if result is None or state == "not-analysed":
        return _not_analysed(seen)
    runs_at = f"This job runs at {words.ratio(result['slowdown'])} of its ideal."
    findings, remarked = result.get("findings"), " ".join(remarks(result))
    if findings:
        sentence = f"{_named(findings)} {remarked}".rstrip()
        if state != "straggling":
            return sentence, runs_at
        return sentence, _remedy(result, seen) or f"{runs_at} {_loses(result)}"
    if state == "healthy":
        quiet = "Nothing stands out." if findings is not None else ""
        return f"{runs_at} {remarked or quiet}".rstrip(), ""
    sentence = f"{runs_at} {_loses(result)} {remarked}".rstrip()
    return sentence, _unknown(result) if findings is not None else ""


def _named(findings: Sequence[Mapping[str, Any]]) -> str:
    """The most costly cause in its own words, and how many more there are."""
    first = words.contained(findings[0]["sentence"]).removesuffix(".")
    # "dp 3" and hosts stay as they are written.
    if first.startswith(("every", "stage", "data", "rank ")):
        first = first[0].upper() + first[1:]
    more = len(findings) - 1
    return words.signs(first) + (f", and {words.counted(more, 'more cause')}." if more else ".")


def _remedy(result: Mapping[str, Any], seen: Seen) -> str:
    return remedy(
        result["findings"][0],
        pp_size=len(result.get("stage_share") or ()),
        num_gpus=seen.num_gpus,
        slowdown=result["slowdown"],
    )


def _unknown(result: Mapping[str, Any]) -> str:
    others = result.get("ruled_out") or []
    untold = [each["cause"] for each in others if each["insufficient_evidence"]]
    if not untold:
        return "Paceline cannot say where: no known cause fits."
    return f"Paceline cannot say where; what it cannot tell here: {', '.join(untold)}."


def _explained(discrepancy: str) -> str:
    return f"{discrepancy.removesuffix('.')}; late launches explain that."


def _not_analysed(seen: Seen) -> tuple[str, str]:
    have = "has" if seen.num_steps == 1 else "have"
    of = f"{words.whole(seen.num_steps)} of {words.whole(seen.window_steps)} complete steps"
    first = (
        "The first complete step brings the first figures; "
        "a step is complete when every worker has reported all its operations."
    )
    return f"{of} {have} arrived.{_more(seen)}", first


def _more(seen: Seen) -> str:
    num_missing = seen.window_steps - seen.num_steps
    if seen.step_s is None or num_missing <= 0:
        return ""
    return f" About {words.about(num_missing * seen.step_s)} more."


def _stalled(result: Mapping[str, Any] | None, seen: Seen) -> tuple[str, str]:
    sentence = f"No worker has sent anything{_since(seen)}."
    if result is not None and seen.last_step is not None and not _is_low(result):
        step, slowdown = words.whole(seen.last_step), words.ratio(result["slowdown"])
        sentence += f" It was at {slowdown} of its ideal by step {step}."
    return sentence, "It has ended, hangs or lost its network; Paceline cannot tell which."


def _silent(result: Mapping[str, Any] | None, seen: Seen) -> tuple[str, str]:
    have = "has" if len(seen.silent_ranks) == 1 else "have"
    others = "1 other goes" if seen.num_others == 1 else f"{words.whole(seen.num_others)} others go"
    sentence = f"{_who_is_silent(seen)} {have} been silent{_since(seen)}; {others} on."
    if result is None:
        return sentence, "No step is complete without every worker, so there are no figures."
    return sentence, "No step is complete without every worker: the figures are those of before."


def _who_is_silent(seen: Seen) -> str:
    place = f" ({seen.silent_place})" if seen.silent_place else ""
    return f"{words.ranks(seen.silent_ranks)}{place}"


def _stale(seen: Seen) -> tuple[str, str]:
    sentence = f"No consumer is running: nothing is known of this job{_since(seen)}."
    return sentence, "What its workers send is kept, and analysed once a consumer runs."


def _since(seen: Seen) -> str:
    return "" if seen.since_s is None else f" since {words.moment(seen.since_s, seen.now_s)}"


def _low_fidelity(result: Mapping[str, Any] | None) -> tuple[str, str]:
    fidelity = (result or {}).get("fidelity") or {}
    discrepancy, limit = fidelity.get("discrepancy"), words.percent(MAX_DISCREPANCY)
    if discrepancy is None:
        sentence = f"The simulated steps differ from the recorded ones by more than {limit}."
    else:
        off = words.percent(discrepancy)
        sentence = f"The simulated steps differ from the recorded ones by {off}."
    return sentence, f"The limit is {limit}. Naming a worker or a stage would be a guess."


def _finished(result: Mapping[str, Any] | None) -> tuple[str, str]:
    if result is None:
        return "This job has finished. None of its steps was analysed.", ""
    at = words.ratio(result["slowdown"])
    if _is_low(result):
        told = _low_fidelity(result)[0]
        findings = result.get("findings")
        return "This job has finished.", _named(findings) if findings else told
    sentence = f"This job has finished. Its last steps ran at {at} of its ideal."
    findings, remarked = result.get("findings"), " ".join(remarks(result))
    return sentence, f"{_named(findings) if findings else ''} {remarked}".strip()


def _is_low(result: Mapping[str, Any]) -> bool:
    return (result.get("fidelity") or {}).get("verdict") == "low"


def _loses(result: Mapping[str, Any]) -> str:
    return f"It loses {words.percent(1 - 1 / result['slowdown'])} of its GPU time."
