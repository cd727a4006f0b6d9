"""How long each stage neither computes nor moves data."""

from collections.abc import Sequence

from app import words
from app.charts.bars import Bar, bar_layout, bar_trace
from app.charts.figure import Figure, meta
from app.charts.theme import Theme

_HATCH = {"shape": "/", "size": 6, "solidity": 0.22, "fillmode": "replace"}


def waiting(share: Sequence[float], length_s: float, dp_rank: int, *, theme: Theme) -> Figure:
    """Hatched bars by stage: the share of a step that one replica's workers wait."""
    bars = [Bar(f"stage {stage}", part, theme.wait) for stage, part in enumerate(share)]
    ground = "rgba(0,0,0,0)"
    marker = {
        "color": ground,
        "pattern": _HATCH | {"fgcolor": theme.wait, "bgcolor": ground},
        "line": {"width": 1, "color": theme.wait},
    }
    hover = "%{customdata} waits<br><b>%{text}</b> of the step<extra></extra>"
    row_px = 44 if len(bars) <= 5 else 30 if len(bars) <= 8 else 22
    return Figure(
        data=[bar_trace(bars, theme) | {"marker": marker, "hovertemplate": hover}],
        layout=bar_layout(bars, theme, row_px=row_px, full_share=0.6),
        meta=meta(
            _sentence(share, dp_rank),
            ["stage", "share of the step", "time"],
            [
                [stage, words.percent(part), words.seconds(part * length_s)]
                for stage, part in enumerate(share)
            ],
        ),
    )


def _sentence(share: Sequence[float], dp_rank: int) -> str:
    least = min(range(len(share)), key=lambda stage: share[stage])
    if len(share) == 1:
        return f"The worker of dp {dp_rank} waits {words.percent(share[0])} of the step."
    return (
        f"On dp {dp_rank}, stage {least} waits least, {words.percent(share[least])} of the step, "
        f"and the others up to {words.percent(max(share))}."
    )
