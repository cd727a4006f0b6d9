"""Sentences of findings, the parts that they are made of, and the loss that no finding has.

    {fact}{onset and end}{cost}. {note}

Onset, end and cost change where windows are combined, so a result keeps the parts beside the
sentence. Facts mark their verbs, so that one fact gives the present and the past tense.
"""

import re
from collections.abc import Sequence

from app import formatting
from app.result.finding import OnsetForm, SentenceParts
from app.result.window_result import Unexplained

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
BEGIN = verb("begin", "began")


def in_tense(fact: str, *, is_past: bool) -> str:
    """The fact with its verbs in the present or past tense; other words stay as they are."""
    return _VERB.sub(lambda found: found.group(2 if is_past else 1), fact)


def sentence_case(text: str) -> str:
    """The text with a capital first letter, unless it begins with a name from outside."""
    return text[:1].upper() + text[1:] if _FIRST_WORDS.match(text) else text


def whole_sentence(
    parts: SentenceParts, onset_step: int | None, end_step: int | None, cost: str
) -> str:
    """The parts with onset, end and cost in words, without a full stop.

    Args:
        parts: the fact and the note.
        onset_step: None where unknown.
        end_step: None while the cause lasts.
        cost: of `cost_words`, "" where unknown.
    """
    said = parts.fact if end_step is None else parts.past_fact
    said = f"{said}{onset_words(onset_step, end_step, parts.onset)}{cost}"
    return f"{said}. {parts.note}" if parts.note else said


def onset_words(
    onset_step: int | None, end_step: int | None, form: OnsetForm | None = "since"
) -> str:
    """Onset and end as they follow the fact; "" where both are unknown."""
    if form is None:
        return ""
    if end_step is None:
        first = "first in" if form == "first" else "since"
        return "" if onset_step is None else f", {first} step {onset_step}"
    if onset_step is None:
        return f", until step {end_step}"
    if onset_step == end_step:
        return f", in step {end_step}"
    return f", from step {onset_step} to step {end_step}"


def cost_words(
    cost: float | None,
    cost_range: Sequence[float] | None = None,
    cost_after_others: float | None = None,
    *,
    is_past: bool = False,
) -> str:
    """The cost as it follows the onset; "" where it is unknown.

    Args:
        cost: share of the job's GPU time.
        cost_range: its bounds, where they are known instead.
        cost_after_others: the cost after the repair of others that hide it now.
        is_past: whether the cause has ended.
    """
    if cost is None:
        return ""
    if cost_after_others is not None:
        later = formatting.percent(cost_after_others)
        return (
            f"; another cause hides its cost now: once that is removed, this one costs {later} of "
            "the job's GPU time"
        )
    shares = " to ".join(formatting.percent(share) for share in cost_range or (cost,))
    return f"; it {'cost' if is_past else 'costs'} {shares} of the job's GPU time"


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
