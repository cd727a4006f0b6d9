"""One rank's step as spans told it, as a batch for the event queue."""

import numpy as np

from app.errors import InvalidRequest
from app.ingest.batch import OpBatch, OpColumns
from app.ingest.rows import Rules, all_kept
from app.store.jobs import JobRecord
from app.trace.readers.otlp_steps import NAMES, OPS, P2P, RankStep

FIRST_STEP = "first_step"
MOST_UNSAID = 1000  # steps that a run may have done before, without its registration saying so
# Transfers are left out before they take room: Megatron records only some of them, and their peers'
# are unknown here.
LIVE_NAMES = NAMES - {name for name, optype in OPS.items() if optype in P2P}


def first_step_of(job: JobRecord) -> int:
    """The step that batch 0 is of, as the run's registration says."""
    text = job.labels.get(FIRST_STEP, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 16 else 0


def batch_of(
    step: RankStep, job: JobRecord, *, rank: int, place: tuple[int, int], host: str | None
) -> OpBatch:
    """The step's batch, which has its number: sent again it is the same, whoever sends it.

    A step that cannot be used becomes a batch without operations, so that nobody waits for it.

    Raises:
        InvalidRequest: the step cannot be one of this run.
    """
    first = first_step_of(job)
    if FIRST_STEP not in job.labels and job.last_step is None and step.number > MOST_UNSAID:
        raise InvalidRequest(
            f"step {step.number} is the first to come, and the job is registered without the label "
            f"{FIRST_STEP}: register its run with the number of its first step"
        )
    if step.number < first:
        raise InvalidRequest(f"step {step.number} is before {first}, the first of this run")
    batch = OpBatch(
        epoch=job.epoch,
        rank=rank,
        dp_rank=place[0],
        stage=place[1],
        host=host,
        batch_seq=step.number - first,
        steps_done=(),
        columns=_columns(step, job),
    )
    num_ops = batch.columns.num_ops
    rules = Rules(job.parallelism, job.op_types, job.last_step)
    if step.number > rules.last_step_taken or not all_kept(batch.columns, rules):
        raise InvalidRequest(
            f"step {step.number} has numbers that no operation has: check paceline.vpp_size, "
            "model chunks and micro-batches"
        )
    done = ((step.number, num_ops),) if num_ops else ()
    return OpBatch(
        **{name: getattr(batch, name) for name in batch.__slots__} | {"steps_done": done}
    )


def why_unusable(step: RankStep) -> str:
    """Why nothing of the step can be analysed; "" if it can."""
    if step.broken:
        return f"step {step.number} {step.broken}"
    if unnumbered := step.counts["unnumbered"]:
        return (
            f"step {step.number}: {unnumbered} of {step.counts['compute']} passes belong to one of "
            "several model chunks and do not say to which: set the span attribute "
            "paceline.model_chunk"
        )
    return ""


def _columns(step: RankStep, job: JobRecord) -> OpColumns:
    ops = [] if why_unusable(step) else step.ops

    def column(name: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.array([getattr(op, name) for op in ops], np.int64)

    codes = job.op_types.codes
    return OpColumns(
        step=np.full(len(ops), step.number, np.int64),
        start_ns=column("start_ns"),
        duration_ns=column("duration_ns"),
        seq_id=column("seq_id"),
        mc=column("mc"),
        mb_id=column("mb_id"),
        optype=np.array([codes[op.optype] for op in ops], np.int16),
    )
