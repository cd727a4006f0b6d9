"""Fix: pack documents into micro-batches of the same work, the longest ones delayed (WLB-LLM).

Sums over a micro-batch give its work but not its documents, so a packing can only be predicted with
document lengths from the data set, and only up to the memory limit that the owner gives. Without
them the fix asks for them.

Predicted by packing documents of these lengths over all dp ranks, dealing the micro-batches out to
them, and giving the recorded micro-batches that work; all work together stays the same.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from app.advice.balance_sequences import slow_workers
from app.advice.change import Change, ChangedDurations
from app.advice.fix import MIN_SPEED_UP, AdviceCase, Fix, Need, NotOffered, Paste
from app.advice.sequences.balance import longest_first, random_order
from app.advice.sequences.microbatch_work import MicrobatchWork, microbatch_work
from app.advice.sequences.packing import (
    PACKER,
    OutlierPacker,
    Workload,
    choose_thresholds,
    loader_batches,
)
from app.advice.sequences.sharding import (
    CHOOSE_SHARDING,
    AttentionKernel,
    Sharding,
    choose_sharding,
)
from app.engine.what_if import Replayer
from app.result import causes
from app.trace.window import Floats

NAME = "pack-sequences"
CAUSES = (causes.SEQUENCE_IMBALANCE,)
NUM_QUEUES = 2
# Given lengths are those of the job if their squares per token are within this factor of its own.
MAX_OTHER_LENGTHS = 1.25
# Thresholds are chosen on so many micro-batches and steps: a queue fills as fast with more of both.
_SAMPLE_MICROBATCHES, _SAMPLE_STEPS = 8, 24
_WARM_UP_STEPS = 8
# Documents that a prediction packs, at most; more take longer than a request may.
MAX_PACKED = 2_000_000
LENGTHS_NEEDED = Need(
    "document lengths of the data set, in tokens, in the order of loading", "document_lengths"
)
LENGTHS_SENT = Need("micro-batches' tokens and squared lengths (tokens=, seq_len_sq= of recorders)")
MEMORY_NEEDED = Need(
    "the most tokens of a micro-batch that memory allows: more than the context window",
    "max_tokens",
)


def pack_sequences(case: AdviceCase) -> Fix | NotOffered:
    """Pack the documents of a sequence-imbalance finding."""
    document_lengths, max_tokens = case.facts.document_lengths, case.facts.max_tokens
    findings = case.findings(*CAUSES)
    if not findings:
        return NotOffered(NAME, "sequence lengths were not found to be uneven")
    if document_lengths is None or max_tokens is None:
        facts = (LENGTHS_NEEDED, document_lengths), (MEMORY_NEEDED, max_tokens)
        return NotOffered(
            NAME,
            "how well documents can be packed depends on their lengths and on memory",
            tuple(need for need, known in facts if known is None),
        )
    job = _job(case)
    if isinstance(job, NotOffered):
        return job
    refusal = _refusal(job, document_lengths, max_tokens)
    if refusal is not None:
        return NotOffered(NAME, *refusal)
    thresholds = _thresholds(job, document_lengths, max_tokens)
    packing = _Packing(job, tuple(document_lengths), max_tokens, thresholds)
    change = Change(reassign=packing)
    step_s, perfect_s = case.step_s_with(change), job.perfect_step_s(case)
    if case.step_s / step_s < MIN_SPEED_UP:
        return NotOffered(NAME, "packed micro-batches are not faster by 1 %")
    return case.fix(
        NAME,
        "Pack documents into micro-batches of the same work, and delay the longest",
        step_s=step_s,
        step_range_s=(min(step_s, perfect_s), max(step_s, 2 * step_s - perfect_s)),
        risk=f"Micro-batches have up to {max_tokens} tokens and differ in length, which pipeline "
        "and memory must allow. Long documents are trained on some steps later.",
        change=change,
        finding=findings[0],
        paste=_pastes(case, packing),
        needs=case.restart_needs(),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    """The job's micro-batches: their work by group of steps, their tokens, and the cost of work."""

    works: tuple[tuple[Replayer, MicrobatchWork], ...]
    window_tokens: int
    squares_per_token: float
    workload: Workload

    @property
    def num_microbatches(self) -> int:
        """Micro-batches of a step on all dp ranks."""
        dp_size, number, _ = self.works[0][1].factor.shape
        return int(dp_size * number)

    @property
    def num_steps(self) -> int:
        """Steps that are packed, each group's warm-up included."""
        return sum(work.factor.shape[2] + _WARM_UP_STEPS for _, work in self.works)

    def perfect_step_s(self, case: AdviceCase) -> float:
        """Seconds: the mean step if all micro-batches of a step had the same work."""
        return case.step_s_with(Change(reassign=self._even_out))

    def _even_out(self, durations: ChangedDurations) -> None:
        for group, work in self.works:
            if group is durations.group:
                mean = work.factor.mean(axis=(0, 1), keepdims=True)
                work.rescale(durations, np.broadcast_to(mean, work.factor.shape))


