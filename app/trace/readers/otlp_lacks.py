"""What OTLP traces do not say, counted, and which figures suffer."""

from dataclasses import dataclass, field

from app.trace.readers.foreign import Lack
from app.trace.readers.otlp_span import Sent
from app.trace.readers.otlp_steps import RankStep

HOST_TIMES = (
    "host-side durations are launch and CPU time unless the script synchronises CUDA: figures "
    "show where the host spent its time, which GPU is slow only as far as the host waited for it"
)


@dataclass(slots=True)
class Tally:
    """Counts over all that was read."""

    spans: int = 0
    refused: int = 0
    why_refused: str = ""
    outside: int = 0
    steps: int = 0
    broken: int = 0
    why_broken: str = ""
    ops: int = 0
    highest_chunk: int = 0
    keeps_transfers: bool = False
    counts: dict[str, int] = field(
        default_factory=lambda: {"compute": 0, "by_order": 0, "unnumbered": 0, "p2p": 0}
    )

    def note(self, sent: Sent) -> None:
        """Count what one resource sent."""
        self.spans += sent.num_spans
        self.refused += sent.num_refused
        self.why_refused = self.why_refused or sent.refused

    def add(self, step: RankStep) -> None:
        """Count one step of one rank."""
        self.steps += 1
        self.broken += bool(step.broken)
        self.why_broken = self.why_broken or (step.broken and f"step {step.number} {step.broken}")
        self.ops += len(step.ops)
        for name in self.counts:
            self.counts[name] += step.counts[name]
        self.highest_chunk = max([self.highest_chunk, *(op.mc for op in step.ops)])


def lacks(tally: Tally) -> tuple[Lack, ...]:
    """What is missing, as the user is told."""
    counts = tally.counts
    told = [
        (
            tally.ops,
            f"GPU times: all {tally.ops:,} operations are timed on the host (times=host)",
            HOST_TIMES,
        ),
        (
            counts["by_order"],
            f"micro-batch ids: {counts['by_order']:,} of {counts['compute']:,} forward and "
            "backward passes have none, and were numbered by their order",
            "right where a stage has one model chunk, as these have; a replay joins passes by it",
        ),
        (
            counts["unnumbered"],
            f"micro-batch and chunk ids: {counts['unnumbered']:,} of {counts['compute']:,} passes "
            "belong to one of several chunks of a stage and do not say to which: not numbered",
            "which pass waits for which is not known, so what-if figures of stages are too low; "
            "say chunks with the span attribute paceline.model_chunk",
        ),
        (
            0 if tally.keeps_transfers else 1,
            f"transfers: {_transfers(tally)}",
            "no stage waits for another in the replay: the discrepancy between simulated and "
            "recorded step time shows how much that is, and no slow link can be found",
        ),
        (
            tally.broken,
            f"steps: {tally.broken:,} of {tally.steps:,} steps of ranks left out: "
            f"{tally.why_broken}",
            "a step is analysed only where all its workers recorded it",
        ),
        (
            tally.outside,
            f"spans: {tally.outside:,} of {tally.spans:,} lie in no megatron.train_step",
            "they are in no figure",
        ),
        (
            tally.refused,
            f"spans: {tally.refused:,} of {tally.spans:,} cannot be: {tally.why_refused}",
            "they are in no figure",
        ),
    ]
    return tuple(Lack(what, cost) for count, what, cost in told if count)


def _transfers(tally: Tally) -> str:
    found = tally.counts["p2p"]
    if not found:
        return "none recorded between stages"
    return (
        f"{found:,} recorded for {tally.counts['compute']:,} passes, fewer than these need "
        "(Megatron records none while it overlaps sending and receiving): all left out"
    )
