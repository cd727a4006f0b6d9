"""Cases: what is trained, its fault, and the right causes and culprits."""

import random
from dataclasses import dataclass
from typing import Any

from app.result.finding import Culprit, Finding

# Steps of a window, and of a run: the first step is not analysed.
WINDOW_STEPS = 8
NUM_STEPS = 1 + 3 * WINDOW_STEPS


@dataclass(frozen=True, slots=True)
class Case:
    """A training on `num_ranks` processes; healthy where `fault` is "".

    `way` is "ddp", "fsdp2", "pipeline" (two stages of `num_ranks / 2` replicas), "peers"
    (`num_ranks / 4` replicas of 4 tensor-parallel peers) or "huggingface".
    """

    name: str
    way: str
    num_ranks: int
    fault: str = ""
    has_loader: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """A right name for a fault: its cause and, with late-host, `evidence["late_because"]`."""

    cause: str
    late_because: str = ""


# By fault. A rank's slow data or its garbage collector make its host late: both names are right. Of
# tensor-parallel peers all but the first record nothing but collectives, which tell who is late
# and not what with.
ANSWERS: dict[str, tuple[Answer, ...]] = {
    "": (),
    "slow-rank": (Answer("slow-worker"),),
    "slow-peer": (Answer("slow-worker"), Answer("late-host")),
    "host-work": (Answer("late-host", "unknown host work"),),
    "gc-storms": (Answer("gc-pause"), Answer("late-host", "gc")),
    "slow-data": (Answer("data-loading"), Answer("late-host", "data-wait")),
    "slow-collate": (Answer("data-loading"), Answer("late-host", "data-wait")),
    "starved": (Answer("data-loading"),),
    "uneven-stages": (Answer("stage-imbalance"),),
}
# Faults of one rank, of one stage, and of all.
RANK_FAULTS = frozenset(
    ("slow-rank", "slow-peer", "host-work", "gc-storms", "slow-data", "slow-collate")
)
STAGE_FAULTS = frozenset(("uneven-stages",))

CASES = (
    *(Case(f"fsdp2-{num}-slow-rank", "fsdp2", num, "slow-rank") for num in (2, 3, 4)),
    Case("ddp-late-host", "ddp", 4, "host-work"),
    Case("ddp-gc-storms", "ddp", 4, "gc-storms"),
    Case("ddp-slow-dataset", "ddp", 4, "slow-data", has_loader=True),
    Case("ddp-starved", "ddp", 4, "starved", has_loader=True),
    Case("huggingface-slow-collate", "huggingface", 4, "slow-collate", has_loader=True),
    Case("1f1b-uneven-stages", "pipeline", 4, "uneven-stages"),
    Case("peers-slow-peer", "peers", 8, "slow-peer"),
    *(Case(f"fsdp2-{num}-healthy", "fsdp2", num) for num in (2, 3, 4)),
    Case("ddp-healthy", "ddp", 4),
    Case("ddp-loader-healthy", "ddp", 4, has_loader=True),
    Case("huggingface-healthy", "huggingface", 4, has_loader=True),
    Case("1f1b-healthy", "pipeline", 4),
    Case("peers-healthy", "peers", 8),
)
BY_NAME = {case.name: case for case in CASES}


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a case: the same seed draws the same culprit.

    `rank` has the fault, or all ranks of `stage`; -1 where there is no one. `shares_host` says
    that all ranks have one host name; otherwise each has its own, as with a GPU a host. `variant`
    is 0 or 1: where in the step a late host works.
    """

    case: Case
    number: int
    seed: int
    rank: int
    stage: int
    shares_host: bool
    variant: int

    @classmethod
    def of(cls, case: Case, number: int, seed: int) -> "Run":
        """The `number`-th run of the case."""
        draw = random.Random(f"{case.name}-{number}-{seed}")  # noqa: S311
        rank = draw.randrange(case.num_ranks) if case.fault in RANK_FAULTS else -1
        stage = draw.randrange(2) if case.fault in STAGE_FAULTS else -1
        return cls(case, number, seed, rank, stage, number % 3 == 2, number % 2)

    @property
    def name(self) -> str:
        """Of its job and of its folder of recordings."""
        return f"{self.case.name}-{self.number}"

    def plan(self) -> dict[str, Any]:
        """As examples/torch_faults takes it."""
        return {
            "name": self.name,
            "way": self.case.way,
            "fault": self.case.fault,
            "rank": self.rank,
            "stage": self.stage,
            "has_loader": self.case.has_loader,
            "shares_host": self.shares_host,
            "variant": self.variant,
            "steps": NUM_STEPS,
            "seed": self.number,
        }

    def truth(self) -> dict[str, Any]:
        """The true fault, for a file beside its recording."""
        answers = ANSWERS[self.case.fault]
        return {
            "case": self.case.name,
            "fault": self.case.fault or None,
            "num_ranks": self.case.num_ranks,
            "causes": [each.cause for each in answers],
            "late_because": [each.late_because for each in answers if each.late_because],
            "rank": self.rank if self.rank >= 0 else None,
            "stage": self.stage if self.stage >= 0 else None,
            "shares_host": self.shares_host,
            "variant": self.variant,
            "seed": self.seed,
        }

    def is_right_cause(self, finding: Finding) -> bool:
        """Whether the finding's cause is one of those that are right."""
        because = late_because(finding)
        return any(
            finding.cause == answer.cause and answer.late_because in ("", because)
            for answer in ANSWERS[self.case.fault]
        )

    def names_culprit(self, finding: Finding) -> bool:
        """Whether the finding names exactly the right culprits."""
        culprits = finding.culprits
        ranks = [_rank(culprit) for culprit in culprits]
        if self.rank >= 0:
            return ranks == [self.rank]
        if self.stage >= 0:
            return {culprit.stage for culprit in culprits} == {self.stage}
        # All ranks are affected: no culprit, or all of them.
        return not ranks or {*ranks} == {*range(self.case.num_ranks)}


def late_because(finding: Finding) -> str | None:
    """Why the host of a late-host is late."""
    because: str | None = finding.evidence.get("late_because")
    return because


def _rank(culprit: Culprit) -> int | None:
    """The culprit's global rank, which is its dp rank where there is one stage."""
    return culprit.dp_rank if culprit.rank is None else culprit.rank