def _job(case: AdviceCase) -> _Job | NotOffered:
    slow, works = slow_workers(case), []
    for group in case.replay.groups:
        work = microbatch_work(group, slow)
        if work is None:
            return NotOffered(NAME, "micro-batches' computations are not recorded on every stage")
        works.append((group, work))
    group, work = max(works, key=lambda of_group: of_group[1].factor.size)
    lengths = work.sent_lengths(case.replay.window.trace, group)
    costs = None if lengths is None else work.fitted_costs(lengths)
    if lengths is None or lengths.tokens is None or costs is None:
        reason = "what a micro-batch's tokens and their squares cost is not known"
        return NotOffered(NAME, reason, (LENGTHS_SENT,))
    tokens = float(lengths.tokens.mean())
    # A part that did not vary with tokens is of matrices, too: all but attention grows with them.
    workload = Workload(costs.per_token_s + costs.fixed_s / tokens, costs.per_square_s)
    squares_per_token = float(lengths.seq_len_sq.sum() / lengths.tokens.sum())
    return _Job(tuple(works), round(tokens), squares_per_token, workload)


def _refusal(
    job: _Job, lengths: Sequence[int], max_tokens: int
) -> tuple[str, tuple[Need, ...]] | None:
    """Why these facts do not suffice, and which are needed; None if they do."""
    if not lengths or min(lengths) < 1:
        return "a document has no tokens, or there is none", (LENGTHS_NEEDED,)
    if max_tokens <= job.window_tokens:
        return (
            f"micro-batches have {job.window_tokens} tokens already, and packing lets some grow",
            (MEMORY_NEEDED,),
        )
    cut = np.minimum(np.asarray(lengths, np.float64), job.window_tokens)
    ratio = float((cut**2).sum() / cut.sum()) / job.squares_per_token
    if not 1 / MAX_OTHER_LENGTHS <= ratio <= MAX_OTHER_LENGTHS:
        return (
            f"these documents are not those of the job: their squares per token are {ratio:.2f} "
            "times as large",
            (LENGTHS_NEEDED,),
        )
    packed = job.num_steps * job.num_microbatches * job.window_tokens / float(cut.mean())
    if packed > MAX_PACKED:
        return (
            f"{packed:,.0f} documents of these lengths would have to be packed for the window's "
            f"steps, and at most {MAX_PACKED:,} are: choose fewer steps",
            (),
        )
    return None


def _endless(lengths: Sequence[int], rng: np.random.Generator) -> Iterator[int]:
    """The lengths in random order, again and again."""
    while True:
        yield from rng.permutation(np.asarray(lengths, np.int64)).tolist()


def _thresholds(job: _Job, lengths: Sequence[int], max_tokens: int) -> tuple[int, ...]:
    num_microbatches = min(job.num_microbatches, _SAMPLE_MICROBATCHES)
    source = _endless(lengths, np.random.default_rng(0))
    sample = loader_batches(source, _SAMPLE_STEPS, num_microbatches, job.window_tokens)
    return choose_thresholds(sample, job.workload, num_microbatches, max_tokens, NUM_QUEUES)


