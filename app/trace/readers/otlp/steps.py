"""Turns one rank's spans into operations, step by step.

Megatron-LM numbers only the step of `megatron.train_step` and the micro-batches of forward passes.
So spans belong to the step within whose time they begin. With one model chunk a stage, the k-th
backward pass has the micro-batch of the k-th forward pass; with several chunks it stays unknown.

Spans are kept until their step has ended. Those with a name of Megatron-LM, or one that matches a
pattern of the caller, are operations.
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
    """An operation with its numbers; -1 is no number."""

    optype: str
    start_ns: int
    duration_ns: int
    seq_id: int
    mc: int = -1
    mb_id: int = -1


@dataclass(slots=True)
class RankStep:
    """The operations of one rank in one step.

    `counts`: the numbers of `compute` operations, of those numbered `by_order`, of those that are
    `unnumbered` because stages have several chunks, and of `p2p` transfers. `broken` is the reason
    why the step cannot be used.
    """

    number: int
    start_ns: int
    end_ns: int
    ops: list[StepOp] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    broken: str = ""


def spans_by_step(spans: Iterable[OtlpSpan]) -> list[tuple[OtlpSpan, list[OtlpSpan]]]:
    """The steps of one rank, ascending in time: the step's own span, and those within it."""
    ordered = sorted(spans, key=lambda span: (span.start_ns, span.end_ns, span.span_id))
    marks = [span for span in ordered if span.name == STEP_SPAN and span.step is not None]
    starts = [mark.start_ns for mark in marks]
    inside: list[list[OtlpSpan]] = [[] for _ in marks]
    for span in ordered:
        at = bisect_right(starts, span.start_ns) - 1
        if span.name != STEP_SPAN and at >= 0 and span.start_ns < marks[at].end_ns:
            inside[at].append(span)
    return list(zip(marks, inside, strict=True))


def rank_step(
    mark: OtlpSpan, spans: Sequence[OtlpSpan], optypes: Mapping[str, str] = OPTYPE_OF_SPAN
) -> RankStep:
    """The operations among the spans of one step; `optypes` by span name."""
    step = RankStep(mark.step or 0, mark.start_ns, mark.end_ns)
    by_type: dict[str, list[OtlpSpan]] = {}
    for span in spans:
        if (optype := optypes.get(span.name)) is not None:
            by_type.setdefault(optype, []).append(span)
    sizes = {size for span in (mark, *spans) if (size := span.num_microbatches) is not None}
    step.broken = _lost_spans(by_type, sizes)
    if not step.broken:
        _number_passes(step, by_type, sizes)
    return step


def _lost_spans(by_type: Mapping[str, Sequence[OtlpSpan]], sizes: Iterable[int]) -> str:
    """The evidence of spans lost in transit, if any; `sizes` are the numbers of micro-batches."""
    forward, backward = (len(by_type.get(optype, ())) for optype in (FORWARD, BACKWARD))
    if not forward:
        return "has no forward pass: set MEGATRON_OTEL_SPAN_GROUPS=per_step,microbatch"
    if forward != backward:
        return f"has {forward} forward and {backward} backward passes: spans were lost"
    for size in sizes:
        if size and forward % size:
            return f"has {forward} forward passes of {size} micro-batches: spans were lost"
    return ""


def _number_passes(
    step: RankStep, by_type: Mapping[str, Sequence[OtlpSpan]], sizes: Iterable[int]
) -> None:
    is_chunked = _is_chunked(by_type[FORWARD], sizes)
    places = {
        optype: _chunks_and_microbatches(by_type[optype], is_chunked=is_chunked)
        for optype in (FORWARD, BACKWARD)
    }
    for optype, spans in by_type.items():
        known = places.get(optype) or [(-1, -1)] * len(spans)
        for seq_id, (span, (mc, mb_id)) in enumerate(zip(spans, known, strict=True)):
            duration_ns = span.end_ns - span.start_ns
            step.ops.append(StepOp(optype, span.start_ns, duration_ns, seq_id, mc, mb_id))
        step.counts["p2p"] += len(spans) if optype in TRANSFERS else 0
    for optype, numbers in places.items():
        step.counts["compute"] += len(numbers)
        step.counts["unnumbered"] += sum(mb_id < 0 for _, mb_id in numbers)
        if not is_chunked:
            step.counts["by_order"] += sum(span.microbatch is None for span in by_type[optype])


