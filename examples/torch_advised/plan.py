"""Plan of one run: which training, and which text was pasted into it."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """A training on 4 ranks, the same on every machine.

    `pp_size` stages have `layers` transformer layers in all, `layer_s` seconds of a forward each
    with usual sequence lengths; the output takes as long as `output_layers` of them. Each
    micro-batch leaves so many `sentences` behind, Python objects in cycles.
    """

    pp_size: int
    layers: int
    layer_s: float
    microbatches: int
    output_layers: float = 0.0
    sentences: int = 0
    is_uneven: bool = False


TRAININGS = {
    # The last stage has as many layers as the first one, and the output besides.
    "long-last-stage": Shape(2, 8, 0.006, 4, output_layers=4.0),
    # Python's collector stops each rank when it likes.
    "gc-pauses": Shape(2, 4, 0.012, 4, sentences=2000),
    # A rank waits in every step for that with the longest documents.
    "uneven-sequences": Shape(1, 2, 0.009, 4, is_uneven=True),
}


@dataclass(frozen=True)
class Plan:
    """One run, read from JSON.

    `training` is a key of `TRAININGS`. `pasted` are options of Megatron-LM or torchtitan as on a
    command line; `code` is Python whose last function distributes micro-batches over dp ranks.
    Training begins at `first_step`, with the data of that step and new weights.
    """

    name: str
    training: str
    pasted: str = ""
    code: str = ""
    steps: int = 17
    first_step: int = 0

    @property
    def shape(self) -> Shape:
        """What is trained."""
        return TRAININGS[self.training]

    @classmethod
    def of(cls, text: str) -> Plan:
        """Parse a plan from a JSON object.

        Raises:
            ValueError: it is not a plan.
        """
        try:
            plan = cls(**json.loads(text))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{text[:200]!r} is no plan: {error}") from error
        if plan.training not in TRAININGS:
            raise ValueError(f"training {plan.training!r}: give one of {', '.join(TRAININGS)}")
        return plan
