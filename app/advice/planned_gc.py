"""Fix: collect garbage on all ranks in the same step, every N steps.

Predicted by the replay without the pauses, which the finding's cost comes from, with one joint
pause put back every N steps.
"""

from app.advice.change import Change
from app.advice.fix import AdviceCase, Fix, NotOffered, Paste, confidence_of, restart_needs
from app.result import causes
from app.result.finding import Finding

NAME = "planned-gc"
CAUSES = (causes.GC_PAUSE,)
EVERY_STEPS = 500


def planned_gc(case: AdviceCase) -> Fix | NotOffered:
    """Synchronise the pauses of a gc-pause finding."""
    found = case.findings(*CAUSES)
    if not found:
        return NotOffered(NAME, "no garbage collection was found to stop workers")
    finding, evidence = found[0], found[0].evidence
    if evidence["planned"]:
        every = evidence["every_steps"]  # None where the window has one collection only
        often = f", every {every} steps" if every is not None else ""
        return NotOffered(NAME, f"collections are planned already{often}")
    if finding.cost is None:
        return NotOffered(NAME, "what the pauses cost is not known")
    change = _change(case, finding, finding.cost)
    step_s = case.step_s_with(change)
    without_s = step_s - evidence["mean_pause_s"] / EVERY_STEPS
    worst_s = without_s + evidence["longest_pause_s"] / EVERY_STEPS
    if step_s >= case.step_s:
        return NotOffered(NAME, "the pauses cost next to nothing")
    return Fix(
        name=NAME,
        title=f"Collect garbage on all ranks together, every {EVERY_STEPS} steps",
        before_s=case.step_s,
        step_s=step_s,
        step_range_s=(without_s, worst_s),
        num_gpus=case.num_gpus,
        confidence=confidence_of(case, finding),
        risk="Memory grows between collections: watch it, and collect more often if it is short.",
        stops_job=True,
        change=change,
        cause=finding.cause,
        stop_minutes=case.facts.stop_minutes,
        elapsed=case.since_onset(finding),
        paste=(
            Paste("Megatron-LM", f"--manual-gc --manual-gc-interval {EVERY_STEPS}"),
            Paste("torchtitan", f"--training.gc_freq {EVERY_STEPS}"),
            Paste(
                "PyTorch",
                "import gc\n"
                "gc.disable()  # before the first step, on every rank\n"
                f"if step % {EVERY_STEPS} == 0:\n    gc.collect()  # at the end of the step",
            ),
        ),
        needs=restart_needs(case),
    )


def _change(case: AdviceCase, finding: Finding, cost: float) -> Change:
    """The pauses taken out, and a joint one put back every `EVERY_STEPS` steps."""
    joint_s = finding.evidence["mean_pause_s"] / EVERY_STEPS
    repair = case.repair(finding.cause)
    if repair is None:  # pauses before operations: launch delays, which no replay has
        return Change(added_s=joint_s - case.step_s * cost)
    return Change(repair=repair, added_s=joint_s)
