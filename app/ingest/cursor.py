"""Which batches of one rank have been seen, in whatever order they came."""

from typing import Literal

import msgspec

MAX_AHEAD = 1024  # batches seen after a gap, and numbers given up, that are remembered
MAX_GAP = 1 << 20  # numbers that a worker can have skipped; beyond, it is no number of its own
MAX_DIGESTS = 8  # of the latest batches: a worker repeats what it has just sent
NO_STEP = -1

Verdict = Literal["new", "duplicate", "conflict", "stranger"]


class Cursor(msgspec.Struct):
    """One rank's batches: all below `next_seq` have been seen, and those in `ahead`.

    `ahead` maps a number after the gap to the highest step that its batch declares. `holes` are
    numbers below `next_seq` that were given up and may still turn up; `num_lost` counts all that
    did not. `watermark` is the highest step declared by the batches without gap: no lower one can
    turn up after it. `digests` maps the latest numbers to their batches' content. `dropped` is how
    many operations its recorder has dropped, None where it has not said. A rank that `is_alone`
    records only inside its groups, so that no step waits for it.
    """

    rank: int
    worker: int
    next_seq: int = 0
    watermark: int = NO_STEP
    num_lost: int = 0
    ahead: dict[int, int] = {}  # msgspec copies these three
    holes: list[int] = []  # ascending
    digests: dict[int, int] = {}
    dropped: int | None = None
    is_alone: bool = False

    def see(self, batch_seq: int, highest_step: int, digest: int) -> Verdict:
        """Whether the batch is a new one; it is none from now on.

        A number far beyond all others is a stranger's: nothing of it counts.
        """
        if batch_seq > self.next_seq + MAX_GAP:
            return "stranger"
        if batch_seq in self.holes:
            self.holes.remove(batch_seq)
            self.num_lost -= 1
            self.watermark = max(self.watermark, highest_step)
        elif batch_seq < self.next_seq or batch_seq in self.ahead:
            is_same = self.digests.get(batch_seq, digest) == digest
            return "duplicate" if is_same else "conflict"
        elif batch_seq == self.next_seq and not self.ahead:  # as nearly always
            self.next_seq += 1
            self.watermark = max(self.watermark, highest_step)
        else:
            self.ahead[batch_seq] = highest_step
            self._close_up()
            if len(self.ahead) > MAX_AHEAD:
                self._skip_gap()
        self.digests[batch_seq] = digest
        if len(self.digests) > MAX_DIGESTS:
            del self.digests[next(iter(self.digests))]
        return "new"

    def give_up(self) -> None:
        """Stop waiting for all missing batches: no further one will come."""
        while self.ahead:
            self._skip_gap()

    def give_up_to(self, step: int) -> None:
        """Stop waiting for missing batches where a later one declares this step or a higher."""
        while self.ahead and self.watermark < step <= max(self.ahead.values()):
            self._skip_gap()

    def _close_up(self) -> None:
        while self.next_seq in self.ahead:
            self.watermark = max(self.watermark, self.ahead.pop(self.next_seq))
            self.next_seq += 1

    def _skip_gap(self) -> None:
        after = min(self.ahead)
        self.num_lost += after - self.next_seq
        self.holes += range(max(self.next_seq, after - MAX_AHEAD), after)
        del self.holes[:-MAX_AHEAD]
        self.next_seq = after
        self._close_up()
