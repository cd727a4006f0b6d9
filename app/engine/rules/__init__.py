"""Which operation waits for which? One file per part of docs/replay.md.

Each rule takes the template and gives edges (before, after) between its operations.
"""

from itertools import pairwise

Edge = tuple[int, int]

# Two ends of one worker's clock nearer than this are the same moment.
SAME_MOMENT_S = 1e-6

# Nearer than this, one operation follows the other without the worker having waited.
AT_ONCE_S = 50e-6


def chain(ops: list[int]) -> list[Edge]:
    """Each operation waits for the one before it in the list."""
    return list(pairwise(ops))
