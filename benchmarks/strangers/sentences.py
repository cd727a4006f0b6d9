"""Does the sentence of a finding say what its JSON says? Read back from the text alone.

`contradictions` takes the words apart and holds each claim, and what is missing, against the
finding: cost, onset and end, tense, ranks, places, hosts, factor by direction, and steps. It knows
nothing of how sentences are made.
"""

import math
import re
from collections.abc import Collection, Iterator, Sequence

from app.result.finding import Culprit, Finding

_NUMBER = r"\d[\d,]*(?:\.\d+)?"
_COST = re.compile(rf"\bcosts? ({_NUMBER}) %(?: to ({_NUMBER}) %)?")
_SINCE = re.compile(rf", (?:since|first in) step ({_NUMBER})")
_FROM_TO = re.compile(rf", from step ({_NUMBER}) to step ({_NUMBER})")
_OR_BEFORE = re.compile(rf", (?:since|from) step ({_NUMBER}) or before(?: to step ({_NUMBER}))?")
_UNTIL = re.compile(rf", until step ({_NUMBER})")
_IN_STEP = re.compile(rf"\bin step ({_NUMBER})")
_IN_ALL = re.compile(rf"\bin all ({_NUMBER}) (?:recorded )?steps")
_IN_SOME = re.compile(rf"\bin ({_NUMBER}) of ({_NUMBER}) (?:recorded )?steps")
_RANKS = re.compile(
    r"\b[Rr]anks? (\d+(?: to \d+)?(?:, \d+(?: to \d+)?)*(?: and \d+(?: to \d+)?)?)(?! more)"
)
_AND_MORE = re.compile(rf" and ({_NUMBER}) more\b")
_PLACE = re.compile(r"dp (\d+), stage (\d+)")
_FACTOR = re.compile(rf"({_NUMBER})x(?: to ({_NUMBER})x)? (?:slower|as long)")
_PAST = re.compile(r"\b(?:was|were|took|waited|stopped|began|it cost)\b")
_PRESENT = re.compile(r"\b(?:is|are|takes?|waits?|stops?|costs)\b")
# The figures that a factor in the text may be, by cause; the last ones of single culprits.
_FACTORS = (
    "slowdown_against_peers",
    "slowdown_against_stages",
    "times_as_long",
    "ratio",
    "slowdown_for_computations",
    "slowdown_against_blocks",
)
# A direction that is said to be as fast as others, or slow, differs by at most, or at least, this.
_AS_FAST = 1.06
_SLOW = 1.015


def contradictions(finding: Finding, steps: Sequence[int], hosts: Collection[str]) -> list[str]:
    """What the sentence says otherwise than the finding, or leaves out.

    Args:
        finding: with its sentence.
        steps: all steps of the result.
        hosts: names of all hosts of the job.
    """
    return [
        *_cost(finding),
        *_onset(finding),
        *_tense(finding),
        *_ranks(finding),
        *_places(finding),
        *_hosts(finding, hosts),
        *_factors(finding),
        *_steps(finding, steps),
    ]


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _is_said(text: str, value: float, *, percent: bool = False) -> bool:
    """Whether a written number is this value, but for the digits that were left out."""
    scaled = 100 * value if percent else value
    digits = len(text.partition(".")[2])
    rounding = 0.5001 * 10.0**-digits
    return abs(_number(text) - scaled) <= rounding + 1e-9 * abs(scaled)


def _cost(finding: Finding) -> Iterator[str]:
    hidden = finding.evidence.get("cost_after_other_repairs")
    wanted = [finding.cost] if hidden is None else [hidden]
    if finding.cost_range is not None and hidden is None:
        wanted = list(finding.cost_range)
    if wanted == [None]:
        wanted = []
    said = _COST.search(finding.sentence)
    texts = [] if said is None else [text for text in said.groups() if text]
    if len(texts) != len(wanted):
        yield f"the cost is {wanted}, and the sentence says {texts}"
    for text, value in zip(texts, wanted, strict=False):
        if not isinstance(value, float | int) or not _is_said(text, value, percent=True):
            yield f"the cost is {value}, and the sentence says {text} %"


def _onset(finding: Finding) -> Iterator[str]:
    text = finding.sentence
    said: tuple[int | None, int | None] = (None, None)
    if before := _OR_BEFORE.search(text):
        said = (None, int(_number(before[2])) if before[2] else None)
        if finding.onset_by_step is None or int(_number(before[1])) != finding.onset_by_step:
            yield f"it is seen from {finding.onset_by_step} on, and the sentence says {before[1]}"
    elif finding.onset_by_step is not None:
        yield f"it is seen from step {finding.onset_by_step} on, and the sentence does not say it"
    elif found := _FROM_TO.search(text):
        said = (int(_number(found[1])), int(_number(found[2])))
    elif found := _SINCE.search(text):
        said = (int(_number(found[1])), None)
    elif found := _UNTIL.search(text):
        said = (None, int(_number(found[1])))
    elif found := _IN_STEP.search(text):
        said = (int(_number(found[1])),) * 2
    known = (finding.onset_step, finding.end_step)
    if said != known:
        yield f"onset and end are {known}, and the sentence says {said}"


