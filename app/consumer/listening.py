"""The clock by which steps of a job are waited for: it stands still while Paceline is in the way.

What has not come by a deadline is missing only if it would have been received and processed by
then. So no time passes for a shard while batches wait in its queue, nor for a job while its pushes
are refused.
"""

from collections.abc import Callable, Collection


class ListeningClock:
    """Seconds by a monotonic clock, less those in which a shard or a job was not listened to.

    Time passes at `advance` only.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._at_s = monotonic()
        self._deaf_s = 0.0
        self._deaf_to_s: dict[str, float] = {}

    def advance(self, *, is_caught_up: bool, refused: Collection[str] = ()) -> None:
        """Let the time since the last call pass, for those that could be heard in it."""
        now_s = self._monotonic()
        passed_s, self._at_s = now_s - self._at_s, now_s
        if not is_caught_up:
            self._deaf_s += passed_s
            return
        for job_id in refused:
            self._deaf_to_s[job_id] = self._deaf_to_s.get(job_id, 0.0) + passed_s

    def now_s(self, job_id: str) -> float:
        """The time for a job."""
        return self._at_s - self._deaf_s - self._deaf_to_s.get(job_id, 0.0)

    def forget_all_but(self, job_ids: Collection[str]) -> None:
        """Drop what is kept of other jobs: they are loaded anew before they are waited for."""
        for job_id in self._deaf_to_s.keys() - set(job_ids):
            del self._deaf_to_s[job_id]
