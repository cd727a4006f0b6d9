"""Gradients that are reduced while the backward still runs (docs/replay.md, section 5)."""

from app.engine.rules.beside import GRADIENTS, Beside
from app.engine.rules.launch import Launches
from app.engine.template import Template


def launch_gradients(
    template: Template, stage: int, beside: Beside, launches: Launches, before: dict[int, int]
) -> None:
    """Let every such operation wait for its launch."""
    for name in GRADIENTS:
        if name in beside.types:
            for op in template.ops(stage, name):
                launches.launch(op, before.get(op))
