from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from app.advice.facts import Facts
from app.advice.fix import Fix
from app.advice.pack_sequences import LENGTHS_NEEDED, MEMORY_NEEDED, _Packing, pack_sequences
from app.advice.sequences.balance import longest_first, random_order
from app.advice.sequences.packing import OutlierPacker, Workload, loader_batches
from app.synth.faults.fault import Fault, affected_steps
from app.synth.faults.sequence_imbalance import DocumentLengths, SequenceImbalance
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from tests.advice.cases import NUM_STEPS, case_of, fix_of, refusal_of, simulated_step_s

DP, NUM_MICROBATCHES, WINDOW, LIMIT = 4, 8, 32_768, 49_152
LENGTHS = DocumentLengths(full=WINDOW)
UNEVEN = SequenceImbalance(is_sent=True)
JOB = SimulatedJob(Parallelism(DP, 4, 8, dsp_size=2), NUM_MICROBATCHES, faults=(UNEVEN,), seed=3)


@pytest.fixture(scope="module")
def case():
    return case_of(JOB)


@pytest.fixture(scope="module")
def documents():
    """Documents of the job's data set: as its loader cuts them, but others than the job had."""
    rng = np.random.default_rng(7)
    source = iter(LENGTHS.documents(200_000, rng).tolist())
    batches = loader_batches(source, 100, DP * NUM_MICROBATCHES, WINDOW)
    return [each.tokens for batch in batches for each in batch]


@dataclass(frozen=True, slots=True)
class PackedSequences(Fault):
    """Micro-batches that were packed beforehand: `work` [steps, dp, micro-batches]."""

    name = "packed-sequences"
    cause = "sequence-imbalance"

    work: tuple = ()

    def check(self, world):
        return

    def culprits(self, world):
        return ()

    def change(self, drawn, world, lasts, rng_of):
        for at, step in affected_steps(drawn, lasts):
            work = np.array(self.work[step]).T
            drawn.forward_s[..., at, :] *= work
            drawn.backward_s[..., at, :] *= work


def really_packed(thresholds):
    """The job with documents packed by its loader: a usual micro-batch takes 30 % for attention."""
    squares = LENGTHS.microbatches(20_000, np.random.default_rng(0))[1].mean()
    workload = Workload(0.7 / WINDOW, 0.3 / squares)
    packer = OutlierPacker(workload, DP * NUM_MICROBATCHES, LIMIT, thresholds)
    source = iter(LENGTHS.documents(200_000, np.random.default_rng(8)).tolist())
    steps: list[tuple[tuple[float, ...], ...]] = []
    for batch in loader_batches(source, 3 * NUM_STEPS, DP * NUM_MICROBATCHES, WINDOW):
        costs = np.array([[workload.of_all(each)] for each in packer.pack(batch)])
        order = random_order(longest_first(costs, DP), DP, np.random.default_rng(len(steps)))
        steps.append(tuple(map(tuple, costs[order[:, :, 0], 0])))
    return replace(JOB, faults=(PackedSequences(work=tuple(steps[NUM_STEPS:])),), seed=50)


def with_lengths(case, lengths=None, limit=None):
    """The fix, or why not, with these document lengths and this memory."""
    lengths = None if lengths is None else tuple(int(each) for each in lengths)
    return pack_sequences(replace(case, facts=Facts(document_lengths=lengths, max_tokens=limit)))


def packing_of(fix: Fix) -> _Packing:
    """The packing that the fix changes the job to."""
    assert isinstance(fix.change.reassign, _Packing)
    return fix.change.reassign


def test_prediction_is_what_the_loader_achieves_with_other_documents(case, documents):
    fix = fix_of(with_lengths(case, documents, LIMIT))
    thresholds = packing_of(fix).thresholds
    achieved_s = simulated_step_s(really_packed(thresholds))
    assert 100 * abs(fix.step_s - achieved_s) / case.step_s < 4
    assert fix.speed_up > 1.1


def test_all_work_together_stays_the_same(case, documents):
    packing = packing_of(fix_of(with_lengths(case, documents, LIMIT)))
    ((_, work),) = packing.job.works
    factor = packing.factor(work, np.random.default_rng(0))
    assert factor.shape == work.factor.shape
    assert factor.mean() == pytest.approx(work.factor.mean())
    assert factor.std(axis=(0, 1)).mean() < 0.2 * work.factor.std(axis=(0, 1)).mean()


def test_without_document_lengths_and_memory_both_are_asked_for(case):
    found = refusal_of(pack_sequences(case))
    assert found.needs == (LENGTHS_NEEDED, MEMORY_NEEDED)
    assert refusal_of(with_lengths(case, [100] * 50)).needs == (MEMORY_NEEDED,)
    assert refusal_of(with_lengths(case, None, LIMIT)).needs == (LENGTHS_NEEDED,)


def test_perfect_packing_is_no_slower_than_the_predicted_one(case, documents):
    fix = fix_of(with_lengths(case, documents, LIMIT))
    assert fix.step_range_s[0] <= fix.step_s <= fix.step_range_s[1]


@pytest.mark.parametrize(
    ("lengths", "limit", "reason"),
    [
        ([WINDOW], LIMIT, "not those of the job"),
        ([10], LIMIT, "not those of the job"),
        ([], LIMIT, "no tokens"),
        ([5, 0], LIMIT, "no tokens"),
        ([800], WINDOW, "tokens already"),
    ],
)
def test_facts_that_are_not_of_this_job_are_refused(case, lengths, limit, reason):
    assert reason in refusal_of(with_lengths(case, lengths, limit)).reason


def test_what_to_paste_is_the_packer_and_the_choice_of_sharding(case, documents):
    packer, sharding = fix_of(with_lengths(case, documents, LIMIT)).paste
    names: dict[str, Any] = {}
    exec(packer.text, names)
    packed = names["Packer"]().pack([(800, at) for at in range(64)])
    assert [len(each) for each in packed] == [2] * (DP * NUM_MICROBATCHES)
    exec(sharding.text, names)
    assert names["choose_sharding"]([20_000, 12_768]) == "per-document"
    assert sharding.label.startswith("Python: context-parallel sharding, ")


def test_job_without_context_parallelism_shards_nothing(documents):
    job = replace(JOB, parallelism=Parallelism(DP, 4, 8))
    assert len(fix_of(with_lengths(case_of(job), documents, LIMIT)).paste) == 1


def test_lengths_that_were_not_sent_are_asked_for():
    job = replace(JOB, faults=(SequenceImbalance(),))
    assert "seq_len_sq=" in refusal_of(with_lengths(case_of(job), [100] * 50, LIMIT)).needs[0].text


def test_more_documents_than_a_request_may_pack_are_refused(case, documents, monkeypatch):
    monkeypatch.setattr("app.advice.pack_sequences.MAX_PACKED", 10_000)
    found = refusal_of(with_lengths(case, documents, LIMIT))
    assert "at most 10,000 are" in found.reason
