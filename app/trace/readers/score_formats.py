"""How texts with scores of each format are read, be they files or somebody's request."""

from collections.abc import Mapping

from app.trace.readers import megatron_log, nccl_inspector, nvrx
from app.trace.readers.score_files import Read

READERS: Mapping[str, Read] = {
    nvrx.NAME: nvrx.read,
    megatron_log.NAME: megatron_log.read,
    nccl_inspector.NAME: nccl_inspector.read,
}
