"""The key by which all ranks know their run, and the server tells it from the one before."""

from __future__ import annotations

import logging
import os
import sys
import uuid
import weakref
from collections import deque
from importlib import import_module
from typing import Any, NamedTuple

log = logging.getLogger("paceline_client")

RUN_KEY = "PACELINE_RUN_KEY"
RESTARTS = "TORCHELASTIC_RESTART_COUNT"
MOST_TOLD_CHARS = 200  # the server takes 256


class _Agreed(NamedTuple):
    """What rank 0 has handed out, as long as torch.distributed is initialised."""

    world: weakref.ref[Any]
    key: str
    nonce: str


_agreed: _Agreed | None = None
_nonces: deque[str] = deque(maxlen=64)  # a key that holds one of these is new already


def run_key(
    world_size: int | None = None, told: str | None = None, *, is_spooled: bool = False
) -> str | None:
    """A key that is equal on all ranks and new after every restart; None where none can be agreed.

    Where torch.distributed is initialised, every rank has to ask; asking again costs nothing.
    """
    if is_initialised():
        return agreed(told, is_spooled=is_spooled)
    return by_itself(told, world_size or _told_world_size(), is_spooled=is_spooled)


def agreed(told: str | None, *, is_spooled: bool) -> str | None:
    """The key that rank 0 hands out, by one broadcast each time torch.distributed is initialised.

    What rank 0 was told, in its environment or by `told`, gets something new behind it: the same
    key after a restart would give new batches the numbers of old ones, and the server would take
    them for repeated. A spool goes on with the numbers, so that there the key may stay.

    Neither a count of restarts nor the store of torch.distributed would do for what is new:
    torchrun's counts differ from node to node, and it keeps one store through all restarts.
    """
    try:
        return _handed_out(told, is_spooled)
    except Exception as error:
        key = told or os.environ.get(RUN_KEY) or None
        log.warning(
            "paceline: the ranks cannot agree on a run key, %s: %s",
            f"set {RUN_KEY}" if key is None else "so that a restart goes by the same one",
            error,
        )
        return key


def by_itself(told: str | None, world_size: int, *, is_spooled: bool) -> str | None:
    """The key of a process that nobody tells what the others do."""
    told = told or os.environ.get(RUN_KEY) or None
    if world_size <= 1:
        return _renewed(told, _nonce(), is_spooled)
    if told is None:
        log.warning(
            "paceline: torch.distributed is not initialised yet, so that the ranks cannot agree "
            "on a run key: start after init_process_group, or set %s",
            RUN_KEY,
        )
    elif not is_spooled and is_old(told):
        log.warning(
            "paceline: %s is %s, and the run key is still that of the first start: the server "
            "takes what comes now for sent twice. Start after init_process_group, or give a key "
            "that is new after each restart",
            RESTARTS,
            os.environ.get(RESTARTS),
        )
    return told


def is_old(told: str) -> bool:
    """Whether an earlier process had the same key: torchrun restarts with the same environment."""
    if os.environ.get(RESTARTS, "0") in ("", "0"):
        return False
    return any(value == told for name, value in os.environ.items() if name != RESTARTS)


def is_initialised() -> bool:
    """Whether torch.distributed is up, without importing it where nobody did."""
    dist = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available() and dist.is_initialized()


def _handed_out(told: str | None, is_spooled: bool) -> str:
    global _agreed
    dist = sys.modules["torch.distributed"]
    world = dist.group.WORLD
    if _agreed is not None and _agreed.world() is world:
        return _renewed(told, _agreed.nonce, is_spooled) if told else _agreed.key
    nonce = uuid.uuid4().hex
    handed = [_renewed(told or os.environ.get(RUN_KEY), nonce, is_spooled), nonce]
    dist.broadcast_object_list(handed, src=0, device=_device(dist, world))
    _agreed = _Agreed(weakref.ref(world), *map(str, handed))
    _nonces.append(_agreed.nonce)
    return _agreed.key


def _renewed(told: str | None, nonce: str, is_spooled: bool) -> str:
    """What was told, with something new behind it unless it is new already or has to stay."""
    if not told:
        return nonce
    if is_spooled or any(known in told for known in _nonces):
        return told
    return f"{told[:MOST_TOLD_CHARS]}-{nonce}"


def _nonce() -> str:
    _nonces.append(uuid.uuid4().hex)
    return _nonces[-1]


def _device(dist: Any, world: Any) -> Any:
    """The GPU of this rank where the backend sends from GPUs; None for what it does by itself.

    A script that has not chosen its GPU yet would send from the first one on every rank. Which one
    is current is not even asked before CUDA is initialised: that would initialise it on the first.
    """
    bound = getattr(world, "bound_device_id", None)
    if "nccl" not in dist.get_backend() or "gloo" in dist.get_backend():
        return None
    if bound is not None:
        return bound
    local_rank = int(os.environ.get("LOCAL_RANK") or 0)
    cuda = import_module("torch").cuda
    if local_rank >= cuda.device_count() or (cuda.is_initialized() and cuda.current_device()):
        return None
    return f"cuda:{local_rank}"


def _told_world_size() -> int:
    try:
        return int(os.environ.get("WORLD_SIZE") or 1)
    except ValueError:
        return 1
