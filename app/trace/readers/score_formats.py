"""How texts with scores of each format are read out of somebody's request."""

from collections.abc import Mapping
from functools import partial

from app.trace.readers import megatron_log, nccl_inspector, nvrx
from app.trace.readers.score_files import Read

# Collectives of 256,000, in 4 MB: a request has room for some 14,000 records.
_MOST_BLOCKS = 2_000

READERS: Mapping[str, Read] = {
    nvrx.NAME: nvrx.read,
    megatron_log.NAME: megatron_log.read,
    nccl_inspector.NAME: partial(nccl_inspector.read, most_blocks=_MOST_BLOCKS),
}
