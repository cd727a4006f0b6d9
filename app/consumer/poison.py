"""Entries that nobody can take: found out one by one, and kept as dead letters."""

from app.consumer.workplace import Workplace
from app.errors import PacelineError
from app.ingest import codec
from app.ingest.queue import Entry
from app.store import trials
from app.store.dead_letters import DeadLetter

SUSPECT_AFTER = 3  # deliveries: whoever had it before may have ended because of it
MAX_TRIALS = 3
ATTEMPTS = 2


class Poison:
    """What is known of the entries of one shard that were handed out again and again.

    A process that dies cannot say which entry was its last. So an entry that has been delivered
    several times is tried alone, which is written down before; only what ends several processes
    then is poison. A store that is away ends none.
    """

    attempts = ATTEMPTS  # at an entry that fails without ending us

    def __init__(self, workplace: Workplace, shard: int) -> None:
        self._store = workplace.store
        self._shard = shard
        self._process = workplace.process

    def is_suspect(self, entry: Entry) -> bool:
        """Whether the entry is to be tried alone."""
        return entry.deliveries >= SUSPECT_AFTER

    def begin(self, entry: Entry) -> bool:
        """Whether the entry is worth another attempt, which is counted."""
        with self._store.write() as conn:
            tried_by = trials.begin(conn, self._shard, entry.entry_id, self._process)
        return tried_by <= MAX_TRIALS

    def end(self, entry: Entry) -> None:
        """The entry was taken, or given up."""
        with self._store.write() as conn:
            trials.end(conn, self._shard, entry.entry_id)


def dead_letter(entry: Entry, reason: str, now_s: float) -> DeadLetter:
    """The entry as it is kept for a person to look at."""
    epoch, num_ops = None, 0
    try:
        batch = codec.parsed(codec.opened(entry.body))
        epoch, num_ops = batch.epoch, codec.num_ops_of(batch)
    except PacelineError:
        pass  # that is why it is dead
    return DeadLetter(
        job_id=entry.job_id,
        epoch=epoch,
        entry_id=entry.entry_id,
        num_ops=num_ops,
        deliveries=entry.deliveries,
        reason=reason,
        received_s=entry.received_s,
        died_s=now_s,
        body=entry.body,
    )
