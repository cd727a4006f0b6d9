"""Fix: repair the network of the workers whose transfers are slow.

Predicted by the finding's own repair: their transfers at the median of the type.
"""

from app.advice.change import Change
from app.advice.fix import AdviceCase, Fix, NotOffered, Paste, confidence_of

NAME = "repair-link"
CAUSES = ("slow-link", "flapping-link")


def repair_link(case: AdviceCase) -> Fix | NotOffered:
    """Repair the links of the most costly network finding."""
    found = case.findings(*CAUSES)
    if not found:
        return NotOffered(NAME, "no link was found to be slow")
    finding = found[0]
    if finding["cost"] is None:
        return NotOffered(NAME, "what the link costs is not known")
    repair = case.repair(finding["cause"])
    if repair is None:
        return NotOffered(NAME, "the link's transfers cannot be replayed")
    change = Change(repair=repair)
    low, high = finding["cost_range"] or (finding["cost"], finding["cost"])
    hosts = sorted({each["host"] for each in finding["culprits"] if "host" in each})
    return Fix(
        name=NAME,
        title=f"Repair the network of {', '.join(hosts) if hosts else 'the named workers'}",
        before_s=case.step_s,
        step_s=case.step_s_with(change),
        step_range_s=(case.step_s * (1 - high), case.step_s * (1 - low)),
        num_gpus=case.num_gpus,
        confidence=confidence_of(case, finding),
        risk="Which end is at fault has to be found: cable, transceiver or switch port.",
        stops_job=False,
        change=change,
        cause=finding["cause"],
        lost_minutes=case.lost_minutes(finding),
        paste=(
            Paste("NCCL: record every transfer", "export NCCL_INSPECTOR_ENABLE=1"),
            Paste("NCCL: state of the communicators", "ncclras -f json"),
        ),
    )
