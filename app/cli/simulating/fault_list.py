"""`paceline simulate --list-faults`: what can go wrong, and what it may be told."""

import inspect

from app.cli.simulating.fault_text import settings
from app.synth.faults.fault import Fault
from app.synth.faults.registry import FAULTS
from app.synth.life import EVENTS, Event


def fault_list() -> str:
    """Every fault with its cause, one sentence, and its keys."""
    kinds: list[type[Fault | Event]] = [*FAULTS.values(), *EVENTS.values()]
    return "\n".join(
        [
            *(_described(kind) for kind in kinds),
            "Every fault but the last two also takes from=STEP and for=STEPS; left out: all steps.",
        ]
    )


def _described(kind: type[Fault | Event]) -> str:
    sentence = (inspect.getdoc(kind) or "").split("\n")[0]
    return "\n".join(
        [
            f"{kind.name} (cause: {kind.cause or 'none'})",
            f"  {sentence}",
            f"  {_form(kind)}",
            "",
        ]
    )


def _form(kind: type[Fault | Event]) -> str:
    keys = ",".join(
        f"{setting.key}={setting.default if setting.default is not None else '?'}"
        for setting in settings(kind)
    )
    return f"--fault {kind.name}" + f":{keys}" * bool(keys)
