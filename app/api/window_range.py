"""The result that a page shows: of one window, of several together, or of some steps alone."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from app.api.results import ARRAYS, ARRIVAL_ARRAYS, Result
from app.api.service import Service
from app.diagnosis.history import History
from app.diagnosis.merged import merged
from app.engine.arrivals.result import MAX_RANKS
from app.engine.combine import combined, per_step_combined
from app.engine.result_by_step import split
from app.monitor import analysed
from app.store import jobs, spans, windows
from app.store.spans import Span
from app.trace.named_steps import chosen

# Between the first and the last window of a range.
RANGE = ".."
# Workers times windows times arrays by worker (and by step) that are read for one result.
MAX_NUMBERS = 2_000_000
# Each takes a millisecond to read, however small.
MAX_WINDOWS = 240
# Of those that were left out, so many are named.
MAX_LEFT_OUT = 100


def shown_result(
    service: Service, job_id: str, window: str, steps: str | None = None, *, per_step: bool = False
) -> Result:
    """Section 7's object of `latest`, a window, a range of them, or of some steps of a window.

    Raises:
        JobNotFound: the job never registered.
        WindowNotFound: it has no such window.
        InvalidRequest: the range or the steps name nothing.
        Conflict: steps of a window whose operations are not there.
        Unavailable: too many ask for steps or for several windows now.
    """
    if steps is not None:
        return _of_steps(service, job_id, window, steps, per_step=per_step)
    if RANGE in window:
        return _of_range(service, job_id, window, per_step=per_step)
    return service.results.get(service.store, job_id, window, per_step=per_step)


def _of_steps(service: Service, job_id: str, window: str, named: str, *, per_step: bool) -> Result:
    """Figures and causes of some steps, worked out anew: ideals are those of these steps alone.

    Nothing is known then of the steps before.
    """
    whole = service.replays.get(job_id, window.split(RANGE)[-1]).window
    numbers = chosen(named, whole.steps)

    def analyse() -> Result:
        with service.replays.at_work.taken():
            return analysed(whole.only(numbers), History())[1]

    result = service.results.kept((job_id, whole.id, whole.revision, numbers), analyse)
    return result if per_step else split(result)[0]


def _of_range(service: Service, job_id: str, named: str, *, per_step: bool) -> Result:
    first, last = named.split(RANGE)
    with service.store.read() as conn:
        span = spans.between(conn, job_id, first, last)
        run = jobs.run(conn, job_id, span.epoch)
    by_step = span.most_steps if per_step else 0
    each_holds = run.parallelism.num_workers * (ARRAYS + by_step)
    each_holds += min(MAX_RANKS, run.parallelism.num_workers) * (ARRIVAL_ARRAYS + by_step)
    kept = thinned(span.first_steps, MAX_NUMBERS // each_holds)

    def read() -> Result:
        with service.results.at_range.taken(), service.store.read() as conn:
            ids = [f"{span.epoch}-{first_step}" for first_step in kept]
            parts = [windows.get(conn, job_id, each, per_step=per_step) for each in ids]
            if len(kept) == span.num_windows:
                return joint(parts)
            lost_s = spans.gpu_s_lost(conn, job_id, span, num_gpus=run.num_gpus)
        return _of_part(joint(parts), span, kept, lost_s)

    key = (job_id, named, span.num_windows, span.revisions, per_step)
    return service.results.kept(key, read)


def joint(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The windows' results as one, with what was found in any of them."""
    figures = combined(parts)
    header = {"window": {**figures["window"], "left_out": [], "num_left_out": 0}}
    result = {**figures, **header, **merged(parts, figures)}
    if "per_step" in parts[0]:
        known = [each["per_step"] for each in parts if each["slowdown"] is not None]
        result["per_step"] = per_step_combined(known) if known else None
    return result


def _of_part(
    result: dict[str, Any], span: Span, kept: Sequence[int], lost_gpu_s: float | None
) -> dict[str, Any]:
    """A result that says what was not read for it; what was lost is of all windows even so."""
    has = set(kept)
    left_out = [f"{span.epoch}-{first}" for first in span.first_steps if first not in has]
    header = {
        **result["window"],
        "left_out": left_out[:MAX_LEFT_OUT],
        "num_left_out": span.num_windows - len(kept),
    }
    hours = None if lost_gpu_s is None else lost_gpu_s / 3600
    return {**result, "window": header, "gpu_hours_lost": hours}


def thinned(found: Sequence[int], most: int) -> list[int]:
    """As many as can be read, evenly spread: the first and the last one always."""
    num_kept = max(2, min(most, MAX_WINDOWS))
    if len(found) <= num_kept:
        return list(found)
    at = np.unique(np.linspace(0, len(found) - 1, num_kept).round().astype(int))
    return [found[index] for index in at]
