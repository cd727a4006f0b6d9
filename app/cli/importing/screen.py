"""What an import has found and lacks, in words."""

from typing import TYPE_CHECKING

from app.cli.files import printable
from app.words import counted

if TYPE_CHECKING:
    from app.trace.job import Job
    from app.trace.readers.foreign import Described, Lack


def formats() -> str:
    """Every format, one a line."""
    from app.trace.readers.registry import FORMATS, SCORE_FORMATS
    from app.trace.scores import NO_WHAT_IF

    width = max(len(name) for name in (*FORMATS, *SCORE_FORMATS))
    lines = [f"{each.name:{width}}  {each.what}" for each in FORMATS.values()]
    lines += [f"{each.name:{width}}  {each.what} ({NO_WHAT_IF})" for each in SCORE_FORMATS.values()]
    return "\n".join(lines)


def found(described: "Described", job: "Job") -> str:
    """How much of which job the files have, and what they lack."""
    sizes = job.parallelism
    axes = (("dp", sizes.dp_size), ("pp", sizes.pp_size), ("tp", sizes.tp_size))
    more = (("vpp", sizes.vpp_size), ("dsp", sizes.dsp_size), ("ep", sizes.ep_size))
    named = [f"{name} {size}" for name, size in (*axes, *(each for each in more if each[1] > 1))]
    run = f", run {described.run_key}" if described.run_key is not None else ""
    labels = "".join(f", {key} {value}" for key, value in described.labels.items())
    counts = (
        counted(described.num_ops, "operation"),
        counted(len(described.steps), "step"),
        counted(len(described.places), "worker"),
    )
    first = f"{job.name}{run}{labels}: {', '.join(counts)} ({', '.join(named)})"
    return "\n".join(map(printable, [first, *lacking(described.lacks)]))


def lacking(lacks: "tuple[Lack, ...]") -> list[str]:
    """What the files do not say, one a line."""
    if not lacks:
        return []
    return ["The files do not say:", *(f"- {each.what}: {each.cost}" for each in lacks)]
