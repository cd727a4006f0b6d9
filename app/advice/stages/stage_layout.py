"""Layers of each pipeline stage as Megatron-LM and torchtitan take them.

With several model chunks on a stage, numbers are those of the virtual stages in model order: chunk
0 of every stage, then chunk 1 of every stage, and so on.
"""

from collections.abc import Sequence

import numpy as np

from app.advice.fix import Paste


def megatron_layout(layers: Sequence[int]) -> str:
    """Megatron-LM's layout string, such as `Et*10|t*10|t*10|t*6L`."""
    stages = ["" if not number else "t" if number == 1 else f"t*{number}" for number in layers]
    stages[0] = f"E{stages[0]}"
    stages[-1] = f"{stages[-1]}L"
    return "|".join(stages)


def split_in_words(layers: Sequence[int], pp_size: int) -> str:
    """`10/10/10/6`; chunks apart: `3/2 | 2/1` are two chunks on two stages."""
    chunks = [layers[first : first + pp_size] for first in range(0, len(layers), pp_size)]
    return " | ".join("/".join(map(str, chunk)) for chunk in chunks)


def pastes(layers: Sequence[int], pp_size: int) -> tuple[Paste, ...]:
    """The layout for Megatron-LM and torchtitan."""
    found = [
        Paste(
            "Megatron-LM (instead of all other options on layers of stages)",
            f'--pipeline-model-parallel-layout "{megatron_layout(layers)}"',
        ),
    ]
    has_flags = len(layers) == pp_size > 2 and len({*layers[1:-1]}) == 1
    if has_flags and layers[0] and layers[-1]:
        found.append(
            Paste(
                "Megatron-LM, without a layout (and without --account-for-... options)",
                f"--decoder-first-pipeline-num-layers {layers[0]} "
                f"--decoder-last-pipeline-num-layers {layers[-1]}",
            )
        )
    found.append(
        Paste(
            "torchtitan (modules of its Llama; other models have other names)",
            f"--parallelism.module_fqns_per_model_part {_torchtitan_modules(layers)}",
        )
    )
    return tuple(found)


def _torchtitan_modules(layers: Sequence[int]) -> str:
    """Spaces between stages, commas between the modules of one: how its parser reads lists."""
    return " ".join(",".join(stage) for stage in _module_names(layers))


def _module_names(layers: Sequence[int]) -> list[list[str]]:
    ends = np.cumsum(layers).tolist()
    found = [
        [f"layers.{layer}" for layer in range(end - number, end)]
        for end, number in zip(ends, layers, strict=True)
    ]
    found[0].insert(0, "tok_embeddings")
    found[-1] += ["norm", "output"]
    return found
