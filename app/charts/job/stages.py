"""Stages: the time of a micro-batch on each, and the share of the loss that fixing it wins back.

Bars of forward times are above those of backward times, against their means over the stages.
"""

from collections.abc import Sequence

from app import formatting
from app.charts.base.bars import Bar, bar_layout, bar_trace
from app.charts.base.figure import (
    AxisItems,
    Cell,
    ItemsByAxis,
    PlotlyFigure,
    axis,
    label_width_px,
    layout,
    meta,
    row_axis,
)
from app.charts.base.plotly import PlotlyAnnotation, PlotlyLayout, PlotlyTrace, text_at
from app.charts.base.theme import SCALE_STOPS, Theme
from app.result.window_result import StageCompute

_BAR_BAND = 0.34
# A bar this long, as a share of the longest, has room for its value inside on a phone.
_MIN_ROOM_INSIDE = 0.3


def measured_times_s(compute: StageCompute) -> list[float]:
    """All times that are measured, seconds."""
    return [time_s for time_s in (*compute.forward, *compute.backward) if time_s is not None]


def stage_times(compute: StageCompute, theme: Theme) -> list[PlotlyTrace]:
    """Forward above backward in each stage's row."""
    return [
        {
            "type": "bar",
            "orientation": "h",
            "name": side,
            "x": [(time_s or 0.0) * 1e3 for time_s in times_s],
            "y": [stage + offset for stage in range(len(times_s))],
            "width": _BAR_BAND,
            "marker": {"color": colour, "line": {"width": 0}},
            "text": [_time(time_s) for time_s in times_s],
            "textposition": "none",
            "customdata": list(range(len(times_s))),
            "hovertemplate": f"stage %{{customdata}}, {side}<br><b>%{{text}}</b> a micro-batch"
            "<extra></extra>",
        }
        for side, times_s, offset, colour in _sides(compute, theme)
    ]


def _sides(
    compute: StageCompute, theme: Theme
) -> list[tuple[str, Sequence[float | None], float, str]]:
    """Forward and backward, with where their bars are in a stage's row, and their colours."""
    return [
        ("forward", compute.forward, -_BAR_BAND / 2, theme.fwd),
        ("backward", compute.backward, _BAR_BAND / 2, theme.bwd),
    ]


def stage_values(compute: StageCompute, theme: Theme) -> list[PlotlyAnnotation]:
    """Each bar's value: in it, or beside it where it is too short, past the mean if that is near.

    Annotations, as Plotly would turn or shrink a bar's own text, and draw the mean over it.
    """
    room_ms = _MIN_ROOM_INSIDE * (1e3 * max(*measured_times_s(compute), *_means_s(compute)))
    notes: list[PlotlyAnnotation] = []
    for side, times_s, offset, _ in _sides(compute, theme):
        on_it = theme.on_fwd if side == "forward" else "#FFFFFF"
        mean_ms = 1e3 * (_mean(times_s) or 0.0)
        for stage, time_s in enumerate(times_s):
            x_ms, is_inside = _value_at(1e3 * (time_s or 0.0), mean_ms, room_ms)
            colour = on_it if is_inside else theme.ink
            place: PlotlyAnnotation = {"x": x_ms, "xanchor": "left", "xshift": 2}
            notes.append(text_at(place | {"y": stage + offset}, _time(time_s), colour))
    return notes


def _value_at(bar_ms: float, mean_ms: float, room_ms: float) -> tuple[float, bool]:
    """Where a value that needs so much room begins, and whether that is on its bar."""
    if bar_ms >= room_ms and mean_ms >= room_ms:
        return 0.0, True
    if bar_ms >= mean_ms + room_ms:
        return mean_ms, True
    return (mean_ms if bar_ms <= mean_ms < bar_ms + room_ms else bar_ms), False


def stage_means(compute: StageCompute, theme: Theme) -> list[PlotlyTrace]:
    """A line across each bar where the mean over stages is."""
    traces: list[PlotlyTrace] = []
    for side, times_s, offset, _ in _sides(compute, theme):
        mean_s = _mean(times_s)
        if mean_s is None:
            continue
        x: list[float | None] = []
        y: list[float | None] = []
        for stage in range(len(times_s)):
            x += [mean_s * 1e3, mean_s * 1e3, None]
            y += [stage + offset - _BAR_BAND / 2, stage + offset + _BAR_BAND / 2, None]
        # A halo under it, so that it is seen on a bar too.
        traces += [
            {
                "type": "scatter",
                "mode": "lines",
                "name": f"mean {side}",
                "x": x[:-1],
                "y": y[:-1],
                "line": {"color": colour, "width": width_px},
                "hoverinfo": "skip",
            }
            for colour, width_px in ((theme.surface, 5), (theme.ok, 2))
        ]
    return traces


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _means_s(compute: StageCompute) -> list[float]:
    """Means over the stages of forward and backward, as far as they are measured."""
    means = (_mean(times_s) for times_s in (compute.forward, compute.backward))
    return [mean_s for mean_s in means if mean_s is not None]