def _tense(finding: Finding) -> Iterator[str]:
    is_past = _PAST.search(finding.sentence) is not None
    if finding.end_step is not None and not is_past:
        yield "it has ended, and the sentence is in the present tense"
    if finding.end_step is None and is_past and not _PRESENT.search(finding.sentence):
        yield "it goes on, and the sentence is in the past tense"


def _said_ranks(text: str) -> set[int]:
    said: set[int] = set()
    for listed in _RANKS.findall(text):
        for part in re.split(r", | and ", listed):
            first, _, last = part.partition(" to ")
            said |= set(range(int(first), int(last or first) + 1))
    return said


def _ranks(finding: Finding) -> Iterator[str]:
    known = {rank for culprit in finding.culprits for rank in culprit.ranks}
    known |= {int(rank) for rank in finding.evidence.get("ranks", ()) or ()}
    said = _said_ranks(finding.sentence)
    if said and known and not said <= known:
        yield f"ranks {sorted(said - known)[:5]} are no culprits"
    is_counted = _AND_MORE.search(finding.sentence) or "different workers" in finding.sentence
    if known and not is_counted and _names_workers(finding.culprits) and not known <= said:
        yield f"ranks {sorted(known - said)[:5]} are left out"


def _names_workers(culprits: Sequence[Culprit]) -> bool:
    return all(culprit.dp_rank is not None and culprit.stage is not None for culprit in culprits)


def _places(finding: Finding) -> Iterator[str]:
    workers = {tuple(worker) for worker in finding.evidence.get("workers", ()) or ()}
    workers |= {(culprit.dp_rank, culprit.stage) for culprit in finding.culprits}
    for dp_rank, stage in _PLACE.findall(finding.sentence):
        if workers and (int(dp_rank), int(stage)) not in workers:
            yield f"dp {dp_rank}, stage {stage} is no culprit"


def _hosts(finding: Finding, hosts: Collection[str]) -> Iterator[str]:
    known = {culprit.host for culprit in finding.culprits if culprit.host}
    known |= set(finding.evidence.get("hosts", ()) or ())
    said = {
        host
        for host in hosts
        if re.search(rf"(?<![\w-]){re.escape(host)}(?![\w-])", finding.sentence)
    }
    if extra := said - known:
        yield f"hosts {sorted(extra)} are no culprits"
    shown = [culprit.host for culprit in finding.culprits[:3] if culprit.host]
    if missing := set(shown) - said:
        yield f"hosts {sorted(missing)} are left out"


def _factors(finding: Finding) -> Iterator[str]:
    evidence, text = finding.evidence, finding.sentence
    wanted = [evidence[key] for key in _FACTORS if isinstance(evidence.get(key), float | int)]
    single = [float(value) for value in evidence.get("slowdowns_against_peers", ()) or ()]
    directions = [evidence.get(f"{side}_slowdown") for side in ("forward", "backward")]
    known = [*wanted, *single, *(side for side in directions if isinstance(side, float))]
    said = [number for pair in _FACTOR.findall(text) for number in pair if number]
    for number in said:
        if known and not any(_is_said(number, value) for value in known):
            yield f"a factor of {number} is in no figure"
    if wanted and not said:
        yield f"the factor of {wanted[0]:.2f} is left out"
    yield from _directions(text, directions)


def _directions(text: str, known: Sequence[object]) -> Iterator[str]:
    for side, value in zip(("forward", "backward"), known, strict=True):
        if not isinstance(value, float) or math.isnan(value):
            continue
        fast = re.search(rf"as fast as (?:they|it|others) (?:are|is) in the {side}", text)
        if fast and value > _AS_FAST:
            yield f"the {side} takes {value:.2f}x as long, and the sentence says as fast"
        both = "in forward and backward" in text
        alone = re.search(rf"as long as (?:its|their) peers in the {side}\b", text)
        if (both or alone) and value < _SLOW:
            yield f"the {side} takes {value:.2f}x as long, and the sentence says slow"


def _steps(finding: Finding, steps: Sequence[int]) -> Iterator[str]:
    shown = finding.evidence.get("steps", ()) or ()
    # A note on the replay counts other steps.
    text = finding.sentence.partition(". The replay matches")[0]
    if found := _IN_ALL.search(text):
        if int(_number(found[1])) != len(shown) or len(shown) != len(steps):
            yield f"{len(shown)} of {len(steps)} steps show it, the sentence says all {found[1]}"
    elif found := _IN_SOME.search(text):
        said = [int(_number(number)) for number in found.groups()]
        if said != [len(shown), len(steps)]:
            yield f"{len(shown)} of {len(steps)} steps show it, and the sentence says {said}"
    if re.search(r"\bin every (?:recorded )?step\b", text) and shown and len(shown) < len(steps):
        yield f"{len(shown)} of {len(steps)} steps show it, and the sentence says every step"
