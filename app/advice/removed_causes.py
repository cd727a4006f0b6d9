"""Fixes that remove a detected cause, predicted by the replay that the finding's cost comes from.

`planned_gc` collects garbage on all ranks in the same step, every N steps: the replay without the
pauses, with one joint pause put back every N steps. `repair_link` repairs the network of workers
whose transfers are slow: they then take the median of their type.
"""

from dataclasses import replace

from app.advice.change import Change
from app.advice.commands import RECORD_COLLECTIVES, SHOW_COMMUNICATORS, drain_commands, host_needs
from app.advice.fix import AdviceCase, Fix, NotOffered, Paste
from app.result import causes

PLANNED_GC = "planned-gc"
EVERY_STEPS = 500


def planned_gc(case: AdviceCase) -> Fix | NotOffered:
    """Synchronise the pauses of a gc-pause finding."""
    findings = case.findings(causes.GC_PAUSE)
    if not findings:
        return NotOffered(PLANNED_GC, "no garbage collection was found to stop workers")
    finding, evidence = findings[0], findings[0].evidence
    if evidence["planned"]:
        every_steps = evidence["every_steps"]  # None where the window has one collection only
        often = f", every {every_steps} steps" if every_steps is not None else ""
        return NotOffered(PLANNED_GC, f"collections are planned already{often}")
    if finding.cost is None:
        return NotOffered(PLANNED_GC, "what the pauses cost is not known")
    joint_s, repair = evidence["mean_pause_s"] / EVERY_STEPS, case.repair(finding.cause)
    if repair is None:  # pauses before operations: launch delays, which no replay has
        change = Change(added_s=joint_s - case.step_s * finding.cost)
    else:
        change = Change(repair=repair, added_s=joint_s)
    step_s = case.step_s_with(change)
    without_s = step_s - joint_s
    worst_s = without_s + evidence["longest_pause_s"] / EVERY_STEPS
    if step_s >= case.step_s:
        return NotOffered(PLANNED_GC, "the pauses cost next to nothing")
    return case.fix(
        PLANNED_GC,
        f"Collect garbage on all ranks together, every {EVERY_STEPS} steps",
        step_s=step_s,
        step_range_s=(without_s, worst_s),
        risk="Memory grows between collections: watch it, and collect more often if it is short.",
        change=change,
        finding=finding,
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
        needs=case.restart_needs(),
    )


REPAIR_LINK = "repair-link"
NETWORK_CAUSES = (causes.SLOW_LINK, causes.FLAPPING_LINK)


def repair_link(case: AdviceCase) -> Fix | NotOffered:
    """Repair the links of the most costly network finding."""
    findings = case.findings(*NETWORK_CAUSES)
    if not findings:
        return NotOffered(REPAIR_LINK, "no link was found to be slow")
    finding = findings[0]
    if finding.cost is None:
        return NotOffered(REPAIR_LINK, "what the link costs is not known")
    repair = case.repair(finding.cause)
    if repair is None:
        return NotOffered(REPAIR_LINK, "the link's transfers cannot be replayed")
    change = Change(repair=repair)
    step_s = case.step_s_with(change)
    bounds_s = [case.step_s * (1 - cost) for cost in finding.cost_range or ()]
    hosts = sorted({culprit.host for culprit in finding.culprits if culprit.host is not None})
    return case.fix(
        REPAIR_LINK,
        f"Repair the network of {', '.join(hosts) if hosts else 'the named workers'}",
        step_s=step_s,
        step_range_s=(min([step_s, *bounds_s]), max([step_s, *bounds_s])),
        risk="Find the faulty end first: cable, transceiver or switch port. Swapping one usually "
        "ends a job, so a restart is counted.",
        change=change,
        finding=finding,
        paste=(RECORD_COLLECTIVES, SHOW_COMMUNICATORS, *_drains(case, hosts)),
        needs=() if finding.evidence["only_collectives"] else host_needs(case, hosts),
    )


def _drains(case: AdviceCase, hosts: list[str]) -> list[Paste]:
    """Commands for one host at a time: only one end of a link may be faulty."""
    return [
        replace(paste, label=f"{paste.label}, if {host} is faulty")
        for host in hosts
        for paste in drain_commands(case, [host], "slow network", restarts=False)
    ]
