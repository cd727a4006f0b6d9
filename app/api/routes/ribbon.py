"""The ribbon: a whole job at a glance, from which a page picks the windows that it shows."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from fastapi import APIRouter
from pydantic import Field

from app.api.deps import JobKey, ServiceDep, refusals
from app.api.fields import Answer, timestamp_or_none
from app.api.happened import happened
from app.api.ribbon_bins import Bin, gaps
from app.api.ribbon_events import EventKind, RibbonEvent
from app.store.windows import Verdict

router = APIRouter(tags=["windows"])


class BinOut(Answer):
    """Successive windows of one run; `from` and `to` name the first and the last one."""

    from_: str = Field(serialization_alias="from")
    to: str
    first_step: int
    last_step: int
    num_steps: int
    epoch: int
    slowdown: float | None = Field(description="Of all its steps together; null if unknown.")
    verdict: Verdict | None
    is_open: bool


class GapOut(Answer):
    """Steps of which nothing is stored, between two bins of one run."""

    after_bin: int
    num_steps: int


class EventOut(Answer):
    """Something that happened at a step."""

    step: int
    epoch: int
    at: datetime | None = Field(description="Of steps: when their window was last analysed.")
    kind: EventKind
    text: str
    detail: str
    bin: int = Field(description="Position in `bins`.")

    @classmethod
    def of(cls, event: RibbonEvent) -> "EventOut":
        """The event as the API says it."""
        names = [name for name in cls.model_fields if name != "at"]
        return cls(
            at=timestamp_or_none(event.at_s), **{name: getattr(event, name) for name in names}
        )


class RangeOut(Answer):
    """The first and the last of some windows."""

    from_: str = Field(serialization_alias="from")
    to: str


class RibbonOut(Answer):
    """A job's newest windows, oldest first; `older` are not shown."""

    bins: list[BinOut]
    older: int
    gaps: list[GapOut]
    events: list[EventOut]
    since_onset: RangeOut | None = Field(
        description="Windows since what costs most now began; null where that is not known."
    )


@router.get(
    "/jobs/{job_id}/ribbon",
    operation_id="get_ribbon",
    summary="See a whole job at a glance",
    responses=refusals(404),
)
def get_ribbon(job_id: JobKey, service: ServiceDep) -> RibbonOut:
    """Windows in at most 240 bins, and what happened along them."""
    seen = happened(service, job_id)
    return RibbonOut(
        bins=[_bin(each) for each in seen.bins],
        older=seen.older,
        gaps=[
            GapOut(after_bin=each.after_bin, num_steps=each.num_steps) for each in gaps(seen.bins)
        ],
        events=[EventOut.of(each) for each in seen.events],
        since_onset=_since_onset(seen.bins, seen.newest) if seen.bins else None,
    )


def _since_onset(shown: Sequence[Bin], newest: Mapping[int, Mapping[str, Any]]) -> RangeOut | None:
    last = shown[-1].last
    findings = (newest.get(last.epoch) or {}).get("findings")
    if not findings or findings[0]["onset_step"] is None:
        return None
    of_run = [w for each in shown for w in each.windows if w.epoch == last.epoch]
    first = next((w for w in of_run if w.last_step >= findings[0]["onset_step"]), of_run[-1])
    return RangeOut(from_=first.window_id, to=last.window_id)


def _bin(each: Bin) -> BinOut:
    return BinOut(
        from_=each.first.window_id,
        to=each.last.window_id,
        first_step=each.first.first_step,
        last_step=each.last.last_step,
        num_steps=each.num_steps,
        epoch=each.first.epoch,
        slowdown=each.slowdown,
        verdict=each.verdict,
        is_open=each.is_open,
    )
