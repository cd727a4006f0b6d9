"""Words of a result that page, report, terminal, alert and API share: one sentence for one truth.

A finding's sentence is made of parts:

    {fact}{onset and end}{cost}. {note}

Onset, end and cost change where windows are combined, so a result keeps the parts beside the
sentence. Facts mark their verbs, so that one fact gives the present and the past tense. Besides
them: the job's pace and loss, what the advised fix wins, and the loss that no finding has.
"""

import re
from collections.abc import Sequence

from app import formatting
from app.result.figures import MAX_DISCREPANCY
from app.result.finding import HIDDEN_COST, OLD_HIDDEN_COST, Finding, OnsetForm
from app.result.window_result import Unexplained, WindowResult

# Unicode noncharacters, which no text from outside has to keep.
_BEGIN, _OR, _END = "\ufdd0", "\ufdd1", "\ufdd2"
_VERB = re.compile(f"{_BEGIN}([^{_OR}]*){_OR}([^{_END}]*){_END}")
# Words that begin a fact; a host's name keeps its case.
_FIRST_WORDS = re.compile(
    r"(?:a|all|another|both|computations|every|in|loads|ranks?|some|stages?|the|waits)(?=[ ,:])"
)


def verb(present: str, past: str) -> str:
    """A verb in a fact; `in_tense` chooses one of the two."""
    return f"{_BEGIN}{present}{_OR}{past}{_END}"


IS, ARE = verb("is", "was"), verb("are", "were")
TAKES, TAKE = verb("takes", "took"), verb("take", "took")
WAITS, WAIT = verb("waits", "waited"), verb("wait", "waited")
STOPS, STOP = verb("stops", "stopped"), verb("stop", "stopped")
BEGINS, BEGIN = verb("begins", "began"), verb("begin", "began")
LAUNCHES, LAUNCH = verb("launches", "launched"), verb("launch", "launched")


def in_tense(fact: str, *, is_past: bool) -> str:
    """The fact with its verbs in the present or past tense; other words stay as they are."""
    return _VERB.sub(lambda match: match.group(2 if is_past else 1), fact)


def sentence_case(text: str) -> str:
    """The text with a capital first letter, unless it begins with a name from outside."""
    return text[:1].upper() + text[1:] if _FIRST_WORDS.match(text) else text


def of_ideal(slowdown: float | None, whose: str = "its") -> str:
    """The pace of a job, a worker or a step: "1.30x of its ideal"."""
    ratio = "an unknown ratio" if slowdown is None else formatting.ratio(slowdown)
    return f"{ratio} of {whose} ideal"


def loses(share: float) -> str:
    """What a job loses, a share of its GPU time: "loses 24 % of its GPU time"."""
    return f"loses {formatting.percent(share)} of its GPU time"


# Without a full stop.
WAITS_NOT_RECORDED = (
    "no collective of several dp ranks is recorded: whether they wait for a slow one cannot be told"
)


def low_fidelity_words(result: WindowResult | None) -> tuple[str, str]:
    """Why figures are withheld as of low fidelity: a sentence, and what follows from it."""
    guess = "Naming a worker or a stage would be a guess."
    if result is not None and result.slowdown is None:
        return "No step could be replayed.", guess
    if result is not None and result.wait_coverage == 0:
        return f"{formatting.upper_first(WAITS_NOT_RECORDED)}.", guess
    discrepancy = None if result is None else result.fidelity.discrepancy
    limit = formatting.percent(MAX_DISCREPANCY)
    off = f"more than {limit}" if discrepancy is None else formatting.percent(discrepancy)
    return (
        f"The simulated steps differ from the recorded ones by {off}.",
        f"The limit is {limit}. {guess}",
    )


