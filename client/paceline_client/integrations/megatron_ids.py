"""Which micro-batch and model chunk is the next receive of a Megatron schedule for?

Receives of one direction come in the order in which the stage computes, since its peer sends in
that order. A send is known by its tensor, which is what a forward or backward step has answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any

Ids = tuple[int, int]  # micro-batch, model chunk on the stage
UNKNOWN: Ids = (-1, -1)

# (micro-batches, model chunks, micro-batches of a group) -> the order of (micro-batch, chunk)
Table = Callable[[int, int, int], "list[Ids]"]


def one_chunk(num_microbatches: int, num_chunks: int, group_size: int) -> list[Ids]:
    """The order where a stage has one model chunk."""
    return [(microbatch, 0) for microbatch in range(num_microbatches)]


class Expected:
    """Of one step of a stage: the ids of its receives, and of what its steps have answered."""

    def __init__(
        self, order: list[Ids], num_chunks: int, is_first_stage: bool, is_last_stage: bool
    ) -> None:
        last = num_chunks - 1
        backwards = [(microbatch, last - chunk) for microbatch, chunk in order]
        self._receives: dict[str, Iterator[Ids]] = {
            # What the first chunk of the model takes in, nobody has sent: it is the data.
            "forward-recv": iter([ids for ids in order if not is_first_stage or ids[1] > 0]),
            "backward-recv": iter([ids for ids in backwards if not is_last_stage or ids[1] < last]),
        }
        self._backwards = iter(backwards)
        self._of_tensor: dict[int, Ids] = {}

    def received(self, optype: str) -> Ids:
        """Ids of the next receive."""
        return next(self._receives[optype], UNKNOWN)

    def backward(self, outputs: Any) -> Ids:
        """Ids of the backward of what a forward has answered."""
        expected = next(self._backwards, UNKNOWN)
        return self.of(outputs, expected)

    def answered(self, tensors: Any, ids: Ids) -> None:
        """A step has answered these tensors, one or a list."""
        for tensor in _listed(tensors):
            self._of_tensor[id(tensor)] = ids

    def of(self, tensors: Any, otherwise: Ids = UNKNOWN) -> Ids:
        """Ids of the step that has answered these tensors."""
        known = (self._of_tensor.get(id(tensor)) for tensor in _listed(tensors))
        return next((ids for ids in known if ids is not None), otherwise)


def _listed(tensors: Any) -> list[Any]:
    found = tensors if isinstance(tensors, (list, tuple)) else [tensors]
    return [tensor for tensor in found if tensor is not None]


def nothing_expected() -> Expected:
    """Where the schedule is none that is known: no receive has ids."""
    expected = Expected([], 1, True, True)
    expected._receives = dict.fromkeys(expected._receives, repeat(UNKNOWN))
    return expected
