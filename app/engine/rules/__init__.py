"""Which operation waits for which? One file per part of section 3 of the what-if model.

Each rule takes the template and gives edges (before, after) between its operations.
"""

from itertools import pairwise

Edge = tuple[int, int]


def chain(ops: list[int]) -> list[Edge]:
    """Each operation waits for the one before it in the list."""
    return list(pairwise(ops))
