"""Onset and end of a cause in words, and the past tense of a sentence about one that ended."""

import re

# Verbs in the facts of findings.
PAST_TENSE = {
    "is": "was", "are": "were", "has": "had", "have": "had", "do": "did", "does": "did",
    "take": "took", "takes": "took", "cost": "cost", "costs": "cost",
    "wait": "waited", "waits": "waited", "stop": "stopped", "stops": "stopped",
    "pause": "paused", "pauses": "paused", "launch": "launched", "launches": "launched",
    "collect": "collected", "collects": "collected", "run": "ran", "runs": "ran",
    "begin": "began", "begins": "began", "hold": "held", "holds": "held",
    "cannot": "could not", "can": "could", "compute": "computed", "computes": "computed",
}  # fmt: skip
_VERB = re.compile(rf"(?<= )(?:{'|'.join(PAST_TENSE)})(?=[ ;:,]|$)")


def past_tense(sentence: str) -> str:
    """A finding's sentence with its verbs in the past tense; other words stay as they are."""
    return _VERB.sub(lambda verb: PAST_TENSE[verb.group()], sentence)


def onset_words(onset_step: int | None, end_step: int | None) -> str:
    """Onset and end as they follow the fact; "" where both are unknown."""
    if end_step is None:
        return "" if onset_step is None else f", since step {onset_step}"
    if onset_step is None:
        return f", until step {end_step}"
    if onset_step == end_step:
        return f", in step {end_step}"
    return f", from step {onset_step} to step {end_step}"


# `onset_words` within a sentence.
ONSET_WORDS = r", (?:since|until|in|from) step \d+(?: to step \d+)?"