def fix_wins(gpu_hours_per_day: float, bounds: Sequence[float] = ()) -> str:
    """What a fix wins, simulated: "wins about 470 GPU-h a day (-78 to 1,000), simulated".

    Args:
        gpu_hours_per_day: GPU-hours that a day of training needs less.
        bounds: the lower and the higher bound of them; empty where none are known.
    """
    ends = list(dict.fromkeys(map(formatting.rough_hours, bounds)))
    between = f" ({' to '.join(ends)})" if len(ends) > 1 else ""
    return f"wins {formatting.rough_gpu_hours(gpu_hours_per_day)} a day{between}, simulated"


def sentence_of(finding: Finding) -> str:
    """The finding's fact, onset, end, cost and note, without a full stop, where it has parts."""
    parts = finding.parts
    if parts is None:
        return finding.sentence
    fact = parts.fact if finding.end_step is None else parts.past_fact
    ends = finding.onset_step, finding.end_step
    onset = onset_words(*ends, parts.onset, finding.onset_by_step)
    said = f"{fact}{onset}{_cost_words(finding)}"
    return f"{said}. {parts.note}" if parts.note else said


def onset_words(
    onset_step: int | None,
    end_step: int | None,
    form: OnsetForm | None = "since",
    onset_by_step: int | None = None,
) -> str:
    """Onset and end as they follow the fact; "" where nothing of them is known."""
    if form is None:
        return ""
    if onset_step is None and onset_by_step is not None:
        if end_step is None:
            return f", since step {onset_by_step} or before"
        return f", from step {onset_by_step} or before to step {end_step}"
    if end_step is None:
        first = "first in" if form == "first" else "since"
        return "" if onset_step is None else f", {first} step {onset_step}"
    if onset_step is None:
        return f", until step {end_step}"
    if onset_step == end_step:
        return f", in step {end_step}"
    return f", from step {onset_step} to step {end_step}"


def _cost_words(finding: Finding) -> str:
    """The cost as it follows the onset; "" where it is unknown."""
    if finding.cost is None:
        return ""
    later = finding.evidence.get(HIDDEN_COST, finding.evidence.get(OLD_HIDDEN_COST))
    if isinstance(later, int | float):
        return (
            "; another cause hides its cost now: once that is removed, this one costs "
            f"{formatting.percent(later)} of the job's GPU time"
        )
    shares = " to ".join(map(formatting.percent, finding.cost_range or (finding.cost,)))
    costs = "costs" if finding.end_step is None else "cost"
    return f"; it {costs} {shares} of the job's GPU time"


# A smaller share of the step is not placed, and no sentence is made of it.
MIN_UNEXPLAINED_SHARE = 0.05


def unexplained_sentence(left: Unexplained) -> str | None:
    """The loss in words, without a full stop; None where the share is small."""
    if left.share < MIN_UNEXPLAINED_SHARE:
        return None
    of_loss, of_it = left.share_of_loss, ""
    if of_loss is not None and of_loss <= 0.995:
        of_it = f" ({formatting.percent(of_loss)} of the loss)"
    share = formatting.percent(left.share)
    fact = f"{share} of the step time{of_it} is not explained by any known cause"
    place = _place_in_words(left)
    return f"{fact}, most of it in {place}" if place else fact


# Beside facts that take this share of the GPU time, no page says that nothing stands out.
MIN_FACT_SHARE = 0.03


def observed(result: WindowResult, least_share: float | None = None) -> list[str]:
    """Facts that blame nobody, each as a sentence; with `least_share` those that take as much."""
    return [
        f"{fact.sentence}."
        for fact in result.observations or ()
        if least_share is None or (fact.share is not None and fact.share >= least_share)
    ]


def _place_in_words(left: Unexplained) -> str:
    if left.stop_share > 0.5 * left.share:
        steps = left.stop_steps
        listed = f"step {steps[0]}" if len(steps) == 1 else f"{len(steps)} steps, first {steps[0]}"
        return f"stops of all workers (in or before {listed})"
    if left.late_launch_share > 0.5 * left.share:
        return "late launches of single steps"
    on = "" if left.stage is None else f" on stage {left.stage}"
    if left.optype is None:
        return on.removeprefix(" on ")
    return f"{formatting.optype_in_text(left.optype)}{on}"