def _is_chunked(forward: Sequence[OtlpSpan], sizes: Iterable[int]) -> bool:
    """Whether stages have several model chunks, each with a forward pass of every micro-batch."""
    ids = [span.microbatch for span in forward if span.microbatch is not None]
    if any(span.chunk for span in forward) or len(set(ids)) < len(ids):
        return True
    return any(len(forward) > size for size in sizes)


def _chunks_and_microbatches(
    spans: Sequence[OtlpSpan], *, is_chunked: bool
) -> list[tuple[int, int]]:
    """(chunk, micro-batch) of the passes, in order of their starts; -1 if unknown.

    Ids that occur twice are not used.
    """
    if is_chunked:
        places = [
            (-1, -1)
            if span.chunk is None or span.microbatch is None
            else (span.chunk, span.microbatch)
            for span in spans
        ]
        known = [place for place in places if place != (-1, -1)]
        return places if len(set(known)) == len(known) else [(-1, -1)] * len(spans)
    ids = {span.microbatch for span in spans if span.microbatch is not None}
    if len(ids) == len(spans):
        return [(0, span.microbatch or 0) for span in spans]
    return [(0, order) for order in range(len(spans))]


@dataclass(slots=True)
class ReadySteps:
    """Complete steps, with the ids of their spans."""

    steps: list[RankStep] = field(default_factory=list)
    used: list[str] = field(default_factory=list)


@dataclass(slots=True)
class WaitingSpans:
    """One rank's spans that are in no complete step yet; times are by the rank's clock.

    Spans come in by `add`. `ready` returns the complete steps; when these are saved, `done` removes
    them. The first one of several spans with the same id counts.
    """

    spans: dict[str, OtlpSpan] = field(default_factory=dict)
    done_ns: int = -1  # the end of the last step that is done
    usual: Counter[str] = field(default_factory=Counter)

    def add(self, span: OtlpSpan) -> bool:
        """Keep a span; False if it began before the end of a step that is done."""
        if span.start_ns < self.done_ns:
            return False
        self.spans.setdefault(span.span_id, span)
        return True

    def ready(
        self, optypes: Mapping[str, str] = OPTYPE_OF_SPAN, *, is_end: bool = False
    ) -> ReadySteps:
        """The steps that are complete.

        Exporters and collectors may reorder spans. So a step is complete if it has as many
        operations of every type as the previous one, or if a later one has ended.
        """
        steps = spans_by_step(self.spans.values())
        ready, usual = ReadySteps(), self.usual
        for at, (mark, spans) in enumerate(steps):
            step = rank_step(mark, spans, optypes)
            counted = Counter(op.optype for op in step.ops)
            is_last = at == len(steps) - 1
            if is_last and not is_end and (step.broken or counted != usual):
                break
            ready.steps.append(step)
            ready.used += [mark.span_id, *(span.span_id for span in spans)]
            usual = counted or usual
        return ready

    def done(self, ready: ReadySteps) -> int:
        """Drop the spans of these saved steps, and earlier spans that are in no step.

        Returns:
            The number of spans in no step.
        """
        if not ready.steps:
            return 0
        self.done_ns = max(self.done_ns, *(step.end_ns for step in ready.steps))
        for span_id in ready.used:
            self.spans.pop(span_id, None)
        before = [key for key, span in self.spans.items() if span.start_ns < self.done_ns]
        for span_id in before:
            del self.spans[span_id]
        if usable := [step for step in ready.steps if not step.broken]:
            self.usual = Counter(op.optype for op in usable[-1].ops)
        return len(before)


_MAX_NAMES = 100_000


class SpanNames:
    """The op types of span names: by the caller's patterns, else by Megatron's names.

    A pattern's groups `mb` and `chunk` are the micro-batch and the model chunk.
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
        """The span with the numbers in its name."""
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
                groups = match.groupdict(default="")
                mb, chunk = groups.get("mb", ""), groups.get("chunk", "")
                self._numbers[name] = _number_in_name(mb), _number_in_name(chunk)
                return


def _number_in_name(text: str) -> int | None:
    return int(text[:9]) if text.isascii() and text.isdigit() else None
