"""Fix: repair the network of the workers whose transfers are slow.

Predicted by the finding's own repair: their transfers at the median of the type.
"""

from dataclasses import replace

from app.advice.change import Change
from app.advice.fix import AdviceCase, Fix, NotOffered, Paste, confidence_of
from app.advice.nccl_settings import RECORD_COLLECTIVES, SHOW_COMMUNICATORS
from app.advice.node_commands import drain_commands, host_needs
from app.result import causes

NAME = "repair-link"
CAUSES = (causes.SLOW_LINK, causes.FLAPPING_LINK)


def repair_link(case: AdviceCase) -> Fix | NotOffered:
    """Repair the links of the most costly network finding."""
    found = case.findings(*CAUSES)
    if not found:
        return NotOffered(NAME, "no link was found to be slow")
    finding = found[0]
    if finding.cost is None:
        return NotOffered(NAME, "what the link costs is not known")
    repair = case.repair(finding.cause)
    if repair is None:
        return NotOffered(NAME, "the link's transfers cannot be replayed")
    change = Change(repair=repair)
    step_s = case.step_s_with(change)
    bounds_s = [case.step_s * (1 - cost) for cost in finding.cost_range or ()]
    hosts = sorted({culprit.host for culprit in finding.culprits if culprit.host is not None})
    return Fix(
        name=NAME,
        title=f"Repair the network of {', '.join(hosts) if hosts else 'the named workers'}",
        before_s=case.step_s,
        step_s=step_s,
        step_range_s=(min([step_s, *bounds_s]), max([step_s, *bounds_s])),
        num_gpus=case.num_gpus,
        confidence=confidence_of(case, finding),
        risk="Find the faulty end first: cable, transceiver or switch port. Swapping one usually "
        "ends a job, so a restart is counted.",
        stops_job=True,
        stop_minutes=case.facts.stop_minutes,
        change=change,
        cause=finding.cause,
        elapsed=case.since_onset(finding),
        paste=(RECORD_COLLECTIVES, SHOW_COMMUNICATORS, *_drains(case, hosts)),
        needs=() if finding.evidence["only_collectives"] else host_needs(case, hosts),
    )


def _drains(case: AdviceCase, hosts: list[str]) -> list[Paste]:
    """Commands for one host at a time: only one end of a link may be faulty."""
    return [
        replace(each, label=f"{each.label}, if {host} is faulty")
        for host in hosts
        for each in drain_commands(case, [host], "slow network", restarts=False)
    ]
