"""Which entries are taken together: as many as fit into memory, and none that may kill others.

A packed batch that cannot be taken must not keep those of other jobs from it for ever, nor may the
deaths of consumers that have another reason make any of them a dead letter.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress

from app.consumer.context import ConsumerContext
from app.errors import Unavailable
from app.ingest.queue import Entry
from app.ingest.wire.body import decompressed_size
from app.store import dead_letters

TURN_BYTES = 64 << 20  # of decoded columns
# A packed row takes 14 bytes (one per column), and 106 decoded. Whether an entry is packed is known
# only once it is decoded, so every entry is assumed to be.
MAX_UNPACKED_RATIO = 8


def split_by_memory(entries: list[Entry]) -> Iterator[list[Entry]]:
    """Split queue entries, in order, into chunks that fit TURN_BYTES decoded."""
    part: list[Entry] = []
    room = TURN_BYTES
    for entry in entries:
        size = decompressed_size(entry.body) * MAX_UNPACKED_RATIO
        if part and size > room:
            yield part
            part, room = [], TURN_BYTES
        part.append(entry)
        room -= size
    if part:
        yield part


SUSPECT_AFTER_DELIVERIES = 3  # its earlier consumers may have died of it
MAX_TRIALS = 4  # processes: once with those of other jobs, once with its own job's, twice alone


class PoisonTracker:
    """Finds entries of one shard that kill the process which works on them.

    Consumers die for other reasons, too, and then all that waits has been delivered several times.
    So only a process that ended while it worked on an entry counts against it: that is saved
    before, for all such entries at once; those that such a process leaves are tried by job, then
    alone, and one that goes on to kill is poison. A store that is unavailable kills no process.
    """

    def __init__(self, context: ConsumerContext, shard: int) -> None:
        self._store = context.store
        self._shard = shard
        self._process = context.process
        with context.store.read() as conn:
            self._trials = dead_letters.trials(conn, shard, context.process)
        self._has_rows = bool(self._trials)

    def is_suspect(self, entry: Entry) -> bool:
        """Whether the entry is to be tried apart from those of other jobs."""
        return entry.deliveries >= SUSPECT_AFTER_DELIVERIES

    def is_poison(self, entry: Entry) -> bool:
        """Whether too many processes have ended while they worked on the entry."""
        return self._trials.get(entry.entry_id, 0) >= MAX_TRIALS

    def parts(self, suspects: Sequence[Entry]) -> Iterator[list[Entry]]:
        """What to try at once, in the order of each job's entries."""
        by_job: dict[str, list[Entry]] = defaultdict(list)
        for entry in suspects:
            by_job[entry.job_id].append(entry)
        untried: list[Entry] = []
        for entries in by_job.values():
            most = max(self._trials.get(entry.entry_id, 0) for entry in entries)
            if most == 0:
                untried += entries
            elif most == 1:
                yield from split_by_memory(entries)
            else:
                yield from ([entry] for entry in entries)
        yield from split_by_memory(untried)

    def begin(self, entries: Sequence[Entry]) -> None:
        """Save that this process begins to work on these entries."""
        with self._store.write() as conn:
            ids = [entry.entry_id for entry in entries]
            dead_letters.begin_trials(conn, self._shard, ids, self._process)
        self._has_rows = True

    def end(self, entries: Sequence[Entry]) -> None:
        """Remove the trials of these entries: they were taken, or became dead letters."""
        ids = {entry.entry_id for entry in entries}
        with self._store.write() as conn:
            dead_letters.end_trials(conn, self._shard, ids)
        for entry_id in ids:
            self._trials.pop(entry_id, None)

    def leave(self, entries: Sequence[Entry]) -> None:
        """Remove this process's own trials of these entries, if the store can be written to."""
        ids = {entry.entry_id for entry in entries}
        with suppress(Unavailable), self._store.write() as conn:
            dead_letters.end_trials(conn, self._shard, ids, of_process=self._process)

    def forget(self) -> None:
        """Remove all trials of the shard: no entry of it is left."""
        if self._has_rows:
            with self._store.write() as conn:
                dead_letters.end_trials(conn, self._shard)
            self._has_rows, self._trials = False, {}