def _time(value_s: float | None) -> str:
    return formatting.measured(value_s, formatting.seconds)


# Where the two pictures of one row are, as shares of the width.
_TIMES_DOMAIN, _SHARES_DOMAIN = [0.0, 0.55], [0.66, 1.0]


def stages(
    stage_share: Sequence[float | None],
    *,
    theme: Theme,
    slowdown: float | None = None,
    compute: StageCompute | None = None,
) -> PlotlyFigure:
    """Bars by stage; shares below 0 or above 100 % are shown as they are, with a note why.

    Without `compute` only the shares are drawn. Shares of next to nothing are grey: pass the job's
    `slowdown` to let the chart tell.
    """
    lost = theme.line2 if slowdown is not None and slowdown < SCALE_STOPS[1] else theme.lost
    bars = [
        Bar(f"stage {stage}", share, lost if (share or 0) > 0 else theme.line2)
        for stage, share in enumerate(stage_share)
    ]
    row_px = 30 if len(bars) <= 8 else 22
    figure_meta = meta(
        _sentence(stage_share),
        ["stage", "forward of a micro-batch", "backward of a micro-batch", "share won back"],
        [_row(stage, share, compute) for stage, share in enumerate(stage_share)],
        note=_note(stage_share),
        places=ItemsByAxis(y=AxisItems(what="stage", items=list(range(len(bars))))),
    )
    if compute is None or not measured_times_s(compute):
        frame = bar_layout(bars, theme, row_px=row_px, full_share=1.0)
        return PlotlyFigure(data=[bar_trace(bars, theme)], layout=frame, meta=figure_meta)
    shares = bar_trace(bars, theme)
    shares |= {"xaxis": "x2", "width": 0.5, "textfont": {"size": 11, "color": theme.ink}}
    return PlotlyFigure(
        data=[*stage_times(compute, theme), *stage_means(compute, theme), shares],
        layout=_layout(bars, compute, theme, row_px=row_px + 10),
        meta=figure_meta,
    )


def _stage_name(stage: int, pp_size: int) -> str:
    """Name of a stage; the first and last are marked, as they have work of their own."""
    if stage == pp_size - 1:
        return f"stage {stage}, the last stage,"
    return f"stage {stage}, the first stage," if stage == 0 else f"stage {stage}"


def _layout(
    bars: Sequence[Bar], compute: StageCompute, theme: Theme, *, row_px: int
) -> PlotlyLayout:
    labels = [f"{bar.label} " for bar in bars]
    longest_s = max(*measured_times_s(compute), *_means_s(compute))
    shares = [bar.share or 0.0 for bar in bars]
    # Room at both sides of the bars for their values.
    low, high = min([0.0, *shares]), max([1.0, *shares])
    room = 0.7 * (high - low)
    means = " and ".join(map(_time, _means_s(compute)))
    return layout(
        theme,
        height_px=row_px * len(bars) + 56,
        left_px=label_width_px(labels),
        margin={"t": 24, "b": 24, "r": 8},
        barmode="overlay",
        xaxis=axis(
            theme,
            domain=_TIMES_DOMAIN,
            range=[0, 1.06 * (longest_s * 1e3)],
            nticks=4,
            showgrid=True,
            ticksuffix=" ms",
        ),
        xaxis2=axis(
            theme,
            domain=_SHARES_DOMAIN,
            range=[low - (room if low < 0 else 0), high + room],
            showline=False,
            showticklabels=False,
            zeroline=True,
            zerolinecolor=theme.line2,
        ),
        yaxis=row_axis(labels, theme) | {"tickfont": {"size": 12, "color": theme.ink2}},
        annotations=[
            *stage_values(compute, theme),
            _header("x domain", f"means {means}", theme.ok),
            _header("x2 domain", "won back", theme.ink2),
        ],
    )


def _header(xref: str, text: str, colour: str) -> PlotlyAnnotation:
    left: PlotlyAnnotation = {"xref": xref, "x": 0, "xanchor": "left"}
    return text_at(left | {"yref": "paper", "y": 1, "yanchor": "bottom"}, text, colour)


def _row(stage: int, share: float | None, compute: StageCompute | None) -> list[Cell]:
    times_s = (compute.forward[stage], compute.backward[stage]) if compute else (None, None)
    return [stage, *map(_time, times_s), formatting.measured(share, formatting.percent)]


def _sentence(stage_share: Sequence[float | None]) -> str:
    measured = [stage for stage, share in enumerate(stage_share) if share is not None]
    if not measured:
        return "The stages' shares are not measured: there is no loss to win back."
    best = max(measured, key=lambda stage: stage_share[stage] or 0.0)
    share = formatting.percent(stage_share[best] or 0.0)
    return f"Fixing {_stage_name(best, len(stage_share))} alone wins back {share} of the loss."


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
