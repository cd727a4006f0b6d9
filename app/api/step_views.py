"""Steps of stored windows, played through: kept a while, as a page asks for each several times."""

import threading
from collections import OrderedDict

from app.api.places import Places
from app.api.replays import MAX_WAITING, TOO_MANY, Replays
from app.engine.replays import WindowReplay
from app.engine.timeline.choice import slowest_step
from app.engine.timeline.step_view import StepView, step_view

# One step of the largest job that we promise to take (16,384 workers), or hundreds of others.
MAX_KEPT_BYTES = 256 << 20

_Key = tuple[str, str, int, int]


class StepViews:
    """Steps by job, window, revision and number; may be called from any thread."""

    def __init__(self, replays: Replays, *, max_kept_bytes: int = MAX_KEPT_BYTES) -> None:
        self._replays = replays
        self._max_kept_bytes = max_kept_bytes
        self._kept: OrderedDict[_Key, StepView] = OrderedDict()
        self._keeping = threading.Lock()
        self._playing = threading.Lock()
        self._waiting = Places(MAX_WAITING, TOO_MANY)

    def get(
        self, job_id: str, window_id: str, step: int | None, dp_rank: int | None
    ) -> tuple[WindowReplay, StepView]:
        """A closed window, and one of its steps as one replica had it.

        Left out: the slowest step, and the replica that held it up longest.

        Raises:
            JobNotFound, WindowNotFound: there is no such job or window.
            Conflict: the window is open, or its operations are not kept any more.
            InvalidRequest: it has no such step or dp rank.
            Unavailable: too many ask for recorded operations.
        """
        replay = self._replays.get(job_id, window_id)
        shown = slowest_step(replay) if step is None else step
        key = (job_id, replay.window.id, replay.window.revision, shown)
        view = self._find(key) or self._played(key, replay, shown)
        return replay, view.of(dp_rank)

    def _played(self, key: _Key, replay: WindowReplay, step: int) -> StepView:
        with self._waiting.taken(), self._playing:
            # A place is taken by who works, not by those who wait for the same.
            # Whoever waited here with the same wish as the one before finds it done.
            found = self._find(key)
            if found is None:
                with self._replays.at_work.taken():
                    found = step_view(replay, step)
                self._keep(key, found)
            return found

    def _find(self, key: _Key) -> StepView | None:
        with self._keeping:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def _keep(self, key: _Key, view: StepView) -> None:
        with self._keeping:
            self._kept[key] = view
            # The newest stays, however large: it is about to be used.
            while len(self._kept) > 1 and self._size_bytes() > self._max_kept_bytes:
                self._kept.popitem(last=False)

    def _size_bytes(self) -> int:
        return sum(view.size_bytes for view in self._kept.values())
