"""What every sentence of a finding is made of (visual design, section 10).

The fact, then the cost; plain present tense, no blame.
"""

import re
from collections.abc import Sequence

from app import words
from app.diagnosis.detector import Costed
from app.diagnosis.finding import Culprit

# More culprits than this are counted, not named.
_MOST_NAMED = 3
# What tells the hosts of a cluster apart is at the end.
_MAX_HOST_CHARS = 48
# Marks that turn the direction of the text around them.
_DIRECTION_MARKS = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def sentence(fact: str, costed: Costed) -> str:
    """`fact` without its full stop, since when, and what it costs."""
    return f"{fact}{_since(costed)}{_cost(costed)}"


def who(culprits: Sequence[Culprit], num_stages: int | None = None) -> str:
    """The culprits in words: "rank 11 (dp 3, stage 1) on host-17, GPU 5", "host-2", "stage 3"."""
    if not culprits:
        return "every worker"
    named = [_name(culprit, num_stages) for culprit in culprits[:_MOST_NAMED]]
    if len(culprits) > _MOST_NAMED:
        return f"{'; '.join(named)} and {len(culprits) - _MOST_NAMED:,} more"
    if len(named) == 1:
        return named[0]
    return f"{'; '.join(named[:-1])} and {named[-1]}"


def counted(number: int, noun: str) -> str:
    """A number with its noun in singular or plural."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def times(ratio: float) -> str:
    """A ratio as it is written: 1.6x, and 1.04x where one digit would hide it."""
    return f"{ratio:.1f}x" if ratio >= 1.15 else f"{ratio:.2f}x"


def percent(share: float) -> str:
    """A share as it is written, 31 and the sign."""
    return f"{100 * share:.0f} %" if share >= 0.095 else f"{100 * share:.1f} %"


def _name(culprit: Culprit, num_stages: int | None) -> str:
    host = _host(culprit.host) if culprit.host else ""
    if culprit.dp_rank is None and culprit.stage is None and culprit.rank is None:
        return host or "every worker"
    parts = [f"dp {culprit.dp_rank}"] if culprit.dp_rank is not None else []
    if culprit.stage is not None:
        is_last = culprit.dp_rank is None and culprit.stage + 1 == num_stages
        parts.append(f"stage {culprit.stage}" + (", the last stage," if is_last else ""))
    return words.gpu(culprit.rank, ", ".join(parts), host, culprit.local_rank)


def _host(name: str) -> str:
    """A host's name without power over the text around it, cut at its beginning to fit."""
    plain = _DIRECTION_MARKS.sub("", name)
    return plain if len(plain) <= _MAX_HOST_CHARS else "..." + plain[3 - _MAX_HOST_CHARS :]


def _since(costed: Costed) -> str:
    return "" if costed.onset_step is None else f", since step {costed.onset_step}"


def _cost(costed: Costed) -> str:
    if costed.cost is None:
        return ""
    if costed.once_others_are_mended is not None:
        later = percent(costed.once_others_are_mended)
        return (
            f"; hidden by another cause now, it costs {later} of the GPU time once that is mended"
        )
    if costed.cost_range is not None:
        low, high = (percent(each) for each in costed.cost_range)
        return f"; it costs {low} to {high} of the job's GPU time"
    return f"; it costs {percent(costed.cost)} of the job's GPU time"
