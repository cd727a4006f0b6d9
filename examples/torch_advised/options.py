"""Options of Megatron-LM and torchtitan that this training understands, read as a shell does."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

_LAYOUT_ITEM = re.compile(r"([EtL])(?:\*(\d+))?")


@dataclass(frozen=True)
class Options:
    """What the pasted options say; None where they say nothing.

    `layers` are transformer layers of each stage. Garbage is collected every `gc_every` steps
    instead of when Python likes; 0 is never.
    """

    layers: tuple[int, ...] | None = None
    gc_every: int | None = None

    @classmethod
    def of(cls, pasted: str) -> Options:
        """Read options as they are pasted, quotes and all.

        Raises:
            ValueError: an option is not known, or not understood.
        """
        told = _parser().parse_args(shlex.split(pasted))
        return cls(_layers(told), _gc_every(told))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        """Raise instead of ending the process."""
        raise ValueError(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="pasted", allow_abbrev=False, add_help=False)
    parser.add_argument("--pipeline-model-parallel-layout")
    parser.add_argument("--decoder-first-pipeline-num-layers", type=int)
    parser.add_argument("--decoder-last-pipeline-num-layers", type=int)
    parser.add_argument("--manual-gc", action="store_true")
    parser.add_argument("--manual-gc-interval", type=int, default=0)
    parser.add_argument("--parallelism.module_fqns_per_model_part", dest="modules", nargs="+")
    parser.add_argument("--training.gc_freq", type=int, dest="gc_freq")
    return parser


def _layers(told: argparse.Namespace) -> tuple[int, ...] | None:
    if told.pipeline_model_parallel_layout is not None:
        return layers_of_layout(told.pipeline_model_parallel_layout)
    if told.modules is not None:
        return layers_of_modules([stage.split(",") for stage in told.modules])
    first, last = told.decoder_first_pipeline_num_layers, told.decoder_last_pipeline_num_layers
    return None if first is None or last is None else (first, last)


def _gc_every(told: argparse.Namespace) -> int | None:
    if told.gc_freq is not None:
        return int(told.gc_freq)
    return int(told.manual_gc_interval) if told.manual_gc else None


def layers_of_layout(layout: str) -> tuple[int, ...]:
    """Layers of each stage in a layout of Megatron-LM, such as `Et*4|t*2L`.

    Raises:
        ValueError: not a layout, or not one with the embedding first and the loss last.
    """
    stages = [_items(stage) for stage in layout.split("|")]
    whole = "".join(kind * number for stage in stages for kind, number in stage)
    if not re.fullmatch("Et+L", whole):
        raise ValueError(f"layout {layout!r}: E, then layers (t), then L")
    return tuple(sum(number for kind, number in stage if kind == "t") for stage in stages)


def _items(stage: str) -> list[tuple[str, int]]:
    items = _LAYOUT_ITEM.findall(stage)
    if "".join(kind + (number and f"*{number}") for kind, number in items) != stage:
        raise ValueError(f"stage {stage!r} of a layout: give letters E, t, L, each with *N or not")
    return [(kind, int(number or 1)) for kind, number in items]


def layers_of_modules(stages: Sequence[Sequence[str]]) -> tuple[int, ...]:
    """Layers of each stage in torchtitan's lists of module names.

    Raises:
        ValueError: the layers are not numbered from 0 in order.
    """
    names = [[each for each in stage if each.startswith("layers.")] for stage in stages]
    every = [each for stage in names for each in stage]
    if every != [f"layers.{number}" for number in range(len(every))]:
        raise ValueError(f"modules {every}: layers.0, layers.1 and so on, each once, in order")
    return tuple(len(stage) for stage in names)
