"""Turns one rank's spans into operations, step by step; nothing is guessed.

Megatron-LM numbers the step on `megatron.train_step` alone and the micro-batch on forward passes
alone, so what lies within the step's time belongs to it, and a k-th backward pass to the k-th
forward pass, where there is one chunk a stage. Under interleaving that would be a guess.

Spans wait until their step is over. Which of them are operations, Megatron-LM's names and the
caller's patterns say.
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from app.errors import InvalidTrace
from app.trace.readers.otlp.spans import OtlpSpan

STEP_SPAN = "megatron.train_step"
FORWARD_BACKWARD_SPAN = "megatron.forward_backward"
FORWARD, BACKWARD = "forward-compute", "backward-compute"
OPTYPE_OF_SPAN: Mapping[str, str] = {
    "megatron.microbatch.forward": FORWARD,
    "megatron.microbatch.backward": BACKWARD,
    "megatron.p2p.recv_forward": "forward-recv",
    "megatron.p2p.send_forward": "forward-send",
    "megatron.p2p.recv_backward": "backward-recv",
    "megatron.p2p.send_backward": "backward-send",
    "megatron.grad_sync.finish": "grads-reduce-scatter",
    "megatron.optimizer_step": "optimizer",
}
TRANSFERS = frozenset({"forward-recv", "forward-send", "backward-recv", "backward-send"})
MEGATRON_NAMES = frozenset({STEP_SPAN, FORWARD_BACKWARD_SPAN, *OPTYPE_OF_SPAN})


@dataclass(frozen=True, slots=True)
class StepOp:
    """An operation with the engine's numbers; -1 for none."""

    optype: str
    start_ns: int
    duration_ns: int
    seq_id: int
    mc: int = -1
    mb_id: int = -1


@dataclass(slots=True)
class RankStep:
    """The operations of one rank in one step.

    `counts` has how many operations there are of which kind of knowledge: `compute`; of these
    `by_order`, whose micro-batch is that of their place in the order, and `unnumbered`, which
    have none because stages have several chunks; `p2p` transfers. `broken` says why the step
    cannot be used.
    """

    number: int
    start_ns: int
    end_ns: int
    ops: list[StepOp] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    broken: str = ""


@dataclass(frozen=True, slots=True)
class StepCut:
    """Spans by step; those in `waiting` may belong to a step that has not ended."""

    steps: tuple[tuple[OtlpSpan, tuple[OtlpSpan, ...]], ...]  # the step's own span, and those in it
    waiting: tuple[OtlpSpan, ...]
    outside: int


def cut_by_step(spans: Iterable[OtlpSpan]) -> StepCut:
    """Cut spans of one rank, in any order, into steps ascending in time."""
    ordered = sorted(spans, key=lambda span: (span.start_ns, span.end_ns, span.span_id))
    marks = [span for span in ordered if span.name == STEP_SPAN and span.step is not None]
    starts = [mark.start_ns for mark in marks]
    inside: list[list[OtlpSpan]] = [[] for _ in marks]
    waiting, outside = [], 0
    for span in ordered:
        if span.name == STEP_SPAN:
            continue
        at = bisect_right(starts, span.start_ns) - 1
        if at >= 0 and span.start_ns < marks[at].end_ns:
            inside[at].append(span)
        elif at == len(marks) - 1:
            waiting.append(span)
        else:
            outside += 1
    steps = tuple((mark, tuple(found)) for mark, found in zip(marks, inside, strict=True))
    return StepCut(steps, tuple(waiting), outside)


def rank_step(
    mark: OtlpSpan, spans: Sequence[OtlpSpan], optypes: Mapping[str, str] = OPTYPE_OF_SPAN
) -> RankStep:
    """The operations among the spans of one step; `optypes` by their names."""
    step = RankStep(mark.step or 0, mark.start_ns, mark.end_ns)
    by_type: dict[str, list[OtlpSpan]] = {}
    for span in spans:
        if (optype := optypes.get(span.name)) is not None:
            by_type.setdefault(optype, []).append(span)
    told = {span.num_microbatches for span in (mark, *spans)} - {None}
    step.broken = _lost_spans(by_type, told)
    if not step.broken:
        _number_passes(step, by_type, told)
    return step


def _lost_spans(by_type: Mapping[str, Sequence[OtlpSpan]], told: Iterable[int | None]) -> str:
    """Evidence that spans were lost in transit; "" if there is none."""
    forward, backward = (len(by_type.get(optype, ())) for optype in (FORWARD, BACKWARD))
    if not forward:
        return "has no forward pass: set MEGATRON_OTEL_SPAN_GROUPS=per_step,microbatch"
    if forward != backward:
        return f"has {forward} forward and {backward} backward passes: spans were lost"
    for each in told:
        if each and forward % each:
            return f"has {forward} forward passes of {each} micro-batches: spans were lost"
    return ""


def _number_passes(
    step: RankStep, by_type: Mapping[str, Sequence[OtlpSpan]], told: Iterable[int | None]
) -> None:
    is_chunked = _is_chunked(by_type[FORWARD], told)
    places = {
        FORWARD: _chunks_and_microbatches(by_type[FORWARD], is_chunked=is_chunked),
        BACKWARD: _chunks_and_microbatches(by_type[BACKWARD], is_chunked=is_chunked),
    }
    for optype, spans in by_type.items():
        known = places.get(optype) or [(-1, -1)] * len(spans)
        for seq_id, (span, (mc, mb_id)) in enumerate(zip(spans, known, strict=True)):
            duration_ns = span.end_ns - span.start_ns
            step.ops.append(StepOp(optype, span.start_ns, duration_ns, seq_id, mc, mb_id))
        step.counts["p2p"] += len(spans) if optype in TRANSFERS else 0
    for optype, found in places.items():
        step.counts["compute"] += len(found)
        step.counts["unnumbered"] += sum(mb_id < 0 for _, mb_id in found)
        if not is_chunked:
            step.counts["by_order"] += sum(span.microbatch is None for span in by_type[optype])


