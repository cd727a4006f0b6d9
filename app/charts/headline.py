"""The one sentence that opens a job's page: what it costs, and what stands out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from app.charts import words
from app.charts.stages import best_stage, stage_name
from app.charts.words import Hosts
from app.charts.workers import worst
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

# Below these no single worker or stage is named: most of the loss is elsewhere.
MIN_SHARE = 0.5
MIN_WORKER_SLOWDOWN = 1.05


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
    known, and now. Of the ranks in `silent_ranks` nothing comes, of the `num_others` it does.
    """

    num_steps: int = 0  # complete steps of the open window
    window_steps: int = 8
    last_step: int | None = None
    now_s: float = 0.0
    since_s: float | None = None
    silent_ranks: Sequence[int] = ()
    num_others: int = 0
    step_s: float | None = None  # what a step takes, where earlier ones tell
    hosts: Hosts | None = None


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
        case "finished":
            told = _finished(known, seen)
        case _:
            told = _running(state, known, seen)
    return Headline(state, *told)


def culprit(result: Mapping[str, Any], hosts: Hosts | None) -> str:
    """What one repair alone would win back, or nothing when no worker or stage stands out."""
    return _worker(result, hosts) or _stage(result)


def _running(state: JobState, result: Mapping[str, Any] | None, seen: Seen) -> tuple[str, str]:
    if result is None or state == "not-analysed":
        return _not_analysed(seen)
    runs_at = f"This job runs at {words.ratio(result['slowdown'])} of its ideal."
    if state == "healthy":
        return f"{runs_at} Nothing stands out.", ""
    lost = f"It loses {_lost_share(result)} of its GPU time."
    unknown = "Paceline cannot say where: no single worker or stage explains half of the loss."
    return f"{runs_at} {lost}", culprit(result, seen.hosts) or unknown


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
    if result is not None and seen.last_step is not None:
        step, slowdown = words.whole(seen.last_step), words.ratio(result["slowdown"])
        sentence += f" It was at {slowdown} of its ideal by step {step}."
    return sentence, "It has ended, hangs or lost its network; Paceline cannot tell which."


def _silent(result: Mapping[str, Any] | None, seen: Seen) -> tuple[str, str]:
    have = "has" if len(seen.silent_ranks) == 1 else "have"
    others = "1 other goes" if seen.num_others == 1 else f"{words.whole(seen.num_others)} others go"
    sentence = f"{words.ranks(seen.silent_ranks)} {have} been silent{_since(seen)}; {others} on."
    if result is None:
        return sentence, "No step is complete without every worker, so there are no figures."
    return sentence, "No step is complete without every worker: the figures are those of before."


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


def _finished(result: Mapping[str, Any] | None, seen: Seen) -> tuple[str, str]:
    if result is None:
        return "This job has finished. None of its steps was analysed.", ""
    at = words.ratio(result["slowdown"])
    if (result.get("fidelity") or {}).get("verdict") == "low":
        return "This job has finished.", _low_fidelity(result)[0]
    sentence = f"This job has finished. Its last steps ran at {at} of its ideal."
    return sentence, culprit(result, seen.hosts)


def _lost_share(result: Mapping[str, Any]) -> str:
    return words.percent(1 - 1 / result["slowdown"])


def _worker(result: Mapping[str, Any], hosts: Hosts | None) -> str:
    share, slowdown = result.get("m_w"), result.get("worker_slowdown")
    if share is None or share < MIN_SHARE or not slowdown:
        return ""
    by_worker = np.asarray(slowdown, dtype=np.float64)
    named = worst(by_worker)
    if named is None or by_worker[named] < MIN_WORKER_SLOWDOWN:
        return ""
    return (
        f"{words.worker(*named, hosts)} alone would make it "
        f"{words.ratio(float(by_worker[named]))}; fixing the slowest 3 % of workers wins back "
        f"{words.percent(share)} of the loss."
    )


def _stage(result: Mapping[str, Any]) -> str:
    shares = result.get("stage_share") or []
    stage = best_stage(shares)
    if len(shares) < 2 or stage is None or shares[stage] < MIN_SHARE:
        return ""
    name = stage_name(stage, len(shares))
    return f"Fixing {name} alone wins back {words.percent(shares[stage])} of the loss."
