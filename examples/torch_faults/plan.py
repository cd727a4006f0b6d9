"""Plan of one run: training and fault."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """One run, read from JSON.

    `way` is "ddp", "fsdp2", "pipeline", "peers" (replicas of 4 tensor-parallel peers) or
    "huggingface". `fault` is "" where it is healthy, or "slow-rank" (fsdp2), "slow-peer" (peers),
    "host-work", "gc-storms" (ddp), "slow-data", "starved" (ddp with `has_loader`), "slow-collate"
    (huggingface) or "uneven-stages" (pipeline). `rank` has the fault, or `stage` has more layers;
    -1 is none. All ranks have one host name where `shares_host`, else each its own, as with one
    GPU a host; peers share theirs. A late host works before its forwards (`variant` 0) or before
    its backwards (1); peers record their collectives in all steps (0) or in every second one (1).
    """

    name: str
    way: str
    fault: str = ""
    rank: int = -1
    stage: int = -1
    has_loader: bool = False
    shares_host: bool = False
    variant: int = 0
    steps: int = 25
    seed: int = 0

    @classmethod
    def of(cls, text: str) -> Plan:
        """Parse a plan from a JSON object.

        Raises:
            ValueError: it is not a plan.
        """
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{text[:200]!r} is no plan: {error}") from error
