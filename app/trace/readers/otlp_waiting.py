"""Spans of one rank until the step that they belong to is over."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from app.trace.readers.otlp_span import Span
from app.trace.readers.otlp_steps import OPS, RankStep, cut, rank_step


@dataclass(slots=True)
class Ready:
    """Steps that are over, with the ids of the spans that made them."""

    steps: list[RankStep] = field(default_factory=list)
    used: list[str] = field(default_factory=list)


@dataclass(slots=True)
class WaitingSpans:
    """What has come of one rank and is in no step yet; times are the rank's own.

    `add` it, look what is `ready`, and once that is safe say it is `done`: until then the same is
    ready again. Of a span that comes twice the first counts.
    """

    spans: dict[str, Span] = field(default_factory=dict)
    done_ns: int = -1  # all that starts before is in a step that is done
    usual: Counter[str] = field(default_factory=Counter)

    def add(self, span: Span) -> bool:
        """Whether the span may still come into a step."""
        if span.start_ns < self.done_ns:
            return False
        self.spans.setdefault(span.span_id, span)
        return True

    def ready(self, optypes: Mapping[str, str] = OPS, *, is_end: bool = False) -> Ready:
        """The steps of which nothing more is expected.

        Exporters and collectors may change the order of what they send, so a step is over when it
        has as many operations of each type as the one before, or when a later one has ended.
        """
        found = cut(self.spans.values())
        ready, usual = Ready(), self.usual
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

    def done(self, ready: Ready) -> int:
        """These steps are safe: forget their spans, and what lay before them in no step.

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
