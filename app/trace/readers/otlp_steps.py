"""One rank's spans become its operations, step by step: what spans do not say is not guessed.

Megatron-LM numbers the step on `megatron.train_step` alone and the micro-batch on forward passes
alone, so what lies within the step's time belongs to it, and a k-th backward pass to the k-th
forward pass, where there is one chunk a stage. Under interleaving that would be a guess.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from app.trace.readers.otlp_span import Span

STEP = "megatron.train_step"
FORWARD_BACKWARD = "megatron.forward_backward"
FORWARD, BACKWARD = "forward-compute", "backward-compute"
OPS: Mapping[str, str] = {
    "megatron.microbatch.forward": FORWARD,
    "megatron.microbatch.backward": BACKWARD,
    "megatron.p2p.recv_forward": "forward-recv",
    "megatron.p2p.send_forward": "forward-send",
    "megatron.p2p.recv_backward": "backward-recv",
    "megatron.p2p.send_backward": "backward-send",
    "megatron.grad_sync.finish": "grads-reduce-scatter",
    "megatron.optimizer_step": "optimizer",
}
P2P = frozenset({"forward-recv", "forward-send", "backward-recv", "backward-send"})
NAMES = frozenset({STEP, FORWARD_BACKWARD, *OPS})


@dataclass(frozen=True, slots=True)
class Op:
    """An operation as the engine numbers it; -1 is none."""

    optype: str
    start_ns: int
    duration_ns: int
    seq_id: int
    mc: int = -1
    mb_id: int = -1


@dataclass(slots=True)
class RankStep:
    """What one rank did in one step.

    `counts` has how many operations there are of which kind of knowledge: `compute`; of these
    `by_order`, whose micro-batch is that of their place in the order, and `unnumbered`, which
    have none because stages have several chunks; `p2p` transfers. `broken` says why the step
    cannot be used.
    """

    number: int
    start_ns: int
    end_ns: int
    ops: list[Op] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    broken: str = ""


@dataclass(frozen=True, slots=True)
class Cut:
    """Spans by the step that they lie in; `waiting` may lie in one whose end is not known yet."""

    steps: tuple[tuple[Span, tuple[Span, ...]], ...]  # the step's own span, and those in it
    waiting: tuple[Span, ...]
    outside: int


def cut(spans: Iterable[Span]) -> Cut:
    """Spans of one rank, in any order, by steps ascending in time."""
    ordered = sorted(spans, key=lambda span: (span.start_ns, span.end_ns, span.span_id))
    marks = [span for span in ordered if span.name == STEP and span.step is not None]
    starts = [mark.start_ns for mark in marks]
    inside: list[list[Span]] = [[] for _ in marks]
    waiting, outside = [], 0
    for span in ordered:
        if span.name == STEP:
            continue
        at = bisect_right(starts, span.start_ns) - 1
        if at >= 0 and span.start_ns < marks[at].end_ns:
            inside[at].append(span)
        elif at == len(marks) - 1:
            waiting.append(span)
        else:
            outside += 1
    steps = tuple((mark, tuple(found)) for mark, found in zip(marks, inside, strict=True))
    return Cut(steps, tuple(waiting), outside)


def rank_step(mark: Span, spans: Sequence[Span], optypes: Mapping[str, str] = OPS) -> RankStep:
    """The operations among the spans of one step; `optypes` by their names."""
    step = RankStep(mark.step or 0, mark.start_ns, mark.end_ns)
    by_type: dict[str, list[Span]] = {}
    for span in spans:
        if (optype := optypes.get(span.name)) is not None:
            by_type.setdefault(optype, []).append(span)
    told = {span.num_microbatches for span in (mark, *spans)} - {None}
    step.broken = _lost(by_type, told)
    if not step.broken:
        _number(step, by_type, told)
    return step


def _lost(by_type: Mapping[str, Sequence[Span]], told: Iterable[int | None]) -> str:
    """Why spans must have been lost on their way; "" if nothing says so."""
    forward, backward = (len(by_type.get(optype, ())) for optype in (FORWARD, BACKWARD))
    if not forward:
        return "has no forward pass: set MEGATRON_OTEL_SPAN_GROUPS=per_step,microbatch"
    if forward != backward:
        return f"has {forward} forward and {backward} backward passes: spans were lost"
    for each in told:
        if each and forward % each:
            return f"has {forward} forward passes of {each} micro-batches: spans were lost"
    return ""


def _number(
    step: RankStep, by_type: Mapping[str, Sequence[Span]], told: Iterable[int | None]
) -> None:
    is_chunked = _is_chunked(by_type[FORWARD], told)
    places = {
        FORWARD: _places(by_type[FORWARD], is_chunked=is_chunked),
        BACKWARD: _places(by_type[BACKWARD], is_chunked=is_chunked),
    }
    for optype, spans in by_type.items():
        known = places.get(optype) or [(-1, -1)] * len(spans)
        for seq_id, (span, (mc, mb_id)) in enumerate(zip(spans, known, strict=True)):
            duration_ns = span.end_ns - span.start_ns
            step.ops.append(Op(optype, span.start_ns, duration_ns, seq_id, mc, mb_id))
        step.counts["p2p"] += len(spans) if optype in P2P else 0
    for optype, found in places.items():
        step.counts["compute"] += len(found)
        step.counts["unnumbered"] += sum(mb_id < 0 for _, mb_id in found)
        if not is_chunked:
            step.counts["by_order"] += sum(span.microbatch is None for span in by_type[optype])


def _is_chunked(forward: Sequence[Span], told: Iterable[int | None]) -> bool:
    """Whether stages have several chunks of the model, so that a micro-batch passes often."""
    ids = [span.microbatch for span in forward if span.microbatch is not None]
    if any(span.chunk for span in forward) or len(set(ids)) < len(ids):
        return True
    return any(each is not None and len(forward) > each for each in told)


def _places(spans: Sequence[Span], *, is_chunked: bool) -> list[tuple[int, int]]:
    """(chunk, micro-batch) of each pass, in the order of their starts; -1 where it is not told.

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
