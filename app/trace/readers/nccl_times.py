"""How long each collective took on the rank that was in it for the longest."""

import numpy as np
from numpy.typing import NDArray

from app.trace.readers.nccl_lines import Collective

# Small, so that numbers far apart, as somebody may make them up in a request, cost little each.
_BLOCK = 128
# 16 million collectives of all communicators together, in some 260 MB.
MAX_BLOCKS = 1 << 17


class JoinedTimes:
    """The longest time of each collective, and how many ranks have spoken, in blocks of arrays."""

    def __init__(self, *, most_blocks: int = MAX_BLOCKS) -> None:
        self._most_blocks = most_blocks
        self._blocks: dict[tuple[str, str, int], tuple[NDArray[np.float64], NDArray[np.int32]]] = {}
        self.num_left_out = 0

    @property
    def most(self) -> int:
        """Collectives that there is room for, if their numbers follow each other."""
        return self._most_blocks * _BLOCK

    def see(self, each: Collective) -> None:
        """One rank's word of a collective."""
        key = (each.place.comm, each.kind, each.sn // _BLOCK)
        block = self._blocks.get(key)
        if block is None:
            if len(self._blocks) >= self._most_blocks:
                self.num_left_out += 1
                return
            block = self._blocks[key] = (np.zeros(_BLOCK, np.float64), np.zeros(_BLOCK, np.int32))
        longest_us, num_ranks = block
        at = each.sn % _BLOCK
        longest_us[at] = max(longest_us[at], each.time_us)
        num_ranks[at] += 1

    def longest_us(self, each: Collective) -> float | None:
        """The longest time in this collective; None unless each of its ranks has spoken once.

        Fewer: who was last may be among the others. More: the communicator's name was used again
        after a restart, and these are two collectives.
        """
        block = self._blocks.get((each.place.comm, each.kind, each.sn // _BLOCK))
        at = each.sn % _BLOCK
        if each.place.num_ranks < 2 or block is None or block[1][at] != each.place.num_ranks:
            return None
        return float(block[0][at])
