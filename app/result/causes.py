"""The causes that a finding may name: one row each, which all that speak of causes read.

A new cause is a detector (app/diagnosis/detectors) and a row here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from app.formatting import plural

# Names, as results, alerts and addresses have them.
SLOW_WORKER = "slow-worker"
LATE_HOST = "late-host"
STAGE_IMBALANCE = "stage-imbalance"
SEQUENCE_IMBALANCE = "sequence-imbalance"
EXPERT_IMBALANCE = "expert-imbalance"
GC_PAUSE = "gc-pause"
SLOW_LINK = "slow-link"
FLAPPING_LINK = "flapping-link"
DATA_LOADING = "data-loading"
ALLOCATOR_STALL = "allocator-stall"
CPU_CONTENTION = "cpu-contention"
CHECKPOINT_STALL = "checkpoint-stall"
JOB_STOP = "job-stop"
UNIFORM_SLOWDOWN = "uniform-slowdown"
SILENT_WORKER = "silent-worker"

# How the page edits durations, to ask what the step would be without the cause.
WhatIfEdits = Literal["as-peers", "stages", "links", "ideal", "ideal-of-workers", "as-before", ""]
LeadingChart = Literal["workers", "steps", "stages", "dp-steps", "waited-for"]


@dataclass(frozen=True, slots=True)
class Cause:
    """How one cause is called and treated, on pages, in alerts, reports and the diagnosis.

    `label` stands on chips and in charts, `phrase` in sentences. `chart` shows the cause best.
    `nobody` is said in place of culprits where there are none, with a note. `is_in_host` is one of
    a host or its network connection, `is_of_transfers` of transfers between workers;
    `delays_worker` is one that makes a worker late by itself. Where `names_stops`, the evidence's
    steps are those of stops, and `is_between_steps` is one whose cost is a share of all time. Of
    causes that are `confused_with` each other, and lose the same time, one is dropped. `question`
    is what the page suggests to ask, by the edits `asks`; "" where it depends on the culprits, or
    there is none.
    """

    name: str
    label: str
    phrase: str
    chart: LeadingChart = "workers"
    nobody: str = "no single worker"
    nobody_note: str = ""
    is_in_host: bool = False
    is_of_transfers: bool = False
    delays_worker: bool = False
    names_stops: bool = False
    is_between_steps: bool = False
    confused_with: frozenset[str] = frozenset()
    question: str = ""
    asks: WhatIfEdits = ""


# What all causes that stop workers may be taken for.
_PAUSES = frozenset((ALLOCATOR_STALL, CPU_CONTENTION, GC_PAUSE))
_HOST_WORK = frozenset((ALLOCATOR_STALL, CPU_CONTENTION, JOB_STOP, CHECKPOINT_STALL))


def _rows() -> Iterator[Cause]:
    yield Cause(
        name=SLOW_WORKER,
        label="slow worker",
        phrase="a slow worker",
        is_in_host=True,
        delays_worker=True,
        confused_with=_PAUSES,
        asks="as-peers",
    )
    yield Cause(
        name=LATE_HOST,
        label="late host",
        phrase="a late host",
        chart="waited-for",
        is_in_host=True,
        delays_worker=True,
        confused_with=_HOST_WORK,
    )
    yield Cause(
        name=STAGE_IMBALANCE,
        label="long stage",
        phrase="a long stage",
        chart="stages",
        asks="stages",
    )
    yield Cause(
        name=SEQUENCE_IMBALANCE,
        label="sequence lengths",
        phrase="uneven sequence lengths",
        chart="dp-steps",
        nobody="moves every step",
        nobody_note="no single host",
        question="Computations of one length everywhere",
        asks="ideal",
    )
    yield Cause(
        name=EXPERT_IMBALANCE,
        label="uneven experts",
        phrase="uneven loads of experts",
        nobody="moves with the routing",
        nobody_note="no single host",
        confused_with=_PAUSES,
        question="Even loads of experts",
        asks="ideal",
    )
    yield Cause(
        name=GC_PAUSE,
        label="garbage collection",
        phrase="garbage collection",
        chart="steps",
        nobody="different workers",
        delays_worker=True,
        names_stops=True,
        confused_with=_HOST_WORK,
        question="No garbage collection pauses",
        asks="ideal-of-workers",
    )
    yield Cause(
        name=SLOW_LINK,
        label="slow link",
        phrase="a slow link",
        is_in_host=True,
        is_of_transfers=True,
        asks="links",
    )
    yield Cause(
        name=FLAPPING_LINK,
        label="flapping link",
        phrase="a flapping link",
        is_in_host=True,
        is_of_transfers=True,
        asks="links",
    )
    yield Cause(
        name=DATA_LOADING,
        label="data loading",
        phrase="slow data loading",
        is_in_host=True,
        delays_worker=True,
        confused_with=_HOST_WORK,
    )
    yield Cause(
        name=ALLOCATOR_STALL,
        label="allocator stalls",
        phrase="allocator stalling",
        is_in_host=True,
        confused_with=frozenset((CPU_CONTENTION, JOB_STOP)),
        question="No allocator stalls",
        asks="ideal-of-workers",
    )
    yield Cause(
        name=CPU_CONTENTION,
        label="busy host",
        phrase="a busy host",
        is_in_host=True,
        question="A host with free CPUs",
        asks="ideal-of-workers",
    )
    yield Cause(
        name=CHECKPOINT_STALL,
        label="checkpoints",
        phrase="long checkpoints",
        chart="steps",
        nobody="all workers",
        names_stops=True,
        is_between_steps=True,
        confused_with=frozenset((JOB_STOP,)),
    )
    yield Cause(
        name=JOB_STOP,
        label="single stop",
        phrase="a single long stop",
        chart="steps",
        nobody="all workers",
        names_stops=True,
    )
    yield Cause(name=SILENT_WORKER, label="silent worker", phrase="a silent worker")
    yield Cause(
        name=UNIFORM_SLOWDOWN,
        label="everything is slower",
        phrase="a uniform slowdown",
        chart="steps",
        nobody="all workers",
        question="Everything as fast as before",
        asks="as-before",
    )


CAUSES: Mapping[str, Cause] = {cause.name: cause for cause in _rows()}

# Loss that no finding has, where losses are listed by cause.
NOT_EXPLAINED = "not-explained"


def causes_for_pages() -> dict[str, dict[str, str]]:
    """What the pages need of each row."""
    shown = ("label", "chart", "nobody", "nobody_note", "question", "asks")
    return {name: {key: getattr(row, key) for key in shown} for name, row in CAUSES.items()}


def cause_of(name: str) -> Cause:
    """The row of a cause; of one that this release does not know, its name in words."""
    words = name.replace("-", " ")
    return CAUSES.get(name) or Cause(name=name, label=words, phrase=words)


def may_be_confused(one: str, other: str) -> bool:
    """Whether two causes may be taken for each other."""
    return other in CAUSES[one].confused_with or one in CAUSES[other].confused_with


def cause_name(name: str, *, is_last_stage: bool = False) -> str:
    """A cause in lower case, as a chip has it; `is_last_stage` where its only culprit is that."""
    if name == STAGE_IMBALANCE and is_last_stage:
        return "long last stage"
    return cause_of(name).label


def cause_phrase(name: str, num_culprits: int | None = None) -> str:
    """A cause as a noun phrase in the singular: a late host; slow workers are counted if known."""
    if name == SLOW_WORKER and num_culprits:
        return "one slow worker" if num_culprits == 1 else plural(num_culprits, "slow worker")
    return cause_of(name).phrase
