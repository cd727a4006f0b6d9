"""Fix: give every dp rank the same work, by moving micro-batches of uneven length between them.

Predicted by giving the recorded micro-batches of each step to other dp ranks, longest first to the
rank with the least work, in random order within a rank, and simulating again. A sampler that sees
lengths decides by them: where clients sent them, the assignment is by the cost that was fitted to
them, else by the micro-batches' measured work.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from app.advice.change import Change, ChangedDurations
from app.advice.fix import MIN_SPEED_UP, AdviceCase, Fix, Need, NotOffered, Paste
from app.advice.replace_worker import CAUSES as SLOW_WORKER
from app.advice.replace_worker import Worker, culprit_workers
from app.advice.sequences.balance import ASSIGN, CostModel, longest_first, random_order
from app.advice.sequences.microbatch_work import MicrobatchWork, SentLengths, microbatch_work
from app.engine.what_if import Replayer
from app.result import causes
from app.trace.window import Floats, Ints

NAME = "balance-sequences"
CAUSES = (causes.SEQUENCE_IMBALANCE,)
# Random orders that are simulated, fewer where the window is so large that one takes long.
NUM_ORDERS = 5
_OPS_OF_ALL_ORDERS = 5_000_000
# The assignment is pasted for up to this many micro-batches of a step: it is stored with windows.
MAX_PASTED = 512


def balance_sequences(case: AdviceCase) -> Fix | NotOffered:
    """Balance the micro-batches of a sequence-imbalance finding over dp ranks."""
    findings = case.findings(*CAUSES)
    if not findings:
        return NotOffered(NAME, "sequence lengths were not found to be uneven")
    if case.replay.window.job.parallelism.dp_size == 1:
        return NotOffered(NAME, "the job has one dp rank, and none to move sequences to")
    slow = slow_workers(case)
    works = [_balanced(case, group, slow) for group in case.replay.groups]
    known = [steps for steps in works if steps is not None]
    if len(known) < len(works):
        return NotOffered(NAME, "the micro-batches' computations are not recorded on every stage")
    if all(steps.work.microbatches.size == 1 for steps in known):
        return NotOffered(NAME, "each dp rank has one micro-batch a step: there is none to swap")
    step_s, step_range_s, change = _predicted(case, tuple(known))
    if case.step_s / step_s < MIN_SPEED_UP:
        return NotOffered(NAME, "another assignment to dp ranks is not faster by 1 %")
    return case.fix(
        NAME,
        "Give each dp rank the same work: longest sequences first, to the least loaded",
        step_s=step_s,
        step_range_s=step_range_s,
        risk="Predicted for random order within a rank: another order differs by some points. "
        "A step's samples are the same, on other ranks.",
        change=change,
        finding=findings[0],
        paste=_pastes(case, known),
        needs=_needs(case, known),
    )


@dataclass(frozen=True, slots=True, eq=False)
class BalancedSteps:
    """A group of steps with its micro-batches' work, lengths and new dp ranks.

    `rank_of` is [dp * micro-batches, steps]. `costs` is None where lengths explain no work.
    """

    group: Replayer
    work: MicrobatchWork
    sent: SentLengths | None
    costs: CostModel | None
    rank_of: Ints

    def reassign(self, durations: ChangedDurations, rng: np.random.Generator) -> None:
        """Each rank computes its new micro-batches, in random order."""
        factor = self.work.factor
        order = random_order(self.rank_of, factor.shape[0], rng)
        by_step = factor.reshape(-1, factor.shape[2])
        self.work.rescale(durations, np.take_along_axis(by_step[None], order, axis=1))


def slow_workers(case: AdviceCase) -> set[Worker]:
    """Workers (dp rank, stage) that compute everything slowly."""
    return {
        worker
        for finding in case.findings(*SLOW_WORKER)
        for worker in culprit_workers(case, finding)
    }


def _balanced(case: AdviceCase, group: Replayer, slow: set[Worker]) -> BalancedSteps | None:
    work = microbatch_work(group, slow)
    if work is None:
        return None
    sent = work.sent_lengths(case.replay.window.trace, group)
    costs = None if sent is None else work.fitted_costs(sent)
    by_step = work.factor
    if sent is not None and costs is not None:
        tokens = np.zeros_like(sent.seq_len_sq) if sent.tokens is None else sent.tokens
        by_step = costs.seconds(tokens, sent.seq_len_sq)
    flat = by_step.reshape(-1, by_step.shape[2])
    return BalancedSteps(group, work, sent, costs, longest_first(flat, by_step.shape[0]))


def _predicted(
    case: AdviceCase, balanced: tuple[BalancedSteps, ...]
) -> tuple[float, tuple[float, float], Change]:
    """Seconds of a step and their range, and the change in the order nearest to that mean.

    Mean over random orders; the range adds two standard errors of the mean over steps.
    """
    num_orders = min(NUM_ORDERS, max(1, _OPS_OF_ALL_ORDERS // case.replay.size))
    reassigned = [_Reassignment(balanced, seed) for seed in range(num_orders)]
    step_s = np.array([reassignment.step_times() for reassignment in reassigned])
    of_order = step_s.mean(axis=1)
    mean_s = float(of_order.mean())
    error_s = 2 * float(step_s.mean(axis=0).std()) / np.sqrt(step_s.shape[1])
    nearest = int(np.abs(of_order - mean_s).argmin())
    step_range_s = float(of_order.min() - error_s), float(of_order.max() + error_s)
    return mean_s, step_range_s, Change(reassign=reassigned[nearest])


@dataclass(frozen=True, slots=True, eq=False)
class _Reassignment:
    """The change: micro-batches on their new dp ranks, in the random order of this seed."""

    balanced: tuple[BalancedSteps, ...]
    seed: int

    def __call__(self, durations: ChangedDurations) -> None:
        for number, steps in enumerate(self.balanced):
            if steps.group is durations.group:
                steps.reassign(durations, np.random.default_rng([self.seed, number]))

    def step_times(self) -> Floats:
        """[steps], seconds; steps of one structure after the other."""
        changed = [ChangedDurations(steps.group) for steps in self.balanced]
        for durations in changed:
            self(durations)
        return np.concatenate([durations.step_times() for durations in changed])


def sampler_code(costs: CostModel | None) -> str:
    """A Python function to paste into a sampler; the cost is the fitted one where it is known.

    Costs only have to be right in proportion: without a fit they are squared lengths.
    """
    if costs is None:
        return ASSIGN.format(cost="sum(s * s for s in sequences)")
    parts = [f"{costs.per_square_s:.4g} * sum(s * s for s in sequences)"]
    if costs.per_token_s:
        parts.insert(0, f"{costs.per_token_s:.4g} * sum(sequences)")
    if costs.fixed_s:
        parts.insert(0, f"{costs.fixed_s:.4g}")
    return ASSIGN.format(cost=" + ".join(parts))


def _pastes(case: AdviceCase, balanced: Sequence[BalancedSteps]) -> tuple[Paste, ...]:
    costs = next((steps.costs for steps in balanced if steps.costs is not None), None)
    pastes = [Paste("PyTorch: assignment in the sampler", sampler_code(costs))]
    if megatron := _megatron(case, balanced):
        label = "Megatron-LM: context parallelism by length (another method: gain not predicted)"
        pastes.append(Paste(label, megatron))
    if slowest := _slowest_step(case, balanced):
        pastes.append(slowest)
    label = "slime (RL; with --max-tokens-per-gpu, which micro-batches may then exceed)"
    return *pastes, Paste(label, "--use-dynamic-batch-size --balance-by-flops")


def _megatron(case: AdviceCase, balanced: Sequence[BalancedSteps]) -> str | None:
    """Flags of Megatron-LM, which takes them without pipeline stages only; None if unknown."""
    sizes = case.replay.window.job.parallelism
    sent = [steps.sent for steps in balanced if steps.sent is not None]
    most_tokens = [int(lengths.tokens.max()) for lengths in sent if lengths.tokens is not None]
    if sizes.pp_size > 1 or not most_tokens:
        return None
    # What a rank holds today fits into its memory.
    most = -(-max(most_tokens) // sizes.dsp_size)
    return (
        f"--hybrid-context-parallel --max-seqlen-per-dp-cp-rank {most} "
        "--calculate-per-token-loss --dataloader-type single"
    )


def _slowest_step(case: AdviceCase, balanced: Sequence[BalancedSteps]) -> Paste | None:
    """The assignment of the window's slowest step, each micro-batch by its old place."""
    slowest = max(balanced, key=lambda steps: float(steps.group.simulated_s.max()))
    at = int(slowest.group.simulated_s.argmax())
    numbers, ranks = slowest.work.microbatches.tolist(), slowest.rank_of[:, at]
    if ranks.size > MAX_PASTED:
        return None
    dp_size = case.replay.window.job.parallelism.dp_size
    taken = [
        [[item // len(numbers), numbers[item % len(numbers)]] for item in items.tolist()]
        for items in (np.flatnonzero(ranks == rank) for rank in range(dp_size))
    ]
    step = slowest.group.steps[at]
    text = json.dumps({"step": step, "dp_ranks": taken}, separators=(",", ":"))
    return Paste("Step as an example: [old dp rank, micro-batch] on each dp rank", text)


def _needs(case: AdviceCase, balanced: Sequence[BalancedSteps]) -> tuple[Need, ...]:
    needs = []
    if any(steps.sent is None for steps in balanced):
        needs.append(Need("sequence lengths (tokens= and seq_len_sq= of the recorder)"))
    elif case.replay.window.job.parallelism.pp_size == 1 and not _megatron(case, balanced):
        needs.append(Need("tokens of each micro-batch (tokens= of the recorder)"))
    return (*needs, *case.restart_needs())
