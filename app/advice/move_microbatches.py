"""Fix: fewer micro-batches for slow replicas, more for the others, in the same global batch.

Known as heterogeneous load balance; the second remedy of FALCON and Greyhound. A replica takes one
more micro-batch in the time of its longest stage. Counts with the smallest longest replica
are then improved with the simulator, since pipelines fill and drain, too.
"""

import heapq
import json
from collections.abc import Sequence

import numpy as np

from app.advice.fix import MIN_SPEED_UP, AdviceCase, Fix, Need, NotOffered, Paste
from app.advice.rebuilt_pipeline import RebuiltPipeline
from app.advice.recorded_pipeline import NotRebuilt
from app.advice.replace_worker import culprit_workers
from app.errors import InvalidRequest
from app.result import causes


def balanced_counts(
    total: int, seconds_each: Sequence[float], seconds_besides: Sequence[float] | None = None
) -> tuple[int, ...]:
    """Micro-batches of each replica, at least 1, with the smallest largest time.

    Args:
        total: M, micro-batches of all replicas in a step.
        seconds_each: t_i of each replica, above 0.
        seconds_besides: a_i of each replica; none where left out.

    Returns:
        m_i of each replica; of equal choices the first replica's.

    Raises:
        InvalidRequest: there are fewer micro-batches than replicas, or a time is not above 0.
    """
    if total < len(seconds_each) or not seconds_each:
        raise InvalidRequest(
            f"{total} micro-batches for {len(seconds_each)} replicas: give each at least 1"
        )
    if not all(took_s > 0 for took_s in seconds_each):
        raise InvalidRequest("a micro-batch takes no time on some replica: give more than 0 s")
    besides = seconds_besides or [0.0] * len(seconds_each)
    counts = [1] * len(seconds_each)
    ends = [(besides[i] + 2 * took_s, i) for i, took_s in enumerate(seconds_each)]
    heapq.heapify(ends)
    for _ in range(total - len(counts)):
        _, first = ends[0]
        counts[first] += 1
        next_s = besides[first] + (counts[first] + 1) * seconds_each[first]
        heapq.heapreplace(ends, (next_s, first))
    return tuple(counts)


def largest_time_s(
    counts: Sequence[int],
    seconds_each: Sequence[float],
    seconds_besides: Sequence[float] | None = None,
) -> float:
    """Seconds: max_i (a_i + m_i t_i)."""
    besides = seconds_besides or [0.0] * len(seconds_each)
    times_s = zip(besides, counts, seconds_each, strict=True)
    return max(besides_s + count * took_s for besides_s, count, took_s in times_s)


NAME = "move-microbatches"
CAUSES = (causes.SLOW_WORKER,)
# Neighbours of the counts that the simulator tries, at most; none for pipelines of so many
# operations, where they take too long, and one micro-batch of many matters least.
MAX_TRIES, MAX_TRIED_OPS = 4, 2000
# Neighbours whose longest replica, without waiting, is so much longer are not tried.
MAX_WORSE = 1.02

Counts = tuple[int, ...]


def move_microbatches(case: AdviceCase) -> Fix | NotOffered:
    """Balance micro-batches around the slow workers of the most costly finding."""
    findings = case.findings(*CAUSES)
    if not findings:
        return NotOffered(NAME, "no worker was found to be slow")
    if not culprit_workers(case, findings[0]):
        return NotOffered(NAME, "the slow workers change, so no replica is always slow")
    sizes = case.replay.window.job.parallelism
    if sizes.dp_size < 2:
        return NotOffered(NAME, "there is one replica, so none to move micro-batches to")
    if sizes.ep_size > 1:
        return NotOffered(
            NAME,
            "dp ranks exchange tokens of experts in every micro-batch: with different numbers of "
            "them they would wait for each other for ever",
        )
    model = case.pipeline
    if isinstance(model, NotRebuilt):
        return NotOffered(NAME, model.reason)
    counts = best_counts(model)
    change = model.change(lambda current: current.counts_s(counts))
    step_s = case.step_s_with(change)
    if case.step_s / step_s < MIN_SPEED_UP:
        return NotOffered(NAME, "no other numbers of micro-batches are faster by 1 %")
    bounds_s = [step_s, *(case.step_s * (model.counts_s(counts) / model.as_is_s)).tolist()]
    schedule = model.recorded.schedule.name if sizes.pp_size > 1 else None
    return case.fix(
        NAME,
        _title(model, counts),
        step_s=step_s,
        step_range_s=(min(bounds_s), max(bounds_s)),
        risk=_risk(model, counts),
        change=change,
        finding=findings[0],
        paste=pastes(counts, schedule, takes=torch_takes(schedule, counts, sizes.pp_size)),
        needs=(*_schedule_needs(schedule, counts, sizes.pp_size), *case.restart_needs()),
    )


def best_counts(model: RebuiltPipeline) -> Counts:
    """Micro-batches of each dp rank with the shortest simulated step."""
    best = _balanced(model)
    if len(set(best)) == 1 or model.recorded.structure.num_ops > MAX_TRIED_OPS:
        return best
    tries = 0
    for by in (-1, 1):
        while tries < MAX_TRIES and (other := _neighbour(model, best, by)) is not None:
            tries += 1
            if model.counts_s(other).mean() >= model.counts_s(best).mean():
                break
            best = other
    return best


