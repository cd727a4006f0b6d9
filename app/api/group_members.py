"""One group of ranks with all of its members, worked out from a closed window's operations."""

from typing import Any

from app.api.service import Service
from app.api.window_range import RANGE
from app.engine.arrivals.result import groups_as_json
from app.engine.replays import prepare
from app.errors import InvalidRequest
from app.trace.named_steps import chosen


def group_of(
    service: Service, job_id: str, window: str, steps: str | None, name: str
) -> dict[str, Any] | None:
    """The group as results have it, with every member; None where there is none of that name.

    Raises:
        JobNotFound, WindowNotFound: there is no such job or window.
        InvalidRequest: several windows, or steps that the window does not have.
        Conflict: the window is open, or its operations are not kept any more.
        Unavailable: too many ask for recorded operations.
    """
    if RANGE in window:
        raise InvalidRequest(
            "group: all members of a large group are worked out for one window at a time: name one"
        )
    replay = service.replays.get(job_id, window)
    with service.replays.at_work.taken():
        if steps is not None:
            replay = prepare(replay.window.only(chosen(steps, replay.window.steps)))
        found = replay.arrivals
        return next(iter(groups_as_json(found, name)), None) if found is not None else None