def _is_chunked(forward: Sequence[OtlpSpan], told: Iterable[int | None]) -> bool:
    """Whether stages have several chunks of the model, so that a micro-batch passes often."""
    ids = [span.microbatch for span in forward if span.microbatch is not None]
    if any(span.chunk for span in forward) or len(set(ids)) < len(ids):
        return True
    return any(each is not None and len(forward) > each for each in told)


def _chunks_and_microbatches(
    spans: Sequence[OtlpSpan], *, is_chunked: bool
) -> list[tuple[int, int]]:
    """(chunk, micro-batch) of each pass, in the order of their starts; -1 where it is not known.

    Ids that contradict each other are as good as none.
    """
    if is_chunked:
        known = [
            (-1, -1)
            if span.chunk is None or span.microbatch is None
            else (span.chunk, span.microbatch)
            for span in spans
        ]
        told = [place for place in known if place != (-1, -1)]
        return known if len(set(told)) == len(told) else [(-1, -1)] * len(spans)
    ids = [span.microbatch for span in spans]
    if all(each is not None for each in ids) and len(set(ids)) == len(ids):
        return [(0, each if each is not None else -1) for each in ids]
    return [(0, order) for order in range(len(spans))]


@dataclass(slots=True)
class ReadySteps:
    """Complete steps, with the ids of their spans."""

    steps: list[RankStep] = field(default_factory=list)
    used: list[str] = field(default_factory=list)


@dataclass(slots=True)
class WaitingSpans:
    """One rank's spans that are in no complete step yet; times are the rank's own.

    `add` it, look what is `ready`, and once that is safe say it is `done`: until then the same is
    ready again. Of a span that comes twice the first counts.
    """

    spans: dict[str, OtlpSpan] = field(default_factory=dict)
    done_ns: int = -1  # all that starts before is in a step that is done
    usual: Counter[str] = field(default_factory=Counter)

    def add(self, span: OtlpSpan) -> bool:
        """Whether the span may still come into a step."""
        if span.start_ns < self.done_ns:
            return False
        self.spans.setdefault(span.span_id, span)
        return True

    def ready(
        self, optypes: Mapping[str, str] = OPTYPE_OF_SPAN, *, is_end: bool = False
    ) -> ReadySteps:
        """The steps that are complete.

        Exporters and collectors may change the order of what they send, so a step is over when it
        has as many operations of each type as the one before, or when a later one has ended.
        """
        found = cut_by_step(self.spans.values())
        ready, usual = ReadySteps(), self.usual
        for at, (mark, spans) in enumerate(found.steps):
            step = rank_step(mark, spans, optypes)
            counted = Counter(op.optype for op in step.ops)
            is_last = at == len(found.steps) - 1
            if is_last and not is_end and (step.broken or counted != usual):
                break
            ready.steps.append(step)
            ready.used += [mark.span_id, *(span.span_id for span in spans)]
            usual = counted or usual
        return ready

    def done(self, ready: ReadySteps) -> int:
        """Drop the spans of these saved steps, and earlier spans that are in no step.

        Returns how many these were.
        """
        if not ready.steps:
            return 0
        self.done_ns = max(self.done_ns, *(step.end_ns for step in ready.steps))
        for span_id in ready.used:
            self.spans.pop(span_id, None)
        before = [key for key, span in self.spans.items() if span.start_ns < self.done_ns]
        for span_id in before:
            del self.spans[span_id]
        whole = [step for step in ready.steps if not step.broken]
        if whole:
            self.usual = Counter(op.optype for op in whole[-1].ops)
        return len(before)


_MAX_NAMES = 100_000


class SpanNames:
    """Finds each name's op type once; a pattern of the caller goes before a name of Megatron's.

    A pattern's named groups `mb` and `chunk` are the micro-batch and model chunk.
    """

    def __init__(self, patterns: Sequence[tuple[re.Pattern[str], str]] = ()) -> None:
        self._patterns = patterns
        self.optypes = dict(OPTYPE_OF_SPAN)
        self._numbers: dict[str, tuple[int | None, int | None]] = {}
        self._seen = set(MEGATRON_NAMES) if not patterns else set()

    def wants(self, name: str) -> bool:
        """Whether spans of this name are used."""
        if self._patterns and name not in self._seen:
            self._look_up(name)
        return name in self.optypes or name in MEGATRON_NAMES

    def renamed(self, span: OtlpSpan) -> OtlpSpan:
        """The span with the numbers that its name holds."""
        microbatch, chunk = self._numbers.get(span.name, (None, None))
        if microbatch is not None:
            span = span._replace(microbatch=microbatch)
        return span if chunk is None else span._replace(chunk=chunk)

    def _look_up(self, name: str) -> None:
        if len(self._seen) >= _MAX_NAMES:
            raise InvalidTrace(
                f"spans have more than {_MAX_NAMES:,} different names: leave numbers out of them"
            )
        self._seen.add(name)
        for pattern, optype in self._patterns:
            if (match := pattern.search(name)) is not None:
                self.optypes[name] = optype
                groups = match.groupdict()
                self._numbers[name] = (
                    _number_in_name(groups.get("mb")),
                    _number_in_name(groups.get("chunk")),
                )
                return


def _number_in_name(text: str | None) -> int | None:
    is_number = text is not None and text.isascii() and text.isdigit()
    return int(text[:9]) if text is not None and is_number else None
