"""Describes an import: its size and its missing data."""

from typing import TYPE_CHECKING

from app.cli.output import printable
from app.formatting import plural

if TYPE_CHECKING:
    from app.trace.job import Job
    from app.trace.readers.importing import ImportSummary, MissingData


def list_formats() -> str:
    """Every format, one per line."""
    from app.trace.readers.registry import FORMATS

    width = max(map(len, FORMATS))
    return "\n".join(f"{row.name:{width}}  {row.what}" for row in FORMATS.values())


def describe_import(described: "ImportSummary", job: "Job") -> str:
    """The job and sizes of the files, and the missing data."""
    sizes = job.parallelism
    axes = (("dp", sizes.dp_size), ("pp", sizes.pp_size), ("tp", sizes.tp_size))
    more = (("vpp", sizes.vpp_size), ("dsp", sizes.dsp_size), ("ep", sizes.ep_size))
    named = [f"{name} {size}" for name, size in (*axes, *(each for each in more if each[1] > 1))]
    run = f", run {described.run_key}" if described.run_key is not None else ""
    labels = "".join(f", {key} {value}" for key, value in described.labels.items())
    counts = (
        plural(described.num_ops, "operation"),
        plural(len(described.steps), "step"),
        plural(len(described.places), "worker"),
    )
    first = f"{job.name}{run}{labels}: {', '.join(counts)} ({', '.join(named)})"
    return "\n".join(map(printable, [first, *describe_missing(described.missing)]))


def describe_missing(missing: "tuple[MissingData, ...]") -> list[str]:
    """The missing data, one item per line."""
    if not missing:
        return []
    return ["The files lack:", *(f"- {each.what}: {each.cost}" for each in missing)]
