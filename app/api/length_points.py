"""Points of the chart of time against lengths, from the operations of a closed window."""

from app.api.service import Service
from app.api.window_range import RANGE
from app.diagnosis.length_pairs import LengthPairs, length_pairs
from app.trace.named_steps import chosen


def length_points(
    service: Service, job_id: str, window: str, steps: str | None
) -> LengthPairs | None:
    """Those of one window, of the last one of a range, or of some steps of it.

    Raises:
        JobNotFound: the job never registered.
        WindowNotFound: it has no such window.
        Conflict: the window is still open, or its operations are no longer kept.
        Unavailable: too many ask for recorded operations now.
    """
    replay = service.replays.get(job_id, window.split(RANGE)[-1])
    with service.replays.at_work.taken():
        return length_pairs(replay, None if steps is None else chosen(steps, replay.steps))
