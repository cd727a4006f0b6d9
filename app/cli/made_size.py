"""How large a made job may be, before it is made."""

from app.errors import InvalidRequest
from app.synth.run import MadeJob

# 100 bytes an operation: beyond this many, a workstation's memory is full.
MAX_OPS = 100_000_000


def refuse_too_large(made: MadeJob, steps: int) -> None:
    """Nothing, if the steps fit into memory.

    Raises:
        InvalidRequest: they do not; the message says how many operations they have.
    """
    workers = made.parallelism.num_workers
    num_ops = steps * workers * (6 * made.num_microbatches * made.parallelism.vpp_size + 7)
    if num_ops > MAX_OPS:
        raise InvalidRequest(
            f"this would be about {num_ops:,} operations, more than {MAX_OPS:,}: "
            "ask for fewer steps or workers"
        )
