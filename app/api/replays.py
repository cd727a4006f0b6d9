"""Stored windows made ready to be replayed again: built when asked for, and kept for a while."""

import threading
from collections import OrderedDict

from app.api.closed_windows import Key, key_of, load
from app.api.places import Places
from app.engine.questions.answer import Questions
from app.engine.replays import WindowReplay, prepare
from app.store.engine import Store

# One window of the largest job that we promise to take (12.2 M operations), or hundreds of
# ordinary ones: more would crowd out what else runs on the host, less would build that one anew
# for every question.
MAX_KEPT_BYTES = 1 << 30
# A trace's columns, three matrices of times, and the graph.
BYTES_PER_OP = 80

# Callers that wait for a window to be built hold a thread each, of the 40 that serve everybody.
MAX_WAITING = 8
# Work on a replay holds up to 100 MB of a large job, and a core or two.
MAX_AT_WORK = 4
# Each keeps a core busy, and other answers waiting, while it is made.
MAX_DOWNLOADS = 2

TOO_MANY = "too many others ask for recorded operations now: ask again in a moment"
_TOO_MANY_FILES = "others download timelines now: ask again in a moment"


class Replays:
    """Replays of stored windows, the last used ones kept; may be called from any thread.

    Take one of the places `at_work` for what is more than looking something up, or
    `at_download` for a file that is made while it is sent.
    """

    def __init__(
        self,
        store: Store,
        *,
        max_kept_bytes: int = MAX_KEPT_BYTES,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self._store = store
        self._max_kept_bytes = max_kept_bytes
        self._kept: OrderedDict[Key, Questions] = OrderedDict()
        self._keeping = threading.Lock()
        # One at a time, whoever asks: a large window takes gigabytes while it is built.
        self._building = threading.Lock()
        self._waiting = Places(max_waiting, TOO_MANY)
        self.at_work = Places(MAX_AT_WORK, TOO_MANY)
        self.at_download = Places(MAX_DOWNLOADS, _TOO_MANY_FILES)

    def get(self, job_id: str, window_id: str) -> WindowReplay:
        """The replay of a closed window; `latest` is the newest closed one of the current run.

        Raises:
            JobNotFound: the job never registered.
            WindowNotFound: it has no such window.
            Conflict: the window is still open, or none of its steps can be replayed.
            Unavailable: too many wait for a window already.
        """
        return self.questions(job_id, window_id).replay

    def questions(self, job_id: str, window_id: str) -> Questions:
        """The same, with what its answers have in common; raises as `get` does."""
        with self._store.read() as conn:
            key = key_of(conn, job_id, window_id)
        return self._find(key) or self._built(key)

    def _built(self, key: Key) -> Questions:
        with self._waiting.taken(), self._building:
            # Whoever waited here with the same wish as the one before finds it done.
            found = self._find(key)
            if found is None:
                found = Questions(prepare(load(self._store, key)))
                self._keep(key, found)
            return found

    def _find(self, key: Key) -> Questions | None:
        with self._keeping:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def _keep(self, key: Key, questions: Questions) -> None:
        with self._keeping:
            self._kept[key] = questions
            # The newest stays, however large: it is about to be used.
            while len(self._kept) > 1 and self._size_bytes() > self._max_kept_bytes:
                self._kept.popitem(last=False)

    def _size_bytes(self) -> int:
        num_ops = sum(each.replay.window.trace.num_ops for each in self._kept.values())
        return num_ops * BYTES_PER_OP