def _unit(model: RebuiltPipeline) -> int:
    """Interleaved pipelines take micro-batches in rounds of one per stage."""
    sizes = model.group.template.parallelism
    return sizes.pp_size if sizes.vpp_size > 1 else 1


def _balanced(model: RebuiltPipeline) -> Counts:
    unit = _unit(model)
    rounds = model.num_microbatches * model.group.dp_size // unit
    counts = balanced_counts(rounds, (model.microbatch_s * unit).tolist(), model.fill_s.tolist())
    return tuple(count * unit for count in counts)


def _neighbour(model: RebuiltPipeline, counts: Counts, by: int) -> Counts | None:
    """One more or fewer for the replica with fewest; None if that is clearly longer."""
    unit, took_s, besides_s = _unit(model), model.microbatch_s, model.fill_s
    slowest = int(np.argmin(counts))
    moved = list(counts)
    moved[slowest] += by * unit
    if moved[slowest] < 1:
        return None
    ends_s = besides_s + (np.asarray(counts) + unit * (by < 0)) * took_s
    ends_s[slowest] = np.inf if by < 0 else -np.inf
    other = int(ends_s.argmin() if by < 0 else ends_s.argmax())
    moved[other] -= by * unit
    if moved[other] < 1:
        return None
    moved_s, now_s = (
        largest_time_s(numbers, took_s.tolist(), besides_s.tolist()) for numbers in (moved, counts)
    )
    return tuple(moved) if moved_s <= now_s * MAX_WORSE else None


def _title(model: RebuiltPipeline, counts: Counts) -> str:
    fewer = [rank for rank, count in enumerate(counts) if count < model.num_microbatches]
    moved = sum(model.num_microbatches - counts[rank] for rank in fewer)
    number = f"{moved} micro-batch{'es' if moved > 1 else ''} a step"
    if len(fewer) == 1:
        return (
            f"Move {number} off dp rank {fewer[0]}: {counts[fewer[0]]} instead of "
            f"{model.num_microbatches}"
        )
    return f"Move {number} off {len(fewer)} slow replicas"


def _risk(model: RebuiltPipeline, counts: Counts) -> str:
    holds_all = model.recorded.schedule.name == "gpipe"
    activations = " Replicas with more micro-batches hold more activations." if holds_all else ""
    return (
        "Gradients must be weighted by each replica's count, or the training result changes. "
        "Megatron-LM has no option for it."
        + activations
        + " Steps of replicas with different counts cannot be replayed: while the job runs so, "
        "Paceline shows no figures of it. Not worth it where the worker can be replaced soon."
    )


def torch_takes(schedule: str | None, counts: Sequence[int], pp_size: int) -> bool:
    """Whether PyTorch's schedule accepts these numbers of micro-batches on every replica."""
    if schedule == "1f1b":
        return min(counts) >= pp_size
    if schedule in ("interleaved", "zero-bubble"):
        return all(count % max(1, count // pp_size) == 0 for count in counts)
    return True


def _schedule_needs(schedule: str | None, counts: Sequence[int], pp_size: int) -> tuple[Need, ...]:
    if torch_takes(schedule, counts, pp_size):
        return ()
    return (Need("a pipeline schedule that takes these counts: PyTorch's own refuses some"),)


def pastes(counts: Sequence[int], schedule: str | None, *, takes: bool) -> tuple[Paste, ...]:
    """The counts, and how PyTorch uses them; `schedule` is None where there is one stage.

    The code is left out where PyTorch `takes` no such counts.
    """
    numbers = (
        f"COUNTS = {json.dumps(list(counts))}  # micro-batches of each dp rank\n"
        "count = COUNTS[dp_rank]  # also how many the data loader gives this rank\n"
        "weight = count * len(COUNTS) / sum(COUNTS)\n"
    )
    # m_i dp / M: the mean of the replicas' gradients is then the mean over all micro-batches.
    loss_weights = [round(count * len(counts) / sum(counts), 6) for count in counts]
    document = json.dumps({"microbatches": list(counts), "loss_weights": loss_weights})
    as_json = Paste("Micro-batches of each dp rank (JSON)", document)
    if schedule is None:
        return as_json, Paste("PyTorch", numbers + _LOOP)
    if not takes:
        return (as_json,)
    code = numbers + _PIPELINE.format(*_TORCH[schedule])
    return as_json, Paste("torch.distributed.pipelining", code)


_LOOP = """for microbatch in itertools.islice(batches, count):
    loss = loss_fn(model(microbatch)) / count * weight
    loss.backward()  # gradients are then averaged over dp ranks as before"""

_PIPELINE = """schedule = {}(
    {}, n_microbatches=count, loss_fn=lambda *each: loss_fn(*each) * weight
)"""

# Schedules of torch.distributed.pipelining, and what they are given: a stage, or several.
_TORCH = {
    "gpipe": ("ScheduleGPipe", "stage"),
    "1f1b": ("Schedule1F1B", "stage"),
    "interleaved": ("ScheduleInterleaved1F1B", "stages"),
    "zero-bubble": ("ScheduleInterleavedZeroBubble", "[stage]"),
}
