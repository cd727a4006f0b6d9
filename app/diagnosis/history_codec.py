"""A job's history as bytes: what is remembered between windows, and after a crash."""

from typing import Any

import msgspec
import numpy as np

from app.diagnosis.history import History
from app.trace.window import Floats

FORMAT = 1


def pack(history: History) -> bytes:
    """The history as bytes, its seconds to seven digits."""
    return msgspec.msgpack.encode(
        {
            "format": FORMAT,
            "steps": history.steps.astype("<i8").tobytes(),
            "step_s": _packed(history.step_s),
            "signals": {name: _packed(values) for name, values in history.signals.items()},
        }
    )


def unpack(blob: bytes) -> History:
    """The history in bytes that `pack` made.

    Raises:
        ValueError: they are none, or a newer version made them.
    """
    try:
        message = msgspec.msgpack.decode(blob)
        if message["format"] != FORMAT:
            raise ValueError(f"a history of format {message['format']} is not known here")
        steps = np.frombuffer(message["steps"], "<i8").astype(np.int64)
        signals = {name: _unpacked(packed) for name, packed in message["signals"].items()}
        return History(steps, _unpacked(message["step_s"]), signals)
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise ValueError("these bytes are no history") from error


def _packed(values: Floats) -> dict[str, Any]:
    return {"shape": values.shape, "bytes": values.astype("<f4").tobytes()}


def _unpacked(packed: dict[str, Any]) -> Floats:
    return np.frombuffer(packed["bytes"], "<f4").astype(np.float64).reshape(packed["shape"])
