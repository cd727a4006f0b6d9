"""Which batches an open window still needs, should the consumer crash."""

from collections.abc import Iterable

BatchKey = tuple[int, int]  # (rank, batch_seq)


class Retained:
    """Counts for each batch the steps that are not yet in a closed window."""

    def __init__(self, late: Iterable[tuple[BatchKey, list[int]]] = ()) -> None:
        self._num_steps: dict[BatchKey, int] = {}
        self._by_step: dict[int, list[BatchKey]] = {}
        self._late = dict(late)
        self._released: list[BatchKey] = []

    def late_after(self, step: int) -> list[tuple[BatchKey, list[int]]]:
        """Steps that were settled before the batch came; what it says of them does not count.

        Those up to `step`, which are in closed windows, need not be told apart any more.
        """
        late = {key: [late for late in steps if late > step] for key, steps in self._late.items()}
        return sorted((key, steps) for key, steps in late.items() if steps)

    def late_steps(self, key: BatchKey) -> list[int]:
        """The late steps of one batch."""
        return self._late.get(key, [])

    def add(self, key: BatchKey, steps: set[int], late_steps: list[int]) -> None:
        """A batch touches these steps, of which none is in a closed window, and some late ones."""
        if late_steps:
            self._late[key] = late_steps
        if not steps:
            self._released.append(key)
            return
        self._num_steps[key] = len(steps)
        for step in steps:
            self._by_step.setdefault(step, []).append(key)

    def close(self, steps: Iterable[int]) -> None:
        """These steps are in a closed window now."""
        for step in steps:
            for key in self._by_step.pop(step, ()):
                self._num_steps[key] -= 1
                if not self._num_steps[key]:
                    del self._num_steps[key]
                    self._released.append(key)

    def take_released(self) -> list[BatchKey]:
        """Batches that nothing needs any more; each is named once."""
        released, self._released = self._released, []
        for key in released:
            self._late.pop(key, None)
        return released
