"""Which batches of one rank have been seen, in whatever order they came."""

import msgspec

MAX_AHEAD = 1024  # batches seen after a gap, and numbers given up, that are remembered
NO_STEP = -1


class Cursor(msgspec.Struct):
    """One rank's batches: all below `next_seq` have been seen, and those in `ahead`.

    `ahead` maps a number after the gap to the highest step that its batch declares. `holes` are
    numbers below `next_seq` that were given up and may still turn up. `watermark` is the highest
    step declared by the batches without gap: no lower one can turn up after it.
    """

    rank: int
    worker: int
    host: str | None = None
    next_seq: int = 0
    watermark: int = NO_STEP
    ahead: dict[int, int] = {}  # msgspec copies these two
    holes: list[int] = []  # ascending

    def see(self, batch_seq: int, highest_step: int) -> bool:
        """Whether the batch is a new one; it is none from now on."""
        if batch_seq in self.holes:
            self.holes.remove(batch_seq)
            self.watermark = max(self.watermark, highest_step)
            return True
        if batch_seq < self.next_seq or batch_seq in self.ahead:
            return False
        self.ahead[batch_seq] = highest_step
        self._close_up()
        if len(self.ahead) > MAX_AHEAD:
            self._skip_gap()
        return True

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
        self.holes += range(max(self.next_seq, after - MAX_AHEAD), after)
        del self.holes[:-MAX_AHEAD]
        self.next_seq = after
        self._close_up()
