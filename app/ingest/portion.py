"""How many entries to ask the queue for at once, when nobody knows how large they are."""

LARGEST_ENTRY_BYTES = 8 << 20  # the largest request that is taken
BUDGET_BYTES = 192 << 20


class Portion:
    """Keeps an answer within `budget_bytes`, going by the largest entries seen lately.

    It begins with the largest entries that there can be. The guess halves with each answer of
    smaller ones, so after 12 answers 2 KB entries come hundreds at a time; where a queue of small
    entries turns into one of large ones, a single answer may be above the budget.
    """

    def __init__(self, budget_bytes: int = BUDGET_BYTES) -> None:
        self._budget_bytes = budget_bytes
        self._entry_bytes = LARGEST_ENTRY_BYTES

    @property
    def num_shards(self) -> int:
        """How many shards may be read at once, an entry of each."""
        return max(1, self._budget_bytes // self._entry_bytes)

    def count(self, num_shards: int, most: int) -> int:
        """Entries to ask each of so many shards for, at least one and at most `most`."""
        return max(1, min(most, self._budget_bytes // (self._entry_bytes * num_shards)))

    def saw(self, sizes_bytes: list[int]) -> None:
        """Learn from an answer."""
        if sizes_bytes:
            self._entry_bytes = max(1, *sizes_bytes, self._entry_bytes // 2)