@dataclass(frozen=True, slots=True, eq=False)
class _Packing:
    """The change: micro-batches with the work of packed ones."""

    job: _Job
    lengths: tuple[int, ...]
    max_tokens: int
    thresholds: tuple[int, ...]

    def __call__(self, durations: ChangedDurations) -> None:
        for number, (group, work) in enumerate(self.job.works):
            if group is durations.group:
                work.rescale(durations, self.factor(work, np.random.default_rng(number)))

    def factor(self, work: MicrobatchWork, rng: np.random.Generator) -> Floats:
        """[dp, micro-batches, steps], work of packed micro-batches, on balanced dp ranks."""
        dp_size, number, num_steps = work.factor.shape
        packed = np.array(self._packed_work(dp_size * number, num_steps, rng)).T
        order = random_order(longest_first(packed, dp_size), dp_size, rng)
        by_rank = np.take_along_axis(packed[None], order, axis=1)
        return np.asarray(by_rank * (work.factor.mean() / by_rank.mean()))

    def _packed_work(
        self, number: int, num_steps: int, rng: np.random.Generator
    ) -> list[list[float]]:
        """Work of each of a number of micro-batches, after steps in which the queues fill."""
        workload = self.job.workload
        packer = OutlierPacker(workload, number, self.max_tokens, self.thresholds)
        source = _endless(self.lengths, rng)
        steps = _WARM_UP_STEPS + num_steps
        packed = [
            packer.pack(batch)
            for batch in loader_batches(source, steps, number, self.job.window_tokens)
        ]
        return [
            [workload.of_all(documents) for documents in step] for step in packed[_WARM_UP_STEPS:]
        ]


def _pastes(case: AdviceCase, packing: _Packing) -> tuple[Paste, ...]:
    job, cp_size = packing.job, case.replay.window.job.parallelism.dsp_size
    code = PACKER.format(
        thresholds=list(packing.thresholds),
        num_microbatches=job.num_microbatches,
        max_tokens=packing.max_tokens,
        per_token=f"{job.workload.per_token:.4g}",
        per_square=f"{job.workload.per_square:.4g}",
    )
    pastes = [Paste("Python: packer for the loader, of all dp ranks' micro-batches", code)]
    if cp_size > 1:
        per_document, speed_up = _sharding(packing, cp_size)
        label = (
            f"Python: context-parallel sharding, {per_document:.0%} of micro-batches per "
            f"document: attention {speed_up:.2f}x as fast, by a model of its kernel"
        )
        pastes.append(Paste(label, CHOOSE_SHARDING.format(cp_size=cp_size)))
    return tuple(pastes)


def _sharding(packing: _Packing, cp_size: int) -> tuple[float, float]:
    """Share of micro-batches sharded per document, and speed-up over none: of attention alone.

    Choices for packed micro-batches, judged by the simulated kernel on the slowest rank.
    """
    number, job = min(packing.job.num_microbatches, _SAMPLE_MICROBATCHES), packing.job
    packer = OutlierPacker(job.workload, number, packing.max_tokens, packing.thresholds)
    source = _endless(packing.lengths, np.random.default_rng(0))
    batches = loader_batches(source, _WARM_UP_STEPS, number, job.window_tokens)
    packed = [
        [doc.tokens for doc in documents] for batch in batches for documents in packer.pack(batch)
    ]
    kernel, chosen, took_s = AttentionKernel(), list[Sharding](), np.zeros(2)
    for tokens in filter(None, packed):
        chosen.append(choose_sharding(tokens, cp_size))
        took_s += [
            kernel.slowest_s(tokens, cp_size, sharding)
            for sharding in (Sharding.PER_SEQUENCE, chosen[-1])
        ]
    per_document = sum(sharding is Sharding.PER_DOCUMENT for sharding in chosen)
    return per_document / len(chosen), float(took_s[0] / took_s[1])
