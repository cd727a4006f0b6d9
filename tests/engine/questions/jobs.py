"""A job whose answers are known by heart."""

from tests.window_factory import Row, in_row, replicas


def two_stages(dp_size: int = 1, *, step: int = 0) -> list[Row]:
    """One micro-batch through two stages, 7.5 s.

    stage 0  forward 1 s, send                                      recv, backward 1 s, optimizer
    stage 1               recv 0.5 s, forward 2 s, backward 2 s, send 0.5 s, optimizer 0.5 s
    """
    first = [
        *in_row(("forward-compute", 1.0), ("forward-send", 0.5)),
        Row("backward-recv", 5.0, 1.0),
        *in_row(("backward-compute", 1.0), ("optimizer", 0.5), start_s=6.0),
    ]
    second = [
        Row("forward-recv", 0.0, 1.5, stage=1),
        *in_row(("forward-compute", 2.0), ("backward-compute", 2.0), start_s=1.5, stage=1),
        *in_row(("backward-send", 0.5), ("optimizer", 0.5), start_s=5.5, stage=1),
    ]
    rows = replicas([*first, *second], dp_size)
    return [row.on(step=step) for row in rows]
