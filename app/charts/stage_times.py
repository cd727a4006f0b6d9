"""What a micro-batch takes on each stage: bars, forward above backward, against their means."""

from collections.abc import Mapping, Sequence
from typing import Any

from app import words
from app.charts.theme import Theme

Compute = Mapping[str, Sequence[float | None]]

SIDES = ("forward", "backward")
_BAR_BAND = 0.34
# A bar this long, as a share of the longest, has room for its value inside on a phone.
_ROOM = 0.3


def known(compute: Compute) -> list[float]:
    """All times that are measured, seconds."""
    return [each for side in SIDES for each in compute[side] if each is not None]


def stage_times(compute: Compute, theme: Theme) -> list[dict[str, Any]]:
    """Forward above backward in each stage's row."""
    return [
        {
            "type": "bar",
            "orientation": "h",
            "name": side,
            "x": [0.0 if each is None else each * 1e3 for each in compute[side]],
            "y": [stage + offset for stage in range(len(compute[side]))],
            "width": _BAR_BAND,
            "marker": {"color": colour, "line": {"width": 0}},
            "text": [ms(each) for each in compute[side]],
            "textposition": "none",
            "customdata": list(range(len(compute[side]))),
            "hovertemplate": f"stage %{{customdata}}, {side}<br><b>%{{text}}</b> a micro-batch"
            "<extra></extra>",
        }
        for side, offset, colour in (
            ("forward", -_BAR_BAND / 2, theme.fwd),
            ("backward", _BAR_BAND / 2, theme.bwd),
        )
    ]


def stage_values(compute: Compute, theme: Theme) -> list[dict[str, Any]]:
    """Each bar's value: in it, or beside it where it is too short, past the mean if that is near.

    Annotations, as Plotly would turn or shrink a bar's own text, and draw the mean over it.
    """
    longest = 1e3 * max([*known(compute), *(each / 1e3 for each in mean_ms(compute))])
    notes = []
    for side, offset, on_it in (
        ("forward", -_BAR_BAND / 2, _on_forward(theme)),
        ("backward", _BAR_BAND / 2, "#FFFFFF"),
    ):
        mean_s = _mean(compute[side]) or 0.0
        for stage, each in enumerate(compute[side]):
            x_ms, is_inside = _value_at(1e3 * (each or 0.0), 1e3 * mean_s, _ROOM * longest)
            notes.append(
                {
                    "x": x_ms,
                    "xanchor": "left",
                    "xshift": 2,
                    "y": stage + offset,
                    "text": ms(each),
                    "showarrow": False,
                    "font": {"size": 11, "color": on_it if is_inside else theme.ink},
                }
            )
    return notes


def _value_at(bar_ms: float, mean_ms: float, room_ms: float) -> tuple[float, bool]:
    """Where a value that needs so much room begins, and whether that is on its bar."""
    if bar_ms >= room_ms and mean_ms >= room_ms:
        return 0.0, True
    if bar_ms >= mean_ms + room_ms:
        return mean_ms, True
    return (mean_ms if bar_ms <= mean_ms < bar_ms + room_ms else bar_ms), False


def _on_forward(theme: Theme) -> str:
    return "#0D0F12" if theme.name == "dark" else "#FFFFFF"


def stage_means(compute: Compute, theme: Theme) -> list[dict[str, Any]]:
    """A line across each bar where the mean over stages is."""
    traces = []
    for side, offset in (("forward", -_BAR_BAND / 2), ("backward", _BAR_BAND / 2)):
        mean_s = _mean(compute[side])
        if mean_s is None:
            continue
        x: list[float | None] = []
        y: list[float | None] = []
        for stage in range(len(compute[side])):
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
    known = [each for each in values if each is not None]
    return sum(known) / len(known) if known else None


def mean_ms(compute: Compute) -> list[float]:
    """Means over the stages of forward and backward, as far as they are measured."""
    means = (_mean(compute[side]) for side in SIDES)
    return [each * 1e3 for each in means if each is not None]


def mean_text(compute: Compute) -> str:
    """The same in words."""
    means = (_mean(compute[side]) for side in SIDES)
    return f"means {' and '.join(ms(mean) for mean in means if mean is not None)}"


def ms(value_s: float | None) -> str:
    """A time in words."""
    return words.NOT_MEASURED if value_s is None else words.seconds(value_s)
