"""A simulated pipeline in which every operation ends with its peers."""

from collections.abc import Callable

from app.trace.window import Window
from tests.window_factory import Row, window

TICK_S = 1e-3
TRANSFER_S = 2e-3


def simulated_pipeline(
    dp_size: int,
    pp_size: int,
    *,
    num_steps: int,
    microbatches: Callable[[int], int] = lambda _: 6,
    with_collectives: bool = True,
) -> Window:
    """GPipe: all forwards, all backwards, gradients; computations of different lengths."""
    rows: list[Row] = []
    for step in range(num_steps):
        ended_s: dict[tuple[int, int], float] = {}
        for dp_rank in range(dp_size):
            mine, ended = _replica(dp_rank, pp_size, microbatches(step))
            rows += [row.on(step=step) for row in mine]
            ended_s |= {(dp_rank, stage): at_s for stage, at_s in enumerate(ended)}
        rows += [row.on(step=step) for row in _end_of_step(ended_s, with_collectives)]
    return window(rows, dp_size=dp_size, pp_size=pp_size)


def _replica(dp_rank: int, pp_size: int, num_microbatches: int) -> tuple[list[Row], list[float]]:
    """Its operations, and when each stage is done with them."""
    rows: list[Row] = []
    free_s = [0.0] * pp_size
    for direction, factor in (("forward", 1), ("backward", 2)):
        stages = list(range(pp_size))[:: 1 if direction == "forward" else -1]
        for microbatch in range(num_microbatches):
            came_s = ready_s = 0.0
            for at, stage in enumerate(stages):
                about = {"dp_rank": dp_rank, "stage": stage, "mc": 0, "mb_id": microbatch}
                if at:
                    posted_s = free_s[stage]
                    came_s = max(came_s, posted_s) + TRANSFER_S
                    sent = {**about, "stage": stages[at - 1]}
                    rows.append(Row(f"{direction}-send", ready_s, came_s - ready_s, **sent))
                    rows.append(Row(f"{direction}-recv", posted_s, came_s - posted_s, **about))
                took_s = factor * TICK_S * (10 + (3 * stage + 5 * microbatch + 7 * dp_rank) % 4)
                ready_s = max(came_s, free_s[stage]) + took_s
                rows.append(Row(f"{direction}-compute", ready_s - took_s, took_s, **about))
                came_s = free_s[stage] = ready_s
    return rows, free_s


def _end_of_step(ended_s: dict[tuple[int, int], float], with_collectives: bool) -> list[Row]:
    rows = []
    for (dp_rank, stage), at_s in ended_s.items():
        place = {"dp_rank": dp_rank, "stage": stage}
        if with_collectives:
            of_stage = [each for (_, p), each in ended_s.items() if p == stage]
            reduced_s = max(of_stage) + 3 * TRANSFER_S
            rows.append(Row("grads-reduce-scatter", at_s, reduced_s - at_s, mc=0, **place))
            clipped_s = max(ended_s.values()) + 4 * TRANSFER_S
            took_s = clipped_s - reduced_s
            rows.append(Row("optimizer-clip-main-grad", reduced_s, took_s, **place))
            at_s = clipped_s
        rows.append(Row("optimizer", at_s, 5 * TICK_S, **place))
    return rows
