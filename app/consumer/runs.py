"""The runs of one shard that are in memory: loaded when something comes, and let go again."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from math import inf

import structlog

from app.consumer.run import Run, RunKey, load
from app.consumer.silence import SENDING, Silence
from app.consumer.workplace import Workplace
from app.errors import PacelineError
from app.ingest.assembler import RunAssembler
from app.ingest.queue import order_of, shard_of
from app.store import spool as spools
from app.store import watching
from app.store.engine import with_longer_limit

log = structlog.get_logger()

LISTEN_EVERY_S = 5.0
LET_GO_AFTER_S = 60.0
SPAN_PATIENCE = 3  # a job whose steps take long is silent for long
MOST_PATIENCE = 12  # an hour, where it is five minutes


class JobTrouble(Exception):
    """Something is wrong with what is stored of a job: none of its entries is to blame."""


class Runs:
    """Runs by job id and epoch."""

    def __init__(self, workplace: Workplace, shard: int) -> None:
        self._work = workplace
        self._shard = shard
        self._since_s = workplace.monotonic()
        self._runs: dict[RunKey, Run] = {}
        self._forgotten: set[RunKey] = set()
        self._troubled: set[RunKey] = set()
        self.stuck: dict[str, str] = {}  # entries that stay in the queue, and their jobs
        self._next_listen_s = 0.0
        self._newest: str | None = None  # of the queue, when we last looked
        self._was_behind = False

    def kept(self) -> list[RunKey]:
        """Runs of this shard that have to be in memory: with an open window, or to be watched.

        And those that have stalled: the rules may have changed while nobody looked.
        """
        now_s = self._work.unix_time()
        with self._work.store.read() as conn:
            kept = {*spools.jobs(conn), *watching.watched(conn, now_s=now_s)}
            kept.update(watching.stalled(conn, now_s=now_s))
        return self._mine(kept)

    def starting(self) -> list[RunKey]:
        """Runs that have registered and sent nothing so far, where it is the time to look.

        Those of which only scores come have not stalled, even if that was told before the first.
        """
        if self._work.monotonic() < self._next_listen_s:
            return []
        with self._work.store.read() as conn:
            starting = watching.starting(conn, now_s=self._work.unix_time())
            wrongly_told = watching.only_scored(conn, stalled=True)
        return self._mine({*starting, *wrongly_told})

    @property
    def forgotten(self) -> list[RunKey]:
        """Runs that were in memory, and have to be loaded again."""
        return sorted(self._forgotten)

    def get(self, key: RunKey) -> Run:
        """The run, from the store if it is not in memory.

        Raises:
            JobNotFound: no such run registered.
            JobTrouble: what is stored of it cannot be read.
        """
        if key not in self._runs:
            self._runs[key] = self._loaded(key)
            self._forgotten.discard(key)
        return self._runs[key]

    def due(self, now_s: float) -> list[RunKey]:
        """Runs of which a step has been waited for long enough, or something is to be told."""
        return [key for key, run in self._runs.items() if _is_due(run.assembler, now_s)]

    def forget(self, job_id: str) -> None:
        """What is in memory of a job may be wrong: it is loaded again with the next tick."""
        for key in [key for key in self._runs if key[0] == job_id]:
            del self._runs[key]
            self._forgotten.add(key)

    def close(self, key: RunKey) -> None:
        """The run is over, and its last window is stored."""
        self._runs.pop(key, None)

    def let_go(self, kept: Callable[[str], bool]) -> None:
        """Forget runs that have stalled and wait for nothing: their state is in the store.

        Those of jobs that are to be `kept` stay.
        """
        limit_s = self._work.monotonic() - LET_GO_AFTER_S
        for key, run in list(self._runs.items()):
            is_quiet = run.told.stalled_since_s is not None and run.used_s < limit_s
            if is_quiet and run.assembler.is_idle and not kept(key[0]):
                del self._runs[key]

    @property
    def jobs(self) -> set[str]:
        """Jobs with a run in memory."""
        return {job_id for job_id, _ in self._runs}

    def heard(self) -> dict[str, dict[RunKey, Silence]]:
        """Who is silent now, by job and run; empty where it is not the time to look, or unknown."""
        now_s = self._work.monotonic()
        if now_s < self._next_listen_s or not self._runs:
            return {}
        self._next_listen_s = now_s + LISTEN_EVERY_S
        if self._falls_behind():
            return {}
        found: dict[str, dict[RunKey, Silence]] = defaultdict(dict)
        self._note_only_scored()
        for key, run in self._runs.items():
            found[key[0]][key] = self._silence(run, now_s)
        return found

    def tell(self, news: Mapping[RunKey, Silence]) -> None:
        """This has been written down."""
        for key, each in news.items():
            if key in self._runs:
                self._runs[key].told = each
            log.info("silence", job=key[0], epoch=key[1], ranks=len(each.silent_ranks),
                     stalled=each.stalled_since_s is not None)  # fmt: skip

    def _mine(self, keys: Iterable[RunKey]) -> list[RunKey]:
        num_shards = self._work.num_shards
        return sorted(key for key in keys if shard_of(key[0], num_shards) == self._shard)

    def _loaded(self, key: RunKey) -> Run:
        try:
            with self._work.store.read() as conn:
                with_longer_limit(conn)
                return load(conn, self._work, key)
        except PacelineError:
            raise
        except Exception as error:
            if key not in self._troubled:  # it is tried again and again
                self._troubled.add(key)
                log.exception("run cannot be loaded", job=key[0], epoch=key[1])
            raise JobTrouble(f"run {key} cannot be loaded") from error

    def _falls_behind(self) -> bool:
        """Whether the silence may be ours: what came before we last looked has not been heard."""
        queue, before = self._work.queue, self._newest
        oldest = queue.oldest(self._shard, besides=self.stuck)
        self._newest = queue.newest(self._shard)
        is_behind = before is None or (oldest is not None and order_of(oldest) <= order_of(before))
        if self._was_behind and not is_behind:
            for run in self._runs.values():
                if run.told == SENDING:  # what is told stays told until the rank is heard again
                    run.watch.forgive(self._work.monotonic())
        self._was_behind = is_behind
        return is_behind

    def _note_only_scored(self) -> None:
        """Once it was, a run is so until something of it comes: reports are not kept for ever."""
        with self._work.store.read() as conn:
            now = set(watching.only_scored(conn))
        for key, run in self._runs.items():
            was = run.is_only_scored and not run.watch.has_begun
            run.is_only_scored = was or key in now

    def _silence(self, run: Run, now_s: float) -> Silence:
        if run.is_only_scored:
            return SENDING
        unix_s = self._work.unix_time()
        roll = run.assembler.roll
        unheard = roll.unheard() if run.watch.has_begun else ()
        found = run.watch.silence(now_s, unix_s, self._patience_s(run), unheard)
        workers = roll.workers(found.silent_ranks)
        found = found._replace(silent_workers=tuple(workers.values()))
        if found.silent_ranks and run.told.silent_ranks:  # who is more silent began it
            found = found._replace(silent_since_s=run.told.silent_since_s)
        return found

    def _patience_s(self, run: Run) -> float:
        least_s = self._work.silent_after_s
        if run.is_at_first_steps:
            return self._start_patience_s(run)
        span_s = run.assembler.longest_span_s or 0.0
        return min(max(least_s, SPAN_PATIENCE * span_s), MOST_PATIENCE * least_s)

    def _start_patience_s(self, run: Run) -> float:
        """To load a checkpoint and to compile may take a large job many minutes."""
        least_s = self._work.silent_after_s
        if run.told == SENDING and self._work.monotonic() - self._since_s < least_s:
            return inf  # who registered long ago may not have reached us until just now
        return max(least_s, self._work.start_within_s)


def _is_due(assembler: RunAssembler, now_s: float) -> bool:
    deadline_s = assembler.next_deadline_s()
    return assembler.has_untold or (deadline_s is not None and deadline_s <= now_s)
