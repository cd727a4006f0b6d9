"""Stages: what a micro-batch takes on each, and the share of the loss that fixing it wins back."""

from collections.abc import Sequence
from typing import Any

from app import words
from app.charts.bars import Bar, bar_layout, bar_trace
from app.charts.figure import Along, Cell, Figure, Places, axis, label_width_px, layout, meta
from app.charts.stage_times import (
    SIDES,
    Compute,
    known,
    mean_ms,
    mean_text,
    ms,
    stage_means,
    stage_times,
    stage_values,
)
from app.charts.theme import SCALE_STOPS, Theme

# Where the two pictures of one row are, as shares of the width.
_TIMES, _SHARES = [0.0, 0.55], [0.66, 1.0]


def stages(
    stage_share: Sequence[float | None],
    *,
    theme: Theme,
    slowdown: float | None = None,
    compute: Compute | None = None,
) -> Figure:
    """Bars by stage; shares below 0 or above 100 % are shown as they are, with a note why.

    `compute` has the mean seconds of a micro-batch by stage, "forward" and "backward"; without it
    only the shares are drawn. Shares of next to nothing are grey: pass the job's `slowdown` to let
    the chart tell.
    """
    lost = theme.line2 if slowdown is not None and slowdown < SCALE_STOPS[1] else theme.lost
    bars = [
        Bar(f"stage {stage}", share, lost if (share or 0) > 0 else theme.line2)
        for stage, share in enumerate(stage_share)
    ]
    row_px = 30 if len(bars) <= 8 else 22
    told = meta(
        _sentence(stage_share),
        ["stage", "forward of a micro-batch", "backward of a micro-batch", "share won back"],
        [_row(stage, share, compute) for stage, share in enumerate(stage_share)],
        note=_note(stage_share),
    )
    told["places"] = Places(y=Along(what="stage", items=list(range(len(bars)))))
    if compute is None or not known(compute):
        frame = bar_layout(bars, theme, row_px=row_px, full_share=1.0)
        return Figure(data=[bar_trace(bars, theme)], layout=frame, meta=told)
    return Figure(
        data=[*stage_times(compute, theme), *stage_means(compute, theme), _shares(bars, theme)],
        layout=_layout(bars, compute, theme, row_px=row_px + 10),
        meta=told,
    )


def best_stage(stage_share: Sequence[float | None]) -> int | None:
    """The stage whose repair wins back most, or None when no share is measured."""
    measured = [stage for stage, share in enumerate(stage_share) if share is not None]
    return max(measured, key=lambda stage: stage_share[stage] or 0.0, default=None)


def stage_name(stage: int, pp_size: int) -> str:
    """A stage in words; the first and last ones have work of their own, so they are named."""
    if stage == pp_size - 1:
        return f"stage {stage}, the last stage,"
    return f"stage {stage}, the first stage," if stage == 0 else f"stage {stage}"


def _shares(bars: Sequence[Bar], theme: Theme) -> dict[str, Any]:
    trace = bar_trace(bars, theme)
    return {**trace, "xaxis": "x2", "width": 0.5, "textfont": {"size": 11, "color": theme.ink}}


def _layout(bars: Sequence[Bar], compute: Compute, theme: Theme, *, row_px: int) -> dict[str, Any]:
    labels = [f"{bar.label} " for bar in bars]
    longest = max(known(compute)) * 1e3
    shares = [bar.share or 0.0 for bar in bars]
    # Room at both sides of the bars for their values.
    low, high = min([0.0, *shares]), max([1.0, *shares])
    room = 0.7 * (high - low)
    return layout(
        theme,
        height_px=row_px * len(bars) + 56,
        left_px=label_width_px(labels),
        margin={"t": 24, "b": 24, "r": 8},
        barmode="overlay",
        xaxis=axis(
            theme,
            domain=_TIMES,
            range=[0, 1.06 * max([longest, *mean_ms(compute)])],
            nticks=4,
            showgrid=True,
            ticksuffix=" ms",
        ),
        xaxis2=axis(
            theme,
            domain=_SHARES,
            range=[low - (room if low < 0 else 0), high + room],
            showline=False,
            showticklabels=False,
            zeroline=True,
            zerolinecolor=theme.line2,
        ),
        yaxis=axis(
            theme,
            range=[len(bars) - 0.5, -0.5],
            tickvals=list(range(len(bars))),
            ticktext=labels,
            tickfont={"size": 12, "color": theme.ink2},
        ),
        annotations=[
            *stage_values(compute, theme),
            _above("x domain", mean_text(compute), theme.ok),
            _above("x2 domain", "won back", theme.ink2),
        ],
    )


def _above(xref: str, text: str, colour: str) -> dict[str, Any]:
    return {
        "xref": xref,
        "x": 0,
        "xanchor": "left",
        "yref": "paper",
        "y": 1,
        "yanchor": "bottom",
        "text": text,
        "showarrow": False,
        "font": {"size": 11, "color": colour},
    }


def _row(stage: int, share: float | None, compute: Compute | None) -> list[Cell]:
    times = [ms(compute[side][stage] if compute else None) for side in SIDES]
    return [stage, *times, _share(share)]


def _sentence(stage_share: Sequence[float | None]) -> str:
    best = best_stage(stage_share)
    if best is None:
        return "The stages' shares are not measured: there is no loss to win back."
    share = stage_share[best] or 0.0
    return (
        f"Fixing {stage_name(best, len(stage_share))} alone wins back "
        f"{words.percent(share)} of the loss."
    )


def _note(stage_share: Sequence[float | None]) -> str:
    known = [share for share in stage_share if share is not None]
    if max(known, default=0.0) > 1:
        return (
            "A share above 100 %: the ideal spreads that stage's extra work evenly over all "
            "stages, so the others get longer, which is their negative share."
        )
    if min(known, default=0.0) < -0.005:
        return "A share below 0: with its ideal times this stage would take longer than it does."
    return ""


def _share(share: float | None) -> str:
    return words.NOT_MEASURED if share is None else words.percent(share)
