"""The run key: equal on all ranks of a run, and new after every restart."""

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
MAX_GIVEN_CHARS = 200  # the server takes 256


class _SharedKey(NamedTuple):
    """The key broadcast by rank 0, valid while torch.distributed is initialised."""

    world: weakref.ref[Any]
    key: str
    nonce: str


_agreed: _SharedKey | None = None
_nonces: deque[str] = deque(maxlen=64)  # a key that contains one of these is already new


def run_key(
    world_size: int | None = None, given: str | None = None, *, is_spooled: bool = False
) -> str | None:
    """A key that is equal on all ranks and new after every restart; None if ranks cannot agree.

    If torch.distributed is initialised, every rank must call this; repeated calls are free.
    """
    if is_initialised():
        return shared_run_key(given, is_spooled=is_spooled)
    return single_process_run_key(
        given, world_size or _world_size_from_environment(), is_spooled=is_spooled
    )


def shared_run_key(given: str | None, *, is_spooled: bool) -> str | None:
    """The key of rank 0, broadcast once per initialisation of torch.distributed.

    A nonce is appended to the key given by `given` or the environment: with the same key after a
    restart, batch numbers would repeat and the server would discard the batches. A spool continues
    the numbers, so there the key stays.

    Restart counts are no substitute for the nonce, as torchrun's differ between nodes; neither is
    the store of torch.distributed, which survives restarts.
    """
    try:
        return _broadcast_key(given, is_spooled)
    except Exception as error:
        key = given or os.environ.get(RUN_KEY) or None
        log.warning(
            "paceline: the ranks cannot agree on a run key, %s: %s",
            f"set {RUN_KEY}" if key is None else "so a restart will reuse the same one",
            error,
        )
        return key


def single_process_run_key(given: str | None, world_size: int, *, is_spooled: bool) -> str | None:
    """The key of a process without torch.distributed."""
    given = given or os.environ.get(RUN_KEY) or None
    if world_size <= 1:
        return _renewed(given, _nonce(), is_spooled)
    if given is None:
        log.warning(
            "paceline: torch.distributed is not initialised yet, so the ranks cannot agree "
            "on a run key: start after init_process_group, or set %s",
            RUN_KEY,
        )
    elif not is_spooled and is_reused_key(given):
        log.warning(
            "paceline: %s is %s, but the run key is that of the first start: the server will "
            "discard new batches as repeated. Start after init_process_group, or give a key "
            "that is new after each restart",
            RESTARTS,
            os.environ.get(RESTARTS),
        )
    return given


def is_reused_key(given: str) -> bool:
    """Whether the key comes from the environment, which torchrun keeps after a restart."""
    if os.environ.get(RESTARTS, "0") in ("", "0"):
        return False
    return any(value == given for name, value in os.environ.items() if name != RESTARTS)


def is_initialised() -> bool:
    """Whether torch.distributed is initialised; does not import it."""
    dist = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available() and dist.is_initialized()


def _broadcast_key(given: str | None, is_spooled: bool) -> str:
    global _agreed
    dist = sys.modules["torch.distributed"]
    world = dist.group.WORLD
    if _agreed is not None and _agreed.world() is world:
        return _renewed(given, _agreed.nonce, is_spooled) if given else _agreed.key
    nonce = uuid.uuid4().hex
    handed = [_renewed(given or os.environ.get(RUN_KEY), nonce, is_spooled), nonce]
    dist.broadcast_object_list(handed, src=0, device=_device(dist, world))
    _agreed = _SharedKey(weakref.ref(world), *map(str, handed))
    _nonces.append(_agreed.nonce)
    return _agreed.key


def _renewed(given: str | None, nonce: str, is_spooled: bool) -> str:
    """The given key with a nonce, unless it is already new or has a spool."""
    if not given:
        return nonce
    if is_spooled or any(known in given for known in _nonces):
        return given
    return f"{given[:MAX_GIVEN_CHARS]}-{nonce}"


def _nonce() -> str:
    _nonces.append(uuid.uuid4().hex)
    return _nonces[-1]


def _device(dist: Any, world: Any) -> Any:
    """The device for the broadcast; None for the backend's default.

    With NCCL, a script that has not chosen its GPU yet would use the first one on every rank. The
    current device is not queried before CUDA is initialised, as that would initialise the first.
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


def _world_size_from_environment() -> int:
    try:
        return int(os.environ.get("WORLD_SIZE") or 1)
    except ValueError:
        return 1
